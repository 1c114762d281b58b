"""Ranks under mpirun, with a small mpirun of our own: Open MPI's is met in tests/real."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.errors import MatrixError
from matrix.execution.ranks import mpirun
from matrix.execution.ranks.job import RankJob
from matrix.execution.ranks.supervisor import Supervisor
from matrix.verdicts.outcome import OutcomeKind
from tests.unit.execution.ranks.marks import ranks_and_orphans

MakeJob = Callable[..., RankJob]

# As Open MPI's: closes what it inherits, tells each process its rank, ends all when one fails, says which on stderr.
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
    """Return an overlay with an mpirun in it."""
    path = folder / "overlay" / "bin" / "mpirun"
    path.parent.mkdir(parents=True)
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return str(folder / "overlay")


@pytest.fixture
def under(job: MakeJob, tmp_path: Path) -> MakeJob:
    """Return a maker of jobs that mpirun starts."""
    overlay = tool(tmp_path, MPIRUN)

    def make(body: str, **changes: object) -> RankJob:
        return job(body, path=(overlay,), launcher="mpirun", **changes)

    return make


def test_each_process_is_a_rank_with_its_own_log_and_report(supervisor: Supervisor, under: MakeJob) -> None:
    outcome = supervisor.run(under("describe", world_size=3, env={"OWN": "1"}))

    assert outcome.kind is OutcomeKind.PASSED, outcome.evidence
    told = [end.value for end in outcome.ranks]
    assert [rank["rank"] for rank in told] == [0, 1, 2]
    assert [
        tuple(rank["environment"][name] for name in ("OMPI_COMM_WORLD_RANK", "WORLD_SIZE", "OWN")) for rank in told
    ] == [("0", "3", "1"), ("1", "3", "1"), ("2", "3", "1")]
    assert [name for rank in told for name in rank["environment"] if name.startswith("TORCHELASTIC")] == []
    assert [rank["pid"] for rank in told] == [rank["session"] for rank in told]
    assert {"rank-0.log", "rank-1.log", "rank-2.log"} == {Path(end.log).name for end in outcome.ranks}


def test_a_crash_is_this_ranks_and_mpirun_ends_the_others(supervisor: Supervisor, under: MakeJob, mark: str) -> None:
    """The signal is the rank's own, as its keeper saw it, not what mpirun makes of it."""
    outcome = supervisor.run(under("segfault_beside_waiting_peers"))

    assert (outcome.kind, outcome.rank, outcome.signal) == (OutcomeKind.SIGNALED, 1, "SIGSEGV")
    assert outcome.ranks[0].exit_code == -signal.SIGTERM
    assert "Segmentation fault" in outcome.evidence
    assert "ended with" in (Path(outcome.ranks[0].log).parent / "mpirun.log").read_text()
    assert ranks_and_orphans(mark) == {}


def test_a_deadline_ends_ranks_and_mpirun(supervisor: Supervisor, under: MakeJob, mark: str) -> None:
    outcome = supervisor.run(under("hang_stubborn", deadline_s=4.0))

    assert OutcomeKind.HUNG is outcome.kind
    assert "bodies.py" in outcome.reason
    assert ranks_and_orphans(mark) == {}


def test_an_mpirun_that_is_killed_takes_its_ranks_along(supervisor: Supervisor, under: MakeJob, mark: str) -> None:
    outcome = supervisor.run(under("kill_mpirun", deadline_s=20.0))

    assert {-signal.SIGKILL} == {end.exit_code for end in outcome.ranks}
    assert OutcomeKind.SIGNALED is outcome.kind
    assert ranks_and_orphans(mark) == {}


def test_an_mpirun_that_starts_nothing_is_told_with_its_words(
    supervisor: Supervisor, job: MakeJob, tmp_path: Path
) -> None:
    """Nothing is called passed, or hung until the deadline."""
    refuses = tool(tmp_path, "#!{python}\nraise SystemExit('not enough slots')\n")
    outcome = supervisor.run(job("describe", path=(refuses,), launcher="mpirun"))

    assert (outcome.kind, outcome.exit_code) == (OutcomeKind.EXITED, 1)
    assert "mpirun ended with 1 before it started this rank" in outcome.evidence
    assert "not enough slots" in outcome.evidence


def test_mpirun_does_not_hear_of_the_job_of_slurm_that_it_is_in(
    supervisor: Supervisor, job: MakeJob, tmp_path: Path
) -> None:
    """Open MPI would start ranks by srun, which no image has, and find fewer slots than ranks."""
    overlay = tool(tmp_path, MPIRUN.replace("number =", "assert 'SLURM_JOBID' not in os.environ\nnumber =", 1))
    outcome = supervisor.run(job("describe", path=(overlay,), launcher="mpirun", env={"SLURM_JOBID": "7"}))

    assert outcome.kind is OutcomeKind.PASSED, outcome.evidence


def test_without_mpirun_it_says_what_to_install() -> None:
    assert "apt-get install openmpi-bin" in mpirun.missing((), {"PATH": ""})


def test_an_overlay_s_mpirun_goes_before_the_one_on_path(tmp_path: Path) -> None:
    overlay = tool(tmp_path, MPIRUN)
    assert f"{overlay}/bin/mpirun" == mpirun.find((overlay,), {"PATH": os.environ["PATH"]})


def test_a_launcher_that_nobody_knows_is_refused(job: MakeJob) -> None:
    with pytest.raises(MatrixError, match="known launcher"):
        job("describe", launcher="srun")
