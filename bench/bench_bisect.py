"""The cost of a bisection of commits, compared with `git bisect run` of the same probe on checkouts.

    python bench/bench_bisect.py MEGATRON_LM_CLONE [TRANSFORMER_ENGINE_CLONE]
    python bench/bench_bisect.py --command TRANSFORMER_ENGINE_CLONE

Three founding questions, each in a fresh process (its start counts): with an empty probe store, then with a filled
one. `git bisect run` works in a clone of its own that shares its objects; its probe reads the checked-out folder with
the same code and exits with 0, 1 or 125 by signature. Simulated histories compare the rounds of the search with the
bound. Wall-clock times depend on the load of this machine; processor times (cpu) depend less on it.

--command bisects a command of one's own instead, which builds an attention module on the CPU. git runs it with the same
interpreter and stand-ins, on the checkout, without a version of its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.kit import child
from matrix.kit.rank import Rank
from matrix.prove.bisection.noise import Noise, ProbeResult
from matrix.prove.bisection.search import Ancestry, Plan, Probe, search
from tests.founding import CALL, SHIFTED_CALL
from tests.real.conftest import made_base

ROOT = Path(__file__).parents[1]
Result = TypeVar("Result")
# (failure, axis, the other side, its version, good, bad, the expected commit)
QUESTIONS = [
    (CALL, "mcore", "te", "1.9.0", "de17427956", "24.09-alpha.rc0", "c5a497a7eb"),
    (CALL, "mcore", "te", "1.9.0", "core_v0.9.0", "c5a497a7eb", "98b43c91d0"),
    (SHIFTED_CALL, "te", "mcore", "0.8.0", "v1.9", "v1.10", "c8c05f38b"),
]
PROBE = """
import sys
sys.path.insert(0, {root!r})
from matrix.ground.catalog import loading
from matrix.read.api import sides
from matrix.prove.execution.preflights import outcome_of
from matrix.ground.verdicts.judge import judge
from matrix.ground.verdicts.outcome import OutcomeKind
from matrix.ground.catalog.failure import Expectation
sides = {{{axis!r}: ".", {other!r}: {version!r}}}
known = loading.load()
outcome = outcome_of(
    known.failure({failure!r}).contract, sides.calls_of(sides["mcore"]), sides.surface_of(sides["te"])
)
judged = judge(known.failure({failure!r}), Expectation.UNKNOWN, outcome)
sys.exit({status})
"""
BAD_IS_NEW = "1 if judged.signature else 0 if outcome.kind is OutcomeKind.PASSED else 125"
GOOD_IS_NEW = "0 if judged.signature else 1 if outcome.kind is OutcomeKind.PASSED else 125"


BUILD = "import transformer_engine.pytorch as te; te.MultiheadAttention(64, 4, use_qk_norm=False)"
COMMAND = ("v2.6", "v2.7", "374849e355")  # good, bad, the commit that renamed the argument


def own_command(clone: str) -> None:
    """Compare the bisection of a command over commits of Transformer Engine; its environment is made before."""
    good, bad, expected = COMMAND
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        python = made_base("torch-2.4.1") / "bin" / "python"
        options = ["--axis", "te", "--repo", clone, "--torch", "2.4.1", "--good", good, "--bad", bad]
        line = [sys.executable, "-m", "matrix", "bisect", *options, "--json", "--", "python", "-c", BUILD]
        ours, report = timed(partial(bisected, line, folder / "out", MEGATRIX_CACHE=str(folder / "cache")))
        site = child.site_folder(Rank(0, 1, "cpu", "", folder))
        info = site / "transformer_engine-2.7.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: transformer-engine\nVersion: 2.7.0\n")
        (info / "RECORD").write_text("transformer_engine/__init__.py,,\n")
        tree = cloned(folder / "tree", clone)
        words = ["env", f"PYTHONPATH={site}:{tree}", str(python), "-c", BUILD]
        theirs, (culprit, steps) = timed(partial(git_bisect, tree, good, bad, words))
        print(f"{BUILD}: {good}..{bad}, {report['cost']['points']} commits, {report['kind']}")
        print(f"  megatrix bisect  {ours}  {report['cost']['ran']:3} runs    -> {report['answer'][:10]}")
        print(f"  git bisect run   {theirs}  {steps:3} runs    -> {culprit[:10]}")
        print(f"  ratio            {theirs.wall / ours.wall:6.1f}   {theirs.cpu / ours.cpu:8.1f}")
        assert report["answer"].startswith(expected), report["answer"]


def main(clones: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, (failure, axis, other, version, good, bad, expected) in enumerate(QUESTIONS):
            if axis not in clones:
                continue
            out = Path(folder) / str(number)
            command = [sys.executable, "-m", "matrix", "bisect", failure, "--axis", axis, "--repo", clones[axis],
                       "--good", good, "--bad", bad, f"--{other}", version, "--checks", "0", "--json"]  # fmt: skip
            ours, report = timed(partial(bisected, command, out))
            again, _ = timed(partial(bisected, command, out))
            run = prepared(Path(folder) / f"tree{number}", clones[axis], QUESTIONS[number])
            theirs, (culprit, steps) = timed(run)
            print(f"{failure}: {good}..{bad} of {axis}, {report['cost']['points']} commits, {report['kind']}")
            print(f"  megatrix bisect  {ours}  {report['cost']['asked']:3} probes  -> {report['answer'][:10]}")
            print(f"  the same again   {again}")
            print(f"  git bisect run   {theirs}  {steps:3} probes  -> {culprit[:10]}")
            print(f"  ratio            {theirs.wall / ours.wall:6.1f}   {theirs.cpu / ours.cpu:8.1f}")
            assert report["answer"].startswith(expected), report["answer"]
    rounds()


class Took(NamedTuple):
    """Wall-clock seconds, and processor seconds of all child processes."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:6.1f} s {self.cpu:6.1f} cpu"


