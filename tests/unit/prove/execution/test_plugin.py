"""The pytest plugin: cases are items named after the failure, and their verdicts are pytest results."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.ground.catalog.failure import Failure
from matrix.ground.catalog.folders import SITE
from matrix.ground.catalog.schema import read_toml
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.execution import plugin
from matrix.prove.provision.project import ROOT
from tests.unit.catalogs import case, catalog, failure, planned
from tests.unit.show.samples import record

pytest_plugins = ["pytester"]
CASES = ("tp2", "pp2", "world1")


class FakeSession:
    """A session with three cases and a verdict for each."""

    summary = ("megatrix: run 20260131T020000000000Z-host: 3 holds",)

    def __init__(self, entry: Failure, verdicts: dict[str, Verdict]) -> None:
        known = catalog(entry)
        self.installation = SimpleNamespace(catalog=known, header="megatrix: base host")
        self.planned = [replace(planned(known), case=name) for name in CASES]
        self.ranks_of_value = dict[str, int]()
        self._verdicts, self.ran, self.debugged = verdicts, list[str](), False
        self.builds, self.started = dict[str, object](), 0  # started: how often the builds were

    def reproduction(self, item: Planned) -> FakeSession:
        self.ran.append(item.case)
        return self

    def run(self) -> Record:
        verdict = self._verdicts.get(self.ran[-1], Verdict.HOLDS)
        chain = (Raised("KeyError", "word"),) if verdict is Verdict.VANISHED else ()
        outcome = Outcome(OutcomeKind.PASSED, "needs 8 GPUs" if verdict is Verdict.UNAVAILABLE else "", chain=chain)
        return replace(record(), verdict=verdict, outcome=outcome)

    def debug(self) -> None:
        def upstream() -> None:
            name = "word"
            raise KeyError(name)

        self.debugged = True
        upstream()

    def start_builds(self) -> None:
        self.started += 1

    def choose(self, keys: Collection[str]) -> None:
        self.planned = [item for item in self.planned if item.key in keys]

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    """Return the folder of a failure with its own test."""
    path = pytester.mkdir("save_breaks")
    (path / "failure.toml").write_text("")
    (path / "test_save_breaks.py").write_text("def test_own(): pass\n")
    return path


@pytest.fixture
def session(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    entry = failure("save-breaks", folder=folder, case=tuple(map(case, CASES)))
    fake = FakeSession(entry, {"pp2": Verdict.VANISHED, "world1": Verdict.UNAVAILABLE})

    def session_of(config: pytest.Config) -> FakeSession:
        config.stash[plugin.SESSION] = fake  # type: ignore[misc]  # the fake stands for a session
        return fake

    monkeypatch.setattr(plugin, "session_of", session_of)
    return fake


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "matrix.prove.execution.plugin", *arguments)


def test_cells_do_not_import_rich() -> None:
    """The modules of every layer that a cell imports, with rich absent: a cell has pytest and packaging only."""
    text = """
