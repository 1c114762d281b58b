"""The nearest versions without a failure, and the case that proves it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from matrix.ask.check.checking import Question, check
from matrix.ask.check.remedies import (
    CONTENTS,
    Breaks,
    Upgrade,
    UpgradeStep,
    breaks_of,
    broken,
    nearest,
    proof,
    upgrade_step,
    upgrades,
    version_changes,
)
from matrix.ask.check.rulings import Rulings, StackChange
from matrix.ask.check.user_stack import UserStack, build, parse_text
from matrix.ground.catalog.failure import Failure, Level
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.reach import ReachedBy
from matrix.ground.catalog.stack import BASE, DRIVER, MCORE, TE, TORCH, UNKNOWN, Stack
from tests.unit.ask.check.test_calls import job
from tests.unit.catalogs import TORCHES, case, catalog, clause, exclusion, failure, image, real, releases, values


def test_certain_call_is_a_break_of_the_stack() -> None:
    stack = build(real(), parse_text(real(), "mcore=0.19.2 te=2.17.0 torch=2.9.1"))
    command = job("--num-layers", "2", "--moe-flex-dispatcher-backend", "ncclep")
    assert not check(real(), stack, Question(), {}).breaks
    assert check(real(), stack, Question((command,)), {}).breaks
    assert broken(real(), stack.stack, (command,)) - broken(real(), stack.stack, ()) == {
        "reached by --moe-flex-dispatcher-backend == ncclep"
    }


def test_remedy_of_an_old_cublas_loads() -> None:
    words = "torch=2.12.0 cuda=13.0 te=2.16.0 nvidia-cublas=13.1.1.3 toolkit=none"
    result = check(real(), build(real(), parse_text(real(), words)), Question(), {})
    (library,) = (one for one in result.failures if one.certain)
    assert library.workarounds[0].text == "Transformer Engine 2.12.0 instead of 2.16.0"


def test_certain_call_blocks_a_release() -> None:
    """megatron-core 0.19 calls Transformer Engine's expert parallelism, with arguments that 2.17 does not have."""
    stack = build(real(), parse_text(real(), "mcore=0.18.2 te=2.17.0 torch=2.9.1"))
    command = job("--num-layers", "2", "--moe-flex-dispatcher-backend", "ncclep")
    for jobs, blocked in (((), []), ((command,), ["0.19.0", "0.19.1", "0.19.2"])):
        (upgrade,) = check(real(), stack, Question(jobs, upgrades=(MCORE,)), {}).upgrades
        assert [step.version for step in upgrade.steps if step.blocking] == blocked


SAVE_BREAKS = failure(
    "save-breaks",
    affected=(clause(mcore="<0.9", torch=">=2.4"),),
    works=(clause(mcore=">=0.9"), clause(torch="<2.4")),
    case=(case("tp2", (Level.CPU, Level.GPU)), case("pp2", (Level.GPU,))),
)
START_BREAKS = failure("start-breaks", affected=(clause(mcore=">=0.9", torch="<2.4"),))
KNOWN = catalog(SAVE_BREAKS, START_BREAKS, torch=releases(TORCHES))


def stack(text: str) -> UserStack:
    return build(KNOWN, parse_text(KNOWN, text))


def changes_of(known: Catalog, user: UserStack, entry: Failure) -> Iterator[StackChange]:
    return version_changes(known, user, entry, lambda other: broken(known, other, ()))


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (
            "mcore=0.8.0 torch=2.4.0",
            ["megatron-core 0.9.0 instead of 0.8.0", "torch 2.3.1 instead of 2.4.0"],
        ),
        ("mcore=0.8.0", ["megatron-core 0.9.0 instead of 0.8.0"]),
        ("torch=2.4.0", ["torch 2.3.1 instead of 2.4.0"]),
    ],
)
def test_each_bounded_component_has_a_change(text: str, changes: list[str]) -> None:
    assert [one.text for one in changes_of(KNOWN, stack(text), SAVE_BREAKS)] == changes


def test_a_change_brings_no_new_break() -> None:
    """With torch 2.3, megatron-core 0.9 starts another failure; a break that is there anyway does not count."""
    also = replace(START_BREAKS, affected=(clause(mcore=">=0.9", torch=">=2.4"),))
    known = catalog(replace(SAVE_BREAKS, works=(clause(mcore=">=0.9"),)), also)
    (entry, _), user = known.failures, build(known, parse_text(known, "mcore=0.8.0 torch=2.4.0"))
    assert list(changes_of(known, user, entry)) == []
    old = replace(also, affected=(clause(torch=">=2.4"),))
    known = catalog(entry, old)
    assert [one.text for one in changes_of(known, user, entry)] == ["megatron-core 0.9.0 instead of 0.8.0"]


