"""From one stack to another: each change, what is certain, and the exit status."""

from __future__ import annotations

from itertools import product

import pytest

from matrix.ask.check.answer import CheckResult
from matrix.ask.check.files.declared import Unread, UnreadKind
from matrix.ask.check.rulings import Clash, FailureInStack, Standing
from matrix.ask.check.transition import Effect, Transition
from matrix.ask.check.user_stack import UserStack
from matrix.ground.catalog.stack import ABSENT, Place, Stack
from matrix.ground.errors import ExitStatus
from tests.unit.catalogs import failure

WORKS, BREAKS, OPTIONS = Standing.WORKS, Standing.WILL_BREAK, Standing.WITH_OPTIONS
OPEN = Unread(UnreadKind.FILE, "a file", Place("a"))


def result(standing: Standing, *clashes: str, unknown: tuple[Unread, ...] = ()) -> CheckResult:
    one = FailureInStack(failure(), standing, certain=standing is BREAKS, reason="read")
    user = UserStack(Stack({"torch": "2.4.0"}), {}, {}, (), ())
    return CheckResult(user, (), (one,), tuple(map(Clash, clashes)), unknown=unknown)


@pytest.mark.parametrize(
    ("before", "after", "effect"),
    [
        (WORKS, BREAKS, Effect.NEW),
        (WORKS, OPTIONS, Effect.NEW),
        (Standing.NOT_REACHED, Standing.SILENT, Effect.NEW),
        (Standing.UNKNOWN, BREAKS, Effect.NEW),
        (BREAKS, WORKS, Effect.FIXED),
        (OPTIONS, Standing.NOT_REACHED, Effect.FIXED),
        (BREAKS, OPTIONS, Effect.STAYS),
        (BREAKS, Standing.UNKNOWN, Effect.UNKNOWN),
        (WORKS, Standing.WITH_VERSIONS, Effect.UNKNOWN),
        (Standing.WITH_VERSIONS, BREAKS, Effect.OPEN),
        (Standing.WITH_VERSIONS, WORKS, None),
        (WORKS, WORKS, None),
        (Standing.UNKNOWN, Standing.UNKNOWN, None),
        (Standing.UNKNOWN, WORKS, None),
    ],
)
def test_change_of_a_failure(before: Standing, after: Standing, effect: Effect | None) -> None:
    parts = Transition(result(before), result(after)).parts
    assert [part.effect for part in parts] == ([effect] if effect else [])
    assert all(
        part.reason == "read" and part.certain == (BREAKS is (before if effect is Effect.FIXED else after))
        for part in parts
    )


def test_nothing_is_new_beside_an_unknown_version() -> None:
    """A version that is no release has no statement, whatever it contains."""
    before = result(Standing.UNKNOWN, unknown=(Unread(UnreadKind.VERSION, "torch 9.9 is no release", Place("a")),))
    assert [part.effect for part in Transition(before, result(OPTIONS)).parts] == [Effect.OPEN]
    assert [part.effect for part in Transition(result(WORKS, unknown=(OPEN,)), result(OPTIONS)).parts] == [Effect.NEW]


def test_the_same_stack_changes_nothing() -> None:
    for standing in Standing:
        same = Transition(result(standing), result(standing))
        assert {part.effect for part in same.parts} <= {Effect.STAYS}
        assert same.status is ExitStatus.GOOD


def test_every_pair_of_standings_has_one_answer() -> None:
    for before, after in product(Standing, repeat=2):
        assert len(Transition(result(before), result(after)).parts) <= 1


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (result(WORKS), result(BREAKS), ExitStatus.BAD),
        (result(WORKS), result(OPTIONS), ExitStatus.GOOD),  # possible only
        (result(BREAKS), result(BREAKS), ExitStatus.GOOD),  # it broke before
        (result(WORKS), result(WORKS, "x excludes y"), ExitStatus.BAD),
        (result(WORKS, "x excludes y"), result(WORKS, "x excludes y"), ExitStatus.GOOD),
        (result(WORKS), result(WORKS, unknown=(OPEN,)), ExitStatus.NOTHING),
        (result(WORKS, unknown=(OPEN,)), result(BREAKS), ExitStatus.BAD),
    ],
)
def test_status_is_of_what_newly_breaks(before: CheckResult, after: CheckResult, status: ExitStatus) -> None:
    assert Transition(before, after).status is status


def test_side_without_the_stack_is_no_good_result() -> None:
    empty = CheckResult(UserStack(Stack(rest=ABSENT)), (), result(WORKS).failures)
    assert Transition(empty, result(WORKS)).status is ExitStatus.NOTHING
    assert Transition(result(WORKS), empty).status is ExitStatus.NOTHING
