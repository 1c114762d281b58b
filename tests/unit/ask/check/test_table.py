"""The tables that the pages look up give the answer of `megatrix check`."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from matrix.ask.check.answer import CheckAnswer
from matrix.ask.check.calls import breaking_calls
from matrix.ask.check.checking import Question, check
from matrix.ask.check.rulings import KNOWN_BREAK, BreakingCalls, Standing
from matrix.ask.check.table import Choice, build_table
from matrix.ask.check.user_stack import build, parse_text
from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.stack import MCORE, TORCH, Stack
from matrix.ground.catalog.versions import parse
from matrix.prove.planning.cell_explanation import explain
from tests.profiles import PROFILE, examples
from tests.unit.catalogs import catalog, clause, exclusion, failure, image, real
from tests.unit.catalogs import real_table as table


def random_choices(seed: int, count: int) -> list[Choice]:
    """Return stacks of listed versions: container or torch and release, often with TE, driver and GPU."""
    source = random.Random(seed)
    found: list[Choice] = []
    while len(found) < count:
        drawn = {axis: source.choice(words) for axis, words in table().values.items()}
        drawn = {
            axis: word for axis, word in drawn.items() if word and (axis in ("base", "mcore") or source.random() < 0.5)
        }
        if drawn:
            found.append(drawn)
    return found


def called(found: Sequence[BreakingCalls]) -> list[object]:
    """Return all of the calls but the spelling of the versions."""
    return [(one.standing, one.certain, one.needs, one.flags, [(each.error, each.message, each.call_site)
             for each in one.findings]) for one in found]  # fmt: skip


@pytest.mark.draws
def test_table_agrees_with_check() -> None:
    """Random stacks: standing, certainty, evidence, what must hold besides, clashes, calls, and the answer."""
    for choice in random_choices(20, examples(100, PROFILE)):
        result = check(real(), build(real(), parse_text(real(), " ".join(choice.values()))), Question(), {})
        found = [(one.failure.id, one.standing, one.certain, one.reason, one.needs, one.hidden_by)
                 for one in table().standing(choice)]  # fmt: skip
        expected = [(one.failure.id, one.standing, one.certain, one.reason, one.needs, one.hidden_by)
                    for one in result.failures]  # fmt: skip
        assert sorted(found) == sorted(expected), choice
        assert table().clashing(choice) == [one.text for one in result.clashes], choice
        breaking, problems = table().calls(choice)
        assert (called(breaking), "; ".join(problems.values())) == (called(result.calls), result.calls_problem), choice
        certain = any(one.certain for one in table().standing(choice)) or any(call.certain for call in breaking)
        certain = certain or bool(result.clashes)
        assert (result.breaks, result.answer is CheckAnswer.BREAKS) == (certain, certain), choice
        assert table().unread(choice) == [item.text for item in result.unknown], choice


@pytest.mark.draws
def test_table_agrees_with_explain() -> None:
    """Random cells, 200 in a night, on containers whose packages are known; what depends on a GPU is open there."""
    source = random.Random(22)
    images = [word for word, brought in table().brought.items() if "te" in brought]
    for _ in range(examples(200, PROFILE)):
        base, mcore, driver = source.choice(images), source.choice(real().megatron_core), source.choice(real().drivers)
        choice = {"base": base, "mcore": f"mcore={mcore.version}", "driver": f"driver={driver.branch}"}
        te = table().brought[base]["te"].replace("=", "-")
        cell = f"{base.removeprefix('base=')}/mcore-{mcore.version}/{te}/driver-{driver.branch}"
        explanation = explain(real(), cell, [], lambda _: "")
        explained = {one.failure.id: one.ruling.expectation for one in explanation.failures}
        assert called(table().calls(choice)[0]) == called(breaking_calls(real(), explanation.cell.stack, ())[0]), cell
        for one in table().standing(choice):
            broken = explained[one.failure.id] is Expectation.BROKEN
            assert one.standing is Standing.WITH_VERSIONS or (one.standing in KNOWN_BREAK) == broken, (cell, one)


def test_container_implies_its_engine() -> None:
    entry = failure(affected=(clause(te="==1.9"),), works=(clause(te="==1.8"),))
    table = build_table(catalog(entry, containers=(image("ngc-24.07", "2.4.0", "1.8"),)))
    inside = {"base": "base=ngc-24.07", "mcore": "mcore=0.8.0"}
    assert [one.standing for one in table.standing(inside)] == [Standing.WORKS]
    assert [one.standing for one in table.standing({**inside, "te": "te=1.9"})] == [Standing.WILL_BREAK]


def test_version_is_listed_in_one_spelling() -> None:
    """ngc-24.09 has TE "1.10", which is the release 1.10.0."""
    versions = [parse(word.partition("=")[2]) for word in table().values["te"][2:]]
    assert len({*versions}) == len(versions)
    assert table().brought["base=ngc-24.09"]["te"] == "te=1.10.0"


def test_versions_of_one_class_share_an_answer() -> None:
    """A page holds one answer for each class: two of the releases are alike for this rule."""
    table = build_table(catalog(failure(affected=(clause(mcore="<0.9"),))))
    assert len(table.failures[0].answers) == 3  # not named, below 0.9, others
    words = json.loads(json.dumps(table.to_json()))["values"]["mcore"]
    assert words == ["", "mcore=0.7.0", "mcore=0.8.0", "mcore=0.9.0"]


def test_exclusion_is_a_clash_of_its_pairs() -> None:
    known = catalog(failure(), exclusions=(exclusion("no wheel", mcore="==0.9.0", torch="<2.4"),),
                    containers=(image("ngc-24.01", "2.3.0"), image("ngc-24.07", "2.4.0")))  # fmt: skip
    table = build_table(known)
    assert table.clashing({"base": "base=ngc-24.01", "mcore": "mcore=0.9.0"}) == ["no wheel"]
    assert table.clashing({"base": "base=ngc-24.07", "mcore": "mcore=0.9.0"}) == []


def test_word_that_is_not_listed_is_refused() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        table().places({"mcore": "mcore=9.9"})


def test_clash_names_the_stack_of_the_choice() -> None:
    """The text names torch's version, so versions with the same outcome need texts of their own."""
    for torch in ("2.2.0", "2.5.1"):
        expected = real().excluded(Stack({TORCH: torch, MCORE: "0.18.2"}))
        assert table().clashing({"base": f"torch={torch}", "mcore": "mcore=0.18.2"}) == [expected]