import importlib, pkgutil, sys
desk = ("rich", "jinja2", "covertable", "yaml")
sys.modules.update(dict.fromkeys(desk))
for layer in ("prove.execution", "prove.provision", "prove.store", "prove.planning", "kit", "read", "ground"):
    package = importlib.import_module(f"matrix.{layer}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        try:
            print(importlib.import_module(module.name).__name__)
        except ModuleNotFoundError as error:  # torch is not installed here
            if error.name in desk:
                raise
"""
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, "matrix.prove.execution.plugin" in done.stdout.split()) == (0, True), done.stderr


@pytest.mark.usefixtures("session")
def test_verdict_is_shown_and_counted(pytester: pytest.Pytester) -> None:
    result = run(pytester, "-v", "save_breaks")
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*save-breaks-tp2-cpu-torch-2.4.0/mcore-0.8.0/te-none/driver-none HOLDS*"])
    result.stdout.fnmatch_lines([*FakeSession.summary])
    result.stdout.fnmatch_lines(["*pp2*VANISHED*", "*world1*UNAVAILABLE*"])
    result.stdout.fnmatch_lines(["*the failure is fixed, or the reproduction is broken*", "*reproduce: *"])


def test_missing_cases_have_a_reason(pytester: pytest.Pytester, session: FakeSession, folder: Path) -> None:
    session.planned = []
    result = run(pytester, "save_breaks", "-k", "tp2")
    result.stdout.fnmatch_lines(["megatrix: save-breaks: none of its cases runs on base host; megatrix run --within*"])
    session.installation.catalog = catalog()
    (folder / "failure.toml").write_text('title = "TODO"')
    result = run(pytester, "save_breaks")
    result.stdout.fnmatch_lines(["megatrix: save_breaks: a draft; *"])
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(("word", "count"), [("tp2", 1), ("save_breaks", 3), ("save-breaks", 3), ("another", 0)])
def test_keyword_selects_by_failure_and_case(
    pytester: pytest.Pytester, session: FakeSession, word: str, count: int
) -> None:
    run(pytester, "save_breaks", "-k", word)
    assert len(session.ran) == len(session.planned) == count


def test_files_of_a_command_are_not_collected(pytester: pytest.Pytester, session: FakeSession, folder: Path) -> None:
    """A command such as `pytest tests/test_a.py` names tests, whose copies lie in the folder of its entry."""
    (folder / "files").mkdir()
    (folder / "files" / "test_theirs.py").write_text("import no_such_module\n")
    run(pytester, "save_breaks").assert_outcomes(passed=1, failed=1, skipped=1)
    assert session.ran == list(CASES)


def test_the_sites_failures_are_collected_too(
    pytester: pytest.Pytester, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the project's are; another folder is collected alone."""
    monkeypatch.setattr(plugin, "FAILURES", pytester.mkdir("project"))
    pytester.mkdir("another")
    monkeypatch.setenv(SITE, str(pytester.path))
    run(pytester, "another")
    assert session.ran == []
    run(pytester, "project")
    assert session.ran == list(CASES)


def test_last_failed_runs_only_red_cases(pytester: pytest.Pytester, session: FakeSession) -> None:
    run(pytester, "save_breaks")
    session.ran.clear()
    run(pytester, "save_breaks", "--lf")
    assert session.ran == ["pp2"]


def test_cases_with_a_build_come_last(pytester: pytest.Pytester, session: FakeSession) -> None:
    """The builds start before the first case, and not where the cases are only listed."""
    session.builds = {session.planned[0].key: object()}
    run(pytester, "save_breaks", "--collect-only")
    assert session.started == 0
    run(pytester, "save_breaks")
    assert session.started == 1
    assert session.ran == [*CASES[1:], CASES[0]]


RECORDER = """
import pdb, traceback
class Recorder(pdb.Pdb):
    def interaction(self, frame, error):
        trace = getattr(error, "__traceback__", error)  # an exception since Python 3.13
        print("STOPPED IN", traceback.extract_tb(trace)[-1].name)
"""


def test_pdb_enters_the_frame_that_raised(pytester: pytest.Pytester, session: FakeSession) -> None:
    """A red case runs again in this process; --lf then runs it alone."""
    pytester.makepyfile(recorder=RECORDER)
    pytester.syspathinsert()
    result = run(pytester, "save_breaks", "--pdb", "--pdbcls=recorder:Recorder")
    result.stdout.fnmatch_lines(["*STOPPED IN upstream*"])
    session.ran.clear()
    run(pytester, "save_breaks", "--lf")
    assert session.ran == ["pp2"]


def test_exitfirst_stops_at_the_first_red_case(pytester: pytest.Pytester, session: FakeSession) -> None:
    run(pytester, "save_breaks", "-x")
    assert session.ran == ["tp2", "pp2"]


def test_unwritable_run_ends_the_session_once(pytester: pytest.Pytester, session: FakeSession) -> None:
    """A full disk or a read-only output folder: the next cases could not be recorded either."""

    def refuse(item: Planned) -> FakeSession:
        raise MatrixError("can't be written", where="/reports/out")

    session.reproduction = refuse  # type: ignore[method-assign]
    result = run(pytester, "save_breaks")
    assert result.ret == 2
    assert result.stdout.str().count("/reports/out: can't be written") == 1


def test_own_tests_run_without_cases(pytester: pytest.Pytester, session: FakeSession) -> None:
    run(pytester, "save_breaks", "--megatrix-own-tests").assert_outcomes(passed=1)
    assert session.ran == []


def test_collection_error_is_printed_once(
    pytester: pytest.Pytester, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = pytester.mkdir("another_one")
    (other / "failure.toml").write_text("")

    def refuse(config: pytest.Config) -> None:
        raise MatrixError("no such base", got="torch-9")

    monkeypatch.setattr(plugin, "session_of", refuse)
    result = run(pytester, folder.name, other.name)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert result.stdout.str().count("got:      torch-9") == 1


FOREIGN = {
    "a module": {
        "matrix.py": "def add(a, b):\n    return a + b\n",
        "test_it.py": "import matrix\n\ndef test_add():\n    assert matrix.add(1, 2) == 3\n",
    },
    "a package": {
        "matrix/__init__.py": "from matrix.core import ONE\n",
        "matrix/core.py": "ONE = 1\n",
        "tests/test_it.py": "from matrix import ONE\n\ndef test_one():\n    assert ONE == 1\n",
        "failures/x/failure.toml": "id = 'not an entry'\n",
    },
    "options": {
        "conftest.py": "def pytest_addoption(parser):\n    for name in ('--select', '--own-tests'):\n"
        "        parser.addoption(name, default='yes')\n",
        "test_it.py": "def test_option(request):\n    assert request.config.getoption('--select') == 'yes'\n",
    },
}


@pytest.mark.parametrize("name", FOREIGN)
def test_pytest_of_another_repository_is_unchanged(tmp_path: Path, name: str) -> None:
    """The same output and options with the project installed as without it."""
    repository, site = tmp_path / "repository", tmp_path / "site"
    for path, text in FOREIGN[name].items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(text)
    info = site / "megatrix-0.1.0.dist-info"
    info.mkdir(parents=True)
    (site / "matrix").symlink_to(ROOT / "matrix")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: megatrix\nVersion: 0.1.0\n")
    groups = read_toml(ROOT / "pyproject.toml")["project"].get("entry-points", {})
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in pairs.items())
        for group, pairs in groups.items()
    ]
    (info / "entry_points.txt").write_text("".join(lines))

    def ran(*words: str, installed: bool) -> tuple[int, str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MEGATRIX_"))
        }
        environment["PYTHONPATH"] = str(site) if installed else ""
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
        done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, re.sub(r"in [\d.]+s", "", done.stdout + done.stderr)

    alone = ran(installed=False)
    assert (alone[0], "1 passed" in alone[1]) == (0, True), alone[1]
    assert ran(installed=True) == alone
    assert ran("--help", installed=True) == ran("--help", installed=False)


