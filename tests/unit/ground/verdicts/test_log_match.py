"""`megatrix match` finds each failure in logs of its examples, and none in logs that only look like it."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.cli.match import render
from matrix.ground.catalog.failure import Failure, Signature
from matrix.ground.catalog.kinds import kind_table
from matrix.ground.catalog.schema import literals
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.lines import LINE, Excerpts, Triggers, decoded, texts, unpacked
from matrix.ground.verdicts.log_match import Reading, Sighting, match
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.signature_match import is_at, matched, shows
from matrix.ground.verdicts.tracebacks import HEADER
from matrix.prove.authoring.examples import LOOK_ALIKES, SHOWS
from matrix.prove.authoring.examples import read as outcome
from matrix.show.known import where
from tests.founding import MASK
from tests.profiles import tries
from tests.unit.catalogs import catalog, failure, real
from tests.unit.logs import (
    BEFORE,
    CAUSE,
    NCCL,
    PEER,
    SUMMARY,
    error_message,
    examples,
    failure_of,
    is_in_the_log,
    log_of,
    name,
    printed,
    printed_by_pytest,
    printed_by_rich,
    summary,
)
from tests.unit.terminals import piped

STACK = "INFO:megatron.core:using world size: 2\n"  # evidence of the stack, which any log of a job has
KILLED = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.\n"
IN_A_TTS = f'{HEADER}\n  File "/x/TTS/bin/train_tts.py", line 9, in main\n    next(loader)\n'
DIST = "/site-packages/torch/distributed/distributed_c10d.py:2219"


def entry(path: Path) -> Failure:
    return failure_of(path, real().failures)


def signature(path: Path) -> Signature:
    """The signature that an example shows."""
    found = matched(entry(path), outcome(path))
    assert found is not None
    return found


IN_LOGS = [path for path in examples(SHOWS) if not signature(path).own]


def read(text: str) -> Reading:
    return match([text], real().failures)


def ids(text: str) -> list[str]:
    return [one.failure.id for one in read(text).known]


def form(path: Path) -> tuple[object, ...]:
    """What the reading of a log depends on: the keys of the signature, and the lines that show it."""
    mark, chain = signature(path), outcome(path).chain
    keys = {key for key, value in vars(mark).items() if key not in ("name", "own", "any_program") and value is not None}
    shown = next((one for one in chain if shows(Outcome(OutcomeKind.RAISED, chain=(one,)), mark)), None)
    if shown is None:
        return frozenset(keys), mark.any_program
    lines = ("\n" in shown.message, HEADER in shown.message, bool(shown.frames), len(chain) > 1)
    return frozenset(keys), mark.any_program, lines, bool(ids(error_message(shown) + "\n"))


# Examples of failures that logs can show: the first of each failure, then one failure of each form. Two tests judge
# every example. The others are about the reader, for which two failures of one form are the same.
EACH: dict[str, Path] = {entry(path).id: path for path in reversed(IN_LOGS)}
FIRST: dict[str, Path] = {entry(path).id: path for path in {form(path): path for path in EACH.values()}.values()}
LOGS: dict[str, str] = {id: log_of(outcome(path)) for id, path in sorted(FIRST.items())}
RAISED = [id for id in LOGS if outcome(FIRST[id]).chain]  # a traceback, which ranks may write with other lines between
CRASH, CRASH_ID = next(  # Open MPI's printer
    (log_of(outcome(path)), entry(path).id)
    for path in IN_LOGS
    if signature(path).stack and "*** Process received signal" in outcome(path).evidence
)


def all_lines(chunks: Iterable[str]) -> list[tuple[int, str]]:
    return list(Excerpts(chunks, Triggers([""])))


@pytest.mark.parametrize("path", IN_LOGS, ids=name)
def test_a_log_shows_its_failure_and_no_other(path: Path) -> None:
    seen = outcome(path)
    assert [entry(path).id] == ids(log_of(seen) + summary(seen.exit_code))


@pytest.mark.parametrize("path", [path for path in examples(LOOK_ALIKES) if is_in_the_log(outcome(path))], ids=name)
def test_a_look_alike_does_not_show_the_failure(path: Path) -> None:
    assert entry(path).id not in ids(log_of(outcome(path)) + SUMMARY)


@pytest.mark.parametrize("path", [path for path in examples(SHOWS) if signature(path).own], ids=name)
def test_own_exception_of_project_is_left_out(path: Path) -> None:
    """No log of a training has it."""
    assert ids(log_of(outcome(path))) == []


def test_an_own_signature_is_left_out() -> None:
    text = STACK + 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nTypeError: this broke\n'
    for own, found in ((False, ["this"]), (True, [])):
        mark = Signature("broke", exception="TypeError", message="this broke", own=own)  # type: ignore[arg-type]
        entries = catalog(failure("this", signature=(mark,))).failures
        assert [one.failure.id for one in match([text], entries).known] == found


def test_two_own_keys_make_a_failure_certain() -> None:
    """With one alone, or with other causes that show the same, the failure is likely."""
    marks = {id: read(log).known[0].signature for id, log in LOGS.items()}
    certain = {id: mark.keys > 1 and not mark.shared for id, mark in marks.items()}
    assert {id: [one.certain for one in read(log).known] for id, log in LOGS.items()} == {
        id: [expected] for id, expected in certain.items()
    }
    assert set(certain.values()) == {True, False}


@pytest.mark.parametrize("id", LOGS)
def test_json_has_line_versions_and_workarounds(id: str) -> None:
    log = LOGS[id]
    (seen,) = read(log).known
    (answer,) = [one.to_json() for one in read(log).known]

    assert log.split("\n")[seen.fault.line - 1].strip()
    assert {"failure", "confidence", "line", "workarounds"} <= answer.keys()
    assert answer["line"] == seen.fault.line
    assert [one.text for one in real().failure(id).workarounds] == [one["text"] for one in answer["workarounds"]]
    printed = piped(*render(read(log)))
    assert all(f"breaks with: {where(rule)}" in " ".join(printed.split()) for rule in real().failure(id).affected)


def raised(id: str) -> Raised:
    """The exception, of an example's chain, that shows the failure."""
    mark = signature(FIRST[id])
    return next(one for one in outcome(FIRST[id]).chain if shows(Outcome(OutcomeKind.RAISED, chain=(one,)), mark))


