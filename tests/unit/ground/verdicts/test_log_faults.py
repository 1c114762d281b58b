"""What the reading of a log makes of each fault: chains, crashes, clues and kinds of small catalogs; its bounds."""

from __future__ import annotations

from typing import Any

import pytest

from matrix.ground.catalog.failure import Failure, Signature, Workaround
from matrix.ground.catalog.kinds import Beside, Clue, Distribution, FailureKind, KindTable, Sign
from matrix.ground.catalog.reach import ReachedBy
from matrix.ground.catalog.schema import Pattern
from matrix.ground.verdicts import log_match
from matrix.ground.verdicts.collectives import Position
from matrix.ground.verdicts.log_match import LogFault, Reading, Sighting, match, match_logs
from matrix.ground.verdicts.rank_logs import RankLog
from matrix.ground.verdicts.tracebacks import HEADER
from tests.unit.catalogs import clause, failure
from tests.unit.logs import CAUSE

SITE = "/usr/lib/python3/dist-packages"
STACK = "INFO:megatron.core:using world size: 2\n"
LOST = "RuntimeError: Connection closed by peer"
PLAIN = "KeyError: 'loss'"
FAR = "nothing of interest\n" * 10_000
CRASH = 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n  File "/a.py", line 1 in step\n\n'
OUTER = '  File "/b.py", line 2 in a::b\n\n'
MPIRUN = "mpirun noticed that process rank 1 with PID 7 on node a exited on signal {} (name).\n"
TORCHRUN = "E0704 failed (exitcode: {}) local_rank: 0 (pid: 4711) of binary: /usr/bin/python3\n"


def entry(id: str = "this", *, mark: dict[str, Any] | None = None, **further: Any) -> Failure:
    """Return a failure that `TypeError: ID broke` shows, in any program, or what else `mark` states."""
    keys = mark or {"exception": "TypeError", "message": f"^{id} broke"}
    return failure(id, signature=(Signature("broke", **{"any_program": True, **keys}),), **further)  # type: ignore[arg-type]


def raised(error: str, *functions: str, file: str = "/app/train.py") -> str:
    """Return an exception as Python prints it, below frames of functions."""
    frames = (f'  File "{file}", line {number}, in {name}' for number, name in enumerate(functions or ("f",), start=1))
    return "\n".join([HEADER, *frames, error]) + "\n"


def whats(faults: Any) -> list[str]:
    return [fault.what for fault in faults]


def known(reading: Reading) -> list[tuple[str, int, str]]:
    return [(one.failure.id, one.fault.line, one.lacks) for one in reading.known]


@pytest.mark.parametrize(("certain", "confidence", "causes"), [(True, "certain", ""), (False, "likely", "Other#1")])
def test_sighting_in_json(certain: bool, confidence: str, causes: str) -> None:
    rule = clause(torch=">=2.4")
    shown = entry(
        affected=(rule,), fix="in\n 2.5", references=("This#1",), workaround=(Workaround("none", "here"),),
        mark={"message": "broke", "shared": "Other#1"},
    )  # fmt: skip
    sighting = Sighting(shown, shown.signature[0], LogFault(7, "this broke"), certain, 3, "the frames", "reached")
    assert sighting.to_json() == {
        "failure": "this",
        "title": "this shows",
        "confidence": confidence,
        "lacks": "the frames",
        "other_causes": causes,
        "options": "reached",
        "signature": "broke",
        "line": 7,
        "text": "this broke",
        "times": 3,
        "affected": [{"where": str(rule), "reason": "by hand"}],
        "fix": "in 2.5",
        "workarounds": [{"text": "none", "verified": "here"}],
        "references": ["This#1"],
    }


def test_line_is_placed_in_its_log() -> None:
    several = Reading((), (), (), 4, starts=((0, "x"), (2, "y")))
    assert [several.place(line) for line in (1, 2, 3, 4)] == [("x", 1), ("x", 2), ("y", 1), ("y", 2)]
    assert Reading((), (), (), 4).place(3) == ("", 3)
    assert match([PLAIN], ()).starts == ((0, ""),)
    assert match([], ()).lines == 0


