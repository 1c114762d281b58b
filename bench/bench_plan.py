"""The cost of a selection from 50,000 planned cases: `--select`, compared with pytest's -k.

    python bench/bench_plan.py [--cases 50000] [--rounds 5]

Run it with an interpreter that has pytest and covertable. The ways take turns, so that load on the machine affects all
of them; medians of wall-clock and processor seconds are compared. pytest collects the same cases as parametrized tests
and deselects with -k, by words, since it does not compare versions.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.ground.cases.cells import plan_case
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import DRIVER, MCORE
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.night import night, pairwise
from matrix.prove.planning.selection import select
from tests.founding import BEHIND_SAVE

EXPRESSION = f"mcore==0.8.* and torch>=2.4 and not case==pp2 or failure=={BEHIND_SAVE} and torch<2.7 and level==cpu"
BY_WORDS = f"(mcore-0.8 and not torch-2.1 and not torch-2.2 and not torch-2.3 and not pp2) or ({BEHIND_SAVE} and cpu)"
TESTS = """
import pytest
@pytest.mark.parametrize("case", {keys!r})
def test_case(case): pass
"""


def plan(count: int) -> list[Planned]:
    """Return `count` cases of the real catalog: its cells times as many drivers as needed."""
    known = load()
    cases = [
        plan_case(known, failure, case, level, known.cell(base.id, {MCORE: release.version}))
        for failure in known.failures
        for base in known.wheels
        for release in known.megatron_core
        for case in failure.case
        for level in case.levels
    ]
    made = (
        replace(item, cell=item.cell.with_({DRIVER: str(driver)})) for driver in itertools.count(400) for item in cases
    )
    return list(itertools.islice(made, count))


def spent(work: Callable[[], object]) -> tuple[float, float]:
    """Return the wall-clock and processor seconds, children included."""
    users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    start, before = time.perf_counter(), sum(sum(resource.getrusage(user)[:2]) for user in users)
    work()
    return time.perf_counter() - start, sum(sum(resource.getrusage(user)[:2]) for user in users) - before


def collect(file: Path) -> None:
    """Let pytest collect the cases and deselect."""
    options = ["-q", "--collect-only", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(file.parent)]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-k", BY_WORDS, str(file)], stdout=subprocess.DEVNULL, check=True
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cases = plan(options.cases)
    print(f"{len(cases)} cases, {len(select(cases, EXPRESSION))} selected by: {EXPRESSION}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test_cases.py"
        file.write_text(TESTS.format(keys=[item.key for item in cases]))
        known = load()
        ways: dict[str, Callable[[], object]] = {
            "--select": lambda: select(cases, EXPRESSION),
            "pytest -k": lambda: collect(file),
            "the night": lambda: night(known, pairwise),
        }
        measured = [[spent(work) for work in ways.values()] for _ in range(options.rounds)]
    medians = {
        way: tuple(statistics.median(turn[place][unit] for turn in measured) for unit in range(2))
        for place, way in enumerate(ways)
    }
    for way, (clock, processor) in medians.items():
        print(f"{way:10} {clock:8.3f} s   {processor:8.3f} s of processor")
    clock, processor = (medians["pytest -k"][unit] / medians["--select"][unit] for unit in range(2))
    print(f"--select is {clock:.0f} times as fast as pytest -k by the clock, {processor:.0f} times by the processor")


if __name__ == "__main__":
    main()
