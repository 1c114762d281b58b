"""A saved FP8 scale is read back or the difference is raised; Transformer Engine and torch are replaced."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from matrix.kit import cpu_device, te_extension, te_extra_state
from matrix.kit.rank import Rank
from matrix.kit.te_extra_state import FILE, SCALE, ScaleWrong


class Scaled:
    """A module with the scales of one tensor; `loses` is a release that does not restore them."""

    def __init__(self, *, loses: bool = False) -> None:
        self.loses = loses
        self.fp8_meta: dict[str, Any] = {"scaling_fwd": types.SimpleNamespace(scale=[1.0])}

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.fp8_meta["scaling_fwd"].scale[0]}

    def load_state_dict(self, state: dict[str, float]) -> None:
        if not self.loses:
            self.fp8_meta["scaling_fwd"].scale[0] = state["scale"]


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    torch: Any = types.ModuleType("torch")
    torch.save = lambda state, path: path.write_bytes(pickle.dumps(state))
    torch.load = lambda path, weights_only: pickle.loads(path.read_bytes())
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(te_extra_state, "linear", lambda rank: Scaled())
    return Rank(0, 1, "cuda", "", tmp_path, checkpoint=tmp_path)


def test_a_written_scale_is_read_back(rank: Rank) -> None:
    assert te_extra_state.write(rank) == (rank.checkpoint / FILE).stat().st_size
    assert te_extra_state.read(rank) == SCALE


def test_a_lost_scale_raises(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    te_extra_state.write(rank)
    monkeypatch.setattr(te_extra_state, "linear", lambda rank: Scaled(loses=True))
    with pytest.raises(ScaleWrong, match=r"1\.0 instead of 3\.0"):
        te_extra_state.read(rank)


def test_tensors_are_loaded_on_the_cpu() -> None:
    """Also where Transformer Engine names CUDA."""
    load = te_extra_state._loaded_on_cpu(lambda *arguments, **keywords: (arguments, keywords))
    assert load("file", map_location="cuda") == (("file",), {"map_location": "cpu"})


class Linear:
    """Transformer Engine's, with either signature of init_fp8_meta_tensors."""

    def __init__(self, *sizes: int) -> None:
        self.fp8_meta: dict[str, Any] = {}
        self.calls: list[tuple[Any, ...]] = []

    def init_fp8_meta_tensors(self) -> None:
        self.calls.append(())


class LaterLinear(Linear):
    def init_fp8_meta_tensors(self, recipe: Any) -> None:  # type: ignore[override]
        self.calls.append((recipe,))


def put(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    fake = types.ModuleType(name)
    vars(fake).update(names)
    monkeypatch.setitem(sys.modules, name, fake)


@pytest.mark.parametrize(("kind", "arguments"), [(Linear, ()), (LaterLinear, ("delayed",))])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_state_is_made_with_either_signature(
    kind: type[Linear], arguments: tuple[Any, ...], device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def call(name: str) -> Callable[..., None]:
        return lambda *_: calls.append(name)

    monkeypatch.setattr(cpu_device, "install", call("install"))
    monkeypatch.setattr(cpu_device, "claim_gpu", call("claim"))
    monkeypatch.setattr(te_extension, "install", call("extension"))
    put(monkeypatch, "torch", load=lambda **_: None)
    put(monkeypatch, "transformer_engine", pytorch=None)
    put(monkeypatch, "transformer_engine.pytorch", Linear=kind)
    monkeypatch.setattr(sys.modules["transformer_engine"], "pytorch", sys.modules["transformer_engine.pytorch"])
    put(monkeypatch, "transformer_engine.common")
    put(monkeypatch, "transformer_engine.common.recipe", DelayedScaling=lambda: "delayed")
    put(monkeypatch, te_extension.EXTENSION)

    module = te_extra_state.linear(Rank(0, 1, device, "", tmp_path))

    assert module.calls == [arguments]
    assert module.fp8_meta == {"fp8_checkpoint": True, "recipe": "delayed", "num_gemms": 1}
    on_cpu = device == "cpu"
    assert calls == (["install", "extension", "claim"] if on_cpu else [])
    assert hasattr(sys.modules[te_extension.EXTENSION], "FP8TensorMeta") is on_cpu
