"""`megatrix compare` on the command line: its answers, errors, formats, and what an interruption keeps."""

from __future__ import annotations

import json
import os
import platform
import random
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import places
from matrix.cli.main import main
from matrix.ground.catalog import loading
from matrix.ground.catalog.folders import roots
from matrix.ground.catalog.loading import read_failures
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import MCORE
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised, RankEnd
from matrix.ground.verdicts.planned import Planned
from matrix.prove.provision import host
from tests.schemas import items_of
from tests.unit import catalogs
from tests.unit.catalogs import case, clause, failure
from tests.unit.engines import HOST, FakeEngine
from tests.unit.prove.bisection import repositories

OLD, NEW = (f"torch-2.5.1/mcore-{core}/te-none/driver-none" for core in ("0.8.0", "0.9.0"))
PASSED = Outcome(OutcomeKind.PASSED, exit_code=0)
ENTRY = failure(
    "break", affected=(clause(mcore=">=0.9"),), works=(clause(mcore="<0.9"),), case=(case("tp2"), case("pp2"))
)
Ends = Callable[[Planned, int], Outcome]


def broken(kind: str = "ValueError", message: str = "the shape is wrong") -> Outcome:
    return Outcome(OutcomeKind.RAISED, f"rank 0 raised: {kind}: {message}", 0, chain=(Raised(kind, message),))


def of_tests(tests: Mapping[str, str], *, part: bool = False, **numbers: float) -> Outcome:
    """Return the outcome of a command that wrote a file of JUnit; a text is the message of a failure."""
    plain = {name: ["failure", "", message, ""] if message else ["", "", "", ""] for name, message in tests.items()}
    value = {"tests": plain, "numbers": numbers, **({"part": True} if part else {})}
    return Outcome(OutcomeKind.PASSED, exit_code=0, ranks=(RankEnd(0, 0, returned=True, value=value),))


def is_new(item: Planned) -> bool:
    return str(item.cell.stack[MCORE]) == "0.9.0"


def known(environ: Mapping[str, str] = os.environ) -> Catalog:
    return catalogs.catalog(ENTRY, *(entry for root in roots(environ)[1:] for entry in read_failures(root)))


