"""The upgrade map: colours of pairs, what a night supports, and what contradicts it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from matrix.ask.check.answer import CheckAnswer
from matrix.ask.check.checking import Question, check
from matrix.ask.check.rulings import FailureInStack, Standing
from matrix.ask.check.table import StackAnswer
from matrix.ask.check.user_stack import build, parse_text
from matrix.ground.catalog.failure import Level, Signature
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.reach import ReachedBy
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.verdicts.record import Record, Verdict
from matrix.ground.verdicts.trend import PastResult
from matrix.show.stack_map import SIGNS, Colour, MapCell, NightResult, Seen, StackMap, cell_of, uses_of
from matrix.show.stack_map import known as known_breaks
from tests.founding import SAVE
from tests.profiles import PROFILE, examples
from tests.unit.catalogs import catalog, clause, exclusion, failure, image, real
from tests.unit.show.samples import cell, record, stack_map

OWN = Signature("own", exception="Different", own=True)  # type: ignore[arg-type]  # not from TOML


def known(**rules: object) -> Catalog:
    """Return a catalog with one failure and two containers, of which torch-2.4.0 is the twin of the first."""
    entry = failure("dud-assertion", **rules)
    return catalog(entry, containers=(image("ngc-24.07", "2.4.0a0+ab12cd3", "1.4"), image("ngc-26.08", None)))


def pair(map: StackMap, row: str = "ngc-24.07", mcore: str = "0.8.0") -> MapCell:
    (found,) = (one for rows in map.groups.values() for one in rows if one.name == row)
    return found.cells[map.columns.index(mcore)]


@pytest.mark.parametrize(
    ("rules", "image_te", "colour"),
    [
        ({"affected": (clause(mcore="<1"),)}, "1.4", Colour.BREAKS),
        ({"affected": (clause(mcore="<1"),), "signature": (OWN,)}, "1.4", Colour.BREAKS),  # silently different
        (
            {"affected": (clause(mcore="<1"),), "reached_by": (ReachedBy(arguments=("--num-experts",)),)},
            "1.4",
            Colour.READ,
        ),
        ({"affected": (clause(driver="<600"),)}, "1.4", Colour.READ),
        ({"works": (clause(mcore=">=0"),)}, "1.4", Colour.READ),
        ({"works": (clause(mcore=">=0"),)}, None, Colour.UNKNOWN),
    ],
)
def test_colour_is_the_answer_of_check(rules: dict[str, Any], image_te: str | None, colour: Colour) -> None:
    """A break that needs an option or a version colours nothing before a reader ticks it."""
    entry = failure("dud-assertion", **rules)
    found = pair(
        stack_map(catalog(entry, containers=(image("ngc-24.07", "2.4.0a0+ab12cd3", image_te),))), mcore="0.9.0"
    )
    assert found == MapCell(colour)
    assert found.sign == SIGNS[colour]


@pytest.mark.draws
def test_colours_agree_with_check() -> None:
    """Random pairs of the real catalog: red where `check` answers breaks, hatched where it answers unknown."""
    map, draw = stack_map(real()), random.Random(3)
    pairs = [(row, column) for row in map.images for column in range(len(map.columns))]
    expected = {
        CheckAnswer.BREAKS: (Colour.CLASH, Colour.BREAKS),
        CheckAnswer.UNKNOWN: (Colour.UNKNOWN,),
        CheckAnswer.NONE_KNOWN: (Colour.READ,),
    }
    for row, column in draw.sample(pairs, examples(60, PROFILE)):
        text = " ".join(row.choice(map.columns[column]).values())
        result = check(real(), build(real(), parse_text(real(), text)), Question(), {})
        assert row.cells[column].colour in expected[result.answer], text


@pytest.mark.parametrize(
    ("needs", "uses"),
    [
        ("", []),
        ("with --fp8-format and --num-experts >= 2", ["fp8", "experts"]),
        ("with --cpu-offloading", ["cpu-offload"]),
        ("with --softmax-type == learnable", ["other"]),
        ("with --no-rope-fusion and --overlap-moe-expert-parallel-comm", ["experts", "other"]),
    ],
)
def test_uses_are_those_of_the_options_needed(needs: str, uses: list[str]) -> None:
    names = [*(use.id for use in real().uses), "other"]
    assert [names[place] for place in uses_of(real().uses, needs)] == uses


def test_every_listed_use_reaches_a_failure() -> None:
    """An option that Megatron-LM renames would leave a box without effect."""
    options = {option.option for entry in real().failures for way in entry.reached_by for option in way.on_arguments}
    reached = {place for option in options for place in uses_of(real().uses, f"with --{option}")}
    assert reached >= {*range(len(real().uses))}


def contract(*records: Record, te: str = "1.5.0", **rules: object) -> StackMap:
    """Return the map of a container whose Transformer Engine is called with an argument that it lacks by 0.9.0."""
    rules = rules or {"works": (clause(mcore=">=0"),)}
    image_ = image("ngc-24.07", "2.4.0a0+ab12cd3", te)
    return stack_map(catalog(failure("dud-assertion", **rules), containers=(image_,)), *records)


def test_call_that_needs_an_option_colours_nothing() -> None:
    assert pair(contract(), mcore="0.9.0").colour is Colour.READ
    assert pair(contract(affected=(clause(mcore=">=0.9"),)), mcore="0.9.0").colour is Colour.BREAKS


def test_parts_that_exclude_each_other_clash() -> None:
    entry = failure(affected=(clause(mcore="<0.9"),))
    excluded = catalog(entry, containers=(image("ngc-24.07", "2.4.0"),), exclusions=(exclusion(mcore="==0.8.0"),))
    assert pair(stack_map(excluded)).colour is Colour.CLASH
    assert pair(stack_map(excluded), mcore="0.7.0").colour is Colour.BREAKS


BROKEN = {"affected": (clause(mcore="<0.9"),), "works": (clause(mcore=">=0.9"),)}


@pytest.mark.parametrize(
    ("one", "mcore", "expected"),
    [
        (record(Verdict.REPRODUCED, where=cell("torch-2.4.0", "0.8.0")), "0.8.0", (Level.CPU, False)),
        (record(Verdict.REPRODUCED, where=cell("torch-2.3.1", "0.8.0")), "0.8.0", (None, False)),
        (record(Verdict.HOLDS, where=cell("torch-2.4.0", "0.9.0")), "0.9.0", (Level.CPU, False)),
        (record(Verdict.HOLDS, where=cell("torch-2.4.0", "0.8.0"), case="fixed"), "0.8.0", (None, False)),
        (record(Verdict.VANISHED, where=cell("torch-2.4.0", "0.8.0")), "0.8.0", (None, True)),
        (record(Verdict.UNAVAILABLE, where=cell("torch-2.4.0", "0.8.0")), "0.8.0", (None, False)),
    ],
)
def test_twin_supports_or_contradicts_its_container(
    one: Record, mcore: str, expected: tuple[Level | None, bool]
) -> None:
    found = pair(stack_map(known(**BROKEN), one), mcore=mcore)
    assert (found.level, found.surprise) == expected


def test_result_of_another_engine_supports_nothing() -> None:
    broken = known(affected=(clause(te="<1.5"),), axes=(MCORE, TE))
    for te, level in (("1.4", Level.CONTRACT), ("1.5", None)):
        one = record(Verdict.REPRODUCED, where=cell("no-torch", te=te), level=Level.CONTRACT)
        assert pair(stack_map(broken, one)).level is level


def test_nothing_known_and_held_is_tested() -> None:
    for base, row, colour in (
        ("torch-2.4.0", "ngc-24.07", Colour.TWIN),
        ("ngc-24.07", "ngc-24.07", Colour.RUN),
    ):
        found = pair(stack_map(known(**BROKEN), record(where=cell(base, "0.9.0"))), row, mcore="0.9.0")
        assert (found.colour, found.level) == (colour, Level.CPU)


def test_result_of_level_contract_counts_as_read() -> None:
    one = record(Verdict.HOLDS, where=cell("torch-2.4.0", "0.9.0"), level=Level.CONTRACT)
    found = pair(stack_map(known(**BROKEN), one), mcore="0.9.0")
    assert (found.colour, found.level) == (Colour.READ, Level.CONTRACT)


def test_failure_is_seen_in_nights_that_ran_it() -> None:
    one = record(Verdict.REPRODUCED, cached_from="2-night")
    past = [PastResult(n, f"{n}-night", verdict, 1.0, "a", cached) for n, verdict, cached in (
        (1, Verdict.HOLDS, False), (2, Verdict.REPRODUCED, False), (3, Verdict.REPRODUCED, True))]  # fmt: skip
    assert stack_map(known(), one, pasts={one.key: past}).seen == {"dud-assertion": Seen("2-night", "2-night")}
    assert stack_map(known(), one).seen == {"dud-assertion": Seen("2-night", "2-night")}


def test_affected_containers_are_spans_of_their_family() -> None:
    found = stack_map(real()).affected[SAVE][0]
    assert found.releases == "0.7.0 .. 0.8.0"
    assert "nemo-25.09 .. nemo-26.08.01" in found.containers
    assert "ngc-24.07 .. ngc-25.06" in found.containers


def test_container_without_known_packages_says_so() -> None:
    rows = {row.name: row.unknown for group in stack_map(known()).groups.values() for row in group}
    assert (rows["ngc-26.08"], rows["ngc-24.07"]) == (True, False)


def test_another_failure_does_not_support_the_colour() -> None:
    worst, lesser = failure("worst"), failure("lesser")
    stands = [
        FailureInStack(worst, Standing.WILL_BREAK, certain=True),
        FailureInStack(lesser, Standing.WITH_OPTIONS),
    ]
    answer = StackAnswer((), stands, (), ())
    night = {"lesser": NightResult(Verdict.REPRODUCED, Level.CPU)}
    assert cell_of(answer, night) == MapCell(Colour.BREAKS)
    night = {"worst": NightResult(Verdict.REPRODUCED, Level.CPU), **night}
    assert cell_of(answer, night) == MapCell(Colour.BREAKS, Level.CPU)


def test_red_result_of_a_pair_comes_first() -> None:
    green = record(Verdict.REPRODUCED, where=cell("torch-2.4.0", "0.8.0"), level=Level.GPU)
    red = record(Verdict.VANISHED, where=cell("torch-2.4.0", "0.8.0"), case="pp2")
    results = stack_map(known(**BROKEN), green, red).results["dud-assertion"]
    assert {*results.values()} == {NightResult(Verdict.VANISHED, Level.CPU, twin=True)}


def test_lines_of_one_function_are_one_call() -> None:
    call = contract().table.calls({"base": "base=ngc-24.07", "mcore": "mcore=0.9.0"})[0][0]
    finding = call.findings[0]
    again = replace(finding, call_site=finding.call_site._replace(line=finding.call_site.line + 1))
    table = Mock(standing=lambda choice: (), calls=lambda choice: ([replace(call, findings=(finding, again))], ""))
    assert list(known_breaks(table, ["ngc-24.07"], ["0.9.0"]).values()) == [["0.9.0"]]
