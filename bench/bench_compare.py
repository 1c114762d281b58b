"""Compare equal and unequal stacks: how often a claim is chance, and how many runs a true one takes.

    python bench/bench_compare.py              simulated runs, in a minute
    python bench/bench_compare.py planted      real cells: small wheels that this script makes, one change each
    python bench/bench_compare.py cases        numbers of cases: a private catalog with planted seconds and memory
    python bench/bench_compare.py kills        kill -9 in fifty places of a comparison

It prints the tables of reports/measurements/2026-11-27-compare.md.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from matrix.prove.bisection.odds import (  # noqa: E402
    Ending,
    JudgedRuns,
    Proof,
    RunEnd,
    StackEffect,
    judge_number,
    judge_test,
)

PASSED, FAILED = RunEnd(Ending.PASSED), RunEnd(Ending.FAILED, "ValueError: a")
CLAIMS: Final = (StackEffect.NEW, StackEffect.FIXED, StackEffect.CHANGED)
BASE: Final = "torch-2.13.0/mcore-none/te-none/driver-none"


def until_decided(
    draw: Callable[[], tuple[Any, Any]], judge: Callable[[list[Any], list[Any]], JudgedRuns], least: int = 1
) -> JudgedRuns:
    old: list[Any] = []
    new: list[Any] = []
    while True:
        for side, drawn in zip((old, new), draw(), strict=True):
            side.append(drawn)
        finding = judge(old, new)
        if not finding.again and len(old) >= least:
            return finding


def test_with(rates: tuple[float, float], source: random.Random, tests: int, least: int) -> JudgedRuns:
    def draw() -> tuple[RunEnd, RunEnd]:
        ends = [FAILED if source.random() < rate else PASSED for rate in rates]
        return ends[0], ends[1]

    return until_decided(draw, lambda old, new: judge_test(old, new, Proof(tests)), least)


def number_with(effect: float, noise: float, source: random.Random, numbers: int) -> JudgedRuns:
    def draw() -> tuple[float, float]:
        return source.gauss(100, noise), source.gauss(100 * effect, noise)

    return until_decided(draw, lambda old, new: judge_number(old, new, Proof(0, numbers)))


def equal_tests(comparisons: int = 1_000) -> None:
    """A/A: 300 tests of which ten are flaky, the others pass. The flaky ones have runs in every round that any has."""
    source, claims, wrong = random.Random(58), Counter[str](), 0
    rates = (0.01, 0.05, 0.1, 0.2, 0.3, 0.3, 0.5, 0.7, 0.9, 0.99)
    for _ in range(comparisons):
        findings = [test_with((rate, rate), source, 300, 1) for rate in rates]
        claims.update(finding.change.value for finding in findings)
        wrong += any(finding.change in CLAIMS for finding in findings)
    print(f"| A/A, {comparisons} comparisons of 300 tests, ten flaky | {wrong} with any claim | {dict(claims)} |")


def equal_numbers(comparisons: int = 20) -> None:
    """A/A: 100 numbers, 25 at each noise."""
    source, found = random.Random(58), Counter[str]()
    for _ in range(comparisons):
        found.update(number_with(1, noise, source, 100).change.value for noise in (0.2, 1, 2, 5) for _ in range(25))
    claims = found["worse"] + found["better"]
    print(f"| A/A, {comparisons} comparisons of 100 numbers | {claims} claims | {dict(found)} |")


def true_changes(times: int = 400) -> None:
    source = random.Random(58)
    for rates in ((0.0, 1.0), (0.0, 0.8), (0.0, 0.5), (0.0, 0.3), (0.3, 1.0), (0.3, 0.3)):
        for tests in (1, 10, 300):
            # Only comparisons in which the first round differs: what agrees is not repeated.
            findings = [test_with(rates, source, tests, 1) for _ in range(times)]
            differing = [finding for finding in findings if finding.runs[0] > 1 or finding.change in CLAIMS]
            runs = statistics.median(finding.runs[0] for finding in differing or findings)
            counts = Counter(finding.change.value for finding in differing)
            part = len(differing) / times
            print(f"| {rates[0]:.0%} -> {rates[1]:.0%} | {tests} | {part:.0%} | {runs:.0f} | {dict(counts)} |")


def rare_breaks(times: int = 400) -> None:
    """A test that never fails under the old stack, and in 30 % of its runs under the new one, with --least N."""
    source = random.Random(58)
    for tests in (1, 300):
        for least in (1, 3, 8):
            findings = [test_with((0.0, 0.3), source, tests, least) for _ in range(times)]
            counts = Counter(finding.change.value for finding in findings)
            print(f"| 0% -> 30%, --least {least} | {tests} | {counts['new'] / times:.0%} new | {dict(counts)} |")


def planted_numbers(times: int = 200) -> None:
    source = random.Random(58)
    for noise in (0.2, 0.5, 1, 2, 3, 5):
        findings = [number_with(1.05, noise, source, 1) for _ in range(times)]
        pairs = sorted(finding.runs[0] for finding in findings)
        found = sum(finding.change is StackEffect.WORSE for finding in findings)
        print(
            f"| 5 % slower, noise {noise} % | {found / times:.0%} | {pairs[times // 2]} | {pairs[int(times * 0.95)]} |"
        )


CORE: Final = """
VERSION = {version!r}
NEW = VERSION >= "2.0"
"""
TESTS: Final = """
import random
import pytest
from comparedcore import NEW

