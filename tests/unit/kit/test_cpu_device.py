"""The CUDA names of torch, replaced in a module with its interface."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from matrix.kit import cpu_device


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a torch without CUDA in place of the real one: factories return their device."""
    torch: Any = types.ModuleType("torch")
    torch.__version__ = (2, 13)
    for name in cpu_device.FACTORIES:
        setattr(torch, name, lambda *_, device="cpu": device)
    torch.device, torch.get_rng_state, torch.default_generator = str, lambda: "state", "generator"
    torch.cuda = types.SimpleNamespace(random=types.SimpleNamespace())
    torch.Tensor = type("Tensor", (), {})
    monkeypatch.setitem(sys.modules, "torch", torch)
    cpu_device.install()
    return torch


def test_cuda_devices_become_the_cpu(torch: Any) -> None:
    assert (torch.empty(1, device="cuda:3"), torch.zeros(1, device="meta"), torch.ones(1)) == ("cpu", "meta", "cpu")
    assert torch.cuda.current_device() == "cpu"
    tensor = torch.Tensor()
    assert tensor.cuda(non_blocking=True) is tensor


def test_random_state_is_the_cpus(torch: Any) -> None:
    assert torch.cuda.get_rng_state("cuda") == torch.cuda.random.get_rng_state() == "state"
    assert torch.cuda.default_generators[torch.cuda.current_device()] == "generator"


def test_lazy_calls_run_at_once(torch: Any) -> None:
    calls: list[str] = []
    torch.cuda._lazy_call(lambda: calls.append("now"), seed_all=True)
    assert calls == ["now"]


def test_compile_returns_the_function(torch: Any) -> None:
    assert torch.compile(len) is len
    assert torch.compile(mode="max-autotune")(len) is len


def test_claimed_gpu_has_properties(torch: Any) -> None:
    cpu_device.claim_gpu()
    assert torch.cuda.is_available()
    assert torch.cuda.get_device_properties("cuda").major == 9


def test_second_installation_changes_nothing(torch: Any) -> None:
    before = dict(vars(torch))
    cpu_device.install()
    assert dict(vars(torch)) == before
