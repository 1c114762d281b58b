"""How a run of a test ended: its signature, or what of the machine ended it."""

from __future__ import annotations

import pytest

from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised
from matrix.prove.bisection.odds import Ending, RunEnd
from matrix.prove.bisection.turns import end_of

RAISED, EXITED, SIGNALED = OutcomeKind.RAISED, OutcomeKind.EXITED, OutcomeKind.SIGNALED


PLANNER = Frame("/x/planner.py", 7, "save")


def raised(kind: str, message: str, evidence: str = "", frames: tuple[Frame, ...] = ()) -> Outcome:
    return Outcome(RAISED, f"{kind}: {message}", chain=(Raised(kind, message, frames),), evidence=evidence)


@pytest.mark.parametrize(
    ("outcome", "ending", "signature"),
    [
        (Outcome(OutcomeKind.PASSED), Ending.PASSED, ""),
        (Outcome(OutcomeKind.UNAVAILABLE, "no wheel"), Ending.SKIPPED, ""),
        (Outcome(OutcomeKind.HUNG, "120 s"), Ending.LIMIT, "time-out"),
        (Outcome(OutcomeKind.OUT_OF_MEMORY), Ending.LIMIT, "killed"),
        (Outcome(SIGNALED, signal="SIGKILL"), Ending.LIMIT, "killed"),
        (Outcome(EXITED, exit_code=137), Ending.LIMIT, "killed"),
        (Outcome(EXITED, exit_code=124), Ending.LIMIT, "killed"),
        (raised("Failed", "Timeout (>30.0s) from pytest-timeout."), Ending.LIMIT, "time-out"),
        (raised("OSError", "[Errno 28] No space left on device"), Ending.OUTSIDE, ""),
        (raised("ConnectionError", "HTTPSConnectionPool: Max retries exceeded"), Ending.OUTSIDE, ""),
        (raised("RuntimeError", "download failed", "HTTP Error 503: busy"), Ending.OUTSIDE, ""),
        (raised("ValueError", "width 6 in /a/b.py"), Ending.FAILED, "ValueError: width ... in ..."),
        (raised("KeyError", "'x'"), Ending.FAILED, "KeyError: 'x'"),
        (raised("AssertionError", "", frames=(PLANNER,)), Ending.FAILED, "AssertionError in planner.py:save"),
        (Outcome(SIGNALED, signal="SIGSEGV"), Ending.FAILED, "SIGSEGV"),
        (Outcome(EXITED, exit_code=3, evidence="no such option\n"), Ending.FAILED, "status 3: no such option"),
    ],
)
def test_end_of_a_run(outcome: Outcome, ending: Ending, signature: str) -> None:
    end = end_of(outcome, lambda outcome: "known")

    assert (end.ending, end.signature) == (ending, signature)
    assert (end.known == "known") == (ending is Ending.FAILED)


def test_numbers_of_a_message_are_one_signature() -> None:
    ends = [end_of(raised("ValueError", f"width {width} of 0x{width}f"), lambda outcome: "") for width in (6, 10)]

    assert len({end.signature for end in ends}) == 1
    assert ends[0] != RunEnd(Ending.FAILED)
