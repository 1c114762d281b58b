"""Probe points of an axis: by reading both sides (level contract), or by running cells through an engine."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matrix.ground.catalog.failure import ContractCall, Failure, Level
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.judge import judge
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.prove.bisection.axes import Clone
from matrix.prove.execution import runner
from matrix.prove.execution.engine import Engine
from matrix.prove.execution.preflights import outcome_of
from matrix.prove.execution.reproduction import CaseContext, make_record
from matrix.prove.provision import host
from matrix.prove.provision.host import ExecutionSite
from matrix.prove.store import journal
from matrix.prove.store.paths import BISECTION
from matrix.read.api import consuming, offering, sides
from matrix.read.api.comparison import find

Show = Callable[[Record], None]
# Runs every case, for the first time, the second time, ..., and shows each record as it comes.
Ask = Callable[[Sequence[Planned], Show, int], None]


def reads_only(failure: Failure, level: Level) -> bool:
    """Return whether a failure is judged at a level by reading both sides in this process, without a cell."""
    return level is Level.CONTRACT and failure.contract is not None


class ContractProbes:
    """Probes by reading: commits from their blobs, everything else as `megatrix contract` does.

    Results are cached by the blob ids of the files read, so a commit that changes none of these files costs nothing.
    """

    def __init__(self, catalog: Catalog, clones: Sequence[Clone]) -> None:
        self._catalog, self._clones = catalog, {clone.path: clone for clone in clones}
        self._kept: dict[Any, Any] = {}

    def __call__(self, planned: Sequence[Planned], show: Show, number: int = 1) -> None:
        """Read and judge each case."""
        for item in planned:
            failure = self._catalog.failure(item.failure)
            started = time.monotonic()
            outcome = self._outcome(item, failure.contract)
            outcome = replace(outcome, seconds=time.monotonic() - started)
            judgement = judge(failure, item.expectation, outcome, self._catalog.failures)
            where = CaseContext(reproduce=contract_line(item), run=BISECTION)
            show(make_record(item, outcome, judgement, where, journal.utc_now()))

    def _outcome(self, item: Planned, call: ContractCall | None) -> Outcome:
        if call is None:
            return Outcome(OutcomeKind.UNAVAILABLE, "the entry has no [contract] call to read")
        try:
            core, engine = (str(item.cell.stack[name]) for name in (MCORE, TE))
            calls = self._facts(item.source, core, consuming.is_part, sides.calls_of, consuming.read_calls)
            surface = self._facts(item.te_source, engine, offering.is_part, sides.surface_of, offering.read_offering)
        except (MatrixError, SyntaxError) as error:
            reason = error.brief if isinstance(error, MatrixError) else f"this interpreter can't parse it: {error}"
            return Outcome(OutcomeKind.UNAVAILABLE, reason)
        return outcome_of(call, find(calls, surface, engine))

    def _facts(
        self,
        source: str,
        version: str,
        part: Callable[[str], bool],
        named: Callable[[str], Any],
        read: Callable[[Mapping[str, bytes], str], Any],
    ) -> Any:
        if is_build(source):
            source = ""
        path, _, commit = source.rpartition("@")
        clone = self._clones.get(path)
        if clone is None:
            return self._once(source or version, lambda: named(source or version))
        files = clone.files(commit, part)
        return self._once(frozenset(files.items()), lambda: read(clone.blobs(files), version))

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


def contract_line(item: Planned) -> str:
    """Return the command that shows the findings of a point read at level contract."""
    core, engine = (str(item.cell.stack[name]) for name in (MCORE, TE))
    mcore = core if is_build(item.source) else item.source or core
    te = engine if is_build(item.te_source) else item.te_source or engine
    return f"megatrix contract --mcore {shlex.quote(mcore)} --te {shlex.quote(te)}"


def is_build(source: str) -> bool:
    """Return whether a source is a build of the catalog (megatron-lm@REV): recorded, so read without a clone."""
    return source.partition("@")[0] in host.CLONES


class CellProbes:
    """Probes by running cells, one run of the engine per round; verdicts in the cache are used."""

    def __init__(
        self,
        catalog: Catalog,
        engine: Engine,
        out: Path,
        warn: Callable[[str], None],
        place: ExecutionSite | None = None,
        *,
        cache: bool = True,
    ) -> None:
        self._catalog, self._engine, self._place = catalog, engine, place
        self._out, self._warn, self._cache = out, warn, cache

    def __call__(self, planned: Sequence[Planned], show: Show, number: int = 1) -> None:
        """Run the cases. A verdict in the cache is the first run of its case.

        Raises MatrixError where the engine ended before each case had a result: that says nothing about a point.
        """
        reported: set[str] = set()

        def show_now(record: Record) -> None:
            reported.add(record.key)
            show(record)

        cache = self._cache and number == 1
        request = runner.Request(planned, self._out, cache, label=BISECTION, site=self._place)
        ended = runner.execute(request, self._catalog, self._engine, runner.Events(show=show_now, warn=self._warn))
        for record in runner.results(ended, self._out):
            if record.key not in reported:
                show(record)
