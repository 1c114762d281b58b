"""Pack 200 cases of 1, 2, 4 and 8 GPUs onto 8 GPUs, beside a simple queue, on a simulated clock.

Used over held: the GPU-seconds of the cases, over all GPUs of the machine from the first start to the last end.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence

from matrix.planning.packing import Demand, Free, Schedule, first_come, largest_first, next_to_start, schedule

SIZES = (1, 2, 4, 8)
SECONDS = (5.0, 300.0)  # of a case: the shortest and the longest
WRONG = (0.5, 2.0)  # the time that a case takes, over the expected one


def share(found: Schedule, demands: Sequence[Demand], actual: Sequence[float], gpus: int) -> float:
    """Return the GPU-seconds used over those held."""
    used = sum(one.gpus * seconds for one, seconds in zip(demands, actual, strict=True))
    return used / (gpus * found.seconds)


def check(found: Schedule, demands: Sequence[Demand], gpus: int) -> None:
    """Raise AssertionError if more GPUs than there are run cases at some time."""
    for moment in found.starts:
        spans = zip(demands, found.starts, found.ends, strict=True)
        assert sum(one.gpus for one, starts, ends in spans if starts <= moment < ends) <= gpus


def measure(options: argparse.Namespace, seed: int) -> dict[str, float]:
    """Return the share of each way for one set of cases."""
    chance = random.Random(seed)
    arrived = [Demand(chance.choice(SIZES), chance.uniform(*SECONDS)) for _ in range(options.cases)]
    wrong = {id(one): one.seconds * chance.uniform(*WRONG) for one in arrived}
    ordered, free = largest_first(arrived), Free(options.gpus)
    shares = {}
    for name, demands, decide, exact in (
        ("simple queue", arrived, first_come, True),
        ("in order of arrival, packed", arrived, next_to_start, True),
        ("largest first, packed", ordered, next_to_start, True),
        ("largest first, packed; estimates wrong by a factor of up to 2", ordered, next_to_start, False),
    ):
        actual = [one.seconds if exact else wrong[id(one)] for one in demands]
        found = schedule(demands, free, options.workers, actual=actual, decide=decide)
        check(found, demands, options.gpus)
        shares[name] = share(found, demands, actual, options.gpus)
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