class TestChains:
    """Exceptions that caused each other are one fault."""

    @pytest.mark.parametrize(
        ("log", "unknown", "follows"),
        [
            (raised(PLAIN), [f"{PLAIN} (in f, /app/train.py:1)"], []),
            (raised(LOST), [], [f"{LOST} (in f, /app/train.py:1)"]),
            (raised(LOST) + CAUSE + raised(PLAIN), [f"{PLAIN} (in f, /app/train.py:1)"], []),
            (raised(PLAIN) + CAUSE + raised(LOST), [f"{PLAIN} (in f, /app/train.py:1)"], []),
            (raised(PLAIN) + CAUSE + raised("OSError: no"), [f"{PLAIN} (in f, /app/train.py:1)"], []),
            # A last line alone counts where nothing else does; texts that differ in numbers count once.
            ("ValueError: 1\nValueError: 2\n", ["ValueError: 1"], []),
            ("ValueError: 1\n" + raised(PLAIN), [f"{PLAIN} (in f, /app/train.py:1)"], []),
            (raised(LOST) + raised("TypeError: this broke"), [], [f"{LOST} (in f, /app/train.py:1)"]),
            ("ValueError: 1\n" + raised("TypeError: this broke"), [], []),
        ],
    )
    def test_one_fault_of_a_chain_is_listed(self, log: str, unknown: list[str], follows: list[str]) -> None:
        reading = match([log], [entry()])
        assert (whats(reading.unknown), whats(reading.follows)) == (unknown, follows)

    def test_known_failures_come_certain_first(self) -> None:
        log = f"quoted TypeError: that broke\nthat broke\n{raised('TypeError: this broke')}"
        that = entry("that", mark={"log": "that broke"})
        reading = match([log + raised("TypeError: this broke")], [entry(), that])
        assert [(one.failure.id, one.certain, one.times, one.fault.line) for one in reading.known] == [
            ("this", True, 2, 5),
            ("that", False, 1, 1),
        ]
        assert [one.options for one in reading.known] == ["", ""]

    def test_fault_has_the_deepest_frame_of_the_stack(self) -> None:
        table = small(packages=(Distribution("core", ("megatron.core",), "", "by hand", stack="frames"),))
        (fault,) = match([raised(PLAIN, "forward", file=f"{SITE}/megatron/core/a.py")], (), table).unknown
        assert fault.frame is not None
        assert fault.raised is not None
        assert fault.frame == fault.raised.frames[-1]

    def test_what_a_traceback_lacks(self) -> None:
        """Its frames, where a signature names one; the traceback, where the last line is alone."""
        framed = entry(mark={"exception": "TypeError", "message": "this.it broke", "frame": "train.py:f"})
        assert known(match([f"{HEADER}\nTypeError: this.it broke\n"], [framed])) == [("this", 2, "the frames")]
        assert known(match(["TypeError: this.it broke\n"], [framed])) == [("this", 1, "the traceback")]
        assert known(match([raised("TypeError: this.it broke")], [framed])) == [("this", 3, "")]

    def test_message_cut_at_the_end(self) -> None:
        long = [
            entry(mark={"message": "^the module of this broke"}),
            entry("that", mark={"message": "^the module of this broke again"}),
        ]
        cut = match([raised("TypeError: the module of th").removesuffix("\n")], long)
        assert known(cut) == [("this", 3, "the end of the message"), ("that", 3, "the end of the message")]
        assert whats(one.fault for one in cut.known) == ["TypeError: the module of th (in f, /app/train.py:1)"] * 2
        assert known(match([raised("TypeError: the module of this broke").removesuffix("\n")], long)) == [
            ("this", 3, "")
        ]

    def test_ranks_end_within_tracebacks(self) -> None:
        """Each is a fault of its own, beside an exception before it."""
        begun = "".join(
            f'[rank{rank}]: {HEADER}\n[rank{rank}]:   File "/a.py", line 1, in f{"xy"[rank]}\n' for rank in (0, 1)
        )
        before = "".join(f"[rank0]: {line}\n" for line in raised(PLAIN).splitlines())
        assert whats(match([before + begun], ()).unknown) == [
            f"{PLAIN} (in f, /app/train.py:1)",
            "the log ends within a traceback, in fx, /a.py:1",
            "the log ends within a traceback, in fy, /a.py:1",
        ]  # fmt: skip


