"""Change the deciding modules line by line, and count the changes that no test notices.

    python -m tests.mutation                                       every module of TARGETS
    python -m tests.mutation matrix/ground/catalog/versions.py            one of them
    python -m tests.mutation matrix/ground/catalog/versions.py --show     with each change that survived

mutmut makes the changes (mutants), in a copy of the checkout, and runs the tests of TARGETS against each. Error texts
(`raise MatrixError(...)`) are not changed: they decide nothing. mutmut leaves decorated functions out, so that the copy
of the module has no caches, and its properties call methods.

A mutant that survives shows a line whose effect no test states: write that test, or delete the line if it has no
effect, or name the mutant in EQUIVALENT with the reason why nobody can notice it. The exit status is 1 where a module's
tests notice less than 90 % of its mutants, without those that EQUIVALENT names.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.profiles import VARIABLE

ROOT: Final = Path(__file__).parents[1]
GOAL: Final = 90.0  # % of a module's mutants
OUTPUT: Final = 4_000  # characters at the end of mutmut's output that an error shows; its progress takes many more
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

# `mutmut show` of all these mutants in one process, which takes half a second to start.
SHOW: Final = """\
import sys
from mutmut.__main__ import cli
for name in sys.argv[1:]:
    cli(["show", name], standalone_mode=False)
