"""What `megatrix plan --here --level gpu --stats` reports on four machines, with stand-ins for their drivers.

Missing requirements. The packages and drivers are those of a bare machine and of NGC's images.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.cli.main import main
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, PythonEnvironment
from matrix.ground.errors import ExitStatus
from matrix.prove.planning.statistics import DEFAULT_S, Basis
from matrix.prove.provision import host
from matrix.prove.provision.host import LocalSite
from matrix.prove.store.history import History
from matrix.read.machine import installed
from matrix.read.machine.installed import FEATURES
from tests.founding import SAVE
from tests.schemas import items_of
from tests.unit.show.samples import record

GIB = 2**30


def gpus(count: int, name: str, sm: str, *, multicast: bool) -> Cuda:
    made = (Gpu(name, sm, 80 * GIB, multicast, f"GPU-{place}") for place in range(count))
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
    "one": (
        BARE,
        LocalSite(Machine("580.82.07", 1, architecture="x86_64", memory=128 * GIB)),
        gpus(1, *H100, multicast=False),
    ),
    "24.07": (
        NGC_2407,
        LocalSite(Machine("550.54.14", 8, architecture="x86_64", memory=1024 * GIB)),
        gpus(8, *H100, multicast=True),
    ),
    "24.03": (
        NGC_2403,
        LocalSite(Machine("470.161.03", 8, architecture="x86_64", memory=1024 * GIB)),
        gpus(8, *A800, multicast=False),
    ),
    "CPU": (CPU, LocalSite(Machine("none", 0, architecture="x86_64", memory=24 * GIB)), Cuda()),
}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Stand in the environment and machine of that name; return the name."""
    environment, machine, cuda = MACHINES[request.param]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(installed, "current", lambda: environment)
    made = LocalSite(machine.machine, user_mode=lambda: cuda)
    monkeypatch.setattr(host, "look", lambda: made)
    return str(request.param)


@pytest.mark.parametrize(
    ("stand_in", "clones", "missing"),
    [
        ("one", True, {"compiled Transformer Engine", "module", "NCCL"}),
        # A checkpoint that another Transformer Engine wrote needs that one's extension, too.
        ("24.07", True, {"compiled Transformer Engine", "SM"}),
        ("24.03", False, {"compiled Transformer Engine", "clone", "SM", "multicast"}),
        ("CPU", True, {"torch with CUDA"}),
    ],
    indirect=["stand_in"],
)
def test_plan_of_a_machine_names_what_misses(
    stand_in: str,
    clones: bool,
    missing: set[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Each case runs or misses one requirement; how many they are depends on the catalog (docs/gpu.md)."""
    for name in ("MEGATRIX_MEGATRON_LM", "MEGATRIX_TRANSFORMER_ENGINE") if clones else ():
        monkeypatch.setenv(name, str(tmp_path))
    assert main(["plan", "--here", "--level", "gpu", "--stats", "--json"]) == 0
    here = items_of(capsys.readouterr().out, "plan-stats")[0]["here"]
    assert here["missing"].keys() == missing
    assert here["planned"] == here["runs"] + sum(here["missing"].values())
    assert bool(here["runs"]) == bool(here["minutes"]) == (stand_in != "CPU")


@pytest.mark.parametrize("stand_in", ["one"], indirect=True)
def test_stats_say_why_ranks_cannot_share(
    stand_in: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the run: a card in exclusive mode, with the remedy."""
    cards = (replace(gpus(1, *H100, multicast=False).gpus[0], exclusive=True),)
    site = LocalSite(MACHINES[stand_in][1].machine, user_mode=lambda: Cuda("12.4", gpus=cards))
    monkeypatch.setattr(host, "look", lambda: site)
    assert main(["plan", "--here", "--level", "gpu", "--stats", "--select", f"failure=={SAVE}"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "GPUs, for example: needs 2 GPUs; host has 1, in exclusive compute mode: ranks can't share it;" in words


@pytest.mark.parametrize("stand_in", ["CPU"], indirect=True)
def test_results_without_a_gpu_exit_with_3(stand_in: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Never green, and no page."""
    assert main(["run", "--level", "gpu", "--results", str(tmp_path / "results")]) == ExitStatus.NOTHING
    assert "not run: CUDA shows no GPU on this machine (no NVIDIA driver" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("stand_in", ["24.07"], indirect=True)
def test_earlier_runs_replace_the_default_seconds(
    stand_in: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A case that took 400 s in one cell is expected to take 400 s in each."""

    def minutes() -> tuple[float, dict[str, int], int]:
        assert main(["plan", "--here", "--level", "gpu", "--stats", "--json", "--out", str(tmp_path)]) == 0
        here = items_of(capsys.readouterr().out, "plan-stats")[0]["here"]
        return here["gpu_minutes"], here["estimates"], here["runs"]

    before, basis, runs = minutes()
    assert basis == {Basis.DEFAULT.value: runs}
    ran = record(failure=SAVE, case="tp2", level=Level.GPU)
    with History(tmp_path / "history.sqlite") as history:
        history.add("a", [replace(ran, outcome=replace(ran.outcome, seconds=DEFAULT_S[Level.GPU] + 360.0))])
    after, basis, _ = minutes()
    assert after - before == pytest.approx(2 * 6.0 * basis[Basis.OTHER_CELLS.value], abs=0.2)


@pytest.mark.parametrize("stand_in", ["one"], indirect=True)
def test_cell_names_the_missing_requirement(
    stand_in: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MEGATRIX_CACHE", str(tmp_path))
    assert main(["check", "torch-2.4.0/mcore-0.8.0/te-none/driver-none", "--json"]) == 1
    (explained,) = items_of(capsys.readouterr().out, "cell")
    here = {
        one["case"]: one["here"] for part in explained["failures"] for one in part["night"] if one["level"] == "gpu"
    }
    assert here["tp2"] == here["pp2"] == "runs: 2 ranks share 1 GPU over NCCL 2.32.3, preloaded"
    assert "pretrain-cp1" not in here  # it needs a compiled Transformer Engine, which no environment of wheels has
