"""Grant 8 GPUs to 200 cases of 1, 2, 4 and 8 GPUs on a simulated clock.

Used over held: the GPU-seconds of the cases, over all GPUs of the machine from the first start to the last end.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence

from matrix.prove.planning.packing import Demand, Schedule, largest_first, schedule

SIZES = (1, 2, 4, 8)
SECONDS = (5.0, 300.0)  # of a case: the shortest and the longest


def share(timetable: Schedule, demands: Sequence[Demand], gpus: int) -> float:
    """Return the GPU-seconds used over those held."""
    return sum(demand.gpus * demand.seconds for demand in demands) / (gpus * timetable.seconds)


def check(timetable: Schedule, demands: Sequence[Demand], gpus: int) -> None:
    """Raise AssertionError if more GPUs than there are run cases at some time."""
    for moment in timetable.starts:
        spans = zip(demands, timetable.starts, timetable.ends, strict=True)
        assert sum(demand.gpus for demand, starts, ends in spans if starts <= moment < ends) <= gpus


def measure(options: argparse.Namespace, seed: int) -> dict[str, float]:
    """Return the share of each order for one set of cases."""
    chance = random.Random(seed)
    arrived = [Demand(chance.choice(SIZES), chance.uniform(*SECONDS)) for _ in range(options.cases)]
    shares = {}
    for name, demands in (("workers take cases in any order", arrived), ("the largest first", largest_first(arrived))):
        timetable = schedule(demands, options.gpus, options.workers)
        check(timetable, demands, options.gpus)
        shares[name] = share(timetable, demands, options.gpus)
    return shares


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    rounds = [measure(options, seed) for seed in range(options.rounds)]
    print(f"{options.cases} cases on {options.gpus} GPUs, {options.workers} workers, {options.rounds} rounds")
    for name in rounds[0]:
        each = [one[name] for one in rounds]
        print(f"{statistics.median(each):6.1%} used over held (least {min(each):.1%})  {name}")


if __name__ == "__main__":
    main()
