"""Guards: simplification, three-valued truth, and PEP 440."""

import operator
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from matrix.read.api.guard import (
    AllOf,
    AnyOf,
    Config,
    Guard,
    Holds,
    Judge,
    Loads,
    Not,
    Offers,
    Takes,
    TeVersion,
    Truth,
    Unclear,
    all_of,
    any_of,
    describe,
    missing,
    negate,
)

A, B, C = Config("a"), Config("b"), Config("c")


class Known:
    """A surface that offers `names` and does not record `unknown`."""

    def __init__(self, names: Collection[str] = (), unknown: Collection[str] = ()) -> None:
        self.names, self.unknown = names, unknown

    def offers(self, path: str) -> bool | None:
        return None if path in self.unknown else path in self.names

    def takes(self, path: str, parameter: str) -> bool | None:
        return self.offers(f"{path}({parameter})")

    def changes(self, path: str) -> bool:
        return path in self.names


def guards() -> st.SearchStrategy[Guard]:
    leaves: st.SearchStrategy[Guard] = st.sampled_from(
        [A, B, C, Config("x == 1"), Config("x == 2"), TeVersion(">=", "1.9"), Loads("m:n")]
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            inner.map(negate),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: all_of(*parts)),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: any_of(*parts)),
        ),
        max_leaves=12,
    )


class World(NamedTuple):
    """A run on a TE: the conditions and loading paths with their truth, the run's x, the version of TE."""

    true: Mapping[str, bool]
    x: int
    te: str


WORLDS = [
    World({"a": a, "b": b, "c": c, "m:n": loads}, x, te)
    for a in (True, False)
    for b in (True, False)
    for c in (True, False)
    for x in (0, 1, 2)
    for te in ("1.8", "1.9")
    for loads in (True, False)
]


def holds(guard: Guard, world: World) -> bool:
    """Evaluate a guard in two-valued logic, without simplification."""
    if isinstance(guard, bool):
        return guard
    if isinstance(guard, Config):
        return world.x == int(guard.text[-1]) if "==" in guard.text else world.true[guard.text]
    if isinstance(guard, TeVersion):
        compare: Callable[[Version, Version], bool] = {">=": operator.ge, "<": operator.lt}[guard.op]
        return compare(Version(world.te), Version(guard.version))
    if isinstance(guard, Loads):
        return world.true[guard.path]
    if isinstance(guard, Not):
        return not holds(guard.part, world)
    assert isinstance(guard, (AllOf, AnyOf))
    return (all if isinstance(guard, AllOf) else any)(holds(part, world) for part in guard.parts)


@given(guards(), guards())
def test_simplification_keeps_the_meaning_of_guards(one: Guard, other: Guard) -> None:
    for world in WORLDS:
        first, second = holds(one, world), holds(other, world)
        assert holds(all_of(one, other), world) == (first and second)
        assert holds(any_of(one, other), world) == (first or second)
        assert holds(negate(one), world) == (not first)


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (all_of(A, negate(A)), False),
        (any_of(A, negate(A)), True),
        (all_of(A, any_of(A, B)), A),
        (all_of(A, any_of(negate(A), B)), all_of(A, B)),
        (any_of(all_of(A, B), negate(A)), any_of(B, negate(A))),
        (all_of(any_of(A, B), any_of(all_of(any_of(A, B), C), all_of(negate(A), negate(B)))), all_of(any_of(A, B), C)),
        (negate(TeVersion(">=", "1.9")), TeVersion("<", "1.9")),
        (all_of(Config("x == 'mxfp8'"), Config("x == 'delayed'")), False),
    ],
)
def test_guard_is_simplified_by_known_parts(built: Guard, expected: Guard) -> None:
    assert built == expected


VERSIONS = ["1.8.0", "1.9.0", "1.10.0", "2.3.0"]


@st.composite
def around(draw: st.DrawFn) -> str:
    """Return a version around a boundary: itself, a post, dev, rc or local one, before and after."""
    base = draw(st.sampled_from([*VERSIONS, "1.7.0", "2.2.9", "2.3.1"]))
    return base + draw(st.sampled_from(["", ".post1", ".dev0", "rc1", "+37280ec", ".dev0+f9dd37f", ".post1+abc1234"]))