def test_a_change_brings_no_related_break() -> None:
    """Which breaks under a condition too, so that it is no certain break of the stack."""
    thread = ("NVIDIA/TransformerEngine#2596",)
    entry = replace(SAVE_BREAKS, references=thread, works=(clause(mcore=">=0.9"),))
    half = replace(START_BREAKS, reached_by=(ReachedBy(arguments=("--packed",)),), affected=(clause(mcore=">=0.9"),))
    for references, texts in (((), ["megatron-core 0.9.0 instead of 0.8.0"]), (thread, [])):
        known = catalog(entry, replace(half, references=references))
        user = build(known, parse_text(known, "mcore=0.8.0 torch=2.4.0"))
        assert [one.text for one in changes_of(known, user, entry)] == texts


def test_newer_versions_come_before_older_ones() -> None:
    tried: list[object] = []

    def never(other: Stack) -> bool:
        tried.append(other[MCORE])
        return False

    assert nearest(KNOWN, stack("mcore=0.8.0 torch=2.4.0").stack, MCORE, never) is None
    assert tried == ["0.9.0", "0.7.0"]
    tried.clear()
    nearest(KNOWN, stack("mcore=0.8.0 torch=2.4.0").stack, MCORE, never, newer=True)
    assert tried == ["0.9.0"]


def test_excluded_stacks_are_no_remedy() -> None:
    known = replace(KNOWN, exclusions=(exclusion("can't be", mcore=">=0.9"),))
    user = build(known, parse_text(known, "mcore=0.8.0 torch=2.4.0"))
    assert nearest(known, user.stack, MCORE, lambda other: True) == user.stack.with_({MCORE: "0.7.0"})


@pytest.mark.parametrize(
    ("versions", "selected"),
    [
        ({"torch": "2.4.0", "mcore": "0.8.0"}, "base==torch-2.4.0 and mcore==0.8.0"),
        ({"torch": "2.4.9", "mcore": "0.8.0"}, "base==torch-2.4.0 and mcore==0.8.0"),  # the same minor
        ({"torch": "2.5.1", "mcore": "0.7.0"}, "base==torch-2.5.1 and mcore==0.7.0"),
    ],
)
def test_proof_is_the_nearest_broken_cell(versions: dict[str, str], selected: str) -> None:
    line = f'megatrix run --select "failure==save-breaks and case==tp2 and level==cpu and {selected}"'
    assert proof(KNOWN, SAVE_BREAKS, Stack(values(**versions))) == line


def test_a_stack_that_works_has_no_proof() -> None:
    assert proof(KNOWN, SAVE_BREAKS, Stack(values(torch="2.4.0", mcore="0.9.0"))) == ""


@pytest.mark.parametrize(
    ("text", "component", "steps", "apart"),
    [
        ("mcore=0.8.0 torch=2.4.0", MCORE, ["0.9.0: fixed"], ()),
        ("mcore=0.8.0 torch=2.3.1", TORCH, ["2.4.0: new", "2.5.1: new"], ()),
        ("mcore=0.8.0 torch=2.4.0", DRIVER, [], None),
    ],
)
def test_upgrade_judges_each_newer_version(
    text: str, component: str, steps: list[str], apart: tuple[str, ...] | None
) -> None:
    def breaks(other: Stack) -> Breaks:
        return Breaks(frozenset(broken(KNOWN, other, ())))

    upgrade = upgrades(KNOWN, stack(text).stack, component, breaks)
    kinds = {step.version: "new" if step.new else "fixed" if step.fixed else "same" for step in upgrade.steps}
    assert [f"{version}: {kind}" for version, kind in kinds.items()][: len(steps) or None] == steps
    assert apart is None or upgrade.apart == apart