@pytest.mark.parametrize("id", RAISED)
def test_the_line_is_the_one_of_the_exception(id: str) -> None:
    (seen,) = read(LOGS[id]).known
    assert LOGS[id].split("\n")[seen.fault.line - 1] == error_message(raised(id)).split("\n")[0]


@pytest.mark.parametrize("id", RAISED)
def test_consequences_of_a_failure_are_not_causes(id: str) -> None:
    """The consequences are a peer's closed connection and torchrun's summary."""
    reading = read(LOGS[id] + PEER + SUMMARY)

    assert [one.failure.id for one in reading.known] == [id]
    assert reading.unknown == ()
    assert any("Connection closed by peer" in fault.what for fault in reading.follows)
    assert any("ChildFailedError" in fault.what for fault in reading.follows)
    assert any("closing signal SIGTERM" in fault.what for fault in reading.follows)


@pytest.mark.parametrize("id", RAISED)
def test_nccl_s_last_error_shows_a_lost_peer(id: str) -> None:
    """torch reports an internal error; only the fourth line has the cause (NCCL 2.14 with torch 2.0)."""
    lost = "socketProgress: Connection closed by remote peer node2<50260>"
    reading = read(LOGS[id] + NCCL.format("internal error", "ncclInternalError: Internal check failed.", lost))

    assert [one.failure.id for one in reading.known] == [id]
    assert reading.unknown == ()
    assert any("Connection closed by remote peer" in fault.what for fault in reading.follows)


def test_nccl_last_error_is_in_unknown_failure() -> None:
    twice = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 901000"
    usage = "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."
    (fault,) = read(NCCL.format("invalid usage", usage, twice) + "iteration 11/ 500000\n").unknown
    assert fault.what.partition("NCCL version 2.20.5 ")[2] == f"{usage} Last error: {twice} (in all_reduce, {DIST})"
    assert fault.line == 4


def test_missing_state_dict_keys_follow_their_error() -> None:
    """torch writes each key on a line of its own, after a tab; other lines are not part of the message."""
    log = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
        'RuntimeError: Error(s) in loading state_dict for GPTModel:\n\tMissing key(s) in state_dict: "_extra_state". \n'
        "\tsize mismatch for b: copying a param.\n    saving\n"
    )
    (fault,) = read(log).unknown
    assert '_extra_state". \tsize mismatch for b: copying a param. (in f, a.py:1)' in fault.what


