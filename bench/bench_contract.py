"""The cost of the contract level: one pair from the recorded files, cold and warm, and all released pairs.

    python bench/bench_contract.py

Cold is a fresh interpreter that reads both files and finds the breaks; its start and imports do not count. Goals: one
pair under 20 ms, all released pairs under 10 s on 2 cores. Elapsed times depend on the load of this machine; processor
times are close to those of an idle one.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import Counter
from itertools import product

from matrix.read.api import recording
from matrix.read.api.comparison import find
from matrix.read.api.recording import MCORE, TE

ONE_PAIR = """
import sys, time
from matrix.read.api.comparison import find
from matrix.read.api.recording import load_calls, load_surface
start, used = time.perf_counter(), time.process_time()
find(load_calls(sys.argv[1]), load_surface(sys.argv[2]))
print(time.perf_counter() - start, time.process_time() - used)
"""
PAIRS = [("0.5.0", "1.0.0"), ("0.9.0rc0+094d66b", "1.8.0+37280ec"), ("0.12.3", "2.2.0"), ("0.19.2", "1.5.0"),
         ("0.19.2", "2.20.2")]  # fmt: skip
REPEATS = 9


def main() -> None:
    print(f"one pair, a fresh interpreter each time, medians of {REPEATS}: elapsed, processor")
    for mcore, te in PAIRS:
        runs = [subprocess.check_output([sys.executable, "-c", ONE_PAIR, mcore, te]).split() for _ in range(REPEATS)]
        elapsed, used = (statistics.median(map(float, times)) * 1e3 for times in zip(*runs, strict=True))
        print(f"  mcore {mcore:18} TE {te:14} {elapsed:5.1f} ms  {used:5.1f} ms")
    start = time.perf_counter()
    consumers = [recording.load_calls(version) for version in recording.released(MCORE)]
    offers = [recording.load_surface(version) for version in recording.released(TE)]
    loaded = time.perf_counter()
    times: list[float] = []
    counts: Counter[str] = Counter()
    for calls, surface in product(consumers, offers):
        began = time.perf_counter()
        found = find(calls, surface)
        times.append(time.perf_counter() - began)
        counts.update(finding.kind.value for finding in found)
    total = time.perf_counter() - start
    print(
        f"all {len(times)} released pairs, one process: {total:.2f} s, including {loaded - start:.2f} s to read files;"
    )
    print(f"  a pair {statistics.median(times) * 1e3:.1f} ms (median), {max(times) * 1e3:.1f} ms (worst, caches cold)")
    print(f"findings: {', '.join(f'{count} {kind}' for kind, count in counts.most_common())}")
    for package in (MCORE, TE):
        files = list(recording.recorded(package).values())
        print(f"{package}: {len(files)} files, {sum(f.stat().st_size for f in files) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