def test_nothing(): pass
def test_new():
    if NEW: raise ValueError("width must be a multiple of 4, got 6")
def test_fixed():
    if not NEW: raise KeyError("lost key")
def test_pre_existing(): raise RuntimeError("always broken here")
def test_changed():
    raise ValueError("the shape is wrong now") if NEW else TypeError("unexpected keyword argument bias")
def test_flaky(): assert random.random() > 0.3
def test_network():
    if NEW and random.random() < 0.5: raise ConnectionError("Max retries exceeded")
def test_disk():
    if NEW: raise OSError(28, "No space left on device")
def test_not_run():
    if NEW: pytest.skip("needs the old one")
"""
EXPECTED: Final = {
    "test_nothing": {"nothing"},
    "test_new": {"new"},
    "test_fixed": {"fixed"},
    "test_pre_existing": {"pre-existing"},
    "test_changed": {"changed"},
    "test_flaky": {"flaky", "nothing", "pre-existing"},  # nothing, or pre-existing, where all of its runs agree
    "test_network": {"infrastructure", "nothing"},
    "test_disk": {"infrastructure"},
    "test_not_run": {"not run"},
}
TRAIN: Final = """
import random
from comparedcore import NEW
print("step:", random.gauss(100, 1) * (1.05 if NEW else 1))
print("quick:", random.gauss(100, 1) * (0.9 if NEW else 1))
print("loss:", 2.5 + 1e-5 * NEW)
print("memory:", 1000 + 60 * NEW)
print("same:", 7)
print("noise:", random.gauss(100, 30))
"""
NUMBERS: Final = {"step": "worse", "quick": "better", "loss": "drift", "memory": "worse", "same": "nothing"}
ALONE: Final = {
    "killed": ("import os, comparedcore\nif comparedcore.NEW: os.kill(os.getpid(), 9)", "new"),
    "status": ("import sys, comparedcore\nsys.exit(3 * comparedcore.NEW)", "new"),
    "aborts": ("import os, comparedcore\nif not comparedcore.NEW: os.abort()", "fixed"),
    "nothing": ("import comparedcore", "nothing"),
}


def wheel(folder: Path, version: str) -> None:
    """Write a wheel of comparedcore."""
    info = f"comparedcore-{version}.dist-info"
    files = {
        "comparedcore.py": CORE.format(version=version),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: comparedcore\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"comparedcore-{version}-py3-none-any.whl", "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)


def command(folder: Path, *words: str, new: str = "2.1") -> list[str]:
    stacks = [f"{BASE}/comparedcore-{version}" for version in ("1.0", new)]
    return [sys.executable, "-m", "matrix", "compare", *stacks, "--out", str(folder / "out"), *words]


def prepared() -> tuple[Path, dict[str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="compare-"))
    (folder / "wheels").mkdir()
    for version in ("1.0", "1.1", "2.0", "2.1"):
        wheel(folder / "wheels", version)
    (folder / "job").mkdir()
    environ = {**os.environ, "UV_FIND_LINKS": str(folder / "wheels"), "PYTHONPATH": str(ROOT)}
    return folder, environ


def compared(folder: Path, environ: dict[str, str], files: dict[str, str], *words: str) -> tuple[dict[str, Any], float]:
    for path in (folder / "job").iterdir():
        path.unlink()
    for name, text in files.items():
        (folder / "job" / name).write_text(text)
    started = time.monotonic()
    line = command(folder, "--json", *words)
    done = subprocess.run(line, cwd=folder / "job", env=environ, capture_output=True, text=True)
    if done.returncode not in (0, 1, 3):
        sys.exit(done.stderr)
    return json.loads(done.stdout), time.monotonic() - started


def planted() -> None:
    """Compare real cells, of which one package changed."""
    folder, environ = prepared()
    rows: list[tuple[str, str, bool, dict[str, Any], float]] = []

    def add(answer: dict[str, Any], took: float, expected: Callable[[str], set[str]]) -> None:
        for item in answer["items"]:
            if names := expected(item["test"].rpartition(".")[2]):
                rows.append((item["test"], " or ".join(sorted(names)), item["change"] in names, item, took))

    words = ("--junit", "o.xml", "--bisect", "--", "python", "-m", "pytest", "-q", "--junitxml", "o.xml")
    add(*compared(folder, environ, {"test_a.py": TESTS}, *words), lambda name: EXPECTED.get(name, set()))
    options = [word for name in NUMBERS for word in ("--metric", rf"{name}={name}: (\S+)")]
    add(
        *compared(folder, environ, {"train.py": TRAIN}, *options, "--", "python", "train.py"),
        lambda name: {NUMBERS[name]} if name in NUMBERS else set(),
    )
    for name, (code, change) in ALONE.items():
        answer = compared(folder, environ, {f"{name}.py": code}, "--", "python", f"{name}.py")
        add(*answer, lambda _, change=change: {change})  # type: ignore[misc]
    for test, expected, right, item, took in rows:
        runs = f"{item['failures'][0]} of {item['runs'][0]}, {item['failures'][1]} of {item['runs'][1]}"
        cells = test, expected, item["change"], "yes" if right else "NO", runs, item["cause"], f"{took:.0f}"
        print(f"| {' | '.join(cells)} |")
    print(f"{sum(right for _, _, right, _, _ in rows)} of {len(rows)} as expected")


ENTRY: Final = """
id = "planted-numbers"
title = "A planted slow-down"
references = []
axes = ["base"]
symptom = "It is slower."
cause = "comparedcore 2.0"
fix = "none"
[[signature]]
name = "none"
exception = "PlantedError"
message = "never"
any_program = true
[[affected]]
torch = "==2.1.2"
reason = "planted"
[[works]]
torch = ">2.1.2"
reason = "planted"
[[case]]
run = "work"
levels = ["cpu"]
each = [
  { name = "slower", arguments = { seconds = 3, share = 0.05, mib = 1, more = 0 } },
  { name = "larger", arguments = { seconds = 0, share = 0, mib = 60, more = 60 } },
  { name = "equal", arguments = { seconds = 3, share = 0, mib = 1, more = 0 } },
]
"""
BODY: Final = """
import time
def work(rank, seconds, share, mib, more):
    from comparedcore import NEW
    time.sleep(seconds * (1 + share * NEW))
    held = b"x" * ((mib + more * NEW) * 2**20)
    return len(held)