@pytest.mark.parametrize("end", ["NCCL version 2.20.5", "Last error:"])
def test_exception_at_end_of_truncated_log_counts(end: str) -> None:
    log = NCCL.format("invalid usage", "ncclInvalidUsage: This is.", "")
    (fault,) = read(log[: log.index(end) + len(end)]).unknown
    assert fault.what.startswith("DistBackendError: NCCL error in: ../NCCLUtils.hpp:275, invalid usage")


def test_an_unknown_cause_is_reported_as_unknown() -> None:
    unknown = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'loss'\n"
    reading = read(PEER + unknown + CAUSE + unknown.replace("KeyError", "RuntimeError") + SUMMARY)

    assert [fault.what for fault in reading.unknown] == ["KeyError: 'loss' (in f, a.py:1)"]
    assert "nothing that the catalog knows is in the" in piped(*render(reading))


@pytest.mark.parametrize("id", RAISED)
def test_wrapper_of_known_failure_is_not_unknown(id: str) -> None:
    assert read(LOGS[id] + SUMMARY).unknown == ()


def one_exception(id: str) -> Raised:
    """The exception that shows the failure, with its own text alone: no cause quoted in its message."""
    shown = raised(id)
    return replace(shown, message=shown.message.partition(HEADER)[0].rstrip())


def same_message(id: str) -> set[str]:
    """Return the other failures that raise the same, different in their frames: the last line alone shows each."""
    texts = {(one.exception, one.message) for one in entry(FIRST[id]).signature if one.message}
    return {
        str(other.id)
        for other in real().failures
        if str(other.id) != id and texts & {(one.exception, one.message) for one in other.signature}
    }


@pytest.mark.parametrize("id", RAISED)
def test_last_line_alone_is_likely_at_most(id: str) -> None:
    """It may be a quote; without a text of its own, or with one that any program raises, it shows nothing."""
    mark = signature(FIRST[id])
    exception = one_exception(id)
    found = read(STACK + error_message(exception) + "\n")
    quotes_its_cause = exception.message != raised(id).message
    expected = [] if quotes_its_cause else [(id, False, "the traceback")]
    shown_by_it = [
        (one.failure.id, one.certain, one.lacks)
        for one in found.known
        if one.certain or one.failure.id not in same_message(id)
    ]
    by_text = [one.log for one in entry(FIRST[id]).signature if one.log]  # another signature, searched in any line
    assert (
        shown_by_it == expected or (mark.place and shown_by_it == []) or (by_text and shown_by_it == [(id, False, "")])
    )
    inside = read(f"{STACK}see {error_message(exception)}\n> {error_message(exception)}\n")
    assert inside.known == () or by_text


@pytest.mark.parametrize("id", RAISED)
def test_last_line_behind_a_prefix_is_likely(id: str) -> None:
    line = error_message(one_exception(id)).split("\n")[0]
    for prefix in ("[rank3]: ", "pod-7 trainer | ", "Jul 04 08:02:29 node17 slurmd[4711]: "):
        assert ids(f"{prefix}{line}\n") == ids(f"{line}\n")


@pytest.mark.parametrize(
    ("before", "traceback", "after", "shown"),
    [
        ("", "", "", []),
        ("", IN_A_TTS, "", []),
        ("", IN_A_TTS, "torch/distributed/run.py:779] Setting OMP_NUM_THREADS\n", []),
        (STACK, IN_A_TTS, "", [MASK]),
        (STACK, "x\n" * 1_000_000, "", [MASK]),
        ("", IN_A_TTS, "srun python train.py --seq-length 131072\n", [MASK]),
        ("", IN_A_TTS.replace("TTS/bin/train_tts", "megatron/training/training"), "", [MASK]),
    ],
)
def test_message_of_any_program_needs_the_stack(before: str, traceback: str, after: str, shown: list[str]) -> None:
    """Without a frame, module, option or package of it, the failure is similar, and the error is unknown."""
    reading = read(before + traceback + KILLED + after)
    assert [(one.failure.id, one.certain) for one in reading.known] == [(id, False) for id in shown]
    assert [one.failure.id for one in reading.similar] == [id for id in (MASK,) if id not in shown]
    assert [KILLED.strip() in fault.what for fault in reading.unknown] == [True] * (not shown)
    assert all("another program may print this" in one.differs for one in reading.similar)


