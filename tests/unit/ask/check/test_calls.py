"""Calls that break and that the catalog lacks: how they stand in a stack, with and without a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ask.check.calls import breaking_calls, calls_of
from matrix.ask.check.checking import Question, check
from matrix.ask.check.files.declared import UserCommand
from matrix.ask.check.rulings import BreakingCalls, Standing
from matrix.ask.check.training_job import UserJob, job_of
from matrix.ask.check.user_stack import build, parse_text
from matrix.ground.catalog.stack import ABSENT, BASE, CALL_PAIRS, MCORE, TE, TORCH, UNKNOWN, Place, Stack
from matrix.read.api import pairs
from matrix.read.api.finding import Finding, FindingKind
from tests.unit.catalogs import catalog, real

ROPE = ("--num-layers", "2", "--position-embedding-type", "rope")


def job(*words: str) -> UserJob:
    return job_of(UserCommand(("python", "pretrain_gpt.py", *words), Place("job.sh", 3)))


def pair(mcore: str, te: str, torch: str = "2.9.1") -> Stack:
    return Stack({TORCH: torch, MCORE: mcore, TE: te})


def calls(mcore: str, te: str, *jobs: UserJob, torch: str = "2.9.1") -> dict[str, BreakingCalls]:
    """Return the calls of a pair by the function of their first line."""
    found, problem = breaking_calls(real(), pair(mcore, te, torch), jobs)
    assert problem == {}
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
    result = check(real(), build(real(), parse_text(real(), "mcore=0.18.2 te=1.13.0 torch=2.8.0")),
                   Question((job("--num-layers", "2", "--te-precision-config-file", "x.yaml"),)), {})  # fmt: skip
    assert [one.needs for one in result.calls if not one.missing] == [
        "only when the file gives a module such a recipe",
        "only when use_te_activation_func and activation_func_fp8_input_store are set in TransformerConfig",
        "only when weights are quantized to MXFP8 for inference",
        "only when inference computes experts with the grouped GEMM of torch",
        "only when inference multiplies in MXFP8 without FlashInfer",
    ]


def test_option_that_avoids_a_call_removes_it() -> None:
    found = calls("0.16.1", "1.3.0", job(*ROPE, "--no-rope-fusion"))
    assert "fused_apply_rotary_pos_emb" not in found


def test_known_failure_is_listed_once() -> None:
    """The line of the failure has two arguments in wrong places, and its signature names the first."""
    assert len(pairs.breaking(CALL_PAIRS[0], "0.8.0", "1.10.0")) == 2
    assert calls("0.8.0", "1.10.0", torch="2.4.1") == {}


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
    one = pairs.breaking(CALL_PAIRS[0], "0.19.2", "2.17.0")[0]
    raised = "" if kind is FindingKind.MISBOUND else one.exception
    unknown: Finding = replace(
        one, kind=kind, exception=raised, guard=guard, call_site=one.call_site._replace(function="unknown")
    )
    found_by = lambda pair, consumer, version: ((unknown,) * (pair.provider == TE), ())  # noqa: E731
    monkeypatch.setattr(pairs, "breaking_or_near", found_by)
    ((found,), _) = breaking_calls(catalog(), pair("0.19.2", "2.17.0"), ())
    assert (found.standing, found.certain, found.needs) == (standing, False, needs)


def test_pair_that_is_not_recorded_says_so() -> None:
    found, problem = breaking_calls(real(), pair("0.17.0", "2.14+1234567"), ())
    assert problem[TE].startswith("level contract can't judge calls into Transformer Engine:")
    assert {call.into for call in found} == {TORCH}


def test_calls_into_torch_are_judged() -> None:
    """The failures of the catalog, such as dcp-load-no-dist, are not listed again."""
    into_torch = calls("0.18.2", "2.10.0", torch="2.5.1")["report_memory"]
    assert (into_torch.into, into_torch.needs) == ("torch", "with --log-device-memory-used")
    assert len(into_torch.findings) == 1
    assert "TorchDistLoadShardedStrategy.load" not in calls("0.18.2", "2.10.0", torch="2.6.0")
    assert not calls("0.18.2", "2.10.0", torch="2.10.0")
    assert not calls("0.8.0", "1.9.0", torch="2.4.1")


def test_failed_import_needs_no_option() -> None:
    """megatron.core 0.18 imports Megatron-FSDP, and that a name of torch 2.5."""
    ((call, *_), problem) = calls_of(CALL_PAIRS[1], real(), Stack({TORCH: "2.4.1", MCORE: "0.18.2"}), ())
    assert (call.standing, call.certain, problem) == (Standing.WILL_BREAK, True, {})


@pytest.mark.parametrize(
    ("torch", "mcore", "problem"),
    [
        ("2.4.0", "0.8.0", {}),  # as 2.4.1
        ("2.4.0a0+3bcc3cddb5", "0.9.0", {}),  # neither 2.3.1 nor 2.4.1 has a break
        ("2.4.0a0+3bcc3cddb5", "0.8.0", {}),  # the break of 2.4.1 is a failure that the catalog judges
        ("2.5.0a0+e000cf0ad9", "0.18.2", "the releases before and after torch 2.5.0a0+e000cf0ad9 differ in "),
        ("2.16.0a0+1234567", "0.18.2", "level contract can't judge calls into torch: its API is not recorded"),
    ],
)
def test_build_of_torch_is_between_releases(torch: str, mcore: str, problem: str | dict[str, str]) -> None:
    image = real().container_of(torch, "")
    _, problems = breaking_calls(real(), Stack({TORCH: torch, MCORE: mcore, BASE: image.id if image else UNKNOWN}), ())
    assert problems == problem if isinstance(problem, dict) else problems[TORCH].startswith(problem)


def test_break_on_both_sides_of_a_build_counts() -> None:
    calls, _ = breaking_calls(real(), Stack({TORCH: "2.6.0a0+ecf3bae40a", MCORE: "0.18.2"}), ())
    definite = [one.callee for call in calls for one in call.findings if one.kind is FindingKind.DEFINITE]
    assert definite == ["torch.float8_e8m0fnu"] * 4


def test_absent_engine_has_no_calls() -> None:
    assert breaking_calls(real(), Stack({MCORE: "0.17.0", TE: ABSENT}), ()) == ((), {})


def test_calls_of_an_engine_into_torch_are_judged() -> None:
    """Neither needs a megatron-core; a torch of which nothing is recorded is no reason to answer nothing."""
    ((call,), problems) = breaking_calls(real(), Stack({TE: "1.9.0", TORCH: "2.11.0"}), ())
    assert (call.standing, call.certain, call.needs, call.into, problems) == (
        Standing.WILL_BREAK, True, "when Transformer Engine is imported", "torch", {}
    )  # fmt: skip
    assert breaking_calls(real(), Stack({TE: "1.9.0", TORCH: "2.4.1"}), ()) == ((), {})
    _, problems = breaking_calls(real(), Stack({TE: "1.9.0", TORCH: "2.16.0"}), ())
    assert problems[TORCH].startswith("level contract can't judge calls into torch: its API is not recorded")
    _, problems = breaking_calls(real(), Stack({TE: "1.9.0.dev0+abcdef0", TORCH: "2.4.1"}), ())
    assert problems[TORCH].startswith("level contract can't judge calls into torch: the calls of transformer-engine")


def bridge_calls(name: str, version: str, core: str) -> dict[str, tuple[Standing, int]]:
    """Return the standing and the number of the calls of a bridge into a core, by what reaches them."""
    calls, problems = breaking_calls(real(), Stack({name: version, MCORE: core}), ())
    assert problems == {}
    assert not any(call.certain for call in calls)
    breaks = (call for call in calls if call.standing is not Standing.SILENT)
    return {call.needs: (call.standing, len(call.findings)) for call in breaks}


def test_calls_of_a_bridge_depend_on_its_model() -> None:
    """Nothing of them is certain, whatever is imported: mcore_bridge catches what its models import."""
    lines = "only when the job reaches these lines of {}"
    assert bridge_calls("mcore-bridge", "1.6.5", "0.17.1") == {lines.format("mcore-bridge"): (Standing.WITH_OPTIONS, 9)}
    assert bridge_calls("mcore-bridge", "1.6.5", "0.19.2") == {lines.format("mcore-bridge"): (Standing.WITH_OPTIONS, 1)}
    assert bridge_calls("mbridge", "0.15.1", "0.18.2") == {lines.format("mbridge"): (Standing.WITH_OPTIONS, 6)}


def test_training_of_a_bridge_imports_from_core() -> None:
    imported = "only when megatron.bridge.training is imported, as each training does"
    assert bridge_calls("megatron-bridge", "0.6.2", "0.18.2")[imported] == (Standing.WITH_OPTIONS, 1)
    assert imported not in bridge_calls("megatron-bridge", "0.6.2", "0.19.2")


@pytest.mark.parametrize(
    ("mcore", "te", "expected"),
    [
        ("0.12.0", "2.1.0", ()),
        ("0.12.0", "2.2.0", ("te-rope-fusion",)),
        ("0.12.3", "2.1.0", ()),
        ("0.12.3", "2.2.0", ("rope-interleaved",)),
        ("0.12.3", "2.3.0", ("te-rope-fusion",)),
        ("0.13.1", "2.2.0", ()),
        ("0.13.1", "2.3.0", ()),
    ],
)
def test_fused_rotary_embedding_fails_in_one_way(mcore: str, te: str, expected: tuple[str, ...]) -> None:
    """The catalog, a job's answer and the calls that are read agree; no call is listed beside its failure."""
    stack = f"mcore={mcore} te={te} torch=2.6.0"
    result = check(real(), build(real(), parse_text(real(), stack)), Question((job(*ROPE),)), {})
    stated = [
        one.failure.id for one in result.failures if "rope" in one.failure.id and one.standing is Standing.WITH_OPTIONS
    ]
    read = {one.callee for one in pairs.breaking(CALL_PAIRS[0], mcore, te) if "attention." in one.callee}

    assert tuple(stated) == expected
    assert bool(read) == bool(expected)
    assert not [one for one in result.calls if "rotary" in one.findings[0].callee or "RoPE" in one.findings[0].callee]
