"""The time for the reports of 100,000 results over 60 nights, and until the first page is usable.

    python bench/bench_reports.py [--nights 60] [--results 100000] [--chromium chromium]

Each night is a run as `megatrix run` writes it (plan, journal); all but the last are in the history already, as after
59 nights. Timed: the report of the last night (history, every page, JUnit, Markdown), and in the browser the load of
its first page until its filters work. Goals: report < 30 s, page < 2 s.

On two cores under a load of 4.6 (Python 3.11, Chromium 156): report 5.4 s, 439 pages, 26.4 MB; first page, 1.4 MB,
usable after 1.40 s (median of 5, 3.72 s at most); a filter takes 0.11 s; the history is 131 MB.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from matrix.ground.catalog.loading import load
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.store.history import History
from matrix.prove.store.journal import Journal
from matrix.prove.store.paths import Paths
from matrix.prove.store.stored_run import StoredRun, write_plan
from matrix.show.site import render
from tests.browser.chromium import Browser
from tests.unit.show.samples import MCORES, cell, planned, record

CASES = ("tp2", "pp2", "world1", "train-loop")
USABLE = "document.getElementById('shown').value.includes(' of ')"


def cells(count: int) -> Iterator[tuple[str, str, str]]:
    """Yield base, mcore and case of `count` cases."""
    for number in range(count):
        base, rest = divmod(number, len(MCORES) * len(CASES))
        yield f"torch-2.{base}.0", MCORES[rest // len(CASES)], CASES[rest % len(CASES)]


def results(count: int, night: int, seed: random.Random) -> list[Record]:
    """Return a night's records: one in fifty red, one in ten unavailable, durations of 2 to 3 s."""
    made = []
    for number, (base, mcore, case) in enumerate(cells(count)):
        drawn = seed.random()
        verdict = Verdict.HOLDS if number % 3 else Verdict.REPRODUCED
        if drawn < 0.02:
            verdict = Verdict.UNEXPLAINED if number % 2 else Verdict.REGRESSED
        elif number % 10 == 9:
            verdict = Verdict.UNAVAILABLE
        one = record(verdict, where=cell(base, mcore), case=case, run=f"{night:02}-night")
        made.append(replace(one, outcome=replace(one.outcome, seconds=2 + seed.random())))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--results", type=int, default=100_000)
    parser.add_argument("--chromium", default="chromium")
    parsed = parser.parse_args()
    seed, each = random.Random(8), parsed.results // parsed.nights
    with tempfile.TemporaryDirectory() as folder:
        paths = Paths(Path(folder))
        start = time.monotonic()
        with History(paths.history) as history:
            for night in range(1, parsed.nights):
                history.add(f"{night:02}-night", results(each, night, seed))
            print(f"{parsed.nights - 1} nights of {each} results into the history: {time.monotonic() - start:.1f} s")
            last = paths.run(f"{parsed.nights:02}-night")
            records = results(each, parsed.nights, seed)
            write_plan(last, [planned(one) for one in records])
            with Journal.new(last) as journal:
                for one in records:
                    journal.result(one)
            start = time.monotonic()
            render(StoredRun(last), paths.out, history, load())
            print(f"the report of the last night: {time.monotonic() - start:.1f} s")
        pages = list(paths.out.rglob("*.html"))
        print(
            f"{len(pages)} pages, {sum(path.stat().st_size for path in pages) / 1e6:.1f} MB; "
            f"the first {paths.page.stat().st_size / 1e6:.1f} MB; history {paths.history.stat().st_size / 1e6:.0f} MB"
        )
        with Browser(parsed.chromium) as browser:
            times = []
            for _ in range(5):
                start = time.monotonic()
                browser.open(paths.page.as_uri())
                if not browser.js(USABLE):
                    raise SystemExit("the page's filters do not work")
                times.append(time.monotonic() - start)
            print(f"the first page usable after {sorted(times)[2]:.2f} s (median of 5, {max(times):.2f} s at most)")
            start = time.monotonic()
            browser.js(
                "(() => { const f = document.getElementById('filter-verdict'); f.value = 'red';"
                " f.dispatchEvent(new Event('input')); return document.body.offsetHeight; })()"
            )
            print(f"a filter takes {time.monotonic() - start:.2f} s")


if __name__ == "__main__":
    main()
