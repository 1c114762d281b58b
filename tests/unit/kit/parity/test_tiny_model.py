"""The options that a release takes."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from matrix.kit.parity import tiny_model
from matrix.kit.parity.factors import Point, factors
from matrix.kit.parity.tiny_model import Device


def old(layers: int, hidden: int = 1) -> None:
    """A class of a release with two options."""


def test_absent_option_that_is_off_is_left_out() -> None:
    options = {"layers": 2, "mtp": None, "mup": False, "softmax": "vanilla"}
    assert tiny_model.accepted(old, options, softmax="vanilla") == {"layers": 2}


@pytest.mark.parametrize("value", [True, 1, "learnable", 0.1])
def test_absent_option_that_is_on_is_refused(value: Any) -> None:
    with pytest.raises(tiny_model.UnsupportedError, match="this megatron-core has no softmax"):
        tiny_model.accepted(old, {"softmax": value}, softmax="vanilla")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a torch with the names that options use in place of the real one."""
    torch: Any = ModuleType("torch")
    torch.nn = SimpleNamespace(functional=SimpleNamespace(silu="silu", gelu="gelu"))
    torch.float64 = "float64"
    torch.bfloat16 = "bfloat16"
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def options(point: Point) -> dict[str, Any]:
    """Return the options of upstream's configuration."""
    return {
        **tiny_model._shape(point),
        **tiny_model._experts(point),
        **tiny_model._layout(point),
        **tiny_model._wrapper(point),
        **tiny_model._optimizer(point),
    }


@pytest.mark.parametrize(("name", "dtype"), [("cpu", "float64"), ("cuda", "bfloat16")])
def test_weights_are_made_on_the_device(torch: Any, name: str, dtype: str) -> None:
    """A model that stays on the CPU is refused by upstream's optimizer of half precision."""
    options = tiny_model._computing(Point(), Device(name, dtype=dtype))
    assert (options["use_cpu_initialization"], options["params_dtype"]) == (name == "cpu", dtype)
    assert options["bf16"] is (dtype == "bfloat16")


# Chosen elsewhere: in the attention's class, the model, the data and the checkpoint.
ELSEWHERE = {
    "attention", "position", "untied", "mask", "dp", "micro_batches", "own_loss", "resume", "reshardable",
    "parallel_load",
}  # fmt: skip


def test_every_factor_reaches_the_step(torch: Any) -> None:
    """A factor that the step ignores would be equal under every layout."""
    mixture = Point.of({"experts": 4, "tp": 4})
    for name, factor in factors().items():
        if name in ELSEWHERE:
            continue
        needed = {other: values[0] for other, values in factor.needs.items()}
        for value in factor.values[1:]:
            plain = mixture.changed(**{**needed, name: factor.default})
            assert options(plain.changed(**{name: value})) != options(plain), (name, value)
