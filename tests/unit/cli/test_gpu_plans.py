"""What `megatrix plan --here --level gpu --stats` reports on four machines, with stand-ins for their drivers.

Planned, run, missing requirements, GPUs held at once, expected minutes. The packages and drivers are those of a bare
machine and of NGC's images.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.catalog.failure import Level
from matrix.cli.main import main
from matrix.errors import ExitStatus
from matrix.planning.estimates import DEFAULT_S, Basis
from matrix.provision import host, installed
from matrix.provision.host import Host
from matrix.provision.installed import FEATURES, PythonEnvironment
from matrix.provision.nvidia.cuda import Cuda, CudaDevice
from matrix.store.history import History
from tests.founding import SAVE
from tests.schemas import items_of
from tests.unit.report.samples import record

GIB = 2**30


def gpus(count: int, name: str, sm: str, *, multicast: bool) -> Cuda:
    made = (CudaDevice(name, sm, 80 * GIB, multicast, f"GPU-{place}") for place in range(count))
    return Cuda("12.4", "/usr/lib/libcuda.so.550.54.14", tuple(made))


BARE = PythonEnvironment("3.12.3", {"torch": "2.11.0+cu130", "nvidia-nccl-cu13": "2.28.9"}, ["cuda"])
NGC_2407 = PythonEnvironment(
    "3.10.12", {"torch": "2.4.0a0+3bcc3cddb5.nv24.7", "transformer-engine": "1.8.0+37280ec"}, list(FEATURES)
)
NGC_2403 = PythonEnvironment(
    "3.10.12", {"torch": "2.3.0a0+40ec155e58.nv24.3", "transformer-engine": "1.4.0+0fbc76a"}, list(FEATURES)
)
CPU = PythonEnvironment("3.11.7", {"torch": "2.4.0+cpu"}, ["pkg_resources"])
H100, A800 = ("NVIDIA H100", "9.0"), ("NVIDIA A800", "8.0")
MACHINES = {
    "one": (BARE, Host(1, "580.82.07", "x86_64", memory=128 * GIB), gpus(1, *H100, multicast=False)),
    "24.07": (NGC_2407, Host(8, "550.54.14", "x86_64", memory=1024 * GIB), gpus(8, *H100, multicast=True)),
    "24.03": (NGC_2403, Host(8, "470.161.03", "x86_64", memory=1024 * GIB), gpus(8, *A800, multicast=False)),
    "CPU": (CPU, Host(0, "none", "x86_64", memory=24 * GIB), Cuda()),
}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Stand in the environment and machine of that name; return the name."""
    environment, machine, cuda = MACHINES[request.param]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(installed, "current", lambda: environment)
    made = Host(machine.listed, machine.driver, machine.machine, memory=machine.memory, user_mode=lambda: cuda)
    monkeypatch.setattr(host, "look", lambda: made)
    return str(request.param)


def table(planned: int, runs: int, held: int, minutes: float, shared: int = 0, **missing: int) -> dict[str, Any]:
    kinds = {name.replace("_", " "): count for name, count in missing.items()}
    return {"planned": planned, "runs": runs, "missing": kinds, "shared": shared, "held": held, "minutes": minutes}


@pytest.mark.parametrize(
    ("stand_in", "clones", "expected"),
    [
        ("one", True, table(146, 32, 1, 21.3, 25, compiled_Transformer_Engine=90, module=13, NCCL=11)),
        ("24.07", False, table(194, 64, 8, 9.3, clone=130)),
        ("24.07", True, table(194, 194, 8, 150.7)),
        ("24.03", False, table(229, 66, 8, 9.3, clone=151, multicast=12)),
        ("24.03", True, table(229, 217, 8, 154.3, multicast=12)),
        ("CPU", True, table(118, 0, 0, 0, torch_with_CUDA=118)),
    ],
    indirect=["stand_in"],
)
def test_plan_of_a_machine_has_its_counts(
    stand_in: str,
    clones: bool,
    expected: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("MEGATRIX_MEGATRON_LM", "MEGATRIX_TRANSFORMER_ENGINE") if clones else ():
        monkeypatch.setenv(name, str(tmp_path))
    assert main(["plan", "--here", "--level", "gpu", "--stats", "--json"]) == 0
    here = items_of(capsys.readouterr().out, "plan-stats")[0]["here"]
    assert {name: here[name] for name in expected} == expected


@pytest.mark.parametrize("stand_in", ["CPU"], indirect=True)
def test_results_without_a_gpu_exit_with_3(stand_in: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Never green, and no page."""
    assert main(["run", "--level", "gpu", "--results", str(tmp_path / "results")]) == ExitStatus.NOTHING
    assert "nothing was run: CUDA shows no GPU on this machine" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("stand_in", ["24.07"], indirect=True)
def test_earlier_runs_replace_the_default_seconds(
    stand_in: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A case that took 400 s in one cell is expected to take 400 s in each."""

    def minutes() -> tuple[float, dict[str, int]]:
        assert main(["plan", "--here", "--level", "gpu", "--stats", "--json", "--out", str(tmp_path)]) == 0
        here = items_of(capsys.readouterr().out, "plan-stats")[0]["here"]
        return here["gpu_minutes"], here["estimates"]

    before, basis = minutes()
    assert basis == {Basis.DEFAULT.value: 64}
    ran = record(failure=SAVE, case="tp2", level=Level.GPU)
    with History(tmp_path / "history.sqlite") as history:
        history.add("a", [replace(ran, outcome=replace(ran.outcome, seconds=DEFAULT_S[Level.GPU] + 360.0))])
    after, basis = minutes()
    assert after - before == pytest.approx(2 * 6.0 * basis[Basis.OTHER_CELLS.value], abs=0.2)


@pytest.mark.parametrize("stand_in", ["one"], indirect=True)
def test_explain_names_the_missing_requirement(
    stand_in: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOX_WORK_DIR", str(tmp_path))
    assert main(["explain", "torch-2.4.0/mcore-0.8.0/te-none/driver-none", "--json"]) == 0
    (explained,) = items_of(capsys.readouterr().out, "explain")
    here = {
        one["case"]: one["here"] for part in explained["failures"] for one in part["night"] if one["level"] == "gpu"
    }
    assert here["tp2"] == "runs"
    assert here["pp2"] == "needs NCCL, so 2 GPUs, one for each rank; host has 1"
    assert "pretrain-cp1" not in here  # it needs a compiled Transformer Engine, which no environment of wheels has
