"""Tests of matrix.prove.parity.card, on a machine with stand-ins of its GPUs and packages."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.distributions import OF_HOST, nccl_sharing
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, PythonEnvironment
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.errors import MatrixError
from matrix.kit.rank import LackError
from matrix.prove.execution import gpus
from matrix.prove.execution.ranks import shared_gpu
from matrix.prove.parity.card import SharedCard, own
from matrix.prove.provision import host
from matrix.prove.provision.overlays import Overlay, Overlays, OverlaySpec
from matrix.read.machine import installed

HOPPER = Gpu("H100", "9.0", 80 * 2**30, uuid="GPU-0", multiprocessors=132)
PACKAGES = {
    "torch": "2.15.0", "transformer-engine": "2.18.0", "nvidia-nccl-cu13": "2.30.7", "megatron-core": "0.19.2",
    **dict(OF_HOST),
}  # fmt: skip
HOST = PythonEnvironment("3.12.1", PACKAGES, ("cuda", "compiled-te"), Path("/env/bin/python"), torch_cuda="13.0")
RELEASES = {MCORE: "0.19.2", TE: "2.18.0"}


@pytest.fixture
def laid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace this machine; return the packages that are laid over it."""
    texts: list[str] = []

    def provide(self: Overlays, spec: OverlaySpec) -> Overlay:
        (source,) = spec.sources
        texts.append(f"{source.package} {source.revision}")
        return Overlay(Path("/overlays", source.package), source.revision, {})

    monkeypatch.setattr(installed, "current", lambda: HOST)
    monkeypatch.setattr(host, "look", lambda: host.LocalSite(Machine("580.65.06", 1), lambda: Cuda(gpus=(HOPPER,))))
    monkeypatch.setattr(Overlays, "provide", provide)
    monkeypatch.setattr(shared_gpu, "foreign", lambda: "")
    monkeypatch.setenv("MEGATRIX_GPU_LOCKS", str(tmp_path / "locks"))
    return texts


def test_host_s_own_packages_are_not_laid(laid: list[str]) -> None:
    card = SharedCard.of(RELEASES, {}, mps=False)
    assert (laid, card.overlays, card.libraries) == ([], (), ())
    assert card.placement.note == "4 ranks share 1 GPU over NCCL 2.30.7"
    assert all(text in card.identity for text in ("torch 2.15.0", "transformer-engine 2.18.0", "H100, SM 9.0"))


def test_another_release_is_laid(laid: list[str]) -> None:
    card = SharedCard.of({**RELEASES, MCORE: "0.18.2"}, {}, mps=True)
    assert (laid, card.placement.mps) == (["megatron-core 0.18.2"], True)
    assert card.identity != SharedCard.of(RELEASES, {}, mps=True).identity


def test_old_nccl_is_preloaded_from_a_wheel(laid: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    older = replace(HOST, packages={**PACKAGES, "nvidia-nccl-cu13": "2.28.9"})
    monkeypatch.setattr(installed, "current", lambda: older)
    monkeypatch.setenv("LD_PRELOAD", "/other.so")
    card = SharedCard.of(RELEASES, {}, mps=False)
    assert laid == ["nvidia-nccl-cu13 2.32.3"]
    with card.held(print) as variables:
        assert variables["LD_PRELOAD"].split() == [*card.libraries, "/other.so"]
        assert card.libraries[0].endswith("libnccl.so.2")


def test_processes_have_the_gpu_and_its_variables(laid: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    with SharedCard.of({**RELEASES, MCORE: "0.18.2"}, {}, mps=False).held(print) as variables:
        assert variables["PYTHONPATH"] == f"/overlays/megatron-core{os.pathsep}/mine"
        assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-0"
        assert variables["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
        assert nccl_sharing().variables.items() <= variables.items()


def test_gpu_that_is_not_free_is_reported(laid: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def admit(*_: Any) -> Any:
        raise LackError("the GPUs are not free")
        yield

    monkeypatch.setattr(gpus.Pool, "admit", admit)
    card = SharedCard.of(RELEASES, {}, mps=False)
    with pytest.raises(MatrixError, match="no card for parity") as caught, card.held(print):
        pass
    assert "not free" in caught.value.brief


@pytest.mark.parametrize(
    ("shown", "packages", "text"),
    [
        (Cuda(problem="no driver"), {}, "needs 1 GPU; CUDA shows 0: no driver"),
        (Cuda(gpus=(replace(HOPPER, exclusive=True),)), {}, "in exclusive compute mode"),
        (Cuda(gpus=(HOPPER,)), {"nvidia-nccl-cu13": "2.28.9", "torch": "2.9.1"}, "NCCL >=2.30 alone"),
    ],
)
def test_card_that_cannot_be_shared_says_why(
    shown: Cuda, packages: dict[str, str], text: str, laid: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = replace(HOST, packages={**PACKAGES, **packages}, torch_cuda="11.8" if packages else "13.0")
    monkeypatch.setattr(installed, "current", lambda: there)
    monkeypatch.setattr(host, "look", lambda: host.LocalSite(Machine("580.65.06", 1), lambda: shown))
    with pytest.raises(MatrixError, match="no card for parity") as caught:
        SharedCard.of(RELEASES, {}, mps=False)
    assert text in caught.value.brief
    assert not laid


@pytest.mark.parametrize(
    ("package", "features", "version"),
    [(TE, ("compiled-te",), "2.18.0"), (TE, ("cuda",), ""), (MCORE, (), "0.19.2"), ("apex", (), "")],
)
def test_only_a_compiled_engine_counts(
    package: str, features: tuple[str, ...], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "current", lambda: replace(HOST, features=features))
    assert own(package) == version