@pytest.mark.parametrize("any_program", [False, True])
@pytest.mark.parametrize(
    ("key", "line"),
    [("log", "driver 4711 is too old for this container\n"), ("message", "RuntimeError: driver 4711 is too old\n")],
)
def test_same_failure_in_any_program_is_likely(key: str, line: str, *, any_program: bool) -> None:
    mark = Signature("driver", any_program=any_program, **{key: r"driver \d+ is too old"})  # type: ignore[arg-type]
    reading = match([line], [replace(real().failure(MASK), signature=(mark,))])
    assert [(one.failure.id, one.certain) for one in reading.known] == [(MASK, False)] * any_program
    assert [one.failure.id for one in reading.similar] == [MASK] * (not any_program)


def test_end_of_a_cut_message_needs_the_stack() -> None:
    cut = KILLED.partition(" Killed")[0]
    assert ids(IN_A_TTS + cut) == []
    assert ids(STACK + IN_A_TTS + cut) == [MASK]


def test_crash_of_any_program_needs_the_stack() -> None:
    """Any program of MPI dies there; the crash is then unknown, and the failure similar."""
    path = next(path for path in IN_LOGS if signature(path).stack == "PMPI_Group_incl")
    reading = read(log_of(outcome(path)).removeprefix(BEFORE))
    assert reading.known == ()
    assert [one.failure.id for one in reading.similar] == [entry(path).id]
    assert ["SIGSEGV" in fault.what for fault in reading.unknown] == [True]
    assert ids(log_of(outcome(path))) == [entry(path).id]


@pytest.mark.parametrize("style", ["python", "alone"])
def test_suggestion_of_python_is_no_difference(style: str) -> None:
    """Python 3.10 and later append it."""
    mark = Signature("product", exception="AttributeError", message="^module 'numpy' has no attribute 'product'$")  # type: ignore[arg-type]
    entries = catalog(failure("product", signature=(mark,))).failures
    message = "module 'numpy' has no attribute 'product'. Did you mean: 'prod'?"
    log = f"AttributeError: {message}\n"
    log = log if style == "alone" else printed(Raised("AttributeError", message, (Frame("/a/b.py", 1, "f"),)))
    assert [one.failure.id for one in match([STACK + log], entries).known] == ["product"]


def test_a_traceback_is_stronger_than_its_last_line() -> None:
    for id in RAISED:
        line = error_message(one_exception(id)) + "\n"
        alone, both = read(LOGS[id]), read(line + LOGS[id] + line)
        assert [(one.certain, one.lacks) for one in both.known] == [(one.certain, one.lacks) for one in alone.known]


@pytest.mark.parametrize("id", RAISED)
def test_a_log_cut_by_tail_shows_the_failure(id: str) -> None:
    """The frame that the signature names, or the one that raised, and the exception are enough."""
    shown = raised(id)
    lines = log_of(Outcome(OutcomeKind.RAISED, chain=(shown,))).split("\n")
    first = next(number for number, line in enumerate(lines) if line == HEADER) + 1
    whole = read("\n".join(lines[first - 1 :])).known
    through = signature(FIRST[id]).through or ""
    last = max((at for at, frame in enumerate(shown.frames) if is_at(frame, through)), default=len(shown.frames) - 1)
    for start in range(first, first + 2 * last + 1):
        cut = read(STACK + "\n".join(lines[start:]))
        assert [(one.failure.id, one.certain) for one in cut.known] == [(one.failure.id, one.certain) for one in whole]


# A failure whose signature has a frame, and whose message names something of a package.
FRAMED = next(id for id in RAISED if signature(FIRST[id]).frame and read(f"{error_message(one_exception(id))}\n").known)


def test_a_printed_stack_is_no_cut_traceback() -> None:
    """logging's stack_info prints frames that no exception follows."""
    frames = "\n".join(printed(raised(FRAMED)).split("\n")[1:-2])
    log = f"Stack (most recent call last):\n{frames}\nsaving the checkpoint\n{error_message(raised(FRAMED))}\n"
    assert [one.lacks for one in read(log).known] == ["the traceback"]


@pytest.mark.parametrize("id", RAISED)
def test_a_message_cut_at_the_end_is_likely(id: str) -> None:
    message = signature(FIRST[id]).message or ""
    text = max(literals(message), key=len, default="")
    log = printed(one_exception(id))
    place = log.rfind(text) + len(text) * 2 // 3
    if len(text) * 2 // 3 < 16 or log.rfind(text) < 0 or "|" in message:  # of alternatives no text is required
        return
    cut = [(one.failure.id, one.certain, one.lacks) for one in read(BEFORE + log[:place]).known]
    assert (id, False, "the end of the message") in cut
    assert {lacks for _, _, lacks in cut} == {"the end of the message"}  # others may begin alike
    assert ids(BEFORE + log[:place] + "\n") == []  # not cut: another message


