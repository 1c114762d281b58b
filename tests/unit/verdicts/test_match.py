"""What `megatrix match` finds in logs: the real texts of the failures, and nothing in what only looks like them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.report.reading import in_words
from matrix.verdicts.lines import LINE, decoded, numbered, split
from matrix.verdicts.match import Reading, match
from tests.unit.catalogs import real
from tests.unit.logs import CAUSE, NCCL, OWN, PEER, SUMMARY, corpus, log_of, outcome

FOUNDING = ("dcp-assertion", "cpu-offload-args", "long-context", "tp-overlap")
# How a rank ended is not in its log: these two wrote what the failure writes, and then did not die of it.
OF_THE_END = ("passed-although-the-log-has-the-text", "killed-with-its-peers")

SHOWS = [path for path in corpus("shows") if not any(raised.type in OWN for raised in outcome(path).chain)]
LOOK_ALIKES = [path for path in corpus("does-not-show") if path.stem not in OF_THE_END]
EXAMPLES = {
    "dcp-assertion": "torch-2.4.0-mcore-0.8.0-tp2",
    "cpu-offload-args": "te-1.8.0+37280ec",
    "long-context": "torch-2.13.0-mcore-0.16.1-worker-shm",
    "tp-overlap": "open-mpi-5-printer-world-16",
}
LOGS = {id: log_of(outcome(path)) for id, name in EXAMPLES.items() for path in corpus("shows", id) if path.stem == name}

DIST = "/site-packages/torch/distributed/distributed_c10d.py:2219"


def read(text: str) -> Reading:
    return match(split([text]), real().failures)


def ids(text: str) -> list[str]:
    return [one.failure.id for one in read(text).known]


def name(path: Path) -> str:
    return f"{path.parts[-3]}/{path.stem}"


@pytest.mark.parametrize("path", SHOWS, ids=name)
def test_a_real_log_shows_its_failure_and_no_other(path: Path) -> None:
    said = outcome(path)
    summary = SUMMARY.replace("exitcode  : 1", f"exitcode  : {said.exit_code or 1}")
    assert [path.parts[-3]] == ids(
        log_of(said) + summary.replace("(exitcode: 1)", f"(exitcode: {said.exit_code or 1})")
    )


@pytest.mark.parametrize("path", LOOK_ALIKES, ids=name)
def test_a_look_alike_does_not_show_the_failure(path: Path) -> None:
    assert path.parts[-3] not in ids(log_of(outcome(path)) + SUMMARY)


def test_each_founding_failure_is_found_for_certain_or_says_that_it_is_only_likely() -> None:
    certain = {id: [one.certain for one in read(log).known] for id, log in LOGS.items()}
    assert certain == {
        "dcp-assertion": [True],
        "cpu-offload-args": [True],
        "long-context": [False],
        "tp-overlap": [True],
    }


@pytest.mark.parametrize("id", FOUNDING)
def test_it_says_where_in_which_versions_and_the_way_round(id: str) -> None:
    log = LOGS[id]
    (seen,) = read(log).known
    (told,) = [one.to_json() for one in read(log).known]

    assert log.split("\n")[seen.fault.line - 1].strip()
    assert {"failure", "confidence", "line", "workarounds"} <= told.keys()
    assert told["line"] == seen.fault.line
    assert [one.text for one in real().failure(id).workaround] == [way["text"] for way in told["workarounds"]]
    assert f"breaks where: {real().failure(id).affected[0]}" in in_words(read(log))


def test_the_line_is_the_one_of_the_exception() -> None:
    log = LOGS["dcp-assertion"]
    (seen,) = read(log).known
    assert log.split("\n")[seen.fault.line - 1] == "AssertionError"


def test_what_follows_from_a_failure_is_told_as_such() -> None:
    """A peer's closed connection and torchrun's summary are no causes."""
    told = read(LOGS["cpu-offload-args"] + PEER + SUMMARY)

    assert [one.failure.id for one in told.known] == ["cpu-offload-args"]
    assert told.unknown == ()
    assert any("Connection closed by peer" in fault.what for fault in told.follows)
    assert any("ChildFailedError" in fault.what for fault in told.follows)
    assert any("closing signal SIGTERM" in fault.what for fault in told.follows)


def test_nccls_last_word_tells_that_a_peer_went_first() -> None:
    """torch calls it an internal error; only the fourth line says what it was (NCCL 2.14 with torch 2.0)."""
    lost = "socketProgress: Connection closed by remote peer node2<50260>"
    told = read(
        LOGS["dcp-assertion"] + NCCL.format("internal error", "ncclInternalError: Internal check failed.", lost)
    )

    assert [one.failure.id for one in told.known] == ["dcp-assertion"]
    assert told.unknown == ()
    assert any("Connection closed by remote peer" in fault.what for fault in told.follows)


def test_nccls_last_word_is_told_of_a_cause_that_nobody_knows() -> None:
    twice = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 901000"
    usage = "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."
    (fault,) = read(NCCL.format("invalid usage", usage, twice) + "iteration 11/ 500000\n").unknown
    assert fault.what.partition("NCCL version 2.20.5 ")[2] == f"{usage} Last error: {twice} (in all_reduce, {DIST})"
    assert fault.line == 4


def test_keys_that_a_state_dict_lacks_are_told_with_their_error() -> None:
    """torch tells them in lines of their own, each after a tab; what comes next is no part of it."""
    log = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
        'RuntimeError: Error(s) in loading state_dict for GPTModel:\n\tMissing key(s) in state_dict: "_extra_state". \n'
        "\tsize mismatch for b: copying a param.\n    saving\n"
    )
    (fault,) = read(log).unknown
    assert '_extra_state". \tsize mismatch for b: copying a param. (in f, a.py:1)' in fault.what


@pytest.mark.parametrize("end", ["NCCL version 2.20.5", "Last error:"])
def test_an_exception_at_the_end_of_a_log_that_broke_off_is_told(end: str) -> None:
    log = NCCL.format("invalid usage", "ncclInvalidUsage: This is.", "")
    (fault,) = read(log[: log.index(end) + len(end)]).unknown
    assert fault.what.startswith("DistBackendError: NCCL error in: ../NCCLUtils.hpp:275, invalid usage")


def test_a_log_of_consequences_alone_names_the_rank_to_look_at() -> None:
    said = in_words(read(PEER + SUMMARY))
    assert "nothing that the catalog knows" in said
    assert "the cause is not in this log: look into the one of rank 0" in said


def test_a_cause_that_nobody_knows_is_told_plainly() -> None:
    unknown = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'loss'\n"
    told = read(PEER + unknown + CAUSE + unknown.replace("KeyError", "RuntimeError") + SUMMARY)

    assert [fault.what for fault in told.unknown] == ["KeyError: 'loss' (in f, a.py:1)"]
    assert "nothing that the catalog knows is in these" in in_words(told)


def test_a_wrapper_of_a_known_failure_is_not_unknown() -> None:
    assert read(LOGS["dcp-assertion"] + SUMMARY).unknown == ()


def test_a_quoted_failure_is_not_a_failure() -> None:
    """The text of an exception, without its traceback: an issue pasted into a log, a grep."""
    assert ids("TypeError: get_cpu_offload_context() takes from 0 to 4 positional arguments but 5 were given\n") == []
    assert ids("RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.\n") == []


def test_an_exit_status_that_the_log_tells_is_held_against_the_signature() -> None:
    path = next(path for path in corpus("shows", "tp-overlap") if path.stem == "invalid-rank")
    log = log_of(outcome(path))
    with_six = SUMMARY.replace("exitcode  : 1", "exitcode  : 6").replace("exitcode: 1", "exitcode: 6")

    assert [one.certain for one in read(log + with_six).known] == [True]
    assert [one.certain for one in read(log).known] == [False]
    assert ids(log + SUMMARY) == []


def test_a_crash_that_stands_across_two_windows_is_found() -> None:
    padding = "x" * 99 + "\n"
    found = [ids(padding * count + LOGS["tp-overlap"] + padding * 900) for count in range(640, 656)]
    assert found == [["tp-overlap"]] * 16


def test_two_ranks_that_write_at_once_are_kept_apart() -> None:
    one, other = (LOGS[id].split("\n") for id in ("dcp-assertion", "cpu-offload-args"))
    length = max(len(one), len(other))
    mixed = zip(one + [""] * (length - len(one)), other + [""] * (length - len(other)), strict=True)
    log = "".join(f"[rank0]: {first}\n[rank1]: {second}\n" for first, second in mixed)
    assert sorted(ids(log)) == ["cpu-offload-args", "dcp-assertion"]


def test_a_peer_s_traceback_between_two_lines_of_one_does_not_hide_it() -> None:
    """The peer's frames stand just before the assertion: without the ranks' names it would be raised in them."""
    peer = ["Traceback (most recent call last):", '  File "/site-packages/other.py", line 1, in other', "KeyError: 'x'"]
    log = LOGS["dcp-assertion"].split("\n")
    place = log.index("AssertionError")
    lines = [f"[rank0]: {line}" for line in log]
    lines[place:place] = [f"[rank1]: {line}" for line in peer[:2]]
    lines.append(f"[rank1]: {peer[2]}")
    assert ids("\n".join(lines)) == ["dcp-assertion"]


PREFIXES = (
    "[rank0]: ", "[rank17]:", "[default3]:", "0: ", "12: ", "[1,0]<stderr>:", "2024-07-04 08:02:29,123 ERROR ",
    "2024-07-04T08:02:29.123456789Z stderr F ", "[2024-07-04 08:02:29] [rank1]: ", "pod-7 trainer | ", "    ",
    "Jul 04 08:02:29 node17 slurmd[4711]: ",
)  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("id", ["dcp-assertion", "cpu-offload-args", "long-context"])
def test_what_stands_before_every_line_does_not_change_the_answer(id: str, prefix: str) -> None:
    assert ids("".join(f"{prefix}{line}\n" for line in LOGS[id].split("\n"))) == [id]


@pytest.mark.parametrize("id", FOUNDING)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_the_encoding_does_not_change_the_answer(id: str, encoding: str) -> None:
    data = ("µ naïve\n" if encoding != "utf-16-le" else "") + LOGS[id]
    told = match(numbered(io.BytesIO(data.encode(encoding))), real().failures)
    assert [one.failure.id for one in told.known] == [id]


COLOURS = st.sampled_from(["\x1b[31m", "\x1b[0m", "\x1b[1;38;5;9m", "\x1b[K", "\x1b]8;;x\x07", "\x1b[2J"])
WORDS = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=60)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FOUNDING), st.data())
def test_colours_and_junk_between_the_lines_do_not_change_the_answer(id: str, data: st.DataObject) -> None:
    lines = LOGS[id].split("\n")
    for place in data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=10)):
        lines[place] = data.draw(COLOURS) + lines[place] + data.draw(COLOURS)
    if id != "tp-overlap":  # a printer's stack is one write
        for place in sorted(data.draw(st.lists(st.integers(0, len(lines)), max_size=10)), reverse=True):
            lines.insert(place, f"> {data.draw(WORDS)}")
    assert ids("\n".join(lines)) == [id]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=4000))
def test_junk_shows_nothing(data: bytes) -> None:
    assert match(numbered(io.BytesIO(data)), real().failures).known == ()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FOUNDING), st.data())
def test_the_lines_of_a_failure_in_another_order_show_nothing_else(id: str, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(LOGS[id].split("\n")))
    assert set(ids("\n".join(shuffled))) <= {id}


@given(st.text(st.sampled_from("ab\r\n"), max_size=30), st.integers(1, 5))
def test_lines_are_numbered_as_editors_do_wherever_the_chunks_end(text: str, size: int) -> None:
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    told = list(split(chunks))

    assert told == list(split([text]))
    assert {number: line for number, line in told if line} == {
        number: line
        for number, whole in enumerate(text.replace("\r\n", "\n").split("\n"), start=1)
        for line in whole.split("\r")
        if line
    }


def test_a_line_that_is_said_again_and_again_takes_no_room() -> None:
    """A window of 64 KiB would long be gone; and what is looked for in it would be looked for at every line."""
    log = LOGS["tp-overlap"].split("\n")
    place = next(n for n, line in enumerate(log) if "*** Process received signal" in line)
    log[place + 1 : place + 1] = ["[node1:25195] Signal code: (-6)"] * 5_000
    assert ids("\n".join(log)) == ["tp-overlap"]
    assert ids("[node1:4711] *** An error occurred in MPI_Group_incl\n" * 20_000) == []


def test_a_line_of_megabytes_is_cut_and_the_next_one_is_read() -> None:
    log = "x" * 5_000_000 + "\n" + LOGS["dcp-assertion"]
    assert ids(log) == ["dcp-assertion"]
    assert max(len(line) for _, line in split([log])) == LINE


def test_bytes_cut_within_a_character_are_decoded() -> None:
    whole = "µ\n".encode("utf-16")
    assert "".join(decoded(whole[place : place + 3] for place in range(0, len(whole), 3))) == "µ\n"


def test_log_text_reaches_the_terminal_harmless_and_masked() -> None:
    log = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: \x07 HF_TOKEN=hunter2-secret\n'
    said = in_words(read(log))
    assert "hunter2" not in said
    assert "\x07" not in said
