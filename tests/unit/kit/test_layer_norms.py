"""The two layer norms call torch's with its arguments; torch is replaced by a recorder."""

from __future__ import annotations

import inspect
import runpy
import sys
import types
from typing import Any

import pytest

from matrix.kit import megatron


class TorchNorm:
    """As torch.nn.LayerNorm."""

    def __init__(self, *given: Any) -> None:
        self.given = given


def layer_norm(*given: Any) -> tuple[Any, ...]:
    return given


@pytest.fixture
def norms(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the names of matrix/kit/layer_norms.py, which imports torch."""
    torch: Any = types.ModuleType("torch")
    torch.nn = types.SimpleNamespace(LayerNorm=TorchNorm, functional=types.SimpleNamespace(layer_norm=layer_norm))
    monkeypatch.setitem(sys.modules, "torch", torch)
    return runpy.run_path(megatron.__file__.replace("megatron.py", "layer_norms.py"))


def test_options_of_the_fused_norm_are_ignored(norms: dict[str, Any]) -> None:
    """Such as sequence_parallel and zero_centered_gamma: they choose a kernel."""
    assert norms["LayerNorm"](12, sequence_parallel=True).given == (12, 1e-5)
    assert norms["LayerNorm"](12, eps=1e-6).given == (12, 1e-6)


def test_apply_has_the_order_of_apex(norms: dict[str, Any]) -> None:
    """Apex takes (input, weight, bias, shape, eps), torch (input, shape, weight, bias, eps)."""
    function = norms["FusedLayerNormAffineFunction"]
    assert function.apply("input", "weight", "bias", (12,), 1e-5) == ("input", (12,), "weight", "bias", 1e-5)


def test_forward_is_a_signature_only(norms: dict[str, Any]) -> None:
    """megatron-core passes `memory_efficient` where the signature has it, and apply does not take it."""
    function = norms["FusedLayerNormAffineFunction"]
    forward, apply = (list(inspect.signature(method).parameters) for method in (function.forward, function.apply))
    assert forward == ["context", *apply]
    with pytest.raises(NotImplementedError):
        function.forward(*range(6))
