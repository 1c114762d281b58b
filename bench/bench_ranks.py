"""The cost of one case on a few ranks: through the supervisor, and through the usual harnesses, with the same body.

    python bench/bench_ranks.py [--body MODULE:FUNCTION] [--kwargs JSON] [--path DIR ...] [--ranks 2] [--rounds 5]

Run it with an interpreter that has torch. The harnesses take turns, so that load on the machine affects all of them;
medians are compared. MultiProcContinuousTest is not equivalent and shown for its cost only: its ranks persist from
case to case, so a crash ends them all, and one case changes the process of the next.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.execution.ranks.job import RankJob
from matrix.execution.ranks.rank_spec import free_port
from matrix.execution.ranks.supervisor import Supervisor
from matrix.kit.rank import Rank
from matrix.verdicts.outcome import OutcomeKind

HARNESSES = str(Path(__file__).with_name("torch_harnesses.py"))
POOLED, FRESH, TORCHRUN = "supervisor", "supervisor, fresh", "torchrun"
MULTIPROCESS, CONTINUOUS = "MultiProcessTestCase", "MultiProcContinuousTest"
PER_ROUND = 5  # cases of a pooled way in the time of one case of the others


def all_reduce(rank: Rank) -> float:
    """Do the least that needs all ranks."""
    import torch

    torch.distributed.init_process_group(
        "gloo", init_method=rank.init_method, rank=rank.rank, world_size=rank.world_size
    )
    ones = torch.ones(1)
    torch.distributed.all_reduce(ones)
    torch.distributed.destroy_process_group()
    return float(ones)


class MissingError(Exception):
    """This torch does not have the harness."""


class Ways:
    """The ways to run the case; each returns the seconds of one run or of several."""

    def __init__(self, case: dict[str, Any], supervisor: Supervisor, folder: Path) -> None:
        self.case, self.supervisor, self.folder = case, supervisor, folder

    def supervised(self, *, fresh: bool) -> float:
        job = RankJob(
            target=self.case["target"],
            kwargs=self.case["kwargs"],
            world_size=self.case["world_size"],
            path=tuple(self.case["path"]),
            env={},
            deadline_s=300.0,
            log_dir=self.folder / "logs",
            fresh=fresh,
        )
        began = time.monotonic()
        outcome = self.supervisor.run(job)
        seconds = time.monotonic() - began
        if outcome.kind is not OutcomeKind.PASSED:
            sys.exit(f"the body does not pass: {outcome.reason}\n{outcome.evidence}")
        return seconds

    def torchrun(self) -> float:
        command = ["-m", "torch.distributed.run", "--nproc-per-node", str(self.case["world_size"])]
        began = time.monotonic()
        self.python([*command, "--master-port", str(free_port()), HARNESSES], "torchrun")
        return time.monotonic() - began

    def harness(self, name: str, repeat: int = 1) -> list[float]:
        result = json.loads(self.python([HARNESSES], name, repeat).splitlines()[-1])
        if "missing" in result:
            raise MissingError(result["missing"])
        return list(result["seconds"])

    def python(self, args: list[str], way: str, repeat: int = 1) -> str:
        """Run this interpreter with a new folder that its ranks share; return its stdout."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            environment = {
                **os.environ,
                "BENCH_CASE": json.dumps({**self.case, "repeat": repeat}),
                "BENCH_FOLDER": folder,
                "BENCH_WAY": way,
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join([*self.case["path"], str(Path(__file__).parent)])
                + os.pathsep
                + os.environ.get("PYTHONPATH", ""),
            }
            with tempfile.TemporaryFile("w+", dir=folder) as out, tempfile.TemporaryFile("w+", dir=folder) as err:
                process = subprocess.Popen(
                    [sys.executable, *args], env=environment, stdout=out, stderr=err, start_new_session=True
                )
                status = process.wait()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # processes that the body left: megatron-core's Manager
                out.seek(0)
                err.seek(0)
                output, errors = out.read(), err.read()
        if status != 0:
            sys.exit(f"{way} exited with {status}\n{output[-2000:]}\n{errors[-4000:]}")
        return output


def measure(ways: Ways, rounds: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the seconds of each way, and the reason for each missing way."""
    found: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    turns: dict[str, Callable[[], list[float]]] = {
        POOLED: lambda: [ways.supervised(fresh=False) for _ in range(PER_ROUND)],
        FRESH: lambda: [ways.supervised(fresh=True)],
        TORCHRUN: lambda: [ways.torchrun()],
        MULTIPROCESS: lambda: ways.harness("multiprocess"),
        CONTINUOUS: lambda: ways.harness("continuous", PER_ROUND),
    }
    for _ in range(rounds):
        for name, turn in turns.items():
            if name not in missing:
                try:
                    found.setdefault(name, []).extend(turn())
                except MissingError as error:
                    missing[name] = str(error)
    return found, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--body", default="bench_ranks:all_reduce", help="a function of (rank: Rank, **kwargs)")
    parser.add_argument("--kwargs", type=json.loads, default={}, help="JSON object")
    parser.add_argument("--path", nargs="*", default=[], help="overlay directories")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    case = {"target": chosen.body, "kwargs": chosen.kwargs, "path": chosen.path, "world_size": chosen.ranks}
    with tempfile.TemporaryDirectory() as folder, Supervisor() as supervisor:
        ways = Ways(case, supervisor, Path(folder))
        cold = ways.supervised(fresh=False)
        found, missing = measure(ways, chosen.rounds)
    medians = {name: statistics.median(seconds) for name, seconds in found.items() if seconds}
    print(
        f"{chosen.body} on {chosen.ranks} ranks, {os.cpu_count()} cores; the supervisor's first case took {cold:.2f} s"
    )
    print(f"{'way':<26}{'median s':>10}{'best s':>10}{'cases':>7}{'supervisor is':>16}")
    for name, median in medians.items():
        ratio = f"{median / medians[POOLED]:.1f} x faster" if name != POOLED else ""
        print(f"{name:<26}{median:>10.3f}{min(found[name]):>10.3f}{len(found[name]):>7}{ratio:>16}")
    for name, reason in missing.items():
        print(f"{name:<26}not measured: {reason}")
    report = {"body": chosen.body, "ranks": chosen.ranks, "cold": cold, "median": medians, "missing": missing}
    print(json.dumps({**report, "seconds": found}))


if __name__ == "__main__":
    main()
