"""The speed of `megatrix match` on a training log, beside a plain read of the same text and beside `grep -c`.

    python bench/bench_match.py [MEGABYTES]

The log has lines of Megatron-LM's training and one known failure at its end. The signatures are those of the catalog,
then with the kinds of failure, and then with 500 made ones: four of five are exceptions, one is a text of the log.
Goal: 190 MB/s with all signatures and kinds.
Processor times; the ratios depend less on the load of this machine.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Failure, Signature
from matrix.ground.catalog.kinds import KindTable, kind_table
from matrix.ground.catalog.schema import Identifier, Pattern
from matrix.ground.verdicts.lines import texts
from matrix.ground.verdicts.log_match import Reading, match

FAILED = (
    'Traceback (most recent call last):\n  File "pretrain_gpt.py", line 1, in <module>\n'
    "TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'\n"
)
MADE = 500
PARTS = ("allocator", "kernel", "stream", "layer_norm", "NCCL", "Quantizer", "MPI_Comm", "workspace", "rank", "group")


def training(count: int, rng: random.Random) -> str:
    """Return the lines of `count` iterations."""
    return "".join(
        f" [2024-07-04 08:02:{place % 60:02d}] iteration {place:8d}/  500000 | consumed samples: {place * 512:12d} |"
        f" elapsed time per iteration (ms): {rng.random() * 1e4:.1f} | throughput per GPU (TFLOP/s/GPU):"
        f" {rng.random() * 500:.1f} | learning rate: {rng.random():.6E} | global batch size:   512 | lm loss:"
        f" {rng.random() * 10:.6E} | loss scale: 1.0 | grad norm: {rng.random():.3f} |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for place in range(count)
    )


def made(like: Failure, rng: random.Random) -> list[Failure]:
    """Return failures that no log shows."""
    found = []
    for number in range(MADE):
        text = f"{rng.choice(PARTS)} {rng.choice(PARTS)}_{number} failed in {rng.choice(PARTS)}"
        mark = Signature(Identifier("made"), log=Pattern(text))
        if number % 5:
            mark = Signature(Identifier("made"), exception="RuntimeError", message=Pattern(text + r" \d+$"))
        found.append(replace(like, id=Identifier(f"made-{number}"), signature=(mark,)))
    return found


def timed(work: Callable[[], object]) -> float:
    """Return the least processor time of three calls, in seconds."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def grep(path: Path) -> float:
    """Return the processor time of `grep -c` with one word, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["grep", "-c", "Traceback", str(path)], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def read(path: Path, failures: Sequence[Failure], kinds: KindTable | None = None) -> Reading:
    with path.open("rb") as file:
        return match(texts(file), failures, kinds)


def plain(path: Path) -> int:
    """Count the lines of a log, decoded."""
    with path.open("rb") as file:
        return sum(text.count("\n") for text in texts(file))


def main() -> None:
    rng = random.Random(1)
    megabytes = int(sys.argv[1]) if sys.argv[1:] else 100
    failures = list(loading.load().failures)
    lines = training(20_000, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        with path.open("w") as file:
            for _ in range(megabytes * 10**6 // len(lines) + 1):
                file.write(lines)
            file.write(FAILED)
        empty = Path(folder) / "empty.log"
        empty.write_bytes(b"\n" * 50_000_000 + FAILED.encode())
        size = path.stat().st_size / 1e6
        base, word = timed(lambda: plain(path)), grep(path)
        print(f"{size:.0f} MB: read and counted {size / base:6.0f} MB/s; grep -c {size / max(word, 1e-3):6.0f} MB/s")
        kinds = kind_table()
        for entries, table in ((failures, None), (failures, kinds), (failures + made(failures[0], rng), kinds)):
            count = sum(len(failure.signature) for failure in entries)
            seconds = timed(partial(read, path, entries, table))
            found = [one.failure.id for one in read(path, entries, table).known]
            print(
                f"  {count:3} signatures, {len(table.kind) if table else 0:2} kinds: {size / seconds:6.0f} MB/s, "
                f"{seconds / base:5.1f} times a plain read, "
                f"{seconds / max(word, 1e-3):5.1f} times grep; found {', '.join(found)}"
            )
        seconds = timed(lambda: read(empty, failures, kinds))
        print(f"  50 million empty lines: {seconds:.2f} s; line {read(empty, failures).known[0].fault.line:,}")


if __name__ == "__main__":
    main()