def test_newer_image_keeps_nothing_of_the_old() -> None:
    """What no source states of the newer image is unknown: not what the older one contains."""
    images = (replace(image("ngc-24.07", "2.4.0", "1.8.0"), cudnn="9.2.0"), image("ngc-24.08", "2.5.0", "1.9.0"))
    known = catalog(failure(affected=(clause(cudnn="<9"),), works=(clause(cudnn=">=9"),)), containers=images)
    seen: list[Stack] = []

    def breaks(other: Stack) -> Breaks:
        seen.append(other)
        return Breaks(frozenset())

    user = build(known, parse_text(known, "base=ngc-24.07 mcore=0.8.0 driver=535.54.03"))
    upgrades(known, user.stack, BASE, breaks)
    today, newer = seen
    assert (today["cudnn"], newer["cudnn"]) == ("9.2.0", UNKNOWN)
    assert (newer[TORCH], newer[MCORE], newer[DRIVER]) == ("2.5.0", "0.8.0", "535.54.03")


def breaks(certain: str = "", unknown: str = "", *texts: str) -> Breaks:
    return Breaks(frozenset(certain.split()), frozenset(unknown.split()), texts)


def test_calls_that_are_not_judged_are_unknown() -> None:
    assert breaks_of(Rulings((), (), {TE: "no record", TORCH: "no record"}, ()), None).unknown == {
        "calls into Transformer Engine",
        "calls into torch",
    }


@pytest.mark.parametrize(
    ("before", "after", "step"),
    [
        (breaks(), breaks(), UpgradeStep("2")),
        (breaks("a"), breaks(), UpgradeStep("2", fixed=("a",))),
        (breaks("a"), breaks("a"), UpgradeStep("2", unchanged=("a",))),
        (breaks("a"), breaks("", "a"), UpgradeStep("2", unknown=("a",))),
        (breaks(), breaks("", "b"), UpgradeStep("2", unknown=("b",))),
        (breaks("", "b"), breaks("", "b"), UpgradeStep("2")),
        (breaks(), breaks("b"), UpgradeStep("2", new=("b",))),
        (breaks("", "b"), breaks("b"), UpgradeStep("2", new=("b",))),
        (breaks("far"), breaks("far"), UpgradeStep("2")),
        (
            Breaks(frozenset({"calls into torch: with --load"})),
            Breaks(frozenset(), frozenset({"calls into torch"})),
            UpgradeStep("2", unknown=("calls into torch", "calls into torch: with --load")),
        ),
        (breaks(), breaks("", "", "x excludes y"), UpgradeStep("2", clashes=("x excludes y",))),
        (breaks("", "", "x excludes y"), breaks("", "", "x excludes y"), UpgradeStep("2")),
    ],
)
def test_upgrade_step_compares_two_stacks(before: Breaks, after: Breaks, step: UpgradeStep) -> None:
    """The component of the upgrade does not affect "far"."""
    assert upgrade_step("2", before, after, {"far"}) == step


FREE, BLOCKED = UpgradeStep("2", fixed=("a",)), UpgradeStep("3", new=("b",))
IMAGE = UpgradeStep("7", unknown=(CONTENTS,))  # of unknown contents: what it breaks is not known


@pytest.mark.parametrize(
    ("steps", "verdict", "best", "text"),
    [
        ((), "", "", "torch: no newer version than 1 is known"),
        ((BLOCKED, FREE), "yes", "2", "torch 2, the newest: YES: no new break is known"),
        (
            (FREE, BLOCKED),
            "no",
            "2",
            "torch 3, the newest: NO: blocked by b; the newest version that nothing",
        ),
        ((BLOCKED,), "no", "", "torch 3, the newest: NO: blocked by b; each version after 1 is blocked"),
        (
            (UpgradeStep("4", clashes=("x excludes y",)),),
            "no",
            "",
            "torch 4, the newest: NO: blocked by x excludes y",
        ),
        (
            (UpgradeStep("5", unknown=("c",)),),
            "unknown",
            "5",
            "torch 5, the newest: UNKNOWN: no new break is known; not judged there: ",
        ),
        (
            (FREE, IMAGE),
            "unknown",
            "2",
            "torch 7, the newest: UNKNOWN: no new break is known; not judged there: ",
        ),
        (
            (UpgradeStep("6", unchanged=("a",)),),
            "yes",
            "6",
            "torch 6, the newest: YES: no new break is known",
        ),
    ],
)
def test_upgrade_answers_for_the_newest_first(
    steps: tuple[UpgradeStep, ...], verdict: str, best: str, text: str
) -> None:
    upgrade = Upgrade(TORCH, "1", steps, ("far",) if steps else ())
    assert (upgrade.may_take_newest, upgrade.to_json()["best"]) == (verdict, best)
    assert str(upgrade).startswith(text)
    assert not steps or str(upgrade).endswith("torch does not affect: far")
