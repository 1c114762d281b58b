"""Fixtures: a browser, and the pages of a night."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.cli import places
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Level
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.provision import host
from matrix.prove.store.history import History
from matrix.prove.store.journal import Journal
from matrix.prove.store.paths import Paths, write_whole
from matrix.prove.store.stored_run import StoredRun, write_plan
from matrix.show.bisection import bisection_page
from matrix.show.site import render
from tests.browser.chromium import Browser
from tests.founding import BEHIND_SAVE, CALL, MASK, MPI, SAVE
from tests.unit import catalogs
from tests.unit.catalogs import case, clause, failure, real, stack
from tests.unit.engines import HOST, FakeEngine
from tests.unit.show.samples import attribution, bisection, changed, night, planned

ENTRY = failure(
    "save-breaks",
    affected=(clause(mcore="<0.9", torch=">=2.4"),),
    works=(clause(mcore=">=0.9"), clause(torch="<2.4")),
    case=(case("tp2", (Level.CPU,)),),
)
KNOWN = catalogs.catalog(ENTRY, stacks=(stack("save-breaks", "torch-2.4.0", "0.8.0rc0"),))
# The pages of failures are made from the catalog: the sample night's failures stand for real ones.
REAL = {"dud-assertion": SAVE, "dud-write-item": BEHIND_SAVE, "cut-offload-args": CALL, "tx-overlap": MPI,
        "long-samples": MASK}  # fmt: skip
STRANGE = Outcome(OutcomeKind.RAISED, "rank 0 raised: KeyError", 0, chain=(Raised("KeyError", "'loss'"),))

# A command or a stack without a space at which it could be broken.
LONG = "run:" + "/".join(["ngc-24.07", "mcore-0.9.0rc0+094d66b", "te-1.8.0+37280ec", "driver-550.54.15"] * 3)


def real_night() -> list[Record]:
    """The sample night with failures of the catalog."""
    return [changed(one, failure=REAL[one.failure], other=REAL.get(one.other or "", one.other)) for one in night()]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser(os.environ.get("MEGATRIX_CHROMIUM", "chromium")) as running:
        running.allow_clipboard()
        yield running


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """Three nights with every verdict, a bisection and an attribution."""
    paths = Paths(tmp_path_factory.mktemp("site"))
    for run, until in (("2026-01-29-night", 90), ("2026-01-30-night", None), ("2026-01-31-night", None)):
        write_plan(paths.run(run), [planned(each) for each in real_night()])
        with Journal.new(paths.run(run)) as journal:
            for each in real_night()[:until]:
                if each.verdict is not Verdict.NOT_REACHED:
                    journal.started(each.key)
                    journal.result(each)
        with History(paths.history) as history:
            render(StoredRun(paths.run(run)), paths.out, history, real())
    one, two = bisection(LONG), attribution(LONG)
    write_whole(paths.bisections / "one.html", bisection_page(one, LONG))
    write_whole(paths.bisections / "two.html", bisection_page(two, LONG))
    return paths


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """Run `megatrix` with a small catalog and an engine in which every case expected to work raises KeyError."""
    engine = FakeEngine(KNOWN)
    engine.ends = lambda item: STRANGE if item.expectation.value == "works" else engine.as_expected(item)
    monkeypatch.setattr(loading, "load", lambda: KNOWN)
    monkeypatch.setattr(host, "look", lambda: HOST)
    monkeypatch.setattr(places, "LocalEngine", lambda *_, **__: engine)
    monkeypatch.setenv("MEGATRIX_OUT", str(tmp_path / "out"))
    monkeypatch.delenv("MEGATRIX_COMMAND", raising=False)
    monkeypatch.setenv("BASES_OF_TESTS", str(tmp_path / "bases"))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield engine
    for number, handler in before.items():  # `megatrix run` installs its own
        signal.signal(number, handler)
