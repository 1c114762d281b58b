"""Masks, lost features, implausible pairs and withdrawn releases."""

from __future__ import annotations

import pytest

from matrix.read.api import pairs, recording
from matrix.read.api.comparison import find
from matrix.read.api.finding import Finding, FindingKind
from matrix.read.api.flow import is_local
from matrix.read.api.pairs import RecordedReleases
from matrix.read.api.provider import TORCH, TRANSFORMER_ENGINE, Site
from matrix.read.api.recording import MCORE, TE
from matrix.read.api.relevance import days_between, implausible, is_yanked, relevance


def finding(
    function: str, callee: str = "te.get", kind: FindingKind = FindingKind.DEFINITE, message: str = ""
) -> Finding:
    return Finding("0.19.2", "2.1.0", callee, Site("a.py", 1, function), "", kind, message)


def judged(mcore: str, te: str) -> list[Finding]:
    return relevance().judged(find(recording.load_calls(mcore), recording.load_surface(te)))


def test_forward_is_masked_by_the_constructor() -> None:
    first, later = relevance().judged([finding("TENorm.__new__"), finding("TEDotProductAttention.forward")])

    assert not first.masked
    assert later.masked == (
        "a.py:1 TENorm.__new__: the norm of every model of the TE spec is constructed before a forward pass"
    )


def test_mask_of_one_callee_leaves_others() -> None:
    """A recipe that is missing when a layer is constructed masks the same recipe only."""
    found = [
        finding("_get_fp8_model_init_for_quant_recipe", "recipe.A"),
        finding("_get_fp8_autocast_for_quant_recipe", "recipe.A"),
        finding("_get_fp8_autocast_for_quant_recipe", "recipe.B"),
    ]

    assert [bool(one.masked) for one in relevance().judged(found)] == [False, True, False]


@pytest.mark.parametrize(("mcore", "te", "refused"), [("0.12.3", "1.4.0", False), ("0.13.1", "1.4.0", True)])
def test_checks_of_arguments_come_first(mcore: str, te: str, refused: bool) -> None:
    """0.13 requires --te-rng-tracker, which TE 1.4 does not have."""
    [made] = [one for one in judged(mcore, te) if one.callee.endswith("make_graphed_callables")]

    assert made.masked.startswith("arguments.py: --external-cuda-graph requires") is refused


def test_torch_dcp_is_refused_before_torch_2_4() -> None:
    """_to_dtensor serves --ckpt-format torch_dcp, which requires --use-torch-fsdp2."""
    calls = recording.recorded_calls(TORCH, "0.12.0")
    masks = {
        torch: [
            bool(made.masked)
            for made in relevance().judged(
                find(calls, recording.recorded_surface(TORCH, torch), history=pairs.released(TORCH))
            )
            if made.call_site.function == "_to_dtensor" and made.kind is FindingKind.DEFINITE
        ]
        for torch in ("2.3.1", "2.4.1")
    }

    assert masks == {"2.3.1": [True], "2.4.1": [False]}


def test_policy_call_of_attention_is_not_reached() -> None:
    """TE 2.20.2 calls forward again with thd_attention_policies alone, which no core passes."""
    history = RecordedReleases(TRANSFORMER_ENGINE)
    pair = recording.load_calls("0.17.1"), recording.load_surface("2.20.2")
    overrides = [made for made in find(*pair, history=history) if made.kind is FindingKind.OVERRIDE]

    assert [made.callee for made in overrides] == ["transformer_engine.pytorch.DotProductAttention.forward"]
    assert [bool(made.masked) for made in relevance().judged(overrides)] == [True]


def test_intended_fallback_is_no_finding() -> None:
    def off(effect: str) -> Finding:
        callee = "transformer_engine.pytorch.module.base.get_workspace"
        return finding("", callee, FindingKind.SILENTLY_OFF, f"cannot import; swallowed: {effect}")

    kept = relevance().judged([off("_get_workspace = None"), off("te_general_gemm = None")])

    assert [one.lost for one in kept] == ["the router's GEMM in TE (--moe-router-dtype); torch computes it"]


@pytest.mark.parametrize("te", ["1.4.0", "1.13.0", "2.1.0", "2.9.0", "2.16.1", "2.20.2"])
def test_every_silent_loss_is_named(te: str) -> None:
    for mcore in recording.released(MCORE):
        nameless = [one.callee for one in judged(mcore, te) if one.kind is FindingKind.SILENTLY_OFF and not one.lost]
        assert not nameless, mcore


def test_pair_far_apart_is_implausible() -> None:
    assert implausible("0.19.2", "1.5.0").startswith("TE 1.5.0 is ")
    assert implausible("0.19.2", "2.20.2") == ""
    assert implausible("0.8.0", "2.20.2") == ""  # an old core in a new image
    assert days_between("0.9.0", "1.9.0.post1") == days_between("0.9.0", "1.9.0")
    assert days_between("2.6.0.post1", "2.4.1", "torch", TE) == days_between("2.6.0", "2.4.1", "torch", TE)
    assert implausible("2.6.0.post1", "2.0.1", "torch", TE) == implausible("2.6.0", "2.0.1", "torch", TE) != ""
    assert days_between("0.9.0rc0+094d66b", "1.9.0") is None


def test_te_of_a_tested_image_is_plausible() -> None:
    """megatron-core 0.12 was tested in nvcr.io/nvidia/pytorch:24.01 with TE 1.2, more than a year older."""
    assert (days_between("0.12.0", "1.2.0") or 0) > 365
    assert implausible("0.12.0", "1.2.0") == ""
    assert implausible("0.12.0", "1.1.0") != ""


def test_declared_torch_is_plausible_at_any_age() -> None:
    """megatron-core 0.18.2 declares torch>=2.6.0, which is a year and a half older; 0.12.3 declares none."""
    assert implausible("0.18.2", "2.6.0", "torch") == ""
    assert implausible("0.18.2", "2.5.1", "torch") == "megatron-core 0.18.2 declares torch>=2.6.0"
    assert implausible("0.12.3", "2.0.1", "torch").startswith("torch 2.0.1 is ")
    assert implausible("0.12.3", "2.6.0", "torch") == ""


def test_withdrawn_releases_are_known() -> None:
    assert [v for v in recording.released(MCORE) if is_yanked(MCORE, v)] == ["0.18.1", "0.19.1"]
    assert not any(is_yanked(TE, v) for v in recording.released(TE))


def test_optimizer_that_a_configuration_refuses_is_unreached() -> None:
    """OptimizerConfig refuses the precision-aware optimizer without TE, so torch's Adam never gets its arguments."""
    found = find(recording.recorded_calls(TORCH, "0.18.2"), recording.recorded_surface(TORCH, "2.15.0"))

    assert not [one for one in found if "exp_avg_dtype" in one.message]
    assert not is_local("transformer_engine is installed")