class TestSimilar:
    """What a log resembles, or would show in another program or version."""

    def test_each_exception_of_a_chain_is_compared(self) -> None:
        entries = [entry(id, mark={"message": f"^the {id} has no such part$"}) for id in ("first", "second", "third")]
        errors = [f"TypeError: the {one.id} has such a part" for one in entries]
        both = match([raised(errors[0]) + CAUSE + raised(errors[1]) + raised(errors[0])], entries)
        assert [(one.failure.id, one.fault.line) for one in both.similar] == [("first", 3), ("second", 8)]

    def test_few_exceptions_are_compared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those whose last line shows a failure do not count."""
        monkeypatch.setattr(log_match, "COMPARED", 2)
        entries = [entry(), *(entry(id, mark={"message": f"^the {id} has no such part$"}) for id in ("a", "b", "c"))]
        log = "TypeError: this broke\n" + "".join(raised(f"TypeError: the {id} has such a part") for id in "abc")
        assert [one.failure.id for one in match([log], entries).similar] == ["a", "b"]

    def test_first_of_another_program_is_similar(self) -> None:
        """rank 0's message may continue, so that it is complete after rank 1's."""
        log = "[rank0]: TypeError: this broke:\n[rank1]: TypeError: this broke\n[rank0]: done\n"
        (similar,) = match([log], [entry(mark={"message": "^this broke", "any_program": False})]).similar
        assert (similar.fault.line, similar.fault.what) == (1, "TypeError: this broke:")

    def test_versions_and_clues_rule_a_failure_out(self) -> None:
        works = entry(works=(clause(torch="<2.4", mcore="<0.9", reason="older"),))
        log = "torch==2.3.1 megatron-core==0.8.0\n" + raised("TypeError: this broke")
        (similar,) = match([log], [works]).similar
        assert similar.fault.line == 4
        assert "works with torch 2.3.1 and megatron-core 0.8.0, which the log names: older" in similar.differs

        table = small(clue=(Clue("hint: \\w+ \\d", "broke", "by hand"),))  # type: ignore[arg-type]
        entries = [entry(), entry("that", mark={"message": "that broke", "not_with": "hint: b"})]
        log = "hint: a 1\nhint: a 2\nhint: b 1\n" + raised("TypeError: this broke") + raised("TypeError: that broke")
        reading = match([log], entries, table)
        assert [one.failure.id for one in reading.known] == ["this"]
        assert [one.differs for one in reading.similar] == ["the log names another cause: hint: b 1"]
        assert whats(reading.clues) == ["hint: a 1", "hint: b 1"]


class TestCrashes:
    """Of crashes, what a rank printed counts before what a launcher reports."""

    @pytest.mark.parametrize(
        ("log", "unknown"),
        [
            (TORCHRUN.format(3), ["exit status 3, reported by torchrun"]),
            (TORCHRUN.format(-11), ["SIGSEGV, reported by torchrun"]),
            (MPIRUN.format(11), ["SIGSEGV, reported by mpirun"]),
            (CRASH + MPIRUN.format(7) + TORCHRUN.format(1), ["SIGSEGV, reported by faulthandler, in step"]),
            (f"{CRASH[:-1]}{OUTER}", ["SIGSEGV, reported by faulthandler, in a::b"]),
            (f"{CRASH[:-1].replace('step', 'c10::step')}{OUTER}", ["SIGSEGV, reported by faulthandler, in c10::step"]),
            ("Fatal Python error: Unknown words\n\n", ["a crash, reported by faulthandler"]),
            ("terminate called after throwing an instance of 'c10::Error'\n  what():  bad\n\n",
             ["SIGABRT, reported by terminate: c10::Error: bad"]),
            (raised(LOST) + TORCHRUN.format(1), []),
            (raised(LOST) + TORCHRUN.format(-11), ["SIGSEGV, reported by torchrun"]),
            (raised(PLAIN) + TORCHRUN.format(-11), [f"{PLAIN} (in f, /app/train.py:1)"]),
            (raised("TypeError: this broke") + TORCHRUN.format(-11), []),
        ],
    )  # fmt: skip
    def test_crash_is_described_once(self, log: str, unknown: list[str]) -> None:
        reading = match([log], [entry()])
        assert whats(reading.unknown) == unknown
        assert all(fault.raised or fault.crash for fault in reading.unknown)

    def test_crash_of_a_known_signal_is_known(self) -> None:
        """Another printer's stack may lack the function."""
        shown = entry(mark={"signal": "SIGSEGV", "stack": "step"})
        reading = match(
            [CRASH + CRASH.replace("step", "other") + CRASH.replace("Segmentation fault", "Aborted")], [shown]
        )
        assert (known(reading), whats(reading.unknown)) == (
            [("this", 1, "")],
            ["SIGABRT, reported by faulthandler, in step"],
        )

    def test_exit_status_of_another_failure(self) -> None:
        entries = [entry(id, mark={"log": "it broke", "exit_code": code}) for id, code in (("that", 3), ("this", 4))]
        assert known(match(["it broke\n" + TORCHRUN.format(4)], entries)) == [("this", 1, "")]

    def test_consequences_are_few(self) -> None:
        ended = "Sending process {} closing signal SIGTERM\n"
        many = "".join(ended.format(number) for number in range(log_match.LISTED))
        assert len(match([f"INFO: a signal handler\n{many}{ended.format('a')}"], ()).follows) == 1


