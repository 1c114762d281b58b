"""The expectation of a catalog entry for a cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ground.catalog.failure import (
    Build,
    Expectation,
    Failure,
    OpenPackage,
    ReportedStack,
    Ruling,
    Signature,
    StandIn,
    Workaround,
)
from matrix.ground.catalog.reach import JobArguments, Reach, Reached, ReachedBy
from matrix.ground.catalog.stack import MCORE, TE, UNKNOWN, Stack
from matrix.ground.catalog.versions import Range
from tests.unit.catalogs import case, cell, clause, failure, real, values

ENTRY = failure(affected=(clause(mcore="<0.9", torch=">=2.4"),), works=(clause(mcore=">=0.9"), clause(torch="<2.3")))


@pytest.mark.parametrize(
    ("torch", "core", "expectation"),
    [
        ("2.4.0", "0.8.0", Expectation.BROKEN),
        ("2.4.0", "0.9.0", Expectation.WORKS),
        ("2.2.2", "0.8.0", Expectation.WORKS),
        ("2.3.1", "0.8.0", Expectation.UNKNOWN),
    ],
)
def test_a_cell_is_broken_works_or_is_unknown(torch: str, core: str, expectation: Expectation) -> None:
    assert expectation is ENTRY.expectation(cell(torch=torch, mcore=core).stack)


CONTROLLED = failure(
    affected=(clause(mcore="<0.9"), clause(mcore="==0.9.0", cases=["mpi"])),
    works=(clause(mcore="<0.9", cases=["workaround"]), clause(mcore=">=0.9")),
)


@pytest.mark.parametrize(
    ("core", "case", "expectation"),
    [
        ("0.8.0", "", Expectation.BROKEN),
        ("0.8.0", "tp2", Expectation.BROKEN),
        ("0.8.0", "workaround", Expectation.WORKS),
        ("0.9.0", "workaround", Expectation.WORKS),
        ("0.9.0", "mpi", Expectation.BROKEN),
        ("0.9.0", "", Expectation.WORKS),
    ],
)
def test_a_rule_with_cases_takes_precedence(core: str, case: str, expectation: Expectation) -> None:
    assert expectation is CONTROLLED.expectation(cell(torch="2.4.0", mcore=core).stack, case)


def test_the_first_stand_in_that_fits_is_taken() -> None:
    old, new = (StandIn(clause(mcore=bound), "absent", ("apex",)) for bound in ("<0.8", "<0.9"))
    entry = failure(stand_in=(old, new))
    chosen = [entry.stand_in_for(cell(torch="2.4.0", mcore=core).stack) for core in ("0.7.0", "0.8.0", "0.9.0")]
    assert [old, new, None] == chosen


@pytest.mark.parametrize(
    ("entry", "stack"),
    [pytest.param(entry, stack, id=stack.name) for entry in real().failures for stack in entry.stack],
)
def test_the_stack_of_a_report_is_expected_broken(entry: Failure, stack: ReportedStack) -> None:
    assert Expectation.BROKEN is entry.expectation(real().cell_named(stack.cell).stack)


DRIVEN = failure(
    affected=(clause(mcore="<0.9", numpy=">=2"), clause(mcore="<0.9", driver="<500", cases=["mpi"])),
    works=(clause(mcore="<0.9", driver=">=500"), clause(mcore=">=0.9")),
)


@pytest.mark.parametrize(
    ("versions", "case", "expectation", "depends"),
    [
        ({"mcore": "0.8.0", "numpy": "2.1"}, "", Expectation.BROKEN, []),
        ({"mcore": "0.8.0"}, "", Expectation.UNKNOWN, [("numpy",)]),
        ({"mcore": "0.8.0", "driver": "535"}, "", Expectation.UNKNOWN, [("numpy",)]),
        ({"mcore": "0.8.0", "driver": "535", "numpy": "none"}, "", Expectation.WORKS, []),
        ({"mcore": "0.8.0", "numpy": "1.26"}, "", Expectation.UNKNOWN, []),
        ({"mcore": "0.8.0", "numpy": "1.26"}, "mpi", Expectation.UNKNOWN, [("driver",)]),
        ({"numpy": "2.1"}, "", Expectation.UNKNOWN, [("megatron-core",)]),
        ({"mcore": "0.9.0"}, "", Expectation.WORKS, []),
        ({}, "", Expectation.UNKNOWN, [("megatron-core", "numpy")]),
    ],
)
def test_unknown_component_leaves_a_rule_open(
    versions: dict[str, str], case: str, expectation: Expectation, depends: list[tuple[str, ...]]
) -> None:
    """Absent and unknown differ: what is absent is in no range, and on what is unknown the rule depends."""
    ruling = DRIVEN.ruling(Stack(values(**versions)), case)
    assert (ruling.expectation, [names for _, names in ruling.may_break]) == (expectation, depends)


def test_ruling_names_the_rule() -> None:
    """That of another case does not count, nor one that needs no unknown component for it."""
    broken, in_case = CONTROLLED.affected
    stack = cell(torch="2.4.0", mcore="0.8.0").stack
    assert CONTROLLED.ruling(stack) == Ruling(Expectation.BROKEN, broken)
    assert CONTROLLED.ruling(stack.with_(values(mcore="0.9.0")), "mpi") == Ruling(Expectation.BROKEN, in_case)
    assert CONTROLLED.ruling(stack, "workaround") == Ruling(Expectation.WORKS, CONTROLLED.works[0])
    assert DRIVEN.ruling(Stack(values(mcore="0.8.0"))) == Ruling(may_break=((DRIVEN.affected[0], ("numpy",)),))


def test_unknown_component_may_be_decided() -> None:
    stack = Stack(values(mcore="0.8.0"))
    assert DRIVEN.ruling(stack, decide=lambda name, bound: name == "numpy") == Ruling(
        Expectation.BROKEN, DRIVEN.affected[0]
    )
    assert DRIVEN.ruling(stack, decide=lambda name, bound: name == "driver").expectation is Expectation.WORKS


@pytest.mark.parametrize(
    ("fields", "text"),
    [({}, ""), ({"frame": "a.py:f", "through": "b.py:g"}, "in a.py:f"), ({"through": "b.py:g"}, "below b.py:g")],
)
def test_signature_states_its_place(fields: dict[str, str], text: str) -> None:
    assert Signature("broke", **fields).place == text  # type: ignore[arg-type]  # not from TOML


@pytest.mark.parametrize(
    ("text", "function"),
    [("run_tp", ("reproduction", "run_tp")), ("other:run", ("other", "run")), ("a:b:run", ("a:b", "run"))],
)
def test_function_is_in_the_named_module(text: str, function: tuple[str, str]) -> None:
    assert replace(case(), run=text).function == replace(case(), write=text).writer == function


@pytest.mark.parametrize(
    ("versions", "there"),
    [
        ({"mcore": "0.9.0", "te": "2.0"}, True),
        ({"mcore": "0.9.0", "te": "1.9"}, False),
        ({"mcore": "0.8.0", "te": "2.0"}, False),
        ({"mcore": "0.9.0", "te": "none"}, False),
        ({"mcore": "0.9.0"}, False),
    ],
)
def test_case_is_for_the_releases_with_its_code(versions: dict[str, str], there: bool) -> None:
    limited = replace(case(), releases={MCORE: Range(">=0.9"), TE: Range(">=2")})
    assert limited.is_for(Stack(values(**versions))) is there
    assert case().is_for(Stack(values(**versions)))


def test_rule_as_text_names_its_cases() -> None:
    assert str(clause(mcore="<0.9")) == "mcore <0.9"
    assert str(clause(mcore="<0.9", cases=["mpi", "tp2"])) == "mcore <0.9 in case mpi, tp2"


@pytest.mark.parametrize(
    ("case_name", "applies"), [("mpi", (True, False)), ("tp2", (False, False)), ("", (False, True))]
)
def test_rule_applies_to_the_cases_it_names(case_name: str, applies: tuple[bool, bool]) -> None:
    rules = (clause(mcore="<0.9", cases=["mpi"]), clause(mcore="<0.9"))
    assert tuple(rule.applies_to(case_name) for rule in rules) == applies


def test_open_packages_are_those_that_it_names() -> None:
    """In its rules, then in its cells, each once; components that every cell decides are none."""
    entry = failure(
        affected=(clause(mcore="<0.9", packages={"zarr": ">=2"}),),
        works=(clause(packages={"numpy": "<2", "zarr": "<2"}),),
        package=(OpenPackage("einops", "0.8.0"), OpenPackage("numpy", "1.26.4")),  # type: ignore[arg-type]
    )
    assert entry.open == ["zarr", "numpy", "einops"]


def test_failure_is_reached_by_any_of_its_ways() -> None:
    """Each counts in the stacks that it names; where none is stated, every command reaches it."""
    way = ReachedBy(bounds={MCORE: Range("<0.9")}, arguments=("--overlap",))
    entry = failure(reached_by=(way,))
    arguments = JobArguments.parse(["a.py", "--overlap"])
    old, new = (Stack(values(mcore=version)) for version in ("0.8.0", "0.9.0"))
    assert entry.reach(old, arguments) == Reached(Reach.REACHED, ("--overlap",))
    assert entry.reach(old, JobArguments.parse(["a.py"])).reach is Reach.MISSING
    assert entry.reach(old, None).reach is Reach.OPEN
    assert entry.reach(new, JobArguments.parse(["a.py"])) == Reached(Reach.REACHED)


def test_way_of_undecided_versions_is_never_certain() -> None:
    """A range of versions decides; without one a way may be the only one, and no command is known to reach it."""
    entry = failure(reached_by=(ReachedBy(bounds={MCORE: Range("<0.9")}, arguments=("--overlap",)),))
    unknown, given = Stack({}, UNKNOWN), JobArguments.parse(["a.py", "--overlap"])
    assert [entry.reach(unknown, one).certain for one in (None, JobArguments(), given)] == [False] * 3
    assert entry.reach(unknown, given, lambda *_: True).certain
    assert entry.reach(unknown, JobArguments(), lambda *_: False).certain


def test_refuted_workaround_is_left_out() -> None:
    refuted, verified = Workaround("wait", "run 1", fails=True), Workaround("pin it", "run 2")
    assert failure(workaround=(refuted, verified)).workarounds == (verified,)


@pytest.mark.parametrize(("own", "silent"), [((True, True), True), ((True, False), False)])
def test_failure_is_silent_if_only_checks_raise(own: tuple[bool, bool], silent: bool) -> None:
    signatures = tuple(Signature(f"s{number}", own=one) for number, one in enumerate(own))  # type: ignore[arg-type]
    assert failure(signature=signatures).silent is silent


def test_case_is_found_by_its_name() -> None:
    entry = failure(case=(case("tp2"), case("pp2")))
    assert entry.case_named("pp2") is entry.case[1]
    with pytest.raises(KeyError):
        entry.case_named("mpi")


def test_builds_are_those_of_one_package() -> None:
    made = [Build(package, version, "", "") for package, version in ((TE, "1.9+a"), (MCORE, "0.9+b"), (TE, "1.9+c"))]  # type: ignore[arg-type]
    assert failure(build=tuple(made)).builds(TE) == {"1.9+a": made[0], "1.9+c": made[2]}