def test_a_cut_message_of_another_frame_shows_nothing() -> None:
    raised_elsewhere = Raised(
        "RuntimeError", "DefaultCPUAllocator: can't allocate memory: you", (Frame("/a.py", 1, "f"),)
    )
    assert ids(BEFORE + printed(raised_elsewhere).removesuffix("\n")) == []


def test_a_log_that_ends_within_a_traceback() -> None:
    """The exception is missing, so nothing is known; the frame is named, and what is raised there."""
    lines = printed(raised(FRAMED)).split("\n")[:-2]
    reading = read(BEFORE + "\n".join(lines))
    assert reading.known == ()
    assert f"the log ends within a traceback, in {raised(FRAMED).frames[-1].function}" in reading.unknown[0].what
    assert [one.failure.id for one in reading.similar] == [FRAMED]
    assert "errors in this log" in piped(*render(reading))


@pytest.mark.parametrize("id", RAISED)
@pytest.mark.parametrize("style", ["short", "long", "rich-100", "rich-80"])
def test_another_style_of_traceback_changes_nothing(id: str, style: str) -> None:
    shown = one_exception(id)
    shown = replace(shown, frames=shown.frames or (Frame("/a/train.py", 12, "train"),))
    in_python = read(BEFORE + printed(shown)).known
    log = (
        printed_by_rich(shown, int(style[5:])) if "rich" in style else printed_by_pytest(shown, short=style == "short")
    )
    found = read(BEFORE + log + "done\n")
    if style == "long" and any(frame.function == "<module>" for frame in shown.frames):
        in_python = tuple(
            one for one in in_python if not _named_by_a_module(one)
        )  # no `def` line names a module's code
    assert [(one.failure.id, one.certain) for one in found.known] == [
        (one.failure.id, one.certain) for one in in_python
    ]
    assert found.unknown == () or not in_python


def _named_by_a_module(known: Sighting) -> bool:
    return any((signature.through or "").endswith(":<module>") for signature in known.failure.signature)


@pytest.mark.parametrize(
    "path",
    {entry(path).id: path for path in examples(LOOK_ALIKES) if outcome(path).chain and entry(path).id in LOGS}.values(),
    ids=name,
)
@pytest.mark.parametrize("style", ["short", "long", "rich"])
def test_a_look_alike_in_another_style_shows_nothing(path: Path, style: str) -> None:
    for one in outcome(path).chain:
        if one.frames:
            log = printed_by_rich(one, 120) if style == "rich" else printed_by_pytest(one, short=style == "short")
            assert entry(path).id not in ids(log + "done\n")


@pytest.mark.parametrize("id", LOGS)
def test_a_log_in_json_lines_shows_the_failure(id: str) -> None:
    log = LOGS[id]
    whole = json.dumps({"level": "error", "message": log, "rank": 0})
    pretty = f'level=error msg="{json.dumps(log)[1:-1]}" rank=0'
    docker = "\n".join(json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in log.split("\n"))
    expected = [(one.failure.id, one.certain) for one in read(log).known]
    for text in (whole, docker, *([pretty] if id in RAISED else [])):
        assert [(one.failure.id, one.certain) for one in read(text + "\n").known] == expected
    assert {one.fault.line for one in read(f"first\n{whole}\n").known} == {2}


@pytest.mark.parametrize("id", [FRAMED, CRASH_ID])
def test_a_packed_log_is_unpacked(id: str) -> None:
    packed = gzip.compress(BEFORE.encode()) + gzip.compress(LOGS[id].encode())
    for size in (1, 7, 2**20):
        parts = [packed[start : start + size] for start in range(0, len(packed), size)]
        assert "".join(decoded(unpacked(parts))) == BEFORE + LOGS[id]
    assert [one.failure.id for one in match(texts(io.BytesIO(packed)), real().failures).known] == [id]


def test_a_packed_log_without_end_is_read() -> None:
    packed = gzip.compress(b"x" * 99 + b"\n")
    assert b"".join(unpacked([packed[:-8]])) == b"x" * 99 + b"\n"
    with pytest.raises(MatrixError, match="damaged"):
        list(unpacked([packed[:10] + b"\xff" * 9]))
    assert b"".join(unpacked([b"\x1f"])) == b"\x1f"


