"""`--select` selects the matching cases; a typo raises and never selects nothing or everything silently."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import BASE, DRIVER, MCORE, TE, TORCH
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.night import everything
from matrix.prove.planning.selection import (
    compile_expression,
    possible_cases,
    select,
    select_keywords,
    select_possible,
    values_of,
    vocabulary_in,
    vocabulary_of,
)
from tests.unit.catalogs import case, catalog, clause, exclusion, failure, values

BREAK = failure(
    "break", case=(case("tp2"), case("pp2", (Level.CPU, Level.GPU))), affected=(clause(mcore="<0.9", torch=">=2.4"),)
)
OTHER = failure("other", axes=(BASE, MCORE, TE), case=(case("args", (Level.CONTRACT,), ranks=1),))
KNOWN = catalog(BREAK, OTHER)
PLANNED = [
    replace(item, cell=item.cell.with_({DRIVER: "535.129.03"})) if item.level is Level.GPU else item
    for item in everything(KNOWN, tuple(Level))
]


def short(item: Planned) -> str:
    versions = " ".join(str(item.cell.stack[name]) for name in (TORCH, MCORE, TE))
    return f"{versions} {item.failure} {item.case} {item.level.value}"


def chosen(expression: str) -> list[str]:
    return [short(item) for item in select(PLANNED, expression)]


def by_python(holds: str) -> list[str]:
    """Return the same choice, made with a Python expression on the words of `short`."""
    names = ("torch", "mcore", "te", "failure", "case", "level")
    return [short(item) for item in PLANNED if eval(holds, {}, dict(zip(names, short(item).split(), strict=True)))]


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("mcore==0.8.0", "mcore == '0.8.0'"),
        ("mcore=0.8.0", "mcore == '0.8.0'"),
        ("mcore == 0.8.*", "mcore == '0.8.0'"),
        ("mcore!=0.8.0", "mcore != '0.8.0'"),
        ("mcore>=0.8,<0.9", "mcore == '0.8.0'"),
        ("torch>=2.4", "torch != '2.3.1'"),
        ("torch<2.4.0a0", "torch == '2.3.1'"),
        ("te==none", "te == 'none'"),
        ("te!=none", "te != 'none'"),
        ("te>=1.9", "te in ('1.9', '1.10')"),
        ("driver>=535", "level == 'gpu'"),
        ("failure==break", "failure == 'break'"),
        ("failure!=break", "failure != 'break'"),
        ("failure==b*", "failure == 'break'"),
        ("case==[tp]p2", "case in ('tp2', 'pp2')"),
        ("level==contract", "level == 'contract'"),
        ("base==torch-2.4.0", "torch == '2.4.0'"),
        ("base==torch-*", "True"),
        ("cell==torch-2.4.0/mcore-0.8.0/te-none/driver-none", "torch == '2.4.0' and mcore == '0.8.0' and te == 'none'"
         " and level != 'gpu'"),
        ("expectation==broken", "failure == 'break' and mcore != '0.9.0' and torch != '2.3.1'"),
        ("case==tp2 or case==pp2 and mcore==0.8.0", "case == 'tp2' or (case == 'pp2' and mcore == '0.8.0')"),
        ("mcore==0.8.0 and case==pp2 or case==tp2", "(mcore == '0.8.0' and case == 'pp2') or case == 'tp2'"),
        ("(case==tp2 or case==pp2) and mcore==0.8.0", "case in ('tp2', 'pp2') and mcore == '0.8.0'"),
        ("mcore==0.8.0 and(case==tp2 or(case==pp2))", "case in ('tp2', 'pp2') and mcore == '0.8.0'"),
        ("not case==pp2 and mcore==0.8.0", "case != 'pp2' and mcore == '0.8.0'"),
        ("not (case==pp2 and mcore==0.8.0)", "not (case == 'pp2' and mcore == '0.8.0')"),
        ("not(case==pp2)", "case != 'pp2'"),
        ("not not case==pp2", "case == 'pp2'"),
        ("  mcore==0.8.0  ", "mcore == '0.8.0'"),
        ("ranks>=2", "case in ('tp2', 'pp2')"),
        ("ranks<2 or ranks>10", "case not in ('tp2', 'pp2')"),
    ],
)  # fmt: skip
def test_an_expression_selects_the_matching_cases(expression: str, holds: str) -> None:
    assert by_python(holds) == chosen(expression)


def test_select_keeps_the_order_of_the_plan() -> None:
    assert select(PLANNED, "base==torch-*") == PLANNED


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("mcor==0.8.0", "did you mean mcore"),
        ("failure==brake", "did you mean break?"),
        ("case==tp3", "did you mean tp2"),
        ("level==cpux", "did you mean"),
        ("base==torch-2.4", "did you mean torch-2.4.0"),
        ("expectation==borken", "did you mean broken?"),
        ("case!=tp3", "did you mean tp2"),
        ("mcore==0.8.x", "a PEP 440 version"),
        ("mcore==", "a PEP 440 version"),
        ("mcore==0.8..*", "2.4.* or 2.4.1"),
        ("mcore>=new", "a PEP 440 version"),
        ("mcore>=0.8.*", "a PEP 440 version"),
        ("te>=none", "a PEP 440 version"),
        ("case>=tp2", "== or !="),
        ("ranks==3", "one of: 1, 2"),
        ("ranks>=two", "a PEP 440 version"),
        ("mcore==0.88.0", "did you mean 0.8.0"),
        ("case==tp2 and case==pp2", "at least one of"),
    ],
)
def test_a_typo_raises_with_a_hint(expression: str, hint: str) -> None:
    with pytest.raises(MatrixError) as caught:
        select(PLANNED, expression)
    assert hint in str(caught.value)


INCOMPLETE = "the selection can't be read: a condition, a parenthesis or a word between conditions is missing"


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("", INCOMPLETE),
        ("and", INCOMPLETE),
        ("mcore==0.8.0 and", INCOMPLETE),
        ("not", INCOMPLETE),
        ("()", INCOMPLETE),
        ("(mcore==0.8.0", INCOMPLETE),
        ("mcore==0.8.0)", INCOMPLETE),
        ("mcore==0.8.0 case==tp2", INCOMPLETE),
        ("mcore==0.8.0 & case==tp2", "the selection can't be read"),
        ("mcore", "the selection can't be read"),
        ("mcore~=0.8", "the selection can't be read"),
        ("0.8.0", "the selection can't be read"),
    ],
)
def test_a_malformed_expression_raises_with_the_form(expression: str, what: str) -> None:
    with pytest.raises(MatrixError) as caught:
        select(PLANNED, expression)
    assert what == caught.value.what
    assert "mcore==0.8.* and torch>=2.4 and not case==pp2" in str(caught.value.expected)


def test_an_empty_selection_reports_the_number_of_cases() -> None:
    with pytest.raises(MatrixError) as caught:
        select(PLANNED, "mcore>=1")
    assert (caught.value.what, caught.value.got) == ("the selection selects nothing", "mcore>=1")
    assert caught.value.expected == f"at least one of {len(PLANNED)} cases"


def test_empty_selection_states_why_cells_are_excluded() -> None:
    rule = exclusion("no device mesh", torch="<2.4", mcore=">=0.9")
    known = catalog(BREAK, exclusions=(rule,))
    with pytest.raises(MatrixError, match=r"its cases are excluded: no device mesh; the base has torch 2\.3\.1"):
        select_possible(known, tuple(Level), "torch==2.3.1 and mcore==0.9.0 and case==tp2")
    with pytest.raises(MatrixError) as caught:
        select_possible(known, tuple(Level), "torch==2.4.0 and torch==2.3.1")
    assert "excluded" not in str(caught.value)


def test_an_unused_version_raises_within_or_too() -> None:
    with pytest.raises(MatrixError):
        select(PLANNED, "mcore==0.88.0 or mcore==0.9.0")


CONDITIONS = st.sampled_from(
    [
        "mcore==0.8.0", "mcore>=0.8", "torch<2.4", "torch!=2.4.0", "te==none", "te>1.8", "te!=1.9", "case==tp2",
        "case!=pp2", "failure==other", "level==gpu", "base==torch-2.[34].*", "expectation==broken", "driver<500",
    ]
)  # fmt: skip
EXPRESSIONS = st.recursive(
    CONDITIONS,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not {}".format, inner),
    ),
    max_leaves=6,
)


def keys(expression: str) -> list[str]:
    test = compile_expression(expression, vocabulary_of(PLANNED))
    return [item.key for item in PLANNED if test(values_of(item))]


@given(EXPRESSIONS)
def test_an_expression_and_its_negation_partition_the_plan(expression: str) -> None:
    inside, outside = keys(expression), keys(f"not {expression}")
    assert sorted(set(inside) & set(outside)) == []
    assert sorted(item.key for item in PLANNED) == sorted(inside + outside)


@given(EXPRESSIONS, EXPRESSIONS)
def test_and_is_intersection_or_is_union(left: str, right: str) -> None:
    assert set(keys(left)) & set(keys(right)) == set(keys(f"{left} and {right}"))
    assert set(keys(left)) | set(keys(right)) == set(keys(f"{left} or {right}"))


@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_and_binds_closer_than_or(first: str, second: str, third: str) -> None:
    assert keys(f"{first} or ({second} and {third})") == keys(f"{first} or {second} and {third}")


@given(st.text(st.sampled_from("mcore=<>!~ ()0.8*andtpx"), max_size=24))
def test_any_text_selects_cases_or_raises_matrix_error(text: str) -> None:
    """No text raises another error or selects nothing."""
    try:
        chosen = select(PLANNED, text)
    except MatrixError as error:
        chosen = [error.expected or error.fix]  # type: ignore[list-item]
    assert chosen not in ([], [None])


@pytest.mark.parametrize("expression", ["(" * 5000 + "case==tp2" + ")" * 5000, "not " * 5000 + "case==tp2", "(" * 5000])
def test_deep_nesting_raises(expression: str) -> None:
    with pytest.raises(MatrixError, match=r"nested too deeply|can't be read"):
        select(PLANNED, expression)


def test_long_flat_expression_selects() -> None:
    assert select(PLANNED, " and ".join(["(case==tp2)"] * 2000)) == select(PLANNED, "case==tp2")


@given(EXPRESSIONS)
def test_bounded_search_selects_what_a_full_one_does(expression: str) -> None:
    """Cells that are left out early are those that the expression refuses."""
    full = everything(KNOWN, tuple(Level))
    test = compile_expression(expression, vocabulary_in(KNOWN, tuple(Level)))
    bounded = possible_cases(KNOWN, tuple(Level), test)

    assert [item for item in bounded if test(values_of(item))] == [item for item in full if test(values_of(item))]


@pytest.mark.parametrize(
    ("expression", "largest"),
    [
        ("failure==other", 27),
        ("base==torch-2.4.0", 12 + 9),
        ("mcore==0.8.0 and torch==2.4.0", 4 + 3),
        ("cell==torch-2.4.0/mcore-0.8.0/te-none/driver-none", 3),
        ("cell==torch-2.4.0/mcore-0.8.0/*", 4 + 3),
        ("not mcore!=0.8.0 and failure!=other", 12),
        ("driver>=500", 0),
    ],
)
def test_refused_cells_are_not_made(expression: str, largest: int) -> None:
    test = compile_expression(expression, vocabulary_in(KNOWN, tuple(Level)))
    assert len(possible_cases(KNOWN, tuple(Level), test)) <= largest


@pytest.mark.parametrize("expression", ["mcore==0.88.0", "failure==brake", "mcor==0.8.0", "te==1.7 or te==1.8"])
def test_a_typo_raises_in_the_whole_catalog(expression: str) -> None:
    """With the same suggestion as among planned cases."""
    with pytest.raises(MatrixError) as among_planned:
        select(PLANNED, expression)
    with pytest.raises(MatrixError) as in_catalog:
        select_possible(KNOWN, tuple(Level), expression)
    assert (among_planned.value.what, among_planned.value.got) == (in_catalog.value.what, in_catalog.value.got)


@pytest.mark.parametrize(
    ("decided", "result"),
    [
        ({}, None),
        ({"case": "pp2"}, False),
        ({"case": "tp2"}, None),
        ({"case": "tp2", "mcore": "0.9.0"}, None),
        ({"mcore": "0.9.0", "te": "1.8"}, False),
        ({"case": "tp2", "mcore": "0.8.0"}, True),
        ({"te": "none", "case": "tp2"}, True),
    ],
)
def test_undecided_names_leave_the_result_open(decided: dict[str, str], result: bool | None) -> None:
    test = compile_expression("case==tp2 and (mcore==0.8.0 or te==none)", vocabulary_of(PLANNED))
    named = {key: decided[key] for key in decided if key == "case"}
    assert test({**named, **values(**{key: decided[key] for key in decided if key != "case"})}.get) is result


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tp2", {"tp2"}),
        ("TP2 or pp2", {"tp2", "pp2"}),
        ("not tp2", {"pp2"}),
        ("break and mcore_0.8.0 and (pp2)", {"pp2"}),
        ("nothing or (te-none and not pp2)", {"tp2"}),
        ("notorch", None),
        ("gpu", None),
        ("tp2 and", None),
        ("(tp2", None),
        ("", None),
    ],
)
def test_keywords_are_parts_of_a_key(words: str, expected: set[str] | None) -> None:
    known = catalog(failure(affected=(clause(mcore="<0.9"),), case=(case("tp2"), case("pp2"))), torches=("2.4.0",))
    cases = [item for item in everything(known, (Level.CPU,)) if item.cell.stack[MCORE] == "0.8.0"]
    if expected is None:
        with pytest.raises(MatrixError):
            select_keywords(cases, words)
    else:
        assert {item.case for item in select_keywords(cases, words)} == expected
