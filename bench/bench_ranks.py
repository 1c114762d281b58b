"""The cost of one case on a few ranks: through the supervisor, and through the usual harnesses, with the same body.

    python bench/bench_ranks.py [--body MODULE:FUNCTION] [--kwargs JSON] [--path DIR ...] [--ranks 2] [--rounds 5]

Run it with an interpreter that has torch; PyTorch's test cases need expecttest, too. The harnesses take turns, so that
load on the machine affects all of them; medians of wall-clock and processor seconds are compared. The latter depend
less on the load. MultiProcContinuousTest is not equivalent and shown for its cost only: its ranks persist from case to
case, so a crash ends them all, and one case changes the process of the next. Its processor seconds are those of rank 0
times the ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
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

from matrix.ground.verdicts.outcome import OutcomeKind
from matrix.prove.execution.ranks.rank_spec import RankJob, free_port
from matrix.prove.execution.ranks.supervisor import Supervisor

HARNESSES = str(Path(__file__).with_name("torch_harnesses.py"))
POOLED, FRESH, TORCHRUN = "supervisor", "supervisor, fresh", "torchrun"
MULTIPROCESS, CONTINUOUS = "MultiProcessTestCase", "MultiProcContinuousTest"
PER_ROUND = 5  # cases of a pooled way in the time of one case of the others


Spent = tuple[float, float]  # wall-clock and processor seconds of one case


class MissingError(Exception):
    """This torch does not have the harness."""


class Ways:
    """The ways to run the case; each returns the seconds of one run or of several."""

    def __init__(self, case: dict[str, Any], supervisor: Supervisor, folder: Path) -> None:
        self.case, self.supervisor, self.folder = case, supervisor, folder

    def supervised(self, *, fresh: bool) -> Spent:
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
        began, before = time.monotonic(), self.processor()
        outcome = self.supervisor.run(job)
        seconds, processor = time.monotonic() - began, self.processor() - before
        if outcome.kind is not OutcomeKind.PASSED:
            sys.exit(f"the body does not pass: {outcome.reason}\n{outcome.evidence}")
        return seconds, processor

    def processor(self) -> float:
        """Return the processor seconds of this process, its ended children and the forkserver with its ended ranks."""
        users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        used = sum(sum(resource.getrusage(user)[:2]) for user in users)
        if not (pid := self.supervisor._server.pid):
            return used
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return used + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def torchrun(self) -> Spent:
        command = ["-m", "torch.distributed.run", "--nproc-per-node", str(self.case["world_size"])]
        began, before = time.monotonic(), self.processor()
        self.python([*command, "--master-port", str(free_port()), HARNESSES], "torchrun")
        return time.monotonic() - began, self.processor() - before

    def harness(self, name: str, repeat: int = 1) -> list[Spent]:
        result = json.loads(self.python([HARNESSES], name, repeat).splitlines()[-1])
        if "missing" in result:
            raise MissingError(result["missing"])
        return [(seconds, processor) for seconds, processor in result["spent"]]

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


def measure(ways: Ways, rounds: int) -> tuple[dict[str, list[Spent]], dict[str, str]]:
    """Return the seconds of each way, and the reason for each missing way."""
    found: dict[str, list[Spent]] = {}
    missing: dict[str, str] = {}
    turns: dict[str, Callable[[], list[Spent]]] = {
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
    parser.add_argument("--body", default="rank_body:all_reduce", help="a function of (rank: Rank, **kwargs)")
    parser.add_argument("--kwargs", type=json.loads, default={}, help="JSON object")
    parser.add_argument("--path", nargs="*", default=[], help="overlay directories")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    case = {"target": chosen.body, "kwargs": chosen.kwargs, "path": chosen.path, "world_size": chosen.ranks}
    with tempfile.TemporaryDirectory() as folder, Supervisor() as supervisor:
        ways = Ways(case, supervisor, Path(folder))
        cold, _ = ways.supervised(fresh=False)
        found, missing = measure(ways, chosen.rounds)
    medians = {
        name: [statistics.median(unit) for unit in zip(*spent, strict=True)] for name, spent in found.items() if spent
    }
    print(
        f"{chosen.body} on {chosen.ranks} ranks, {os.cpu_count()} cores; the supervisor's first case took {cold:.2f} s"
    )
    print(f"{'way':<26}{'median s':>10}{'best s':>10}{'cases':>7}{'x':>7}{'processor s':>14}{'x':>7}")
    for name, (clock, processor) in medians.items():
        times = [mine / own for mine, own in zip((clock, processor), medians[POOLED], strict=True)]
        best, count = min(found[name])[0], len(found[name])
        print(f"{name:<26}{clock:>10.3f}{best:>10.3f}{count:>7}{times[0]:>7.1f}{processor:>14.3f}{times[1]:>7.1f}")
    for name, reason in missing.items():
        print(f"{name:<26}not measured: {reason}")
    report = {"body": chosen.body, "ranks": chosen.ranks, "cold": cold, "median": medians, "missing": missing}
    print(json.dumps({**report, "spent": found}))


if __name__ == "__main__":
    main()