def test_the_same_error_elsewhere_is_similar() -> None:
    """It is listed with its difference, and never counts as a match."""
    reading = read(printed(replace(raised(FRAMED), frames=(Frame("/a/other.py", 1, "f"),))))
    assert reading.known == ()
    [similar] = [one for one in reading.similar if one.failure.id == FRAMED]
    assert "raised in /a/other.py:f" in similar.differs
    assert "similar, not the same:" in piped(*render(reading))


def test_another_keyword_of_the_same_function_is_similar() -> None:
    id = next(id for id in RAISED if "got an unexpected keyword argument '" in raised(id).message)
    call = raised(id).message.partition("argument '")[0]
    reading = read(printed(Raised("TypeError", f"{call}argument 'of_another_name'")))
    assert reading.known == ()
    assert id in [one.failure.id for one in reading.similar]
    assert read("KeyError: 'loss'\n").similar == ()


@pytest.mark.parametrize(
    "error",
    [
        "ModuleNotFoundError: No module named 'megatron.energon'",
        "TypeError: FSDP.__init__() got an unexpected keyword argument 'disable_bucketing'",
        "AssertionError: thd format is not supported with hierarchical CP implementation yet!",
    ],
)
def test_words_of_any_program_make_nothing_similar(error: str) -> None:
    assert read(f"{error}\n").similar == ()


@pytest.mark.parametrize("id", RAISED)
def test_a_known_failure_is_not_similar_to_itself(id: str) -> None:
    assert id not in [one.failure.id for one in read(LOGS[id]).similar]


def test_a_crash_signature_s_log_text_is_insufficient() -> None:
    """Signatures of crashes also name a text of the log; that text alone shows nothing."""
    assert ids("Requirement already satisfied: mpi4py==3.1.4\n") == []


EXIT_STATUS = [path for path in IN_LOGS if signature(path).exit_code and signature(path).log]


@pytest.mark.parametrize("path", EXIT_STATUS, ids=name)
def test_an_exit_status_in_the_log_must_match(path: Path) -> None:
    log, status = log_of(outcome(path)), signature(path).exit_code

    assert [one.certain for one in read(log + summary(status)).known] == [True]
    assert [one.certain for one in read(log).known] == [False]
    assert ids(log + SUMMARY) == []


def test_exit_status_signature_has_an_example() -> None:
    assert EXIT_STATUS


def test_a_crash_across_two_windows_is_found() -> None:
    padding = "x" * 99 + "\n"
    found = [ids(padding * count + CRASH + padding * 900) for count in range(640, 656)]
    assert found == [[CRASH_ID]] * 16


@pytest.mark.parametrize("pair", list(pairwise(RAISED)), ids="-and-".join)
def test_ranks_that_write_at_once_are_kept_apart(pair: tuple[str, str]) -> None:
    one, other = (LOGS[id].split("\n") for id in pair)
    length = max(len(one), len(other))
    mixed = zip(one + [""] * (length - len(one)), other + [""] * (length - len(other)), strict=True)
    log = "".join(f"[rank0]: {first}\n[rank1]: {second}\n" for first, second in mixed)
    assert sorted(ids(log)) == sorted(pair)


@pytest.mark.parametrize("id", RAISED)
def test_a_peer_s_traceback_in_between_hides_nothing(id: str) -> None:
    """The peer's frames stand just before the exception: without the ranks' names it would be raised in them."""
    peer = ["Traceback (most recent call last):", '  File "/site-packages/other.py", line 1, in other', "KeyError: 'x'"]
    log = LOGS[id].split("\n")
    place = read(LOGS[id]).known[0].fault.line - 1
    lines = [f"[rank0]: {line}" for line in log]
    lines[place:place] = [f"[rank1]: {line}" for line in peer[:2]]
    lines.append(f"[rank1]: {peer[2]}")
    assert ids("\n".join(lines)) == [id]


# A failure whose message has several lines.
OF_LINES = next(id for id in RAISED if "\n" in raised(id).message)
PREFIXES = (
    "[rank0]: ", "[rank17]:", "[default3]:", "0: ", "12: ", "[1,0]<stderr>:", "2024-07-04 08:02:29,123 ERROR ",
    "2024-07-04T08:02:29.123456789Z stderr F ", "[2024-07-04 08:02:29] [rank1]: ", "pod-7 trainer | ", "    ",
    "Jul 04 08:02:29 node17 slurmd[4711]: ",
)  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("id", [FRAMED, OF_LINES])
def test_a_prefix_of_every_line_changes_nothing(id: str, prefix: str) -> None:
    assert ids("".join(f"{prefix}{line}\n" for line in LOGS[id].split("\n"))) == [id]


