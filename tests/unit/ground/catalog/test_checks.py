"""Rules that match nothing and rules that contradict each other are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.checks import check, known
from matrix.ground.catalog.failure import ContractCall, Level, Signature
from matrix.ground.catalog.model import Catalog, Driver
from matrix.ground.catalog.reach import ReachedBy
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.catalog.versions import Range
from matrix.ground.errors import MatrixError
from tests.unit.catalogs import (
    CORES,
    TORCHES,
    case,
    catalog,
    clause,
    exclusion,
    failure,
    image,
    masked,
    stack,
    wheels,
)

FACTS = Path("facts")


def refused(known: Catalog) -> MatrixError:
    with pytest.raises(MatrixError) as caught:
        check(known, FACTS)
    return caught.value


def test_a_consistent_catalog_is_accepted() -> None:
    entry = failure(
        affected=(clause(mcore="<0.9", torch=">=2.4"),), works=(clause(mcore=">=0.9"),), masked=(masked("b"),)
    )
    stacks = (stack("b", "torch-2.4.0", "0.8.0rc0"),)
    check(catalog(entry, failure("b"), exclusions=(exclusion(torch="<2.4"),), stacks=stacks), FACTS)


ENTRY = str(failure().folder / "failure.toml")


def with_reach(*ways: ReachedBy) -> Catalog:
    return catalog(failure(affected=(clause(mcore="<0.9"), clause(mcore=">=0.9")), reached_by=ways))


REFUSALS: dict[str, tuple[Callable[[], Catalog], str, str]] = {
    "a condition that is none": (
        lambda: with_reach(ReachedBy(arguments=("--x is on",))),
        f"{ENTRY}: reached_by[0]",
        "not a condition on an argument",
    ),
    "a default of a condition": (
        lambda: with_reach(ReachedBy(arguments=("--x == a",), defaults={"--x == a": "b"})),
        f"{ENTRY}: reached_by[0]",
        "not a condition on an argument",
    ),
    "a way without a condition": (lambda: with_reach(ReachedBy()), f"{ENTRY}: reached_by[0]", "nothing is required"),
    "a way to no affected cell": (
        lambda: with_reach(ReachedBy(bounds={MCORE: Range(">=3")}, arguments=("--x",))),
        f"{ENTRY}: reached_by[0]",
        "no affected cell is reached this way",
    ),
    "a rule without a way": (
        lambda: with_reach(ReachedBy(bounds={MCORE: Range("<0.9")}, arguments=("--x",))),
        f"{ENTRY}: affected[1]",
        "nothing reaches the cells of this rule",
    ),
    "a base twice": (
        lambda: catalog(wheels=(wheels("2.4.0"), wheels("2.4.0"))),
        "facts: bases.toml, containers.toml",
        "an id is used twice",
    ),
    "an image named as a base": (
        lambda: catalog(containers=(image("torch-2.4.0", None),)),
        "facts: bases.toml, containers.toml",
        "an id is used twice",
    ),
    "a failure twice": (lambda: catalog(failure(), failure()), "the failures", "an id is used twice"),
    "a case twice": (lambda: catalog(failure(case=(case(), case()))), f"{ENTRY}: case", "an id is used twice"),
    "a signature twice": (
        lambda: catalog(failure(signature=failure().signature * 2)),
        f"{ENTRY}: signature",
        "an id is used twice",
    ),
    "a signature without a key": (
        lambda: catalog(failure(signature=(Signature("all", frame="a.py:f"),))),  # type: ignore[arg-type]
        f"{ENTRY}: signature all",
        "a signature that would match any failure",
    ),
    "a place that is no frame": (
        lambda: catalog(failure(signature=(Signature("all", exception="KeyError", through="a.py"),))),  # type: ignore[arg-type]
        f"{ENTRY}: signature all.through",
        "not a frame",
    ),
    "an exception with its module": (
        lambda: catalog(failure(signature=(Signature("all", exception="pkg.Error"),))),  # type: ignore[arg-type]
        f"{ENTRY}: signature all.exception",
        "an exception that never matches",
    ),
    "a mask that is not there": (
        lambda: catalog(failure(masked=(masked("breaks"),))),
        f"{ENTRY}: masked.by",
        "no such failure",
    ),
    "a base that is not there": (
        lambda: catalog(failure(works=(clause(base=["torch-2.4"]),))),
        f"{ENTRY}: works[0].base",
        "no such base",
    ),
    "a predicate without a cell": (
        lambda: catalog(failure(affected=(clause(), clause(mcore=">=0.10")))),
        f"{ENTRY}: affected[1]",
        "this predicate matches no known cell",
    ),
    "an exclusion without a cell": (
        lambda: catalog(exclusions=(exclusion(torch=">=2.4"), exclusion(torch=">=3"))),
        "facts/constraints.toml: exclude[1].when",
        "this exclusion matches no known cell",
    ),
    "a stack on no base": (
        lambda: catalog(failure(), stacks=(stack("break", "torch-2.4", "0.8.0"),)),
        f"{ENTRY}: stack[0].cell.base",
        "no such base",
    ),
    "a level twice": (
        lambda: catalog(failure(case=(replace(case(), levels=case().levels * 2),))),
        f"{ENTRY}: case tp2.levels",
        "an id is used twice",
    ),
    **{
        f"a case with {changes}": (
            lambda changes=changes: catalog(failure(case=(replace(case(), **changes),))),  # type: ignore[misc]
            f"{ENTRY}: case tp2",
            "a case that can't run",
        )
        for changes in (
            {"ranks": 0},
            {"ranks": 10**30},
            {"gpus": -1},
            {"gpus": 10**30},
            {"deadline": 1e30},
            {"levels": ()},
        )
    },
    **{
        f"a case without a function: {key}={text}": (
            lambda key=key, text=text: catalog(failure(case=(replace(case(), **{key: text}),))),  # type: ignore[misc]
            f"{ENTRY}: case tp2.{key}",
            "a case without a function",
        )
        for key, text in (("run", ""), ("run", "a/b c"), ("run", "reproduction:"), ("write", "../other:save"))
    },
    "a date as an argument": (
        lambda: catalog(failure(case=(replace(case(), arguments={"day": date(2026, 1, 1)}),))),
        f"{ENTRY}: case tp2.arguments",
        "arguments that can't be passed to a rank",
    ),
    "an unknown kind of break": (
        lambda: catalog(failure(contract=ContractCall(".call$", "certain"))),  # type: ignore[arg-type]
        f"{ENTRY}: contract.kind",
        "no such kind of break",
    ),
    "what runs without a base": (
        lambda: catalog(failure(axes=(MCORE,))),
        f"{ENTRY}: axes",
        "cases that run need the axis base",
    ),
    "rank without a GPU": (
        lambda: catalog(failure(case=(case(levels=(Level.GPU,), ranks=2, gpus=1),))),
        f"{ENTRY}: case tp2.gpus",
        "a rank without a GPU",
    ),
    **{
        f"a rehearsal with {changes}": (
            lambda changes=changes: catalog(failure(case=(replace(case(), **changes),))),  # type: ignore[misc]
            f"{ENTRY}: case tp2.{'rehearsal' if 'rehearsal' in changes else 'no_rehearsal'}",
            "a rehearsal that can't be",
        )
        for changes in (
            {"no_rehearsal": "no GPU is needed", "levels": (Level.CPU,)},
            {"levels": (Level.GPU,), "gpus": 2, "rehearsal": {"sequence": 8}},
            {
                "levels": (Level.GPU,),
                "gpus": 2,
                "arguments": {"sequence": 65536},
                "rehearsal": {"sequence": 8},
                "no_rehearsal": "too long",
            },
        )
    },
    "unknown case": (
        lambda: catalog(failure(affected=(clause(cases=["tp3"]),))),
        f"{ENTRY}: affected[0].cases",
        "no such case",
    ),
}


@pytest.mark.parametrize(("make", "where", "what"), REFUSALS.values(), ids=REFUSALS.keys())
def test_an_inconsistent_catalog_is_refused(make: Callable[[], Catalog], where: str, what: str) -> None:
    error = refused(make())
    assert (where, what) == (error.where, error.what)


def test_all_problems_are_reported_at_once() -> None:
    """Of two entries, in the order of the entries; the parts of the error are those of the first."""
    first = failure(
        case=(replace(case(), ranks=0, launcher="mpirum", packages=("numpy",)),),
        affected=(clause(cases=["tp3"]), clause(base=["torch-9"], mcore="<0.9")),
    )
    error = refused(catalog(first, failure("other", masked=(masked("none"),))))
    assert [(one.where.removeprefix(ENTRY), one.what) for one in error.errors if one.where] == [
        (": case tp2.launcher", "no such launcher"),
        (": case tp2", "a case that can't run"),
        (": case tp2.packages", "not a pinned package"),
        (": affected[0].cases", "no such case"),
        (": affected[1].base", "no such base"),
        (": masked.by", "no such failure"),  # of the other entry, which has the same folder here
    ]
    assert error.what == error.errors[0].what
    assert str(error) == "\n".join(map(str, error.errors))


def test_a_case_rule_may_differ_from_the_general() -> None:
    check(catalog(failure(affected=(clause(),), works=(clause(cases=["tp2"]),))), FACTS)


def test_two_rules_of_one_case_contradict_each_other() -> None:
    rule = (clause(cases=["tp2"]),)
    error = refused(catalog(failure(affected=rule, works=rule)))
    assert error.got == "affected (everything in case tp2) and works (everything in case tp2)"


def test_a_contradiction_names_both_clauses() -> None:
    error = refused(catalog(failure(affected=(clause(mcore="<0.9"),), works=(clause(torch="<2.4"),))))
    got = "affected (mcore <0.9) and works (torch <2.4)"
    assert (got, "narrow one of the two clauses") == (error.got, error.fix)


def bounds(values: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.builds("{}{}".format, st.sampled_from(["<", "<=", ">", ">=", "=="]), st.sampled_from(values))


CLAUSES = st.builds(clause, torch=bounds(TORCHES), mcore=bounds(CORES))


@given(st.lists(CLAUSES, max_size=2).map(tuple), st.lists(CLAUSES, max_size=2).map(tuple))
def test_accepted_rules_match_cells_and_do_not_contradict(affected: Any, works: Any) -> None:
    known = catalog(failure(affected=affected, works=works))
    cells = [known.cell(base.id, {MCORE: core}).stack for base in known.wheels for core in CORES]
    alive = all(any(one.matches(cell) for cell in cells) for one in (*affected, *works))
    both = [cell for cell in cells if any(b.matches(cell) for b in affected) and any(w.matches(cell) for w in works)]
    if alive and not both:
        check(known, FACTS)
    else:
        expected = "a cell is both in affected and in works" if alive else "this predicate matches no known cell"
        assert expected == refused(known).what


def test_known_values_include_the_stacks_of_reports() -> None:
    stacks = (stack("break", "torch-2.4.0", "0.8.0rc0", te="1.8.0+37280ec"),)
    values = known(catalog(failure(), stacks=stacks))
    assert {"0.8.0rc0"} == {*values.others[MCORE]} - set(CORES)
    assert "1.8.0+37280ec" in values.others[TE]


@pytest.mark.parametrize(
    "bounds",
    [
        {"torch": ">=2.4", "te": ">=1.9"},
        {"base": ["ngc-24.07"], "te": ">=1.9"},
        {"driver": ">=535"},
        {"sm": ">=8.0"},
    ],
    ids=str,
)
def test_a_predicate_over_any_axes_is_accepted(bounds: Any) -> None:
    images = (image("ngc-24.07", "2.4.0a0"),)
    drivers = tuple(map(Driver, ("470", "535")))  # type: ignore[arg-type]
    stacks = (stack("break", "torch-2.4.0", "0.8.0", te="1.9", sm="8.0"),)
    check(catalog(failure(affected=(clause(**bounds),)), drivers=drivers, stacks=stacks, containers=images), FACTS)


def test_base_contradicting_its_engine_is_found() -> None:
    entry = failure(affected=(clause(torch=">=2.4"),), works=(clause(te=">=1.9"),))
    assert refused(catalog(entry)).what == "a cell is both in affected and in works"


def test_rules_bound_packages_that_no_table_lists() -> None:
    entry = failure(
        affected=(clause(packages={"flash-attn": ">2.8.3"}),), works=(clause(packages={"flash-attn": "<=2.8.3"}),)
    )
    report = stack("break", "torch-2.4.0", "0.8.0", **{"flash-attn": "2.7.3"})  # type: ignore[arg-type]
    check(catalog(entry, stacks=(report,)), FACTS)
