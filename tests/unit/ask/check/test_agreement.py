"""`check`, `check --upgrade`, the map and `explain` give one answer for the same stack."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from matrix.ask.check import checking
from matrix.ask.check.answer import CheckResult
from matrix.ask.check.calls import breaking_calls
from matrix.ask.check.checking import Question, check
from matrix.ask.check.files.declared import UserCommand
from matrix.ask.check.remedies import breaks_of, upgrade_step
from matrix.ask.check.rulings import KNOWN_BREAK, Rulings, Standing
from matrix.ask.check.table import Choice
from matrix.ask.check.training_job import UserJob, job_of
from matrix.ask.check.user_stack import build, parse_text
from matrix.ground.cases.machine_requirements import Fit, fit_of
from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.stack import BASE, MCORE, TE, TORCH, Place, short
from matrix.ground.errors import MatrixError
from matrix.prove.planning.cell_explanation import explain
from tests.profiles import PROFILE, examples
from tests.unit.ask.check.test_table import random_choices
from tests.unit.catalogs import real
from tests.unit.catalogs import real_table as table

pytestmark = pytest.mark.draws


@pytest.fixture(autouse=True)
def no_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what no test here compares, and what takes most of the time."""
    monkeypatch.setattr(checking, "with_remedies", lambda catalog, user, one, *_, **__: one)


@cache
def stacks() -> list[Choice]:
    return random_choices(30, examples(200, PROFILE))


OPTIONS = (
    "--tp-comm-overlap",
    "--fp8-format hybrid",
    "--save x --use-dist-ckpt",
    "--cpu-offloading",
    "--seq-length 131072",
)


def jobs(source: random.Random) -> tuple[UserJob, ...]:
    """Return no job, or one with some of the options that reach failures."""
    words = " ".join(source.sample(OPTIONS, source.randrange(len(OPTIONS))))
    command = UserCommand(("torchrun", "--nproc_per_node", "8", "pretrain_gpt.py", *words.split()), Place("job.sh", 1))
    return (job_of(command),) if words else ()


def checked(words: dict[str, str] | Choice, question: Question) -> CheckResult:
    return check(real(), build(real(), parse_text(real(), " ".join(words.values()))), question, {})


def test_check_agrees_with_explain() -> None:
    """Those of the stacks that are a cell; what depends on a GPU is open in a cell without one."""
    compared, fits = 0, set[Fit | None]()
    for choice in stacks():
        te = choice.get("te") or table().brought.get(choice.get("base", ""), {}).get("te")
        if not te or "mcore" not in choice or not choice.get("base", "").startswith("base="):
            continue
        driver = choice.get("driver", "driver=535")
        parts = [
            choice["base"].removeprefix("base="),
            *(word.replace("=", "-") for word in (choice["mcore"], te, driver)),
        ]
        try:
            explanation = explain(real(), "/".join(parts), [], lambda _: "")
        except MatrixError:  # a Transformer Engine that is no release and not that of the container
            continue
        result = checked({"base": choice["base"], "mcore": choice["mcore"], "te": te, "driver": driver}, Question())
        expected = {one.failure.id: one.ruling.expectation for one in explanation.failures}
        for one in result.failures:
            if one.standing not in (Standing.WITH_VERSIONS, Standing.NOT_REACHED):
                assert (one.standing in KNOWN_BREAK) == (expected[one.failure.id] is Expectation.BROKEN), (parts, one)
        fitted = explanation.driver
        too_old = fitted is not None and fitted.fit is Fit.TOO_OLD
        assert any(" is too old: " in clash.text for clash in result.clashes) is too_old, parts
        undecided = fitted is not None and fitted.fit is Fit.UNKNOWN
        assert any("whether driver" in item.text for item in result.unknown) is undecided, parts
        fits.add(fitted.fit if fitted else None)
        compared += 1
    assert compared > 0.1 * len(stacks())
    assert fits == set(Fit)


@pytest.mark.parametrize("component", [TE, MCORE, BASE])
def test_upgrade_agrees_with_check_of_the_newer_stack(component: str) -> None:
    """A random newer version of each, with a random job: its line is the comparison of two answers of `check`."""
    source, compared = random.Random(31), 0
    for choice in stacks()[:: min(8, len(stacks()) // 10)]:
        axis = short(component)
        if axis not in choice:
            continue
        question = Question(jobs(source))
        today = checked(choice, replace(question, upgrades=(component,)))
        (upgrade,) = today.upgrades
        if not upgrade.steps:
            continue
        step = source.choice(upgrade.steps)
        word = f"{short(upgrade.component)}={step.version}"
        if upgrade.component == TORCH or axis not in ("te", "mcore"):
            words = {name: text for name, text in choice.items() if name in ("mcore", "driver", "sm")} | {axis: word}
            if upgrade.component == TORCH and "te" in choice:
                words["te"] = choice["te"]
            if upgrade.component == BASE and (
                "te" in choice or step.unknown == ("its torch and its Transformer Engine",)
            ):
                continue  # an image brings its own Transformer Engine
        else:
            words = {**choice, axis: word}
        newer = checked(words, question)
        before, after = (
            breaks_of(
                Rulings(one.failures, *breaking_calls(real(), one.stack.stack, question.jobs), one.clashes),
                fit_of(real(), one.stack.stack),
            )
            for one in (today, newer)
        )
        assert upgrade_step(step.version, before, after, upgrade.apart) == step, (choice, words)
        compared += 1
    assert compared > 2