@pytest.mark.parametrize("id", [FRAMED, CRASH_ID])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_the_encoding_changes_nothing(id: str, encoding: str) -> None:
    data = ("µ naïve\n" if encoding != "utf-16-le" else "") + LOGS[id]
    reading = match(texts(io.BytesIO(data.encode(encoding))), real().failures)
    assert [one.failure.id for one in reading.known] == [id]


COLOURS = st.sampled_from(["\x1b[31m", "\x1b[0m", "\x1b[1;38;5;9m", "\x1b[K", "\x1b]8;;x\x07", "\x1b[2J"])
WORDS = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=60)


@tries(60)
@given(st.sampled_from(sorted(LOGS)), st.data())
def test_colours_and_junk_between_lines_change_nothing(id: str, data: st.DataObject) -> None:
    lines = LOGS[id].split("\n")
    for place in data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=10)):
        lines[place] = data.draw(COLOURS) + lines[place] + data.draw(COLOURS)
    if id in RAISED:  # a printer's stack is one write
        for place in sorted(data.draw(st.lists(st.integers(0, len(lines)), max_size=10)), reverse=True):
            lines.insert(place, f"> {data.draw(WORDS)}")
    assert ids("\n".join(lines)) == [id]


@tries(60)
@given(st.binary(max_size=4000))
def test_junk_shows_nothing(data: bytes) -> None:
    assert match(texts(io.BytesIO(data)), real().failures).known == ()


@tries(60)
@given(st.sampled_from(sorted(LOGS)), st.data())
def test_shuffled_lines_show_no_other_failure(id: str, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(LOGS[id].split("\n")))
    assert set(ids("\n".join(shuffled))) <= {id} | same_message(id)


@given(st.text(st.sampled_from("ab\r\n"), max_size=30), st.integers(1, 5))
def test_line_numbers_do_not_depend_on_chunks(text: str, size: int) -> None:
    """Line numbers are those of an editor."""
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    lines = all_lines(chunks)

    assert lines == all_lines([text])
    assert {number: line for number, line in lines if line} == {
        number: line
        for number, whole in enumerate(text.replace("\r\n", "\n").split("\n"), start=1)
        for line in whole.split("\r")
        if line
    }


def test_repeated_line_takes_no_room() -> None:
    """Without that, the crash would leave the window of 64 KiB, and every line would search the window again."""
    log = CRASH.split("\n")
    place = next(n for n, line in enumerate(log) if "*** Process received signal" in line)
    log[place + 1 : place + 1] = ["[node1:25195] Signal code: (-6)"] * 5_000
    assert ids("\n".join(log)) == [CRASH_ID]
    assert ids("[node1:4711] *** An error occurred in MPI_Group_incl\n" * 20_000) == []


def test_the_line_after_a_cut_line_is_read() -> None:
    log = "x" * 5_000_000 + "\n" + LOGS[RAISED[0]]
    assert ids(log) == [RAISED[0]]
    assert max(len(line) for _, line in all_lines([log])) == LINE


def test_bytes_cut_within_a_character_are_decoded() -> None:
    whole = "µ\n".encode("utf-16")
    assert "".join(decoded(whole[place : place + 3] for place in range(0, len(whole), 3))) == "µ\n"


SITE: Final = "/usr/lib/python3/dist-packages"
DEEPEP: Final = (
    f'Traceback (most recent call last):\n  File "{SITE}/deep_ep/buffer.py", line 581, in internode_dispatch\n'
    f'  File "{SITE}/megatron/core/a.py", line 5, in f\nRuntimeError: DeepEP error: timeout (dispatch CPU)\n'
)


@pytest.mark.parametrize(
    ("versions", "known", "similar"),
    [
        ("", ["likely"], []),
        ("NVSHMEM v3.6.5\n", ["likely"], []),  # the version fits; whether DeepEP has the fix does not show
        ("NVSHMEM v3.4.5\n", [], ["works with NVSHMEM 3.4.5, which the log names"]),
        ("NVSHMEM v3.4.5\nNVSHMEM v3.6.5\n", ["likely"], []),  # which of both is loaded is not known
        ("deep_ep requires nvshmem>=3.4.5, needs nvshmem 3.4.5\n", ["likely"], []),  # wanted, not installed
    ],
)
def test_shared_message_is_judged_by_versions(versions: str, known: list[str], similar: list[str]) -> None:
    reading = match([versions + DEEPEP], real().failures, kind_table())
    assert [seen.to_json()["confidence"] for seen in reading.known] == known
    assert all("Megatron-Bridge#1335" in seen.other_causes for seen in reading.known)
    assert [one.differs.partition(":")[0] for one in reading.similar] == similar
    assert bool(reading.unknown) == (not known)


