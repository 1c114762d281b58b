"""The arguments with which the experts of a mixture are built."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from matrix.kit import cpu_device, experts, megatron
from matrix.kit.rank import Rank


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put recorders in place of torch and megatron-core; return the list of GPUs that were claimed."""
    claimed: list[str] = []
    torch = types.SimpleNamespace(nn=types.SimpleNamespace(init=types.SimpleNamespace(zeros_="zeros")))
    monkeypatch.setattr(megatron, "start", lambda rank: torch)
    monkeypatch.setattr(cpu_device, "claim_gpu", lambda: claimed.append("gpu"))
    for module, name in (
        ("megatron.core.extensions.transformer_engine", "TEColumnParallelGroupedLinear"),
        ("megatron.core.transformer.transformer_config", "TransformerConfig"),
    ):
        parts = module.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        fake = types.ModuleType(module)
        setattr(fake, name, types.SimpleNamespace)
        monkeypatch.setitem(sys.modules, module, fake)
    return claimed


@pytest.mark.parametrize(("device", "expected"), [("cpu", ["gpu"]), ("cuda", [])])
def test_only_the_cpu_claims_a_gpu(device: str, expected: list[str], claims: list[str]) -> None:
    experts.build(Rank(0, 1, device, "", Path()))
    assert claims == expected


@pytest.mark.usefixtures("claims")
@pytest.mark.parametrize("bias", [True, False])
def test_config_and_module_agree(bias: bool) -> None:
    """One GEMM for each expert, and a bias in both or in none."""
    built: Any = experts.build(Rank(0, 1, "cpu", "", Path()), bias=bias)
    config = built.config
    assert built.num_gemms == config.num_moe_experts == experts.EXPERTS
    assert built.input_size == config.hidden_size == experts.WIDTH
    assert built.output_size == config.moe_ffn_hidden_size == experts.WIDTH
    assert (built.bias, config.add_bias_linear, built.is_expert) == (bias, bias, True)


@pytest.mark.usefixtures("claims")
def test_further_options_are_the_configs() -> None:
    built: Any = experts.build(Rank(0, 1, "cpu", "", Path()), moe_single_grouped_bias=True)
    assert built.config.moe_single_grouped_bias is True
    assert not hasattr(built, "moe_single_grouped_bias")
