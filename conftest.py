"""The door for pytest: turns the cases of a plan into tests, inside the cell's own interpreter."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from matrix.errors import MatrixError
from matrix.execution.reproduction import Reproduction, explain_red
from matrix.execution.session import Options, Session
from matrix.planning.planned import Planned
from matrix.store.paths import OUT

ROOT = Path(__file__).parent
SESSION = pytest.StashKey[Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what a person types at a desk; a run that `megatrix run` drives sets MEGATRIX_* in the environment."""
    group = parser.getgroup("megatrix")
    group.addoption("--select", default="", help='which cases: "mcore>=0.8 and case==tp2"')


def session_of(config: pytest.Config) -> Session:
    """Return this process's session, made when the first reproduction is collected."""
    if SESSION not in config.stash:
        options = Options.from_environment(os.environ, select=config.getoption("--select"))
        try:
            config.stash[SESSION] = Session(options, Path(os.environ.get("MEGATRIX_OUT", OUT)))
        except MatrixError as error:
            raise pytest.UsageError(str(error)) from None
    return config.stash[SESSION]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each planned case; a reproduction with no case here makes none."""
    if "reproduction" not in metafunc.fixturenames:
        return
    node = metafunc.definition.nodeid
    try:
        planned = [item for item in session_of(metafunc.config).planned if item.test == node]
    except MatrixError as error:
        raise pytest.UsageError(str(error)) from None
    ids = [f"{item.case}-{item.level.value}-{item.cell.id}" for item in planned]
    metafunc.parametrize("reproduction", planned, ids=ids, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out reproductions without a case here: pytest would show each as a skip that nobody planned."""
    empty = [item for item in items if item.get_closest_marker("failure") and not has_case(item)]
    if empty:
        config.hook.pytest_deselected(items=empty)
        items[:] = [item for item in items if item not in empty]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Say which base this is."""
    return [config.stash[SESSION].told] if SESSION in config.stash else []


def has_case(item: pytest.Item) -> bool:
    """Say whether the test got a planned case."""
    return isinstance(getattr(item, "callspec", None) and item.callspec.params.get("reproduction"), Planned)


@pytest.fixture
def reproduction(request: pytest.FixtureRequest) -> Reproduction:
    """Return the planned case, ready to run."""
    planned: Planned = request.param
    return session_of(request.config).reproduction(planned)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Turn the verdict into pytest's words: red fails, `unavailable` is a skip with its reason, green passes."""
    result = yield
    if isinstance(case := pyfuncitem.funcargs.get("reproduction"), Reproduction):
        if case.record is None:
            pytest.fail("the test has run nothing: it must call reproduction.run", pytrace=False)
        if case.record.verdict.colour == "red":
            pytest.fail(explain_red(case.record), pytrace=False)
        if case.record.verdict.colour in ("unavailable", "not-reached"):
            pytest.skip(f"{case.record.verdict.value}: {case.record.outcome.reason}")
    return result


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what the session started."""
    if SESSION in config.stash:
        config.stash[SESSION].close()