"""

# Deciding modules -> their tests.
TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "matrix/prove/bisection/noise.py": (
        "tests/unit/prove/bisection/test_metric.py",
        "tests/unit/prove/bisection/test_noise.py",
    ),
    "matrix/prove/bisection/search.py": ("tests/unit/prove/bisection/test_search.py",),
    "matrix/ground/catalog/failure.py": ("tests/unit/ground/catalog/test_failure.py",),
    "matrix/ground/catalog/reach.py": ("tests/unit/ground/catalog/test_reach.py",),
    "matrix/ground/catalog/stack.py": ("tests/unit/ground/catalog/test_stack.py",),
    "matrix/ground/catalog/versions.py": ("tests/unit/ground/catalog/test_versions.py",),
    "matrix/ask/check/answer.py": ("tests/unit/ask/check/test_answer.py",),
    "matrix/ask/check/rulings.py": ("tests/unit/ask/check/test_rulings.py",),
    "matrix/ask/check/user_stack.py": ("tests/unit/ask/check/test_user_stack.py",),
    "matrix/read/api/binding.py": ("tests/unit/read/api/test_binding.py", "tests/unit/read/api/test_definition.py"),
    "matrix/read/api/comparison.py": ("tests/unit/read/api/test_comparison.py",),
    "matrix/prove/execution/cache_key.py": (
        "tests/unit/prove/execution/test_at_once.py",
        "tests/unit/prove/execution/test_cache_key.py",
    ),
    "matrix/ground/cases/cells.py": (
        "tests/unit/ground/cases/test_cells.py",
        "tests/unit/prove/planning/test_images.py",
        "tests/unit/prove/planning/test_of_base.py",
    ),
    "matrix/prove/planning/catalog_lines.py": ("tests/unit/prove/planning/test_catalog_lines.py",),
    "matrix/prove/planning/statistics.py": ("tests/unit/prove/planning/test_estimates.py",),
    "matrix/ground/cases/machine_requirements.py": ("tests/unit/ground/cases/test_machine_requirements.py",),
    "matrix/prove/planning/night.py": (
        "tests/unit/prove/planning/test_covering.py",
        "tests/unit/prove/planning/test_night.py",
        "tests/unit/prove/planning/test_images.py",
        "tests/unit/prove/planning/test_of_base.py",
        "tests/unit/prove/planning/test_smoke.py",
    ),
    "matrix/prove/planning/packing.py": ("tests/unit/prove/planning/test_packing.py",),
    "matrix/ground/verdicts/blame.py": ("tests/unit/ground/verdicts/test_blame.py",),
    "matrix/ground/verdicts/crash.py": ("tests/unit/ground/verdicts/test_crash.py",),
    "matrix/ground/verdicts/judge.py": ("tests/unit/ground/verdicts/test_judge.py",),
    "matrix/ground/verdicts/log_match.py": (
        "tests/unit/ground/verdicts/test_log_faults.py",
        "tests/unit/ground/verdicts/test_log_match.py",
    ),
    "matrix/prove/bisection/ends.py": ("tests/unit/prove/bisection/test_learning.py",),
    "matrix/ground/verdicts/signature_match.py": ("tests/unit/ground/verdicts/test_signature_match.py",),
}
# Mutants that change nothing, by module: "FUNCTION: CHANGED LINES" -> the reason. The function is Class.method for a
# method, and _name_ for a property `name`.
EQUIVALENT: Final[Mapping[str, Mapping[str, str]]] = {
    "matrix/prove/bisection/search.py": {
        "Ancestry.of_parents: mask = 1": "every place has place 0 among its ancestors",
        "unchanged: for place in range(len(parents) - 1):": "the first commit has no parent that could be its twin",
        "attribute: without = {package: results.of(carrier - {package}) for package in sorted(carrier)} "
        "if (len(carrier) > 1) or True else {}": "the mixture without the only package is the good stack",
        "attribute: without = {package: results.of(carrier - {package}) for package in sorted(carrier)} "
        "if len(carrier) >= 1 else {}": "the mixture without the only package is the good stack",
        "_narrowed: rests = [frozenset(current) - chunk for chunk in chunks] if (parts > 2) or True else []": (
            "of two parts, each is what remains without the other"
        ),
        "_narrowed: rests = [frozenset(current) - chunk for chunk in chunks] if parts >= 2 else []": (
            "of two parts, each is what remains without the other"
        ),
        "_Search._candidates: excluded = 1": "place 0 is the old end, which is always unchanged",
        "_Search._choice: cuts = min(self._plan.at_once, max(mask.bit_count() + 1, 1))": (
            "more cuts than candidates select the same places, all of them"
        ),
        "_Search._choice: cuts = min(self._plan.at_once, max(mask.bit_count() - 1, 2))": (
            "more cuts than candidates select the same places, all of them"
        ),
    },
    "matrix/prove/bisection/noise.py": {
        "Tally.add: self.settled = ProbeResult.BAD if self.weight >= 0 else ProbeResult.GOOD": (
            "an error is below 1, so that a weight of 0 settles nothing"
        ),
    },
    "matrix/ground/catalog/failure.py": {
        'Failure.expectation: def expectation(self, stack: Stack, case: str = "XXXX") -> Expectation:': (
            "no rule names that case, so that the rules without one decide"
        ),
        'Failure.ruling: def ruling(self, stack: Stack, case: str = "XXXX", decide: Decide = undecided) -> Ruling:': (
            "no rule names that case, so that the rules without one decide"
        ),
    },
    "matrix/ground/catalog/reach.py": {
        "JobArguments.parse: name = None": "None is as empty as a text without characters",
        "Condition.parse: if match is None or (match[5] and (match[1] or match[2])):": "an operator has an operand",
    },
    "matrix/ground/catalog/versions.py": {
        'position: return parse(value if isinstance(value, str) else "0.DEV0")': "PEP 440 ignores the case",
        "_contains: holds = compare(found, parse(clause.version)) if compare "
        "else clause.contains(found, prereleases=None)": (
            "packaging 26 accepts a single pre-release; `prereleases` is for older ones"
        ),
        "_contains: holds = compare(found, parse(clause.version)) if compare else clause.contains(found, )": (
            "packaging 26 accepts a single pre-release; `prereleases` is for older ones"
        ),
        "format_ranges: previous = -3": "it is no place before the first, as -2",
    },
    "matrix/ask/check/user_stack.py": {
        "image_of: return base if (isinstance(base, Container)) or True else None": "no other base has such an id",
        'build: base = ""': "it is false, as None",
        "allows: return not limits or not version or SpecifierSet(limits).contains(version, prereleases=None)": (
            "packaging 26 accepts a single pre-release; `prereleases` is for older ones"
        ),
        "allows: return not limits or not version or SpecifierSet(limits).contains(version, )": (
            "packaging 26 accepts a single pre-release; `prereleases` is for older ones"
        ),
        "_unrecorded: if given >= max(public):": "the version is none of the public ones here",
        "_unrecorded: lower = [release for release in releases if parse(release) <= given]": (
            "the version is none of the public ones here"
        ),
        "_unrecorded: upper = next(release for release in releases if parse(release) >= given)": (
            "the version is none of the public ones here"
        ),
    },
    "matrix/read/api/binding.py": {
        'bind: for kind, names in (("positional", signature.slots), ("keyword-only", signature.keywords)) '
        "if (lacking) or True else ():": "without a lacking name none is absent",
        "_too_many: takes = f\"takes {count} positional {_plural('argument', most if least == most else 3)}\"": (
            "two are as plural as three"
        ),
        "misbound: for argument, slot in zip(positional, signature.slots[bound:], strict=None):": "None is as False",
        "misbound: for argument, slot in zip(positional, signature.slots[bound:], ):": "False is the default",
        'misbound: parameter = misplaced(argument, slot, signature.named) if (argument not in ("", slot)) or True '
        "else None": "a name without words, or of the slot itself, is not misplaced",
        'misbound: parameter = misplaced(argument, slot, signature.named) if argument not in ("XXXX", slot) '
        "else None": "a name without words is not misplaced",
        '_stem: return word.removesuffix(next(endings, "XXXX"))': "words are in lower case",
        "misplaced: if words(argument) < words(landed):": "equal words fit the parameter that the argument lands on",
    },
    "matrix/read/api/comparison.py": {
        '_lacked: module, _, attributes = use.path.rpartition(":")': "a path has one colon",
    },
    "matrix/ground/cases/machine_requirements.py": {
        '_clones: for source in (item.source, "XXXX" if own_te else item.te_source):': "it names no clone, as no text",
    },
    "matrix/prove/planning/night.py": {
        "night_cells: share = failure.night or NightShare(None)": "the reason of a share is for display",
        'night_cells: share = failure.night or NightShare("XXXX")': "the reason of a share is for display",
        "image_cases: for core in versions_of(catalog, failure, MCORE, None)": "a container is no Image, as None",
        "picked_cases: for pick, cell in zip(failure.pick, picked_cells(catalog, failure), strict=None):": (
            "there is one cell for each pick"
        ),
        "picked_cases: for pick, cell in zip(failure.pick, picked_cells(catalog, failure), ):": (
            "there is one cell for each pick"
        ),
        "picked_cases: for pick, cell in zip(failure.pick, picked_cells(catalog, failure), strict=False):": (
            "there is one cell for each pick"
        ),
        "stack_cases: runs = [(Case(REPORT, None, ranks=report.gpus, gpus=report.gpus), Level.GPU)]": (
            "nobody reads the levels of a case without a reproduction"
        ),
        "stack_cases: runs = [(Case(REPORT, (Level.GPU,), ranks=report.gpus, ), Level.GPU)]": (
            "the planned case takes the GPUs of the report"
        ),
        "most_real: best = max((level for _, level in found), key=None)": "the levels are in the order of their names",
        "most_real: best = max((level for _, level in found), )": "the levels are in the order of their names",
    },
    "matrix/ground/verdicts/blame.py": {
        "classify: faults = [fault for end in ends "
        'if (fault := fault_of(end, logs.get(end.rank, "XXXX"), oom_kills))]': (
            "a log without `terminate called` shows as much as no log"
        ),
        'fault_of: printed = log[log.rindex(TERMINATE) :] if TERMINATE in log else "XXXX"': (
            "no pattern matches it, as none matches an empty text"
        ),
        '_hung: stands = {end.rank: stand for end in late if (stand := stand_in(traces.get(end.rank, "XXXX")))}': (
            "a text without a frame shows as much as no text"
        ),
    },
    "matrix/prove/bisection/ends.py": {
        "of_log: final_line = next((line for line in reversed(lines) if line.strip()), None)": (
            "None is as empty as a text without characters"
        ),
        "of_exception: frame_text = None": "None is as empty as a text without characters",
    },
    "matrix/ground/verdicts/log_match.py": {
        '_Evidence._contradiction: excluded = re.compile(entry.signature.not_with or "XX(?!)XX")': (
            "it matches nothing either"
        ),
        '_Evidence._contradiction: return next((f"the log names another cause: {line}" for line in lines '
        "if excluded.search(line)), None)": "None is false, as a text without characters",
        '_Exceptions.__init__: self._latest: tuple[LoggedException, _Chain] | None = ""': "it is false, as None",
        "_Exceptions.__init__: self._assessed = lru_cache(maxsize=None)(self._assess)": "a cache changes no answer",
        "_Exceptions.__init__: self._assessed = lru_cache(maxsize=1025)(self._assess)": "a cache changes no answer",
        "_Exceptions.end_within: self._evidence.chains[stream, -2] = chain": "no other chain has a number below 0",
        "_Stream.halve: while self.size > EVIDENCE / 2:": "EVIDENCE is even",
        "_Reader._stream: self._end(self._streams.popitem(last=None)[1])": "None is as False",
        '_add_kinds: evidence.clues.setdefault(re.sub(r"\\d+", "XX#XX", line), (clue, LogFault(at(offset), line)))': (
            "any text without digits stands for a number"
        ),
        "_bare: return sighting.fault.raised and replace(sighting.fault.raised, frames=None)": (
            "neither of two that are compared has frames"
        ),
        '_distinct: by_text.setdefault(re.sub(r"\\d+", "XX#XX", fault.what), fault)': (
            "any text without digits stands for a number"
        ),
    },
}


@dataclass(frozen=True)
class Mutant:
    """One change: its name in mutmut, what mutmut reports of it, and the changed lines ("" where it was noticed)."""

    name: str
    status: str
    change: str = ""

    @property
    def text(self) -> str:
        """Return the function, without its module, and the changed lines: the same after a move of the module."""
        function = self.name.rpartition(".")[2].rpartition("__mutmut_")[0]
        return f"{function.removeprefix('x').removeprefix('_').strip('ǁ').replace('ǁ', '.')}: {self.change}"


@dataclass(frozen=True)
class Score:
    """The mutants of one module: how many there are, how many change nothing, and those that no test noticed.

    `stale` are the texts of EQUIVALENT that no unnoticed mutant has: the line changed, or a test notices the mutant.
    """

    module: str
    mutants: int
    equivalent: int
    survivors: tuple[Mutant, ...]
    stale: tuple[str, ...] = ()

    @property
    def killed(self) -> int:
        """Return the number of noticed mutants."""
        return self.mutants - self.equivalent - len(self.survivors)

    @property
    def percent(self) -> float:
        """Return the share of noticed mutants among those that change something, in percent."""
        changing = self.mutants - self.equivalent
        return 100.0 * self.killed / changing if changing else 100.0


def score(module: str, mutants: Sequence[Mutant], equivalent: Collection[str]) -> Score:
    """Return the score of a module. A mutant that ran into its time limit was noticed."""
    unnoticed = [mutant for mutant in mutants if mutant.status in UNNOTICED]
    survivors = tuple(mutant for mutant in unnoticed if mutant.text not in equivalent)
    stale = tuple(sorted({*equivalent}.difference(mutant.text for mutant in unnoticed)))
    return Score(module, len(mutants), len(unnoticed) - len(survivors), survivors, stale)


def statuses(results: str) -> Iterator[Mutant]:
    """Yield the mutants that `mutmut results --all true` lists: "    NAME: STATUS"."""
    for line in results.splitlines():
        name, colon, status = line.strip().rpartition(": ")
        if colon and "__mutmut_" in name:
            yield Mutant(name, status)


def diffs(shown: str) -> dict[str, str]:
    """Return the diff of each mutant that `mutmut show` prints: "# NAME: STATUS" is the line before it."""
    parts = re.split(r"^# (\S+__mutmut_\d+): .*\n", shown, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def changed_lines(diff: str) -> str:
    """Return the added lines of a diff, on one line; "without", and the removed ones, where these are more."""
    lines = [line for line in diff.splitlines() if not line.startswith(("+++", "---"))]
    added, removed = ([line[1:].strip() for line in lines if line.startswith(sign)] for sign in "+-")
    if len(added) < len(removed):
        return " ".join(["without", *(line for line in removed if line not in added)])
    return " ".join(added)


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

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(
                f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-OUTPUT:]}{done.stderr}"
            )
        return done.stdout

    python("-m", "mutmut", "run", "--max-children", str(processes))
    mutants = [*statuses(python("-m", "mutmut", "results", "--all", "true"))]
    unnoticed = [mutant.name for mutant in mutants if mutant.status in UNNOTICED]
    changes = diffs(python("-c", SHOW, *unnoticed))
    mutants = [replace(mutant, change=changed_lines(changes.get(mutant.name, ""))) for mutant in mutants]
    return score(module, mutants, EQUIVALENT.get(module, ()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each module; return 1 where one is below the goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", choices=[[], *TARGETS], metavar="MODULE", help="default: all")
    parser.add_argument("--show", action="store_true", help="print each mutant that survived")
    parser.add_argument("-j", "--processes", type=int, default=1, help="mutants at once (default: 1)")
    options = parser.parse_args(arguments)
    print(HEADING, flush=True)
    scores = []
    for module in options.modules or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            scores.append(mutate(module, Path(folder), options.processes))
        print(row(scores[-1]), flush=True)
        for mutant in scores[-1].survivors if options.show else ():
            print(f"    {mutant.status}: {mutant.text}")
        for text in scores[-1].stale:
            print(f"    stale in EQUIVALENT: {text}")
    return 1 if any(one.percent < GOAL for one in scores) else 0


HEADING: Final = f"{'module':42}{'mutants':>8}{'killed':>8}{'equivalent':>12}{'survived':>10}{'score':>9}"


def row(result: Score) -> str:
    """Return a line of the table."""
    mark = "" if result.percent >= GOAL else f"  BELOW {GOAL:g} %"
    return (
        f"{result.module:42}{result.mutants:8}{result.killed:8}{result.equivalent:12}{len(result.survivors):10}"
        f"{result.percent:7.1f} %{mark}"
    )


if __name__ == "__main__":
    sys.exit(main())
