"""The pytest plugin: each planned case of a failure.toml is one test, run in the interpreter of its cell.

The project's conftest.py and its commands load it: no entry point does, so that the pytest of other repositories runs
without it. An installed wheel needs `pytest -p matrix.prove.execution.plugin --pyargs matrix.failures`: no effect
if no failure.toml is collected. In a failure's folder, pytest collects the cases; with --megatrix-own-tests it collects
the failure's own tests, test_*.py, instead.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from matrix.ground.catalog.folders import ENTRY, FAILURES, roots
from matrix.ground.errors import MatrixError
from matrix.prove.planning.rerun import RERUN

if TYPE_CHECKING:
    from matrix.ground.verdicts.planned import Planned
    from matrix.ground.verdicts.record import Record
    from matrix.prove.execution.session import Session

SESSION = pytest.StashKey["Session"]()
UNCOLLECTED = pytest.StashKey[list[str]]()  # why failures have no item
BROKEN = pytest.StashKey[bool]()  # the plan could not be made
VERDICT = "verdict"  # the user property of a report
SELECT, OWN_TESTS = "--megatrix-select", "--megatrix-own-tests"
PYARGS = "matrix.failures"  # stands for the failures of an installed wheel


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options; `megatrix run` sets MEGATRIX_* in the environment instead."""
    group = parser.getgroup("megatrix")
    group.addoption(
        SELECT, metavar="EXPRESSION", default="", help='run only these cases, e.g. "mcore>=0.8 and case==tp2"'
    )
    group.addoption(OWN_TESTS, action="store_true", help="run the failures' own tests instead of their cases")


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Before pytest-xdist's hook: with -n and without --dist, a group of cases goes to one worker."""
    if config.getoption("numprocesses", None) and config.getoption("dist") == "no" and has_cases(config):
        from matrix.prove.execution.workers import DIST

        config.option.dist = DIST
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Replace the argument matrix.failures, which is no package, by the folder of the installed failures.

    Where the project's failures are collected, collect the site's too. In the process that
    distributes cases to pytest-xdist's workers, create the session and its hooks.
    """
    config.args[:] = [str(FAILURES) if argument == PYARGS else argument for argument in config.args]
    if FAILURES in argument_paths(config):
        config.args += [str(root) for root in site_roots() if str(root) not in config.args]
    if config.getoption("dist", "no") != "no" and not config.getoption("collectonly") and has_cases(config):
        from matrix.prove.execution.workers import Controller

        try:
            config.pluginmanager.register(Controller(session_of(config)))
        except MatrixError as error:
            raise pytest.UsageError(str(error)) from None


def has_cases(config: pytest.Config) -> bool:
    """Return whether the arguments of pytest include failures, whose cases are to be run."""
    if config.getoption(OWN_TESTS):
        return False
    holders = (FAILURES, *site_roots())
    return any(
        path in (root, *root.parents) or root in path.parents for path in argument_paths(config) for root in holders
    )


def argument_paths(config: pytest.Config) -> list[Path]:
    """Return the files and folders that pytest collects."""
    folder = config.invocation_params.dir
    return [
        FAILURES if argument == PYARGS else (folder / argument.partition("::")[0]).resolve() for argument in config.args
    ]


def site_roots() -> tuple[Path, ...]:
    """Return the site's folders of failures. Raises pytest.UsageError for a missing one."""
    try:
        return roots()[1:]
    except MatrixError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the files of a user's command, and without --megatrix-own-tests a failure's own tests."""
    if collection_path.name == "files" and (collection_path.parent / ENTRY).is_file():
        return True
    is_own_test = collection_path.suffix == ".py" and (collection_path.parent / ENTRY).is_file()
    return True if is_own_test and not config.getoption(OWN_TESTS) else None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> FailureFile | None:
    """Collect the cases of a failure."""
    if file_path.name != ENTRY or parent.config.getoption(OWN_TESTS):
        return None
    file: FailureFile = FailureFile.from_parent(parent, path=file_path)
    return file


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """At level gpu, let the cases of most value come first.

    Else the cases of the same overlays follow each other: their imports are held meanwhile.
    """
    if any(isinstance(item, CaseItem) for item in items):
        from matrix.prove.execution.workers import overlays

        ranks = session_of(config).ranks_of_value
        names = [overlays(item.planned) if isinstance(item, CaseItem) else "" for item in items]
        values = [ranks.get(item.planned.key, 0) if isinstance(item, CaseItem) else 0 for item in items]
        order = sorted(range(len(items)), key=lambda index: (values[index], names.index(names[index])))
        items[:] = [items[index] for index in order]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Limit the plan to the selected cases, and start their builds, whose cases come last.

    pytest-xdist's workers leave that to their controller.
    """
    if SESSION in session.config.stash and not hasattr(session.config, "workerinput"):
        cases = session.config.stash[SESSION]
        cases.choose({item.planned.key for item in session.items if isinstance(item, CaseItem)})
        if not session.config.option.collectonly:
            cases.start_builds()
            session.items.sort(key=lambda item: isinstance(item, CaseItem) and item.planned.key in cases.builds)


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """Return the line that names the base; where nothing was collected, also why."""
    lines = [config.stash[SESSION].installation.header] if SESSION in config.stash else []
    return lines if items else [*lines, *(f"megatrix: {reason}" for reason in config.stash.get(UNCOLLECTED, []))]


