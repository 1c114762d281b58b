"""A plugin of pytest: twelve cases of 1, 2, 4 and 8 GPUs on a machine with eight stand-in GPUs.

A rank group is replaced by a check: while a case runs, a file exists for each of its GPUs, which a second case on one
of them can't create. The case that $KILLED names ends its process meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, PythonEnvironment
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.prove.execution import case_context, installation, plugin, session
from matrix.prove.execution.ranks.rank_spec import Admission, RankJob
from matrix.prove.provision import host
from matrix.prove.provision.host import LocalSite
from matrix.read.machine import hardware
from matrix.read.machine import installed as environments
from tests.unit.catalogs import case, catalog, failure

FOLDER = Path(os.environ["GPU_PLAN"])  # the failure's folder; `used`, GPUs in use; `ran`, a line for each case
SIZES = (1, 2, 4, 8)
CASES = tuple(replace(case(f"gpus{size}", (Level.GPU,)), ranks=size, gpus=size) for size in SIZES)
CUDA = Cuda("12.4", "", tuple(Gpu("NVIDIA H100", "9.0", 2**30, False, f"GPU-{place}") for place in range(8)))


class CheckingSupervisor:
    """Runs a job as its GPUs in use by no other."""

    def __init__(self, preload: Sequence[str], secrets: Sequence[str], deadline_s: float = 0.0) -> None:
        """Take what the supervisor of a session takes."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing."""

    def run(self, job: RankJob, admission: Admission) -> Outcome:
        """Run the body on the GPUs of the case."""
        with admission() as variables:
            return self.body(job, variables["CUDA_VISIBLE_DEVICES"].split(","))

    def body(self, job: RankJob, names: Sequence[str]) -> Outcome:
        """Use the GPUs; raise FileExistsError if another case does."""
        used = [FOLDER / "used" / name for name in names]
        for path in used:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        with (FOLDER / "ran").open("a") as file:
            file.write(f"{job.log_dir.parent.name} {len(used)}\n")
        if os.environ.get("KILLED") == job.log_dir.parent.name:
            for path in used:
                path.unlink()  # what follows must get the GPUs again
            os.kill(os.getpid(), signal.SIGKILL)
        subprocess.run([sys.executable, "-c", ""], check=True)  # as a rank: others look for GPUs meanwhile
        for path in used:
            path.unlink()
        return Outcome(OutcomeKind.PASSED)


for module, name, value in (
    (plugin, "FAILURES", FOLDER),
    (installation, "load", lambda: catalog(failure(folder=FOLDER / "break", case=CASES))),
    (session, "Supervisor", CheckingSupervisor),
    (case_context, "case_key", lambda *_: ""),  # to read the code takes a second
    (case_context.CaseContexts, "_overlays_of", lambda *_: ()),
    (environments, "current", lambda: PythonEnvironment("3.10.13", {"torch": "2.4.0"}, ["cuda"])),
    (host, "look", lambda: LocalSite(Machine("550.54.14", 8, architecture="x86_64"), user_mode=lambda: CUDA)),
    (hardware, "management", lambda: None),
):
    setattr(module, name, value)
