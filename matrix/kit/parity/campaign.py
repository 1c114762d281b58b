"""Judge points of parity, one after the other, in one process that imports torch and megatron-core once.

    python -m matrix.kit.parity.campaign [STAND_INS] < points > outcomes

STAND_INS is JSON: the arguments of matrix.kit.absent_packages.install, for releases that import packages unasked.
Each line of stdin is {"point": {factor: value}, "seed": 1, "deadline": 60, "localise": false}; all but `point` may be
missing. A line of stdout answers it: the `point` and the `seed`, the `outcome`, `deviations`, `seconds` and `steps`.

==========  ===========================================================================================
outcome     meaning
==========  ===========================================================================================
equal       all numbers are those of one rank
deviates    some are not: `deviations`
refused     upstream's own exception: `text`
timeout     no end within the deadline
harness     this project's fault, or that of its stand-ins: `text`, `trace`
==========  ===========================================================================================
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from matrix.kit import absent_packages
from matrix.kit.parity import forked_ranks
from matrix.kit.parity.boundaries import Boundary, first_boundary
from matrix.kit.parity.deviations import Deviation, compare
from matrix.kit.parity.factors import Point

DEADLINE_S: Final = 60.0  # of one run of all ranks; two steps take about a second
KEPT: Final = 100  # references; each takes about 0.3 MiB
OUTCOMES: Final = {"upstream": "refused", "transport": "harness", "killed": "harness"}


@dataclass(frozen=True)
class ParityTask:
    """One line of stdin."""

    point: Point
    seed: int = 1
    deadline: float = DEADLINE_S
    localise: bool = False

    @classmethod
    def read(cls, line: str) -> ParityTask:
        """Return the task of a line. Raises MatrixError for an impossible point, ValueError for no JSON."""
        row = json.loads(line)
        point = Point.of(row["point"]) if isinstance(row["point"], Mapping) else Point.parse(row["point"])
        return cls(point, int(row.get("seed", 1)), float(row.get("deadline", DEADLINE_S)), bool(row.get("localise")))


@dataclass(frozen=True)
class ParityAnswer:
    """One line of stdout, but for the task's own fields. `largest` is the largest relative difference.

    `first` is the first module that deviates, where the task asks for it.
    """

    outcome: str
    deviations: tuple[Deviation, ...] = ()
    text: str = ""
    trace: str = ""
    steps: int = 0
    largest: float = 0.0
    dead: tuple[str, ...] = ()
    first: Boundary | None = None


@dataclass
class Comparisons:
    """Judges tasks. `references` are kept, by reference point and seed: many layouts share one."""

    references: dict[tuple[Point, int], Any] = field(default_factory=dict)

    def judge(self, task: ParityTask) -> ParityAnswer:
        """Return the answer to a task."""
        from matrix.kit.parity import gathered

        try:
            reference = self._reference(task)
            if isinstance(reference, ParityAnswer):
                return reference
            ranks = measure(task.point, task.seed, task.deadline)
            if isinstance(ranks, ParityAnswer):
                return ranks
            differences = tuple(gathered.differences(reference, ranks))
            deviations = compare(differences)
            return ParityAnswer(
                "deviates" if deviations else "equal",
                deviations,
                steps=len(reference.steps),
                largest=max(difference.size for difference in differences),
                dead=tuple(gathered.dead(reference)),
                first=localised(task) if deviations and task.localise else None,
            )
        except gathered.HarnessError as error:
            return ParityAnswer("harness", text=str(error))

    def _reference(self, task: ParityTask) -> Any:
        from matrix.kit.parity import gathered

        key = (task.point.reference(), task.seed)
        if key not in self.references:
            numbers = measure(*key, task.deadline)
            if not isinstance(numbers, ParityAnswer):
                numbers = numbers[0]
                gathered.check_reference(numbers)
            if len(self.references) >= KEPT:
                del self.references[next(iter(self.references))]
            self.references[key] = numbers
        return self.references[key]


def localised(task: ParityTask) -> Boundary | None:
    """Return the first module that deviates in the first step, from a run of each side that records modules."""
    points = task.point.reference(), task.point
    sides = [measure(point, task.seed, task.deadline, record=True) for point in points]
    if any(isinstance(side, ParityAnswer) for side in sides):
        return None
    reference, ranks = ([numbers.recorder for numbers in side] for side in sides)
    return first_boundary(task.point, reference[0], ranks)


def measure(point: Point, seed: int, deadline_s: float, *, record: bool = False) -> Any:
    """Return the numbers of each rank of a point, or the ParityAnswer why there are none."""
    with tempfile.TemporaryDirectory(prefix="parity-") as name:
        folder = Path(name)
        failures = forked_ranks.run(
            point.ranks, partial(save_numbers, point, seed, folder, record=record), folder, deadline_s
        )
        if failures:
            first = failures[0]
            return ParityAnswer(OUTCOMES.get(first.origin, first.origin), text=first.text, trace=first.trace)
        return [load_numbers(folder, rank) for rank in range(point.ranks)]


def load_numbers(folder: Path, rank: int) -> Any:
    """Return the numbers that a rank saved."""
    import torch

    return torch.load(folder / f"numbers-{rank}.pt", weights_only=False)


def save_numbers(point: Point, seed: int, folder: Path, rank: int, *, record: bool = False) -> None:
    """Be a rank of a point: connect with the others through `folder`, train, and save the numbers there."""
    import torch

    from matrix.kit.parity import layout_step

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(point.ranks)}
    store = torch.distributed.FileStore(str(folder / "store"), point.ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=point.ranks)
    numbers = layout_step.run(point, seed, record=record)
    torch.save(numbers, folder / f"numbers-{rank}.pt")
    torch.distributed.barrier()  # until all have saved; and a rank that ends early breaks its peers' connections


def prepare(stand_ins: Mapping[str, Any]) -> None:
    """Import torch and megatron-core as float64 on the CPU, once for all ranks that are forked later.

    `stand_ins` are the arguments of matrix.kit.absent_packages.install.
    """
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    from matrix.kit.parity import float64_device

    float64_device.install()
    absent_packages.install(**stand_ins)
    from matrix.kit.parity import tiny_model

    tiny_model.preload()


def serve(lines: TextIO, answers: TextIO) -> None:
    """ParityAnswer every line."""
    campaign = Comparisons()
    for line in lines:
        if not line.strip():
            continue
        started = time.monotonic()
        task = ParityTask.read(line)
        answer = campaign.judge(task)
        row = {"point": dict(task.point.chosen), "seed": task.seed, **asdict(answer)}
        memory = (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
        )
        row |= {"seconds": round(time.monotonic() - started, 3), "memory_mib": [kib // 1024 for kib in memory]}
        answers.write(json.dumps(row) + "\n")
        answers.flush()


def main() -> None:
    """Read stdin, write stdout; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    prepare(json.loads(sys.argv[1]) if len(sys.argv) > 1 else {})
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
