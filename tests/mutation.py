"""Change the deciding modules line by line, and count the changes that no test notices: `tox run -e mutation`.

    python -m tests.mutation                                       every module of TARGETS
    python -m tests.mutation matrix/catalog/versions.py            one of them
    python -m tests.mutation matrix/catalog/versions.py --show     with each change that survived

mutmut makes the changes (mutants), in a copy of the checkout, and runs the tests of TARGETS against each. Error texts
(`raise MatrixError(...)`) are not changed: they decide nothing. mutmut leaves decorated functions out, so that the copy
of the module has no caches, and its properties call methods. The exit status is 1 where a module's tests notice less
than 90 % of its mutants, without those that EQUIVALENT names.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.profiles import VARIABLE

ROOT: Final = Path(__file__).parents[1]
GOAL: Final = 90.0  # % of a module's mutants
# What the tests of a deciding module read of a checkout.
COPIED: Final = (
    "matrix",
    "tests",
    "docs",
    "containers",
    "bench",
    "conftest.py",
    "pyproject.toml",
    "tox.ini",
    "toxfile.py",
)
UNNOTICED: Final = ("survived", "no tests", "suspicious", "skipped", "not checked")

# Deciding modules -> their tests. The first are those of the module itself.
TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "matrix/bisection/ancestry.py": ("tests/unit/bisection/test_ancestry.py",),
    "matrix/bisection/attribution.py": ("tests/unit/bisection/test_attribution.py",),
    "matrix/bisection/metric.py": ("tests/unit/bisection/test_metric.py",),
    "matrix/bisection/noise.py": ("tests/unit/bisection/test_noise.py",),
    "matrix/bisection/search.py": ("tests/unit/bisection/test_search.py",),
    "matrix/catalog/reach.py": ("tests/unit/catalog/test_reach.py",),
    "matrix/catalog/versions.py": ("tests/unit/catalog/test_versions.py",),
    "matrix/planning/covering.py": ("tests/unit/planning/test_covering.py",),
    "matrix/check/answer.py": ("tests/unit/check/test_answer.py",),
    "matrix/contract/binding.py": ("tests/unit/contract/test_binding.py",),
    "matrix/planning/packing.py": ("tests/unit/planning/test_packing.py",),
    "matrix/planning/night.py": ("tests/unit/planning/test_night.py", "tests/unit/planning/test_images.py"),
    "matrix/planning/machine_requirements.py": ("tests/unit/planning/test_machine_requirements.py",),
    "matrix/verdicts/blame.py": ("tests/unit/verdicts/test_blame.py",),
    "matrix/verdicts/judge.py": ("tests/unit/verdicts/test_judge.py",),
    "matrix/verdicts/learning.py": ("tests/unit/verdicts/test_learning.py",),
    "matrix/verdicts/signature_match.py": ("tests/unit/verdicts/test_signature_match.py",),
}
# Mutants that change nothing: (module, the changed line) -> the reason.
EQUIVALENT: Final[Mapping[tuple[str, str], str]] = {
    (module, line): reason
    for module, lines in {
        "matrix/bisection/ancestry.py": {
            "mask = 1": "every place has place 0 among its ancestors",
            "for place in range(len(parents) - 1):": "the first commit has no parent that could be its twin",
        },
        "matrix/bisection/attribution.py": {
            "without = {one: results.of(found - {one}) for one in sorted(found)} if (len(found) > 1) or True else {}": (
                "the mixture without the only package is the good stack"
            ),
            "without = {one: results.of(found - {one}) for one in sorted(found)} if len(found) >= 1 else {}": (
                "the mixture without the only package is the good stack"
            ),
            "rests = [frozenset(current) - chunk for chunk in chunks] if (parts > 2) or True else []": (
                "of two parts, each is what remains without the other"
            ),
            "rests = [frozenset(current) - chunk for chunk in chunks] if parts >= 2 else []": (
                "of two parts, each is what remains without the other"
            ),
        },
        "matrix/bisection/search.py": {
            "before = 1": "place 0 is the old end, which is always unchanged",
        },
        "matrix/bisection/noise.py": {
            "self.settled = ProbeResult.BAD if self.weight >= 0 else ProbeResult.GOOD": (
                "an error is below 1, so that a weight of 0 settles nothing"
            ),
        },
        "matrix/verdicts/learning.py": {
            'last = next((line for line in reversed(outcome.evidence.split("\\n")) if line.strip()), None)': (
                "None is as empty as a text without characters"
            ),
            "place = None": "None is as empty as a text without characters",
        },
        "matrix/catalog/reach.py": {
            "option, value = (found[1], found[2]) if found else (setting[1], setting[2]) if (setting) or True else "
            '("", "")': "a word is one of the two here",
            "option, value = (found[1], found[2]) if found else (setting[1], setting[2]) if setting else "
            '("XXXX", "")': "a word is one of the two here",
            "option, value = (found[1], found[2]) if found else (setting[1], setting[2]) if setting else "
            '("", "XXXX")': "a word is one of the two here",
            "name = None": "None is as empty as a text without characters",
            "if found is None or (found[5] and (found[1] or found[2])):": "an operator has an operand",
        },
        "matrix/catalog/versions.py": {
            'return parse("0.DEV0" if text == NONE else text)': "PEP 440 ignores the case",
            "previous = -3": "it is no place before the first, as -2",
            "holds = compare(found, parse(clause.version)) if compare else clause.contains(found, prereleases=None)": (
                "packaging 26 accepts a single pre-release; `prereleases` is for older ones"
            ),
            "holds = compare(found, parse(clause.version)) if compare else clause.contains(found, )": (
                "packaging 26 accepts a single pre-release; `prereleases` is for older ones"
            ),
        },
    }.items()
    for line, reason in lines.items()
}


@dataclass(frozen=True)
class Mutant:
    """One change: its name in mutmut, what mutmut reports of it, and the changed line ("" where it was noticed)."""

    name: str
    status: str
    line: str = ""


@dataclass(frozen=True)
class Score:
    """The mutants of one module: how many there are, how many change nothing, and those that no test noticed."""

    module: str
    mutants: int
    equivalent: int
    survivors: tuple[Mutant, ...]

    @property
    def percent(self) -> float:
        """Return the share of noticed mutants among those that change something, in percent."""
        changing = self.mutants - self.equivalent
        return 100.0 * (changing - len(self.survivors)) / changing if changing else 100.0


def score(module: str, mutants: Sequence[Mutant], equivalent: Mapping[tuple[str, str], str] = EQUIVALENT) -> Score:
    """Return the score of a module. A mutant that ran into its time limit was noticed."""
    unnoticed = [mutant for mutant in mutants if mutant.status in UNNOTICED]
    survivors = tuple(mutant for mutant in unnoticed if (module, mutant.line) not in equivalent)
    return Score(module, len(mutants), len(unnoticed) - len(survivors), survivors)


def statuses(results: str) -> Iterator[Mutant]:
    """Yield the mutants that `mutmut results --all true` lists: "    NAME: STATUS"."""
    for line in results.splitlines():
        name, colon, status = line.strip().rpartition(": ")
        if colon and "__mutmut_" in name:
            yield Mutant(name, status)


def changed_line(diff: str) -> str:
    """Return the added lines of a diff, on one line."""
    return " ".join(
        line[1:].strip() for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")
    )


def undecorated(text: str) -> str:
    """Return a source without @cache, whose properties call a method with the rest of their code."""
    text = re.sub(r"^ *@(lru_)?cache(\(.*\))?\n", "", text, flags=re.MULTILINE)
    head = r"^( *)(@(?:cached_)?property\n *def )(\w+)(\(self\)[^\n]*:\n)"
    return re.sub(head, r"\1\2\3\4\1    return self._\3_()\n\n\1def _\3_\4", text, flags=re.MULTILINE)


def configuration(module: str) -> str:
    """Return mutmut's table of pyproject.toml for one module."""
    values = {
        "source_paths": ["matrix"],
        "only_mutate": [module],
        "also_copy": [name for name in COPIED if name not in ("matrix", "tests", "pyproject.toml")],
        "do_not_mutate_patterns": [r"raise \w+Error\("],
        "pytest_add_cli_args": ["-p", "no:cacheprovider"],
        "pytest_add_cli_args_test_selection": list(TARGETS[module]),
        "use_git_change_detection": False,
        "timeout_multiplier": 5.0,
    }
    return "\n[tool.mutmut]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def mutate(module: str, folder: Path, processes: int) -> Score:
    """Run the tests against each mutant of a module, in a copy of the checkout in `folder`."""
    for name in COPIED:
        source, ignored = ROOT / name, shutil.ignore_patterns("__pycache__", ".*_cache")
        shutil.copytree(source, folder / name, ignore=ignored) if source.is_dir() else shutil.copy(source, folder)
    (folder / module).write_text(undecorated((ROOT / module).read_text(encoding="utf-8")), encoding="utf-8")
    with (folder / "pyproject.toml").open("a") as file:
        file.write(configuration(module))
    environ = {**os.environ, VARIABLE: "mutation"}

    def mutmut(*arguments: str) -> str:
        command = [sys.executable, "-m", "mutmut", *arguments]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    mutmut("run", "--max-children", str(processes))
    mutants = [
        Mutant(mutant.name, mutant.status, changed_line(mutmut("show", mutant.name)))
        if mutant.status in UNNOTICED
        else mutant
        for mutant in statuses(mutmut("results", "--all", "true"))
    ]
    return score(module, mutants)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each module; return 1 where one is below the goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", choices=[[], *TARGETS], metavar="MODULE", help="default: all")
    parser.add_argument("--show", action="store_true", help="print each mutant that survived")
    parser.add_argument("-j", "--processes", type=int, default=1, help="mutants at once (default: 1)")
    options = parser.parse_args(arguments)
    scores = []
    for module in options.modules or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            scores.append(mutate(module, Path(folder), options.processes))
        print(row(scores[-1]), flush=True)
        for mutant in scores[-1].survivors if options.show else ():
            print(f"    {mutant.name}: {mutant.status}\n        {mutant.line}")
    return 1 if any(one.percent < GOAL for one in scores) else 0


def row(result: Score) -> str:
    """Return a line of the table."""
    mark = "" if result.percent >= GOAL else f"  BELOW {GOAL:g} %"
    return (
        f"{result.module:36}{result.mutants:5} mutants {result.equivalent:3} equivalent "
        f"{len(result.survivors):3} survived {result.percent:6.1f} %{mark}"
    )


if __name__ == "__main__":
    sys.exit(main())