def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
    """Show the verdict instead of PASSED, SKIPPED or FAILED at -v."""
    if not isinstance(report, pytest.TestReport) or report.when != "call":
        return None
    verdict = dict(report.user_properties).get(VERDICT)
    if not isinstance(verdict, str):
        return None
    letter = {"passed": ".", "skipped": "s", "failed": "F"}[report.outcome]
    return report.outcome, letter, verdict.upper()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the run, its verdicts and its page; `megatrix run` prints those of the runs that it makes."""
    if SESSION in config.stash:
        terminalreporter.write("".join(f"{line}\n" for line in config.stash[SESSION].summary))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the session."""
    if SESSION in config.stash:
        config.stash[SESSION].close()


def session_of(config: pytest.Config) -> Session:
    """Return this process's session, created when the first failure is collected. Raises MatrixError."""
    from matrix.prove.execution.case_context import Options
    from matrix.prove.execution.session import Session
    from matrix.prove.execution.workers import WorkerSession
    from matrix.prove.store.paths import OUT

    if SESSION not in config.stash:
        os.environ.setdefault(RERUN, shlex.join([sys.executable, "-m", "pytest", *map(str, argument_paths(config))]))
        options = Options.from_environment(os.environ, select=config.getoption(SELECT))
        out = Path(os.environ.get("MEGATRIX_OUT", OUT))
        if hasattr(config, "workerinput"):
            config.stash[SESSION] = WorkerSession(options, out, config.workerinput)
        else:
            config.stash[SESSION] = Session(options, out)
        config.stash[SESSION].say = partial(say, config)
    return config.stash[SESSION]


def say(config: pytest.Config, text: str) -> None:
    """Print a line now; pytest keeps the output of a test until its end."""
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        sys.stderr.write(f"megatrix: {text}\n")
        sys.stderr.flush()


class FailureFile(pytest.File):
    """A failure.toml: one item for each of its planned cases."""

    def collect(self) -> Iterator[CaseItem]:
        """Yield the failure's part of the plan. If the plan can't be made, only the first file reports the error."""
        if BROKEN in self.config.stash:
            return
        from matrix.ground.catalog.loading import is_draft
        from matrix.prove.execution.session import item_name

        reasons = self.config.stash.setdefault(UNCOLLECTED, [])
        try:
            session = session_of(self.config)
            planned = session.planned
            failures = session.installation.catalog.failures
            failure = next((failure for failure in failures if failure.folder == self.path.parent), None)
            if failure is None and is_draft(self.path):
                reasons.append(f"{self.path.parent.name}: a draft; megatrix catalog list shows what is left to do")
                return
            if failure is None and session.options.run_folder:  # unfinished, and no part of the run
                return
            if failure is None:
                raise MatrixError(
                    "no failure of the catalog",
                    where=str(self.path),
                    expected=f"a folder in {', '.join(map(str, roots()))}",
                )
        except MatrixError as error:
            self.config.stash[BROKEN] = True
            raise self.CollectError(str(error)) from None
        cases = [case for case in planned if case.failure == failure.id]
        if not cases:
            here = session.installation.header.removeprefix("megatrix: ")
            command = f'megatrix run --within "failure=={failure.id}"'
            reasons.append(f"{failure.id}: none of its cases runs on {here}; {command} makes environments for them")
        for case in cases:
            item: CaseItem = CaseItem.from_parent(self, name=item_name(case), planned=case)
            yield item


class CaseItem(pytest.Item):
    """One planned case: red fails, `unavailable` is a skip with its reason, green and `learned` pass."""

    def __init__(self, *, planned: Planned, **pytests: object) -> None:
        super().__init__(**pytests)  # type: ignore[arg-type]  # the arguments of from_parent
        self.planned = planned
        self.record: Record | None = None
        self.extra_keyword_matches |= {planned.failure, planned.failure.replace("-", "_"), planned.case}

    def runtest(self) -> None:
        """Run the case and convert its verdict to a pytest result.

        With --pdb a red case runs again with rank 0 in this process, and pytest enters the frame that raised.
        """
        from matrix.ground.verdicts.text import visible
        from matrix.read import scratch

        try:
            with scratch.entered():
                reproduction = session_of(self.config).reproduction(self.planned)
                record = self.record = reproduction.run()
        except MatrixError as error:  # nothing can be recorded, of the next cases neither
            from matrix.prove.execution.workers import HANDED

            reason = f"megatrix: {visible(str(error))}"
            getattr(self.config, "workeroutput", {})[HANDED] = reason  # pytest-xdist drops that of a worker's exit
            pytest.exit(reason, returncode=2)
        self.user_properties.append((VERDICT, record.verdict.value))
        if record.verdict.colour == "red":
            if self.config.getoption("usepdb") and record.outcome.chain:
                reproduction.debug()
            raise RedError(record)
        if record.verdict.colour in ("unavailable", "not-reached"):
            pytest.skip(visible(f"{record.verdict.value}: {record.outcome.reason}"))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """Return why a red case is red; for any other exception, pytest's text."""
        if self.record and self.record.verdict.colour == "red":
            from matrix.prove.execution.reproduction import explain_red

            return explain_red(self.record)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the file and the key of the case; pytest would print each dot of the item's name as two colons."""
        return self.path, None, self.planned.key


class RedError(Exception):
    """A case is red."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.verdict.value)
