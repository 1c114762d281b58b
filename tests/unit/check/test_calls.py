"""Calls that break and that the catalog lacks: how they stand in a stack, with and without a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.catalog.place import Place
from matrix.catalog.stack import ABSENT, MCORE, TE, TORCH, Stack
from matrix.check.answer import BreakingCalls, Standing
from matrix.check.calls import breaking_calls
from matrix.check.checking import Question, check
from matrix.check.files.declared import UserCommand
from matrix.check.training_job import UserJob, job_of
from matrix.check.user_stack import build, parse_text
from matrix.contract import pairs
from matrix.contract.finding import Finding, FindingKind
from tests.unit.catalogs import catalog, real

ROPE = ("--num-layers", "2", "--position-embedding-type", "rope")


def job(*words: str) -> UserJob:
    return job_of(UserCommand(("python", "pretrain_gpt.py", *words), Place("job.sh", 3)))


def pair(mcore: str, te: str) -> Stack:
    return Stack({TORCH: "2.9.1", MCORE: mcore, TE: te})


def calls(mcore: str, te: str, *jobs: UserJob) -> dict[str, BreakingCalls]:
    """Return the calls of a pair by the function of their first line."""
    found, problem = breaking_calls(real(), pair(mcore, te), jobs)
    assert problem == ""
    return {one.findings[0].call_site.function: one for one in found}


def test_call_breaks_with_its_options() -> None:
    found = calls("0.16.1", "1.3.0")["fused_apply_rotary_pos_emb"]
    assert (found.standing, found.certain, found.needs, found.flags) == (
        Standing.WITH_OPTIONS, False, "with --position-embedding-type == rope", ("add --no-rope-fusion",)
    )  # fmt: skip


def test_job_with_the_options_will_break() -> None:
    found = calls("0.16.1", "1.3.0", job(*ROPE))
    reached = found["fused_apply_rotary_pos_emb"]
    assert (reached.standing, reached.certain, str(reached.place)) == (Standing.WILL_BREAK, True, "job.sh:3")
    assert found["TEDotProductAttention.forward"].missing
    result = check(real(), build(real(), parse_text(real(), "mcore=0.18.2 te=1.13.0 torch=2.9.1")),
                   Question((job("--num-layers", "2", "--te-precision-config-file", "x.yaml"),)), {})  # fmt: skip
    assert [one.needs for one in result.calls if not one.missing] == [
        "only when the file gives a module such a recipe",
        "only when use_te_activation_func and activation_func_fp8_input_store are set in TransformerConfig",
    ]


def test_option_that_avoids_a_call_removes_it() -> None:
    found = calls("0.16.1", "1.3.0", job(*ROPE, "--no-rope-fusion"))
    assert "fused_apply_rotary_pos_emb" not in found


def test_known_failure_is_listed_once() -> None:
    """The line of the failure has two arguments in wrong places, and its signature names the first."""
    assert len(pairs.breaking("0.8.0", "1.10.0")) == 2
    assert calls("0.8.0", "1.10.0") == {}


@pytest.mark.parametrize(
    ("kind", "guard", "standing", "needs"),
    [
        (FindingKind.DEFINITE, "config.x", Standing.WITH_OPTIONS, "only when config.x"),
        (FindingKind.DEFINITE, "", Standing.WITH_OPTIONS, "only when unknown runs"),
        (FindingKind.MISBOUND, "config.x", Standing.SILENT, "only when config.x"),
    ],
)
def test_guard_is_what_reaches_an_unknown_function(
    monkeypatch: pytest.MonkeyPatch, kind: FindingKind, guard: str, standing: Standing, needs: str
) -> None:
    one = pairs.breaking("0.19.2", "2.17.0")[0]
    raised = "" if kind is FindingKind.MISBOUND else one.exception
    unknown: Finding = replace(
        one, kind=kind, exception=raised, guard=guard, call_site=one.call_site._replace(function="unknown")
    )
    monkeypatch.setattr(pairs, "breaking", lambda mcore, te: (unknown,))
    ((found,), _) = breaking_calls(catalog(), pair("0.19.2", "2.17.0"), ())
    assert (found.standing, found.certain, found.needs) == (standing, False, needs)


def test_pair_that_is_not_recorded_says_so() -> None:
    found, problem = breaking_calls(real(), pair("0.17.0", "2.14+1234567"), ())
    assert (found, problem.partition(":")[0]) == ((), "level contract can't judge this stack")


def test_absent_engine_has_no_calls() -> None:
    assert breaking_calls(real(), Stack({MCORE: "0.17.0", TE: ABSENT}), ()) == ((), "")