class TestKinds:
    """Kinds of failure that a log shows beside the failures of the catalog."""

    def test_kind_has_the_line_and_counts_once(self) -> None:
        """The text of an exception may also be a text that shows it."""
        table = small(kind("bad", Sign(message="(?P<part>\\w+) went bad"), Sign(log="went bad")))  # type: ignore[arg-type]
        (sighting,) = match([STACK + raised("ValueError: it went bad")], (), table).kinds
        assert (sighting.line, sighting.groups) == (4, {"part": "it"})
        (sighting,) = match([STACK + "an error: it went bad\n"], (), table).kinds
        assert (sighting.line, sighting.groups) == (2, {})

    @pytest.mark.parametrize(
        "log", ["an error: this went bad\n", raised("TypeError: this broke: it went bad"), raised(PLAIN)]
    )
    def test_known_failure_is_no_kind(self, log: str) -> None:
        table = small(
            kind("bad", Sign(message="went (?P<how>\\w+)"), Sign(log="went bad")),  # type: ignore[arg-type]
            kind("loss", Sign(message="'loss'"), rank=3),  # type: ignore[arg-type]
        )
        entries = [entry(), entry("that", mark={"log": "this went bad"})]
        known_failure = raised("TypeError: this broke") if PLAIN in log else ""
        reading = match([STACK + log + known_failure], entries, table)
        assert (len(reading.known), reading.kinds) == (1, ())

    def test_first_kind_of_several_is_the_cause(self) -> None:
        first = kind("bad", Sign(message="went bad"), first=True)  # type: ignore[arg-type]
        later = kind("late", Sign(message="is late"), rank=1)  # type: ignore[arg-type]
        log = STACK + "".join(
            raised(f"ValueError: {text}", text[0]) for text in ("a went bad", "b went bad", "c is late")
        )
        reading = match([log + raised(PLAIN)], (), small(first, later))
        assert [(one.kind.id, one.line, one.times) for one in reading.kinds] == [("bad", 4, 2)]
        assert [fault.line for fault in reading.unknown] == [4, 13]

    def test_earliest_row_beside_counts(self) -> None:
        rows = [
            Beside(Pattern(f"{name} (?P<built>\\w+)"), "by hand", of_stack=name == "clone")
            for name in ("building", "clone", "folder")
        ]
        table = small(kind("bad", Sign(log="error: bad"), facts=("{built}",)), beside=tuple(rows))  # type: ignore[arg-type]
        texts = ("folder a", "clone b", "clone c", "folder d", "error: bad")
        (sighting,) = match(["".join(f"[rank{rank}]: {text}\n" for rank, text in enumerate(texts))], (), table).kinds
        assert sighting.groups == {"built": "b"}
        assert match(["folder a\nerror: bad\n"], (), table).kinds == ()

    def test_clues_far_from_errors_are_few(self) -> None:
        table = small(clue=(Clue("a hint: \\w+ of nothing wrong", "'loss'", "by hand"),))  # type: ignore[arg-type]
        lines = [f"[rank{number % 2}]: a hint: {chr(97 + number)} of nothing wrong\n" for number in range(22)]
        assert len(match(["".join(lines), FAR, raised(PLAIN)], (), table).clues) == log_match.LISTED


