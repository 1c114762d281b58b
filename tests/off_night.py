"""Cases that the night does not have, drawn and run: what the catalog expects must hold in each cell.

    python -m tests.off_night [--cells 45] [--each 3] [--seed 1] [--out OUT]

A night has some cells of each failure, chosen for its changes; a user selects any other, and a red one there must be
true, too. The cells are drawn so that each case with each expectation is run in up to `--each` of them, on as many
bases as there are: those that the night makes, with its Pythons, at level cpu. The exit status is that of `megatrix
run`.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matrix.read.commands import python_module

ROOT: Final = Path(__file__).resolve().parents[1]
POSSIBLE: Final = "te!=0"  # every case: a selection is made of all possible ones
POOL: Final = 2_000  # cells that are looked at: all of them, 40,000, would take minutes

Item = Mapping[str, Any]  # a case of `plan --json`


def claim(item: Item) -> tuple[str, str, str]:
    """Return what the catalog states of a case, whatever the cell."""
    return item["failure"], item["case"], item["expectation"]


def draw(items: Iterable[Item], cells: int, each: int, chance: random.Random) -> list[str]:
    """Return the keys of the cases to run: of `cells` cells those whose claim fewer than `each` cells before had."""
    of_cell = defaultdict[str, list[Item]](list)
    for item in items:
        of_cell[item["cell"]["id"]].append(item)
    pool = chance.sample(sorted(of_cell), min(POOL, len(of_cell)))
    had, of_base, keys = Counter[tuple[str, str, str]](), Counter[str](), list[str]()
    for _ in range(min(cells, len(pool))):

        def value(cell: str) -> tuple[int, int]:
            wanted = sum(had[claim(item)] < each for item in of_cell[cell])
            return wanted, -of_base[of_cell[cell][0]["cell"]["base"]]

        chosen = max(pool, key=value)
        pool.remove(chosen)
        of_base[of_cell[chosen][0]["cell"]["base"]] += 1
        keys += [item["key"] for item in of_cell[chosen] if had[claim(item)] < each]
        had.update(map(claim, of_cell[chosen]))
    return keys


def planned(*options: str) -> list[Item]:
    """Return the cases of a plan at level cpu."""
    command = python_module(sys.executable, "matrix", "plan", "--level", "cpu", "--json", *options, folder=ROOT)
    printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    items: list[Item] = json.loads(printed)["items"]
    return items


def environment(item: Item) -> tuple[str, str]:
    """Return the base of a case, and its Python."""
    return item["cell"]["base"], item["cell"]["stack"]["python"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the cases and run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=45, help="cells to run (default: 45)")
    parser.add_argument("--each", type=int, default=3, help="cells of each claim at most (default: 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "out" / "off-night", help="folder of the run")
    parsed = parser.parse_args(arguments)
    night = planned()
    had, made = {item["key"] for item in night}, {*map(environment, night)}
    others = [
        item
        for item in planned("--select", POSSIBLE)
        if item["key"] not in had
        and environment(item) in made
        and item["expectation"] != "unknown"
        and item["reproducible"]
        and not item["compiled"]
        and item["cell"]["base"].startswith("torch-")  # an image is another machine's
    ]
    keys = draw(others, parsed.cells, parsed.each, random.Random(parsed.seed))
    print(f"{len(keys)} of {len(others)} cases that no night has", flush=True)
    words = [word for key in keys for word in ("--case", key)]
    command = python_module(sys.executable, "matrix", "run", *words, "--out", str(parsed.out), folder=ROOT)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
