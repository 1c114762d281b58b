"""The capabilities of this machine, and the cases that it can run."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.cases.machine_requirements import BaseOffer
from matrix.ground.catalog.failure import GIB, Level
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, Nvml
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Kind, Lack, Planned
from matrix.prove.provision.host import Configuration, LocalSite, load_configuration, look
from tests.unit.catalogs import catalog, failure, planned, values

GPU = Gpu("H100", "9.0", 80, True, "GPU-a")
BARE = LocalSite(
    Machine("none", 0, architecture="x86_64"), user_mode=lambda: pytest.fail("the user-mode driver was queried")
)
SERVER = LocalSite(
    Machine("535.129.03", 2, architecture="x86_64", memory=64), user_mode=lambda: Cuda("12.2", gpus=(GPU, GPU))
)
KNOWN = catalog(failure())
CASE = planned(KNOWN)


def test_machine_is_stated_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    cuda = Cuda(gpus=(Gpu("NVIDIA H100 80GB HBM3", "9.0"),))
    site = LocalSite(Machine("580.159.04", 1, memory=126 * GIB), user_mode=lambda: cuda)
    assert site.text == "1 x NVIDIA H100 80GB HBM3, SM 9.0; driver 580.159.04; 16 cores, 126 GiB"
    assert LocalSite(Machine("none", 0)).text == "no GPU; driver none; 16 cores"


def on_gpus(gpus: int, driver: str = "none") -> Planned:
    return replace(CASE, level=Level.GPU, gpus=gpus, ranks=1, cell=CASE.cell.with_(values(driver=driver)))


@pytest.mark.parametrize(
    ("host", "case", "answer"),
    [
        (BARE, CASE, None),
        (BARE, replace(CASE, reproducible=False), "the catalog has no reproduction of it yet"),
        (BARE, on_gpus(1), "needs 1 GPU; host has 0"),
        (BARE, on_gpus(2), "needs 2 GPUs; host has 0"),
        (SERVER, on_gpus(2), None),
        (SERVER, on_gpus(8), "needs 8 GPUs; host has 2"),
        (SERVER, on_gpus(1, "535"), None),
        (SERVER, on_gpus(1, "535.86"), None),
        (SERVER, on_gpus(1, "470.161.03"), "needs driver 470.161.03; host has 535.129.03"),
    ],
)  # fmt: skip
def test_a_host_reports_what_is_missing(host: LocalSite, case: Planned, answer: str | None) -> None:
    lack = host.lack(KNOWN, case, BaseOffer("torch-2.4.0"))
    assert answer == (lack and lack.text)


def test_gpus_are_those_that_cuda_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel driver lists 8, and CUDA_VISIBLE_DEVICES or the container gives one of them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    one = replace(SERVER, machine=replace(SERVER.machine, listed=8), user_mode=lambda: Cuda("12.2", gpus=(GPU,)))
    offers = one.offers(Level.GPU)
    assert [gpu.uuid for gpu in offers.gpus or ()] == ["GPU-a"]
    assert offers.problem == "CUDA_VISIBLE_DEVICES is '3'; the kernel driver lists 8"


def test_below_level_gpu_cuda_is_not_queried() -> None:
    silent = replace(SERVER, user_mode=BARE.user_mode)
    assert (silent.offers(Level.CPU).gpus, silent.offers(Level.CPU).memory) == (None, 64)


def test_gpus_matter_at_level_gpu_only() -> None:
    assert SERVER.capabilities(Level.CPU) == {"machine": "x86_64"}
    assert SERVER.capabilities(Level.GPU) == {"machine": "x86_64", "gpus": 2, "driver": "535.129.03"}


def test_a_failing_nvml_is_part_of_the_reason() -> None:
    silent = replace(BARE, machine=replace(BARE.machine, nvml=Nvml(problem="nvmlInit did not return in 30 s")))
    lack = silent.lack(KNOWN, on_gpus(1), BaseOffer("torch-2.4.0"))
    assert lack == Lack(Kind.GPUS, "needs 1 GPU; CUDA shows 0: nvmlInit did not return in 30 s")


def test_this_machine_is_a_site() -> None:
    assert look().machine.architecture == platform.machine()


def test_a_relative_path_starts_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "megatrix.toml").write_text('[sources]\nmegatron-lm = "clones/Megatron-LM"\n')

    configured = load_configuration({}, tmp_path)

    assert configured.resolve("megatron-lm@abc") == f"{tmp_path / 'clones/Megatron-LM'}@abc"


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "megatrix.toml").write_text('[sources]\nmegatron-lm = "/file"\n')

    assert load_configuration({"MEGATRIX_MEGATRON_LM": "/env"}, tmp_path).sources == {"megatron-lm": "/env"}


@pytest.mark.parametrize("source", ["0.9.0", "", "./Megatron-LM@abc", "/tree", "wheel.whl"])
def test_other_sources_are_unchanged(source: str) -> None:
    assert Configuration().resolve(source) == source


def test_a_missing_clone_has_a_fix() -> None:
    with pytest.raises(MatrixError) as raised:
        Configuration().resolve("transformer-engine@v1.8")
    assert raised.value.brief == (
        "needs a clone of TransformerEngine: got none is configured: "
        "expected MEGATRIX_TRANSFORMER_ENGINE=PATH, or transformer-engine under [sources] in megatrix.toml"
    )


def test_a_misspelled_source_has_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "megatrix.toml").write_text('[sources]\nmegatron = "/clone"\n')

    with pytest.raises(MatrixError, match="did you mean megatron-lm"):
        load_configuration({}, tmp_path)


def test_a_misspelled_key_has_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "megatrix.toml").write_text("[source]\n")

    with pytest.raises(MatrixError, match="did you mean sources"):
        load_configuration({}, tmp_path)