@given(around(), st.sampled_from([*VERSIONS, "1.10.0.dev0"]), st.sampled_from([">=", ">", "<", "<=", "==", "!="]))
def test_version_guard_agrees_with_packaging(running: str, boundary: str, op: str) -> None:
    compare = {">=": operator.ge, ">": operator.gt, "<": operator.lt, "<=": operator.le, "==": operator.eq,
               "!=": operator.ne}[op]  # fmt: skip
    expected = compare(Version(running), Version(boundary))
    assert Judge(Known(), running).truth(TeVersion(op, boundary)) is (Truth.YES if expected else Truth.NO)


@pytest.mark.parametrize(
    ("guard", "truth"),
    [
        (True, Truth.YES),
        (False, Truth.NO),
        (A, Truth.REACHABLE),
        (negate(A), Truth.REACHABLE),
        (Unclear("?"), Truth.UNCLEAR),
        (all_of(A, Unclear("?")), Truth.UNCLEAR),
        (any_of(A, Unclear("?")), Truth.REACHABLE),
        (all_of(Unclear("?"), TeVersion("<", "1.0")), Truth.NO),
        (any_of(Unclear("?"), TeVersion(">", "1.0")), Truth.YES),
        (Offers("m:here"), Truth.YES),
        (Offers("m:gone"), Truth.NO),
        (Offers("m:unknown"), Truth.UNCLEAR),
        (Loads("m:unknown"), Truth.YES),
        (negate(Loads("m:unknown")), Truth.NO),
        (Takes("m:f", "x"), Truth.YES),
        (negate(Takes("m:f", "y")), Truth.YES),
    ],
)
def test_truth_distinguishes_kinds_of_unknown(guard: Guard, truth: Truth) -> None:
    surface = Known({"m:here", "m:f(x)"}, {"m:unknown"})
    assert Judge(surface, "1.8.0").truth(guard) is truth


def test_equal_guards_are_one_object() -> None:
    assert AnyOf((A, TeVersion(">", "1.8.0"))) is AnyOf((Config("a"), TeVersion(">", "1.8.0")))


def test_guard_is_described_as_text() -> None:
    guard = all_of(TeVersion(">", "1.8.0"), any_of(A, negate(Offers("te.pytorch:RMSNorm"))), Unclear("len()"))
    assert describe(guard) == "TE > 1.8.0 and (a or not has te.pytorch.RMSNorm) and len() (not understood)"


@given(guards())
def test_rest_of_a_guard_keeps_its_meaning(guard: Guard) -> None:
    for world in WORLDS:
        rest = Judge(Known({"m:n"} if world.true["m:n"] else ()), world.te).rest(guard)
        assert holds(rest, world) == holds(guard, world)


def test_rest_evaluates_the_parts_of_te() -> None:
    judge = Judge(Known({"m:n"}), "1.9")
    assert judge.rest(any_of(all_of(A, TeVersion(">=", "1.9")), negate(Loads("m:n")))) is A
    assert judge.rest(all_of(B, any_of(A, Loads("m:n")))) is B
    assert judge.rest(all_of(A, TeVersion("<", "1.9"))) is False


P, Q = Loads("m:p"), Loads("m:q")


@pytest.mark.parametrize(
    ("guard", "paths"),
    [
        (negate(P), {"m:p"}),
        (all_of(A, negate(P)), {"m:p"}),
        (any_of(negate(P), negate(Q)), {"m:p", "m:q"}),
        (all_of(negate(P), negate(Q)), set()),
        (any_of(A, negate(P)), set()),
        (all_of(P, A), set()),
        (True, set()),
    ],
)
def test_missing_paths_are_those_that_suffice(guard: Guard, paths: set[str]) -> None:
    """A guard that holds where everything loads is about something else."""
    assert missing(guard) == paths


def test_state_of_the_provider_is_reachable() -> None:
    judge = Judge(Known(["m:_STARTED"]), "1.0")
    assert (judge.truth(Holds("m:_STARTED")), judge.truth(Holds("m:HAVE_X"))) == (Truth.REACHABLE, Truth.UNCLEAR)
