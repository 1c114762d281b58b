"""Ranks under mpirun, with a small script as mpirun. tests/real has Open MPI's."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.ground.verdicts.outcome import OutcomeKind
from matrix.prove.execution.ranks import mpirun
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.supervisor import Supervisor
from tests.unit.prove.execution.ranks.marks import ranks_and_orphans

MakeJob = Callable[..., RankJob]

# Like Open MPI's: closes inherited descriptors, sets the rank of each process, and when one fails, ends all of them and
# names it on stderr.
MPIRUN = """#!{python}
import os, signal, subprocess, sys
number = int(sys.argv[sys.argv.index("-np") + 1])
program = sys.argv[sys.argv.index("-np") + 2:]
ranks = [subprocess.Popen(program, env=dict(os.environ, OMPI_COMM_WORLD_RANK=str(one))) for one in range(number)]
while ranks:
    pid, status = os.wait()
    ranks = [rank for rank in ranks if rank.pid != pid]
    if status:
        print(f"process {{pid}} ended with {{status}}", file=sys.stderr)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        for rank in ranks:
            os.waitpid(rank.pid, 0)
        sys.exit(255)
"""


def tool(folder: Path, text: str) -> str:
    """Return an overlay that contains an mpirun."""
    path = folder / "overlay" / "bin" / "mpirun"
    path.parent.mkdir(parents=True)
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return str(folder / "overlay")


@pytest.fixture
def under(job: MakeJob, tmp_path: Path) -> MakeJob:
    """Return a function that makes jobs which mpirun starts."""
    overlay = tool(tmp_path, MPIRUN)

    def make(body: str, **changes: object) -> RankJob:
        return job(body, path=(overlay,), launcher="mpirun", **changes)

    return make


def test_each_process_is_a_rank_with_its_log(supervisor: Supervisor, under: MakeJob) -> None:
    outcome = supervisor.run(under("describe", world_size=3, env={"OWN": "1"}))

    assert outcome.kind is OutcomeKind.PASSED, outcome.evidence
    values = [end.value for end in outcome.ranks]
    assert [rank["rank"] for rank in values] == [0, 1, 2]
    assert [
        tuple(rank["environment"][name] for name in ("OMPI_COMM_WORLD_RANK", "WORLD_SIZE", "OWN")) for rank in values
    ] == [("0", "3", "1"), ("1", "3", "1"), ("2", "3", "1")]
    assert [name for rank in values for name in rank["environment"] if name.startswith("TORCHELASTIC")] == []
    assert [rank["pid"] for rank in values] == [rank["session"] for rank in values]
    assert {"rank-0.log", "rank-1.log", "rank-2.log"} == {Path(end.log).name for end in outcome.ranks}


def test_crash_is_reported_for_its_rank(supervisor: Supervisor, under: MakeJob, mark: str) -> None:
    """The signal is that of the rank, which its shim reported, not that of mpirun. The others are ended."""
    outcome = supervisor.run(under("segfault_beside_waiting_peers"))

    assert (outcome.kind, outcome.rank, outcome.signal) == (OutcomeKind.SIGNALED, 1, "SIGSEGV")
    assert outcome.ranks[0].exit_code == -signal.SIGTERM
    assert "Segmentation fault" in outcome.evidence
    assert "ended with" in (Path(outcome.ranks[0].log).parent / "mpirun.log").read_text()
    assert ranks_and_orphans(mark) == {}


def test_deadline_ends_ranks_and_mpirun(supervisor: Supervisor, under: MakeJob, mark: str) -> None:
    outcome = supervisor.run(under("hang_stubborn", deadline_s=4.0))

    assert OutcomeKind.HUNG is outcome.kind
    assert "bodies.py" in outcome.reason
    assert ranks_and_orphans(mark) == {}


def test_ranks_end_when_mpirun_is_killed(supervisor: Supervisor, under: MakeJob, mark: str) -> None:
    outcome = supervisor.run(under("kill_mpirun", deadline_s=20.0))

    assert {-signal.SIGKILL} == {end.exit_code for end in outcome.ranks}
    assert OutcomeKind.SIGNALED is outcome.kind
    assert ranks_and_orphans(mark) == {}


def test_mpirun_that_starts_nothing_is_exited(supervisor: Supervisor, job: MakeJob, tmp_path: Path) -> None:
    """The evidence contains the output of mpirun, and the deadline is not awaited."""
    refuses = tool(tmp_path, "#!{python}\nraise SystemExit('not enough slots')\n")
    outcome = supervisor.run(job("describe", path=(refuses,), launcher="mpirun"))

    assert (outcome.kind, outcome.exit_code) == (OutcomeKind.EXITED, 1)
    assert "mpirun ended with 1 before it started this rank" in outcome.evidence
    assert "not enough slots" in outcome.evidence


def test_mpirun_starts_without_slurm_jobid(supervisor: Supervisor, job: MakeJob, tmp_path: Path) -> None:
    """With it, Open MPI starts ranks by srun, which images lack, with fewer slots than ranks."""
    overlay = tool(tmp_path, MPIRUN.replace("number =", "assert 'SLURM_JOBID' not in os.environ\nnumber =", 1))
    outcome = supervisor.run(job("describe", path=(overlay,), launcher="mpirun", env={"SLURM_JOBID": "7"}))

    assert outcome.kind is OutcomeKind.PASSED, outcome.evidence


def test_missing_mpirun_names_the_package() -> None:
    assert "apt-get install openmpi-bin" in mpirun.missing((), {"PATH": ""})


def test_mpirun_of_an_overlay_precedes_path(tmp_path: Path) -> None:
    overlay = tool(tmp_path, MPIRUN)
    assert f"{overlay}/bin/mpirun" == mpirun.find((overlay,), {"PATH": os.environ["PATH"]})