NO_BACKEND: Final = (
    f'Traceback (most recent call last):\n  File "{SITE}/transformer_engine/pytorch/attention.py", line 5, in forward\n'
    "ValueError: No dot product attention backend is available for the provided inputs. Please run with\n"
)


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("Disabling FusedAttention due to NVTE_FUSED_ATTN=0", 0),
        ("Disabling UnfusedDotProductAttention for FP8 attention", 0),
        ("Disabling UnfusedDotProductAttention for qkv_format = thd", 1),
    ],
)
def test_clues_rule_out_another_cause(line: str, known: int) -> None:
    far = "nothing of interest\n" * 2000
    reading = match([f"DEBUG:DotProductAttention:{line}\n", far, NO_BACKEND], real().failures, kind_table())
    assert len(reading.known) == known
    assert [(clue.line, clue.what) for clue in reading.clues] == [(1, line)]


COMMAND: Final = "+ torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 {}\n"
LISTED: Final = (
    "[default0]:------------------------ arguments ------------------------\n"
    "[default0]:  {} ............... {}\n"
    "[default0]:  tensor_model_parallel_size ...................... 2\n"
)
WORKER: Final = "RuntimeError: DataLoader worker (pid 1) is killed by signal: Killed\n"
UB: Final = (
    f'Traceback (most recent call last):\n  File "{SITE}/megatron/core/a.py", line 3, in f\n'
    "TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'\n"
)


@pytest.mark.parametrize(
    ("shown", "error", "known", "similar"),
    [
        ("", WORKER, [], ["the log has no frame"]),
        (COMMAND.format("--seq-length 131072"), WORKER, ["--seq-length >= 131072, which reaches it"], []),
        (COMMAND.format("\\\n  --seq-length \\\n  131072"), WORKER, ["--seq-length >= 131072, which reaches it"], []),
        (COMMAND.format("--seq-length 4096"), WORKER, [], ["--seq-length 4096, which excludes it"]),
        (COMMAND.format("--seq-length $LENGTH"), WORKER, [""], []),
        (COMMAND.format("--seq-length 4096") + COMMAND.format("--seq-length 131072"), WORKER, [""], []),
        (LISTED.format("seq_length", "4096"), WORKER, [], ["--seq-length 4096, which excludes it"]),
        (LISTED.format("moe_token_dispatcher_type", "alltoall"), DEEPEP, [], ["alltoall, which excludes it"]),
        (LISTED.format("moe_token_dispatcher_type", "None"), DEEPEP, [""], []),
        (LISTED.format("tp_comm_overlap", "True"), UB, ["--tp-comm-overlap, which reaches it"], []),
        ("+ ls --all --seq 1 'open\n", UB, [""], []),  # the command of another program
    ],
)
def test_options_in_the_log_judge_an_entry(shown: str, error: str, known: list[str], similar: list[str]) -> None:
    """At the start of a log, far from the error."""
    reading = match([shown, "nothing of interest\n" * 20_000, error], real().failures, kind_table())
    assert len(reading.known) == len(known)
    assert all(part in one.options for part, one in zip(known, reading.known, strict=True))
    assert [part for part, one in zip(similar, reading.similar, strict=False) if part not in one.differs] == []
    assert all(one.to_json()["options"] == one.options for one in reading.known)


def test_decisive_error_outweighs_its_options() -> None:
    (seen,) = match([LISTED.format("tp_comm_overlap", "False"), UB], real().failures, kind_table()).known
    assert (seen.certain, seen.options) == (False, "the job has --no-tp-comm-overlap, which excludes it")


def test_versions_at_the_start_of_a_log_count() -> None:
    far = "nothing of interest\n" * 20_000
    assert match([f"NVSHMEM v3.4.5\n{far}{DEEPEP}"], real().failures, kind_table()).known == ()


def test_clues_need_their_error() -> None:
    text = f"Disabling FusedAttention due to NVTE_FUSED_ATTN=0\nNCCL WARN Cuda failure 'invalid argument'\n{DEEPEP}"
    assert match([text], real().failures, kind_table()).clues == ()