def kind(id: str, *signs: Sign, **further: Any) -> FailureKind:
    return FailureKind(id, id, "topic", "", signs, **further)  # type: ignore[arg-type]


def small(*kinds: FailureKind, packages: tuple[Distribution, ...] = (), **further: Any) -> KindTable:
    return KindTable(kinds, packages, (), **further)


ROOT = "exitcode: 1\nRoot Cause (first observed failure):\n"
RANK = "  rank      : 3 (local_rank: 3)\n"


class TestReader:
    """The lines of ranks and logs are kept apart."""

    @pytest.mark.parametrize(
        ("logs", "root"),
        [
            (["exitcode: 1\n"], None),
            ([ROOT + RANK], 3),
            ([ROOT + "[0]:\n" + RANK, "exitcode: 1\n"], 3),
            ([ROOT], None),
            ([ROOT, RANK + "exitcode: 1\n"], None),
        ],
    )
    def test_root_rank_is_of_one_log(self, logs: list[str], root: int | None) -> None:
        reading = match_logs([(RankLog(f"{number}.log"), [log]) for number, log in enumerate(logs)], ())
        assert (reading.root_rank, type(reading.root_rank)) == (root, type(root))
        assert reading.lines == sum(log.count("\n") for log in logs)

    def test_oldest_of_many_ranks_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_match, "STREAMS", 2)
        rank0, rank1 = (raised(error, "f", "g").splitlines() for error in (PLAIN, "OSError: no"))
        lines = [(0, rank0[:2]), (1, rank1[:3]), (0, rank0[2:3]), (2, ["x"]), (0, rank0[3:]), (1, rank1[3:])]
        log = "".join(f"[rank{rank}]: {line}\n" for rank, part in lines for line in part)
        assert whats(match([log], ()).unknown) == [f"{PLAIN} (in g, /app/train.py:2)"]

    @pytest.mark.parametrize(
        ("size", "first", "last", "found"),
        [(40, 1, 5, True), (40, 3, 6, False), (40, 4, 8, True), (49, 4, 8, True), (49, 4, 9, False)],
    )
    def test_half_a_window_is_searched_again(
        self, monkeypatch: pytest.MonkeyPatch, size: int, first: int, last: int, *, found: bool
    ) -> None:
        """Of lines of 10 characters each, a window holds 5, and the next one begins with the last 2 of them."""
        monkeypatch.setattr(log_match, "EVIDENCE", size)
        lines = [f"error no{number}\n" for number in range(10)]
        shown = entry(mark={"log": "".join(lines[first : last + 1]).strip()})
        assert bool(match(["".join(lines[1:])], [shown]).known) == found

    def test_occurrences_and_chains_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_match, "CHAINS", 2)
        (sighting,) = match([raised("TypeError: this broke") * 3], [entry()]).known
        assert sighting.times == 2
        log = "".join(raised(f"ValueError: {text}") for text in "abc")
        assert [fault.what[12] for fault in match([log], ()).unknown] == ["a", "b"]
        assert whats(match([raised(LOST) + CAUSE + raised(PLAIN)] * 1, ()).unknown) == [
            f"{PLAIN} (in f, /app/train.py:1)"
        ]

    def test_lines_left_out_end_a_traceback(self) -> None:
        """Here one line, between two that are near an error."""
        begun = f'{HEADER}\n  File "/a.py", line 1, in f\n'
        log = f"{begun}{'x' * 70_000}\n{'y' * 140_000}\n{PLAIN}\n"
        (fault,) = match([log], ()).unknown
        assert fault.what == PLAIN

    def test_dump_is_read_as_a_whole(self) -> None:
        """The threads of one process are more than is read after any word."""
        threads = 'Thread 8 (idle): "other"\n    wait (threading.py:1)\n' * 3_000
        process = "Process {}: python train.py\nPython v3.11.4 (/usr/bin/python3)\n\n"
        process += threads + 'Thread 9 (idle): "MainThread"\n    step (train.py:{})\n'
        (standstill,) = match([process.format(7, 1) + process.format(8, 2)], ()).standstills
        assert standstill.text == "process 7 stands in step (train.py:1); process 8 stands in step (train.py:2)"

    def test_version_far_from_errors_does_not_count(self) -> None:
        reading = match([FAR * 2 + "torch==2.4.0\n" + FAR + raised(PLAIN) + "numpy==1.26.4\n"], ())
        assert reading.versions.texts == {"numpy": {"1.26.4": None}}

    def test_reading_has_what_was_inferred(self) -> None:
        logs = [(RankLog("a.log", "0"), [raised(PLAIN)])]
        reading = match_logs(logs, (), infer=lambda faults: {"torch": [one.type for one in faults]})
        assert reading.inferred == {"torch": ["KeyError"]}
        assert whats(reading.raised) == whats(reading.unknown)
        assert (reading.starts, reading.lines, reading.versions.of("torch")) == (((0, "a.log"),), 3, ("KeyError",))

    def test_rank_that_others_wait_for(self) -> None:
        """By the rank of a log, or the one of a tag; the launcher names one of several without an error."""
        dist = f"{SITE}/torch/distributed/c10d.py"
        waits = f'{HEADER}\n  File "/a.py", line 1, in sync\n  File "{dist}", line 2, in all_reduce\n{LOST}\n'
        failed = match_logs([(RankLog("a", "0"), [waits]), (RankLog("b", "1"), [raised(PLAIN)])], ()).standstills
        assert [(one.position, one.ranks, one.line) for one in failed] == [(Position.FAILED, ("1",), 7)]
        assert failed[0].text.startswith(f"rank 1: {PLAIN}; waited for it: rank 0 in all_reduce, called in sync")
        for last, ranks in (("x\n", ("2", "3")), (ROOT + RANK, ("3",))):
            logs = [(RankLog(name, name), [text]) for name, text in (("0", waits), ("2", "x\n"), ("3", last))]
            (silent,) = match_logs(logs, ()).standstills
            assert (silent.position is Position.BEHIND, silent.ranks) == (len(ranks) == 1, ranks)
        alone = match([f"[rank0]: {line}\n" for line in waits.splitlines()] + [f"[rank1]: {PLAIN}\n"], ()).standstills
        assert [(one.position, one.ranks) for one in alone] == [(Position.BEHIND, ("1",))]


@pytest.mark.parametrize(
    ("arguments", "command", "options", "certain"),
    [
        (("--tp >= 2", "--wide"), "--tp 2 --wide", "the job has --tp >= 2 and --wide, which reaches it", True),
        (("--tp >= 2", "--wide"), "", "", False),
    ],
)
def test_versions_decide_a_shared_failure(
    arguments: tuple[str, ...], command: str, options: str, certain: bool
) -> None:
    shown = entry(
        affected=(clause(torch=">=2.4"),), reached_by=(ReachedBy((), {}, "by hand", arguments),),
        mark={"exception": "TypeError", "message": "this broke", "shared": "Other#1"},
    )  # fmt: skip
    log = f"torchrun pretrain_gpt.py --tensor-model-parallel-size 2 {command}\ntorch==2.4.0\n"
    (sighting,) = match([log + raised("TypeError: this broke")], [shown]).known
    assert (sighting.options, sighting.certain) == (options, certain)
    (sighting,) = match([log.replace("2.4.0", "2.3.0") + raised("TypeError: this broke")], [shown]).known
    assert not sighting.certain