def test_an_unrelated_run_makes_no_session(pytester: pytest.Pytester, session: FakeSession) -> None:
    pytester.makepyfile("def test_it(): pass")
    run(pytester, "test_an_unrelated_run_makes_no_session.py").assert_outcomes(passed=1)
    assert session.ran == []


def test_conftest_imports_nothing() -> None:
    """It is loaded in cells, where a test library may be missing, or be there and unable to write."""
    tree = ast.parse((ROOT / "conftest.py").read_text())
    assert [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))] == []


def test_cells_import_only_pytest_and_packaging() -> None:
    """Every module of matrix.prove.execution and what it imports; a cell has no library of pages or planner."""
    text = """
import importlib, pkgutil, sys
if sys.version_info >= (3, 11):
    sys.modules["tomli"] = None  # a cell need not have it
import packaging, pytest
before = set(sys.modules)
import matrix.prove.execution
for module in pkgutil.walk_packages(matrix.prove.execution.__path__, "matrix.prove.execution."):
    importlib.import_module(module.name)
added = {name.partition(".")[0] for name in set(sys.modules) - before}
assert "matrix.prove.execution.plugin" in sys.modules
print(*sorted(added - set(sys.stdlib_module_names)))
"""
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - {"__mp_main__", "packaging", "pytest", "_pytest", "tomli"} == {"matrix"}


@pytest.mark.parametrize(("first", "order"), [("", "0213"), ("3", "3021")])
def test_cases_of_the_same_overlays_follow_each_other(first: str, order: str) -> None:
    """After those of most value."""
    known = catalog(failure())
    cores = ("0.8.0", "0.9.0", "0.8.0", "0.9.0")
    items = [plugin.CaseItem.__new__(plugin.CaseItem) for _ in cores]
    for number, (item, core) in enumerate(zip(items, cores, strict=True)):
        item.name, item.planned = str(number), planned(known, core=core, case=f"case-{number}")
    ranks = {item.planned.key: 0 if item.name == first else 2 for item in items}
    config: Any = SimpleNamespace(stash={plugin.SESSION: SimpleNamespace(ranks_of_value=ranks)})
    mixed: list[pytest.Item] = [*items]
    plugin.pytest_collection_modifyitems(config, mixed)
    assert "".join(item.name for item in mixed) == order
