"""Twenty questions with known answers, asked of `megatrix bisect -- COMMAND`: right or not, runs, processor time.

    python bench/bench_questions.py MEGATRON_LM TRANSFORMER_ENGINE [NAME ...]

Two clones, read only. Each cause is planted: a command that fails from a version on, or from the commit on that added
a file, which `git log` names. The environments are those of the checkout: torch 2.3.1, 2.4.0, 2.13.0 and 2.15.0, and
torch 2.13.0 on Python 3.12. Where `git bisect run` applies, it runs the same check in a clone of its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench_bisect import ROOT, cloned, git, git_bisect

VERSION: Final = """
import importlib.metadata, random, sys
from packaging.version import Version
def since(name, version):
    return Version(importlib.metadata.version(name)) >= Version(version)
def fails(cause, text="the planted failure"):
    if cause:
        raise ValueError(text)
"""
CORE: Final = "since('megatron-core', '0.12')"
STACKS: Final = ("--good", "torch-2.13.0", "--bad", "torch-2.15.0")
RELEASES: Final = ("--axis", "mcore", "--torch", "2.13.0", "--good", "0.5.0", "--bad", "0.16.1")
FP4, NORM = "megatron/core/fp4_utils.py", "transformer_engine/pytorch/ops/basic/l2normalization.py"


def has(file: str) -> str:
    """Return a script that fails where a package on sys.path has this file."""
    return f"import os, sys; fails = any(os.path.exists(os.path.join(p, {file!r})) for p in sys.path); sys.exit(fails)"


@dataclass(frozen=True)
class KnownQuestion:
    """A question, and its answer: a point, or the packages that carry the failure.

    `script` is the content of x.py, which `command` runs. `clone` is 0 or 1, the clone whose commits are searched for
    the one that added `file`.
    """

    name: str
    options: tuple[str, ...]
    answer: str | frozenset[str]
    script: str
    command: tuple[str, ...] = ("python", "x.py")
    clone: int | None = None
    file: str = ""
    note: str = ""  # in the notes of the answer
    files: dict[str, str] = field(default_factory=dict)


def packages(*names: str) -> frozenset[str]:
    return frozenset(names)


def stack(torch: str, core: str, einops: str = "") -> str:
    return f"torch-{torch}/mcore-{core}/te-none/driver-none" + (f"/einops-{einops}" if einops else "")


PAIR: Final = ("--good", stack("2.3.1", "0.7.0"), "--bad", stack("2.4.0", "0.8.0"))
THREE: Final = ("--good", stack("2.3.1", "0.7.0", "0.7.0"), "--bad", stack("2.4.0", "0.8.0", "0.8.1"))
METRIC: Final = ("--metric", r"time ([\d.]+|nan)", "--worse-than", "5%")
TIME: Final = f"{VERSION}print('time', random.gauss(1.1 if {{}} else 1.0, 0.03))"
FLAKY: Final = f"{VERSION}fails({CORE} and random.random() < {{}})"
APPEND: Final = f"""{VERSION}
import time
open("seen.txt", "a").write(importlib.metadata.version("megatron-core") + "\\n")
time.sleep(0.3)
fails(any(Version(line) >= Version("0.12") for line in open("seen.txt").read().split()))
"""
OTHER: Final = (
    f"{VERSION}\nif since('megatron-core', '0.9') and not {CORE}:\n    raise KeyError('another failure')\nfails({CORE})"
)
QUESTIONS: Final = (
    KnownQuestion("numpy of two stacks", STACKS, packages("numpy"), "import numpy; numpy.product([2, 3])"),
    KnownQuestion("Python of two stacks", STACKS, packages("python"), "import sys; assert sys.version_info < (3, 12)"),
    KnownQuestion("torch of two stacks", STACKS, packages("torch"), f"{VERSION}fails(since('torch', '2.15'))"),
    KnownQuestion(
        "setuptools of two stacks", STACKS, packages("setuptools"), f"{VERSION}fails(since('setuptools', '84'))"
    ),
    KnownQuestion(
        "two interacting causes", PAIR, packages("torch", "mcore"),
        f"{VERSION}fails(since('torch', '2.4') and since('megatron-core', '0.8'))",
    ),
    KnownQuestion(
        "three components, metric", (*THREE, *METRIC), packages("mcore"), TIME.format("since('megatron-core', '0.8')")
    ),
    KnownQuestion(
        "--axis numpy", ("--axis", "numpy", "--torch", "2.13.0", "--good", "1.25.2", "--bad", "1.26.4"), "1.26.0",
        f"{VERSION}fails(since('numpy', '1.26'))",
    ),
    KnownQuestion(
        "--axis transformers",
        ("--axis", "transformers", "--torch", "2.13.0", "--good", "4.57.6", "--bad", "5.23.0"), "5.23.0",
        f"{VERSION}fails(since('transformers', '5.23'))",
    ),
    KnownQuestion(
        "--axis python", ("--axis", "python", "--base", "torch-2.13.0", "--good", "3.11", "--bad", "3.12"), "3.12",
        "import sys; assert sys.version_info < (3, 12)",
    ),
    KnownQuestion(
        "--axis torch", ("--axis", "torch", "--good", "2.3.1", "--bad", "2.4.0"), "2.4.0",
        f"{VERSION}fails(since('torch', '2.4'))",
    ),
    KnownQuestion("core release", RELEASES, "0.12.0", f"{VERSION}fails({CORE})"),
    KnownQuestion(
        "core commit", ("--axis", "mcore", "--torch", "2.13.0", "--good", "66a1dfc86f", "--bad", "core_v0.15.0"), "",
        has(FP4), clone=0, file=FP4,
    ),
    KnownQuestion(
        "TE commit", ("--axis", "te", "--torch", "2.13.0", "--good", "v2.4", "--bad", "v2.6"), "",
        has(NORM), clone=1, file=NORM,
    ),
    KnownQuestion("flaky 10 %", (*RELEASES, "--shows", "0.1"), "0.12.0", FLAKY.format(0.1)),
    KnownQuestion("flaky 30 %", (*RELEASES, "--shows", "0.3"), "0.12.0", FLAKY.format(0.3)),
    KnownQuestion("flaky 60 %", (*RELEASES, "--shows", "0.6"), "0.12.0", FLAKY.format(0.6)),
    KnownQuestion(
        "pytest", RELEASES, "0.12.0", "", ("python", "-m", "pytest", "-q", "test_x.py"),
        files={"test_x.py": f"{VERSION}\ndef test_it():\n    fails({CORE})\n"},
    ),
    KnownQuestion(
        "shell pipeline", RELEASES, "0.12.0", f"{VERSION}print('bad' if {CORE} else 'good')",
        ("sh", "-c", "python x.py | tee out.txt | grep -q good"),
    ),
    KnownQuestion("writes, --at-once 4", (*RELEASES, "--at-once", "4"), "0.12.0", APPEND),
    KnownQuestion(
        "another failure before", RELEASES, "0.12.0", OTHER,
        note="another failure from 0.9.0 on, this one from 0.12.0 on",
    ),
)  # fmt: skip


def main(clones: Sequence[str], names: Sequence[str]) -> int:
    """Ask the questions, and print a line for each; return the number of wrong answers."""
    wrong = 0
    print(f"{'question':26}  {'answer':34}  right  runs  processor  git bisect run")
    for question in QUESTIONS:
        if names and question.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            spent = processor()
            answer, status = ask(question, clones, Path(folder))
            ours, spent = processor() - spent, processor()
            git_too = beside(question, clones, Path(folder)) if answer and question.clone is not None else ""
            theirs = f"{processor() - spent:.0f} s, {git_too}" if git_too else ""
        right, text = judged(question, clones, answer, status)
        wrong += not right
        runs = answer["cost"]["ran"] if answer else 0
        print(
            f"{question.name:26}  {text:34}  {'yes' if right else 'NO':5}  {runs:4}  {ours:7.0f} s  {theirs}",
            flush=True,
        )
    return wrong


def processor() -> float:
    """Return the seconds of processor of all children so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ask(question: KnownQuestion, clones: Sequence[str], folder: Path) -> tuple[dict[str, Any], str]:
    """Return the item of --json, and the errors; {} for a command that failed."""
    work = folder / "work"
    work.mkdir()
    for name, text in {"x.py": question.script, **question.files}.items():
        (work / name).write_text(text)
    repo = ["--repo", clones[question.clone]] if question.clone is not None else []
    line = [sys.executable, "-m", "matrix", "bisect", "--json", *question.options, *repo, "--", *question.command]
    environ = {**os.environ, "MEGATRIX_OUT": str(folder / "out"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=work, env=environ, capture_output=True, text=True, check=False)
    (item,) = json.loads(done.stdout)["items"] if done.stdout else ({},)
    return (item if "kind" in item else {}), done.stderr or json.dumps(item)


def judged(question: KnownQuestion, clones: Sequence[str], answer: dict[str, Any], errors: str) -> tuple[bool, str]:
    """Return whether an answer is right, or says what could not be separated, and its text."""
    if not answer:
        print(errors, file=sys.stderr)
        return False, "no answer"
    if isinstance(question.answer, frozenset):
        (carrier,) = answer["carriers"] if len(answer["carriers"]) == 1 else ({"packages": [], "not_told_apart": []},)
        whole, doubtful = frozenset(carrier["packages"]), frozenset(carrier["not_told_apart"])
        text = " and ".join(sorted(whole - doubtful)) + (
            f" (perhaps with {', '.join(sorted(doubtful))})" if doubtful else ""
        )
        return whole - doubtful <= question.answer <= whole, text
    expected = question.answer or added(clones[question.clone or 0], question)
    noted = question.note in " ".join(answer["notes"])
    return answer["answer"] == expected and noted, str(answer["answer"])[:10] + " and both borders" * bool(
        question.note
    )


def added(clone: str, question: KnownQuestion) -> str:
    """Return the commit between the ends that added the file of a question."""
    end = question.options[question.options.index("--bad") + 1]
    return git(clone, "log", "--diff-filter=A", "--format=%H", end, "--", question.file).split()[-1]


def beside(question: KnownQuestion, clones: Sequence[str], folder: Path) -> str:
    """Run `git bisect run` with the check in a clone, and return its answer and its runs."""
    tree = cloned(folder / "tree", clones[question.clone or 0])
    good, bad = (question.options[question.options.index(name) + 1] for name in ("--good", "--bad"))
    old = git(tree, "merge-base", good, bad).strip()
    culprit, steps = git_bisect(tree, old, bad, ["sh", "-c", f"! test -e {question.file}"])
    return f"{steps} runs, {culprit[:10]}"


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:3], sys.argv[3:]), 1))