"""
OF_CASES: Final = {
    "slower seconds": "worse",
    "slower memory": "nothing",
    "larger memory": "worse",
    "equal seconds": "nothing",
    "equal memory": "nothing",
}


def cases() -> None:
    """Compare the numbers of cases of a private catalog, of which one is slower and one takes more memory."""
    folder, environ = prepared()
    entry = folder / "failures" / "planted_numbers"
    entry.mkdir(parents=True)
    (entry / "failure.toml").write_text(ENTRY)
    (entry / "reproduction.py").write_text(BODY)
    environ["MEGATRIX_FAILURES"] = str(folder / "failures")
    words = ("--select", "failure==planted-numbers", "--metric", "seconds", "--metric", "memory")
    answer, took = compared(folder, environ, {}, *words)
    print("\n".join(answer["known"]))
    right = 0
    for item in (item for item in answer["items"] if item["number"]):
        name = item["test"].partition(" ")[2]
        right += item["change"] == OF_CASES.get(name)
        ratio = " - ".join(f"{end:.3f}" for end in item["interval"])
        values = " -> ".join(f"{value:.4g}" for value in item["values"])
        print(f"| {name} | {OF_CASES.get(name, '')} | {item['change']} | {item['runs'][0]} | {values} | {ratio} |")
    print(f"{right} of {len(OF_CASES)} as expected, {took:.0f} s")


def kills(count: int = 50) -> None:
    """Kill a comparison again and again; no stored run may be lost or run twice."""
    folder, environ = prepared()
    (folder / "job" / "train.py").write_text(TRAIN)
    source, stored, killed = random.Random(58), set[tuple[str, str]](), 0
    words = ("--metric", r"noise=noise: (\S+)", "--", "python", "train.py")  # 40 rounds, which decide nothing
    while True:
        process = subprocess.Popen(
            command(folder, *words),
            cwd=folder / "job",
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(source.uniform(2, 12) if killed < count else None)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            killed += 1
        now = stored_runs(folder)
        lost, stored = stored - now, now
        if lost:
            sys.exit(f"lost after {killed} kills: {sorted(lost)}")
        if process.returncode >= 0:
            break
    print(f"{killed} kills, {len(stored)} runs stored, none lost or twice; status {process.returncode}")


def stored_runs(folder: Path) -> set[tuple[str, str]]:
    """Return the stored runs: the number of the round and the case; each must be stored once."""
    found = Counter[tuple[str, str]]()
    for runs in folder.glob("out/bisections/compare-*/runs/*"):
        if runs.is_dir():
            for path in runs.glob("journal-*.jsonl"):
                lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
                found.update((runs.name, json.loads(line)["result"]["planned"]["cell"]["id"]) for line in lines)
    if twice := [run for run, number in found.items() if number > 1]:
        sys.exit(f"stored twice: {twice}")
    return {*found}


def main() -> None:
    match sys.argv[1:]:
        case []:
            equal_tests()
            equal_numbers()
            true_changes()
            rare_breaks()
            planted_numbers()
        case ["planted"]:
            planted()
        case ["cases"]:
            cases()
        case ["kills"]:
            kills()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
