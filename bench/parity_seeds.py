"""An unchanged copy must never deviate: one layout in one core, judged with many seeds of weights and samples.

    python bench/parity_seeds.py [--mcore 0.19.2] [--layout TEXT] [--seeds 10000] [--first 1] [--out DIR]

Without --layout the plain model on one rank is compared with itself in another process. What was judged is kept in
DIR: a second run goes on. Exits with 1 where a seed is not equal, and prints its seed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.ground.catalog import loading
from matrix.kit.parity.factors import FLOAT64, Point
from matrix.prove.parity.campaigns import ParityRun
from matrix.prove.parity.points import EQUAL


def main() -> int:
    """Judge the seeds; print counts, the largest difference and the seconds of a comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mcore", default="0.19.2")
    parser.add_argument("--layout", default="")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("reports/out/parity-seeds"))
    parsed = parser.parse_args()
    run = ParityRun(loading.load(), parsed.out, parsed.first, lambda text: None)
    point = Point.parse(parsed.layout)
    with run.judging(parsed.mcore) as (_, judge):
        rows = [judge(FLOAT64, point, seed) for seed in range(parsed.first, parsed.first + parsed.seeds)]
    print(f"megatron-core {parsed.mcore}, {str(point) or 'plain'}: {dict(Counter(row.outcome for row in rows))}")
    print(f"largest difference {max(row.largest for row in rows):.2g}")
    print(f"seconds of a comparison: median {statistics.median(row.seconds for row in rows):.2f}")
    unequal = [row.seed for row in rows if row.outcome != EQUAL]
    if unequal:
        print(f"seeds that are not equal: {unequal[:20]}")
    return int(bool(unequal))


if __name__ == "__main__":
    sys.exit(main())