def timed(work: Callable[[], Result]) -> tuple[Took, Result]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    result = work()
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), result


def bisected(command: list[str], out: Path, **environ: str) -> dict[str, Any]:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "MEGATRIX_OUT": str(out), **environ}, stdout=subprocess.PIPE,
        stderr=None if environ else subprocess.DEVNULL, check=True,
    )  # fmt: skip
    report: dict[str, Any] = json.loads(done.stdout)["items"][0]
    return report


def prepared(tree: Path, clone: str, question: tuple[str, ...]) -> Callable[[], tuple[str, int]]:
    """Make the clone and the probe; return a function that bisects there and returns the culprit and git's probes."""
    failure, axis, other, version, good, bad, _ = question
    cloned(tree, clone)
    ends = [git(clone, "rev-parse", f"{end}^0").strip() for end in (good, bad)]
    fixed = git(clone, "merge-base", *ends).strip() == ends[1]
    old, new = reversed(ends) if fixed else ends
    probe = tree.with_suffix(".py")
    status = GOOD_IS_NEW if fixed else BAD_IS_NEW
    probe.write_text(
        PROBE.format(root=str(ROOT), axis=axis, other=other, version=version, failure=failure, status=status)
    )
    return partial(git_bisect, tree, old, new, [sys.executable, str(probe)])


def git(tree: str | Path, *arguments: str) -> str:
    return subprocess.check_output(["git", "-C", str(tree), *arguments], text=True, stderr=subprocess.DEVNULL)


def cloned(tree: Path, clone: str) -> Path:
    """Make a clone that shares the objects of another one, without a checkout."""
    subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", clone, str(tree)], check=True)
    return tree


def git_bisect(tree: Path, old: str, new: str, probe: Sequence[str]) -> tuple[str, int]:
    """Return the culprit that `git bisect run` names, and its runs of the probe."""
    git(tree, "checkout", "-q", new)
    git(tree, "bisect", "start", new, old)
    output = git(tree, "bisect", "run", *probe)
    culprit = next(line.split()[0] for line in output.splitlines() if line.endswith("is the first bad commit"))
    return culprit, output.count("running ")


def rounds() -> None:
    """Search every 13th culprit of 1,000 commits: with 0 and 20 % skips, and with a failure in half of its runs."""
    order = Ancestry.chain(1001)
    print("\n1,000 commits:      rounds (worst), bound, probes (mean)")
    for at_once in (1, 3, 7):
        for label, skips, noise in (
            ("", frozenset(), Noise()),
            (", 20 % skips", frozenset(range(3, 1000, 5)), Noise()),
            (", shows 0.5", frozenset(), Noise(0.5)),
        ):
            found = [
                search(order, simulated(culprit, skips, noise), ProbeResult.GOOD, Plan(at_once, noise))
                for culprit in range(1, 1000, 13)
            ]
            bound = next(power for power in range(20) if (at_once + 1) ** power >= 1000)
            mean = sum(one.probes for one in found) / len(found)
            print(f"  {at_once} at once{label:14} {max(one.rounds for one in found):3} {bound:3} {mean:7.1f}")


def simulated(culprit: int, skips: frozenset[int], noise: Noise) -> Probe:
    runs = dict.fromkeys(range(1001), 0)

    def probe(places: Sequence[int]) -> Iterator[ProbeResult]:
        for place in places:
            runs[place] += 1
            shows = place >= culprit and (noise.shows == 1 or runs[place] % 2 == 0)
            yield ProbeResult.SKIP if place in skips else ProbeResult.BAD if shows else ProbeResult.GOOD

    return probe


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--command":
        own_command(sys.argv[2])
    else:
        main(dict(zip(("mcore", "te"), sys.argv[1:], strict=False)))