class TurnsEngine(FakeEngine):
    """A fake engine that reads the catalog anew; `ends` gets how often the case ran before."""

    def __init__(self, ends: Ends, **options: Any) -> None:
        self.counts = Counter[str]()
        self.environ: Mapping[str, str] = os.environ
        super().__init__(known(), ends=lambda item: ends(item, self.count(item)), **options)

    def count(self, item: Planned) -> int:
        self.counts[item.key] += 1
        return self.counts[item.key] - 1

    def local(self, bases: Any, *_: Any, environ: Mapping[str, str], **__: Any) -> TurnsEngine:
        """Replaces the local engine."""
        self.environ = environ
        return self

    def run(self, *arguments: Any) -> Any:
        self.known = known(self.environ)
        return super().run(*arguments)


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], handlers: None) -> Any:
    """Runs `megatrix compare OLD NEW` and returns its status, standard output, standard error and engine."""
    monkeypatch.setattr(host, "look", lambda: HOST)
    monkeypatch.setenv("MEGATRIX_OUT", str(tmp_path / "out"))
    monkeypatch.setenv("BASES_OF_TESTS", str(tmp_path / "bases"))
    monkeypatch.setattr(loading, "load", known)

    def run(line: str, ends: Ends, old: str = OLD, new: str = NEW, **options: Any) -> tuple[int, str, str, TurnsEngine]:
        engine = TurnsEngine(ends, **options)
        monkeypatch.setattr(places, "LocalEngine", engine.local)
        status = main(["compare", old, new, *shlex.split(line)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err, engine

    return run


def changes(out: str) -> dict[str, str]:
    return {item["test"]: item["change"] for item in items_of(out, "compare")}


def fails_in_new(item: Planned, count: int) -> Outcome:
    return broken() if is_new(item) else PASSED


def test_new_failures_repeat_until_odds_decide(compare: Any) -> None:
    status, out, _, engine = compare("--json -- python save.py", fails_in_new)
    (item,) = items_of(out, "compare")

    assert (status, item["change"], item["signature"]) == (1, "new", "ValueError: the shape is wrong")
    assert (item["failures"], item["runs"]) == ([0, 3], [3, 3])
    assert [NEW in key for key in engine.ran] == [False, True, True, False, False, True]


def test_what_agrees_is_not_repeated(compare: Any) -> None:
    for ends, change in ((lambda *_: PASSED, "nothing"), (lambda *_: broken(), "pre-existing")):
        status, out, _, engine = compare("--json -- python save.py", ends)
        assert (status, [*changes(out).values()], len(engine.ran)) == (0, [change], 2)


def test_each_test_of_a_junit_file_is_judged(compare: Any) -> None:
    source = random.Random(3)

    def ends(item: Planned, count: int) -> Outcome:
        tests = {
            "passes": "",
            "new": "ValueError: width 6" if is_new(item) else "",
            "fixed": "" if is_new(item) else "KeyError: 'x'",
            "old": "RuntimeError: always",
            "other": "TypeError: bias is missing" if is_new(item) else "RuntimeError: shape is wrong",
            "flaky": "assert noise < limit" if source.random() < 0.5 else "",
            "network": "ConnectionError: Connection refused" if is_new(item) and not count else "",
        }
        return of_tests(tests | ({} if is_new(item) else {"gone": ""}))

    status, out, _, _ = compare("--json --junit o.xml -- pytest --junitxml o.xml", ends)

    assert (status, changes(out)) == (
        1,
        {
            "new": "new",
            "other": "changed",
            "flaky": "flaky",
            "network": "infrastructure",
            "gone": "not run",
            "fixed": "fixed",
            "old": "pre-existing",
            "exit status": "nothing",
            "passes": "nothing",
        },
    )


def test_a_known_entry_is_named(compare: Any) -> None:
    ends = lambda item, _: catalogs.shown(ENTRY) if is_new(item) else PASSED  # noqa: E731
    _, out, _, _ = compare("--json -- python save.py", ends)

    assert items_of(out, "compare")[0]["known"] == "break"


def test_a_break_is_attributed_to_its_component(compare: Any) -> None:
    status, out, _, _ = compare("--bisect --json -- python save.py", fails_in_new)

    assert (status, items_of(out, "compare")[0]["cause"]) == (1, "guilty: mcore; first bad: Megatron-LM 0.9.0")


def test_numbers_are_compared_in_pairs(compare: Any) -> None:
    source = random.Random(5)

    def ends(item: Planned, count: int) -> Outcome:
        step = source.gauss(100, 1) * (1.05 if is_new(item) else 1)
        return of_tests({}, step=step, loss=2.5 + 1e-5 * is_new(item), peak=1000)

    options = "--metric step=time:(.*) --metric loss=loss:(.*) --metric peak"
    status, out, _, _ = compare(f"--json {options} -- python train.py", ends)

    found = changes(out)
    assert (status, found["step"], found["loss"], found["peak"]) == (1, "worse", "drift", "nothing")


def of_case(step: float, *, memory: float = 900.0, **resolved: str) -> Outcome:
    """Return the outcome of a case on two ranks, of which the second is the slower."""
    used = [{"seconds": step * share, "memory": memory} for share in (0.5, 1)]
    ranks = tuple(RankEnd(rank, 0, returned=True, used=figures) for rank, figures in enumerate(used))
    return Outcome(OutcomeKind.PASSED, exit_code=0, ranks=ranks, resolved=resolved)


def test_numbers_of_cases_are_compared(compare: Any) -> None:
    """They are those of the slowest rank. A case that does not pass has none."""
    source = random.Random(5)

    def ends(item: Planned, count: int) -> Outcome:
        if item.case == "pp2":
            return broken()
        return of_case(source.gauss(100, 1) * (1.05 if is_new(item) else 1))

    status, out, _, _ = compare("--json --metric seconds --metric memory", ends)

    assert status == 1
    assert changes(out) == {
        "break tp2": "nothing",
        "break tp2 seconds": "worse",
        "break tp2 memory": "nothing",
        "break pp2": "pre-existing",
    }
    (seconds,) = (item for item in items_of(out, "compare") if item["test"] == "break tp2 seconds")
    assert [round(value, -1) for value in seconds["values"]] == [100, 100]
    assert seconds["interval"][0] > 1.03
    assert "a stand-in for those of a GPU" in json.loads(out)["known"][0]


def test_both_numbers_are_of_one_machine(compare: Any) -> None:
    """The first round has a run of another one."""

    def ends(item: Planned, count: int) -> Outcome:
        other = not count and not is_new(item)
        return of_case(300.0 if other else 100.0, GPUs="1 of 1 x A100" if other else "1 of 1 x H100")

    _, out, _, _ = compare("--json --select case==tp2 --least 3 --metric seconds", ends)

    (seconds,) = (item for item in items_of(out, "compare") if item["number"])
    assert (seconds["runs"], seconds["values"], seconds["change"]) == ([2, 2], [100.0, 100.0], "nothing")


def test_numbers_of_cases_are_not_continued_elsewhere(compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that another machine stored are no half of a pair; without numbers they count."""
    line = "--json --select case==tp2"
    for options, ran in (("", 1), ("--metric seconds", 2)):
        monkeypatch.setattr(platform, "node", lambda: "here")
        compare(f"{line} {options} --no-cache", lambda *_: of_case(1.0), limit=1, status=KeyboardInterrupt())
        monkeypatch.setattr(platform, "node", lambda: "there")
        assert len(compare(f"{line} {options}", lambda *_: of_case(1.0))[3].ran) == ran


@pytest.mark.parametrize(
    ("name", "text"), [("gpu-memory", "a case that has it: at level gpu"), ("step", "gpu-memory or memory or seconds")]
)
def test_number_that_no_case_has(name: str, text: str, compare: Any) -> None:
    status, _, err, _ = compare(f"--metric {name}", lambda *_: of_case(1.0))

    assert (status, text in err) == (2, True), err


def test_least_runs_what_agrees(compare: Any) -> None:
    """A test that fails in its third run alone would not be seen."""
    ends = lambda item, count: broken() if is_new(item) and count == 2 else PASSED  # noqa: E731
    status, out, _, _ = compare("--json --least 3 --most 4 -- python save.py", ends)

    (item,) = items_of(out, "compare")
    assert (status, item["change"], item["failures"], item["runs"]) == (0, "flaky", [0, 1], [3, 3])


def test_an_interrupted_comparison_continues(compare: Any) -> None:
    """Of six runs the first four are stored: two are left."""
    status, _, err, _ = compare("-- python save.py", fails_in_new, limit=1, status=KeyboardInterrupt())
    assert (status, "continue with the same command line" in err) == (130, True)
    status, out, err, engine = compare("--json -- python save.py", fails_in_new)

    assert (status, len(engine.ran), "[known]" in err) == (1, 5, True)
    assert items_of(out, "compare")[0]["runs"] == [3, 3]


def test_a_comparison_that_ended_runs_anew(compare: Any) -> None:
    """What a test imports may have changed since."""
    compare("-- python save.py", fails_in_new)
    status, _, _, engine = compare("-- python save.py", lambda *_: PASSED)

    assert (status, len(engine.ran)) == (0, 2)


def test_minutes_end_the_rounds(compare: Any) -> None:
    status, out, _, _ = compare("--minutes 0 --format md -- python save.py", fails_in_new)

    assert (status, "the time was not enough to decide 1: python save.py" in out) == (3, True)


def test_time_is_for_what_is_decided_soonest(compare: Any) -> None:
    """The slow case is not reached; the quick one is decided."""

    def ends(item: Planned, count: int) -> Outcome:
        end = catalogs.shown(ENTRY) if is_new(item) else PASSED
        return replace(end, seconds=600.0 if item.case == "tp2" else 0.0)

    status, out, _, engine = compare("--minutes 5 --json", ends)

    assert (status, changes(out)) == (1, {"break pp2": "new", "break tp2": "undecided"})
    assert (json.loads(out)["unreached"], json.loads(out)["ended"]) == (["break tp2"], False)
    assert [sum(case in key for key in engine.ran) for case in ("pp2", "tp2")] == [8, 2]


def test_baseline_accepts_its_breaks(compare: Any, tmp_path: Path) -> None:
    status, out, _, _ = compare("--json -- python save.py", fails_in_new)
    (tmp_path / "known.json").write_text(out)
    status, out, _, _ = compare(f"--baseline {tmp_path / 'known.json'} --format md -- python save.py", fails_in_new)

    assert (status, "new (baseline)" in out, "1 of them in the baseline" in out) == (0, True, True)


def test_the_noise_of_one_stack_is_measured(compare: Any) -> None:
    status, out, _, engine = compare("--same --json -- python save.py", lambda item, count: PASSED, new=OLD)

    assert (status, items_of(out, "compare")[0]["runs"], len(engine.ran)) == (0, [1, 1], 2)


def test_the_cases_of_the_catalog_are_compared(compare: Any) -> None:
    ends = lambda item, _: catalogs.shown(ENTRY) if is_new(item) and item.case == "tp2" else PASSED  # noqa: E731
    status, out, _, _ = compare("--json", ends)

    assert (status, changes(out)) == (1, {"break tp2": "new", "break pp2": "nothing"})
    assert items_of(out, "compare")[0]["known"] == "break"
    status, out, _, _ = compare("--json --select case==pp2", ends)
    assert (status, [*changes(out)]) == (0, ["break pp2"])


def test_markdown_has_at_most_sixty_lines(compare: Any) -> None:
    def ends(item: Planned, count: int) -> Outcome:
        return of_tests({f"test_{number}": f"Error{number}Error: x|y" * is_new(item) for number in range(80)})

    status, out, _, _ = compare("--junit o.xml --format md -- pytest --junitxml o.xml", ends)

    assert (status, len(out.splitlines()) <= 60, "further rows" in out) == (1, True, True)


def test_tests_with_one_signature_are_one_row(compare: Any) -> None:
    def ends(item: Planned, count: int) -> Outcome:
        names = (f"{'tests.' * 30}test_{number}" for number in range(9))
        return of_tests({name: f"ValueError: width {len(name)}" * is_new(item) for name in names})

    _, out, _, _ = compare("--junit o.xml --format md -- pytest --junitxml o.xml", ends)

    assert ("`..." in out, ".test_0 and 8 more`" in out) == (True, True)


def test_only_undecided_tests_run_again(compare: Any) -> None:
    """An exit status of the whole, and a run without a result, is a reason to run all."""
    asked, noisy = [], random.Random(4)

    def ends(item: Planned, count: int) -> Outcome:
        (path,) = Path(os.environ["MEGATRIX_OUT"]).rglob("again.json")
        asked.append(only := json.loads(path.read_text()))
        flaky = "KeyError: 'x'" if noisy.random() < 0.4 else ""
        tests = {"same": "", "new": "ValueError: width" * is_new(item), "flaky": flaky}
        outcome = of_tests({name: tests[name] for name in only or tests}, part=bool(only))
        return outcome if count != 2 else broken()

    status, out, _, _ = compare("--json --junit o.xml -- pytest --junitxml o.xml", ends)

    assert (status, changes(out)["new"], changes(out)["same"]) == (1, "new", "nothing")
    assert asked[:2] == [[], []]
    assert ["new"] in asked
    assert all("same" not in only for only in asked)
    runs = {item["test"]: item["runs"] for item in items_of(out, "compare")}
    assert (runs["same"], runs["exit status"][0] < len(asked) / 2) == ([2, 2], True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "github",
            "::error file=save.py,line=7,title=new%3A python save.py::ValueError: the shape is wrong. fails in 0 of 3",
        ),
        ("sarif", '"uri": "save.py"'),
    ],
)
def test_breaks_are_annotations(
    name: str, text: str, compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "save.py").write_text("save()\n")
    chain = (Raised("ValueError", "the shape is wrong", (Frame("/run/rank-0/files/save.py", 7, "<module>"),)),)
    end = Outcome(OutcomeKind.RAISED, "rank 0 raised: ValueError: the shape is wrong", 0, chain=chain)
    status, out, _, _ = compare(f"--format {name} -- python save.py", lambda item, _: end if is_new(item) else PASSED)

    assert (status, text in out) == (1, True), out


def test_history_offers_a_commit_for_a_break(compare: Any) -> None:
    """It is one that the new release has, and the old one lacks."""
    frames = (Frame("/x/megatron/core/transformer/attention.py", 330, "_adjust_key_value_for_inference"),)
    end = replace(broken(), chain=(Raised("ValueError", "the shape is wrong", frames),))
    ends = lambda item, _: end if is_new(item) else PASSED  # noqa: E731
    _, out, _, _ = compare("--json -- python save.py", ends)

    assert "first in 0.9.0" in items_of(out, "compare")[0]["commit"]
    assert "history: " in compare("--format md -- python save.py", ends)[1]


def test_junit_has_a_failure_for_each_break(compare: Any, tmp_path: Path) -> None:
    """One run writes several formats."""
    formats = f"--format text --format junit={tmp_path / 'o.xml'} --format json={tmp_path / 'o.json'}"
    _, out, _, _ = compare(f"{formats} -- python save.py", fails_in_new)
    written = (tmp_path / "o.xml").read_text()

    assert ('failures="1"' in written, "new: ValueError: the shape is wrong" in written) == (True, True)
    assert ("1 new" in out, json.loads((tmp_path / "o.json").read_text())["status"]) == (True, 1)


@pytest.mark.parametrize(
    ("line", "ends", "new", "text"),
    [
        ("-- true", lambda *_: PASSED, OLD, "both stacks are the same"),
        ("--junit o.xml", lambda *_: PASSED, NEW, "--junit and --bisect are for a command"),
        ("--select case==x -- true", lambda *_: PASSED, NEW, "a command runs instead of the catalog's cases"),
        ("--metric a=( -- true", lambda *_: PASSED, NEW, "not a regular expression"),
        ("--metric a=b -- true", lambda *_: of_tests({}), NEW, "--metric a"),
        ("--confidence 1 -- true", lambda *_: PASSED, NEW, "out of range"),
        ("--junit o.xml -- true", lambda *_: broken("CommandError", "no o.xml"), NEW, "no test ran under either stack"),
        (
            "--junit o.xml -- x",
            lambda *_: of_tests({"exit status": "left with status 4"}),
            NEW,
            "old: left with status 4",
        ),
        (
            "--junit o.xml -- true",
            lambda item, _: of_tests({"new" if is_new(item) else "old": ""}),
            NEW,
            "no test has the same name under both stacks",
        ),
        (
            "-- true",
            lambda item, _: Outcome(OutcomeKind.UNAVAILABLE, "no wheel of it") if is_new(item) else PASSED,
            NEW,
            "the command can't run under the new stack",
        ),
        ("-- true", lambda *_: PASSED, "no-such-base", "no-such-base"),
        ("--least 9 --most 3 -- true", lambda *_: PASSED, NEW, "1 <= least <= most"),
        ("-- true", lambda *_: PASSED, "torch=2.5.1 mcore>=0.9", "a stack that runs has versions"),
        ("-- true", lambda *_: PASSED, "torch=9.9.9 mcore=0.9.0", "no base has this torch"),
        ("-- true", lambda *_: PASSED, "torch=2.5.1 mcore=./none@main", "no such source"),
        ("-- true", lambda *_: PASSED, "tests", "neither an environment nor a source of a package"),
        ("--format xml -- true", lambda *_: PASSED, NEW, "is none of text, json, md, junit, github, sarif"),
        ("--baseline none.json -- true", lambda *_: PASSED, NEW, "none.json"),
    ],
)
def test_bad_input_is_refused(line: str, ends: Ends, new: str, text: str, compare: Any) -> None:
    status, _, err, _ = compare(line, ends, new=new)

    assert (status, text in err) == (2, True), err


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Returns two virtual environments that differ in megatron-core."""
    found, contents = [], dict[str, PythonEnvironment]()
    for name, core in (("old", "0.8.0"), ("new", "0.9.0")):
        program = tmp_path / name / "bin" / "python"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
        packages = {"torch": "2.5.1", "megatron-core": core, "pytest": "8.0.0", "packaging": "24.0"}
        contents[str(program)] = PythonEnvironment("3.10.13", packages, path=program)
        found.append(tmp_path / name)
    monkeypatch.setattr(places, "environment_at", contents.__getitem__)
    return found[0], found[1]


def test_environments_are_compared_as_they_are(compare: Any, environments: tuple[Path, Path]) -> None:
    """Each is a base, named by its content; what breaks runs again with its Python first on PATH."""
    old, new = environments
    status, out, _, _ = compare("--json -- python save.py", fails_in_new, str(old), str(new / "bin" / "python"))

    (item,) = items_of(out, "compare")
    assert (status, item["change"]) == (1, "new")
    assert item["reproduce"] == [f"PATH={folder}/bin:$PATH python save.py" for folder in (old, new)]
    assert [json.loads(out)[side].partition("/")[2] for side in ("old", "new")] == [
        f"mcore-{core}/te-none/driver-none" for core in ("0.8.0", "0.9.0")
    ]


def test_catalog_runs_in_environments(compare: Any, environments: tuple[Path, Path]) -> None:
    ends = lambda item, _: catalogs.shown(ENTRY) if is_new(item) and item.case == "tp2" else PASSED  # noqa: E731
    _, out, _, _ = compare("--json", ends, *map(str, environments))

    assert changes(out) == {"break tp2": "new", "break pp2": "nothing"}
    line = items_of(out, "compare")[0]["reproduce"][1]
    assert line.startswith(
        f"{environments[1]}/bin/python -m pytest tests/failures --megatrix-select 'cell==host/mcore-"
    )


def test_a_break_between_environments_is_attributed(compare: Any, environments: tuple[Path, Path]) -> None:
    """By the versions that they report: releases of a package are laid over the old environment, none into it."""
    status, out, _, engine = compare("--bisect --json -- python save.py", fails_in_new, *map(str, environments))

    (item,) = items_of(out, "compare")
    assert (status, item["cause"]) == (1, "guilty: mcore; first bad: Megatron-LM 0.9.0")
    assert all(key.startswith("host-") for key in engine.ran)


def test_environments_that_are_not_taken_apart(compare: Any, environments: tuple[Path, Path]) -> None:
    """No release has the version that was built by hand."""

    own = dict[str, str]()

    def ends(item: Planned, count: int) -> Outcome:
        core = str(item.cell.stack[MCORE])
        mixed = own.setdefault(item.cell.base, core) != core
        return Outcome(OutcomeKind.UNAVAILABLE, "uv: no such version") if mixed else fails_in_new(item, count)

    status, out, _, _ = compare("--bisect --json -- python save.py", ends, *map(str, environments))

    (item,) = items_of(out, "compare")
    cause = r"one or more of: environment host-\w+, mcore 0\.9\.0, not separable here: uv: no such version"
    assert (status, bool(re.fullmatch(cause, item["cause"]))) == (1, True), item["cause"]


def test_an_environment_takes_no_further_version(compare: Any, environments: tuple[Path, Path]) -> None:
    status, _, err, _ = compare("-- true", fails_in_new, str(environments[0]), f"{environments[1]} mcore=0.9.0")

    assert (status, "an environment is a whole stack" in err) == (2, True)


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    return repositories.chain(tmp_path / "Megatron-LM", 5)


def test_revisions_of_a_clone_are_compared(compare: Any, megatron: Path) -> None:
    """--bisect finds the commit between them."""
    commits = [id for number in range(5) for id in repositories.ids(megatron, f"c{number}")]
    ends = lambda item, _: broken() if commits.index(item.source.rpartition("@")[2]) >= 3 else PASSED  # noqa: E731
    stacks = [f"torch-2.5.1 mcore={megatron}@c{number}" for number in (0, 4)]
    status, out, _, _ = compare("--bisect --json -- python save.py", ends, *stacks)

    (item,) = items_of(out, "compare")
    assert (status, item["change"]) == (1, "new")
    assert item["cause"].startswith(f"guilty: mcore; first bad: Megatron-LM {commits[3][:10]} "), item["cause"]
    assert [json.loads(out)[side].rpartition("@")[2] for side in ("old", "new")] == [commits[0], commits[4]]


def test_a_source_needs_a_base(compare: Any, megatron: Path) -> None:
    """Its package is the one that the clone contains."""
    status, _, err, _ = compare("-- true", fails_in_new, OLD, f"{megatron}@c4")
    assert (status, "a source needs a base" in err) == (2, True)
    _, out, _, _ = compare("--json -- true", lambda *_: PASSED, OLD, f"torch=2.5.1 {megatron}@c4")
    assert f" mcore={megatron}@" in json.loads(out)["new"]


def test_versions_name_a_stack(compare: Any) -> None:
    _, out, _, _ = compare("--json -- true", lambda *_: PASSED, "torch=2.5.1 mcore=0.8.0", "torch=2.5.1 mcore=0.9.0")

    answer = json.loads(out)
    assert (answer["old"], answer["new"]) == (OLD, NEW)
