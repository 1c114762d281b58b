"""What upstream would write."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from matrix.kit.parity.factors import Point
from matrix.kit.parity.layout_step import logged


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put upstream's function in place that writes one value, and return its arguments."""
    calls: list[dict[str, Any]] = []
    utils: Any = ModuleType("moe_utils")

    def track_moe_metrics(
        loss_scale: float, iteration: int, writer: Any, wandb_writer: Any, total_loss_dict: Any, track_names: list[str]
    ) -> None:
        calls.append({"scale": loss_scale, "names": track_names})
        writer.add_scalar("z_loss", 0.5, iteration)

    utils.track_moe_metrics = track_moe_metrics
    package: Any = ModuleType("moe")
    package.moe_utils = utils
    monkeypatch.setitem(sys.modules, "megatron.core.transformer.moe", package)
    for name in ("megatron", "megatron.core", "megatron.core.transformer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    return calls


def test_losses_of_experts_are_logged(calls: list[dict[str, Any]]) -> None:
    point = Point.of({"experts": 4, "balancing": "aux_loss", "z_loss": True, "micro_batches": 2})
    assert logged(point, SimpleNamespace(num_layers=2)) == {"z_loss": 0.5}
    assert calls == [{"scale": 0.5, "names": ["load_balancing_loss", "z_loss"]}]


def test_model_without_such_losses_logs_none(calls: list[dict[str, Any]]) -> None:
    for text in ("", "experts=4", "experts=4 balancing=sinkhorn"):
        assert logged(Point.parse(text), SimpleNamespace(num_layers=2)) == {}
    assert calls == []
