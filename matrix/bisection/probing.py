"""Asking points of an axis: by reading both sides (level contract), or by running cells through an engine."""

from __future__ import annotations

import gc
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from matrix.bisection.clone import Clone, Commit
from matrix.bisection.noise import Seen
from matrix.catalog.failure import ContractCall, Failure, Level
from matrix.catalog.model import Catalog
from matrix.contract import consuming, offering, reading
from matrix.contract.checks import outcome_of
from matrix.contract.recording import MCORE
from matrix.contract.surface import Surface
from matrix.contract.usage import Calls
from matrix.errors import MatrixError
from matrix.execution import run
from matrix.execution.engine import Engine
from matrix.execution.reproduction import CaseContext, make_record
from matrix.planning.planned import Planned
from matrix.planning.rerun import reproduce_line
from matrix.provision import configuration
from matrix.provision.host import ExecutionSite
from matrix.store import journal
from matrix.verdicts.judge import judge
from matrix.verdicts.outcome import Outcome, OutcomeKind
from matrix.verdicts.record import Record

Show = Callable[[Record], None]
Ask = Callable[[Sequence[Planned], Show], None]  # runs every case once and shows each record as it comes

LABEL: Final = "bisect"  # of its runs


def seen_of(record: Record) -> Seen:
    """Return what a record says: this failure's signature is bad, a pass is good, and everything else says nothing."""
    if record.signature is not None:
        return Seen.BAD
    return Seen.GOOD if record.outcome.kind is OutcomeKind.PASSED else Seen.SKIP


# What `git bisect run` makes of a command's exit status: 0 is good, 1 - 124, 126 and 127 are bad, 125 is a skip.
GIT: Final = {Seen.GOOD: 0, Seen.BAD: 1, Seen.SKIP: 125}


def exit_code(records: Sequence[Record]) -> int:
    """Return what `git bisect run` is told: bad where one shows the failure, good where all pass, else skip."""
    seen = {seen_of(record) for record in records}
    return GIT[Seen.BAD if Seen.BAD in seen else Seen.GOOD if seen == {Seen.GOOD} else Seen.SKIP]


def reads_only(failure: Failure, level: Level) -> bool:
    """Say whether a failure is judged at a level by reading both sides here, without a cell."""
    return level is Level.CONTRACT and failure.contract is not None


class ContractProbes:
    """Asks by reading: commits from their blobs, everything else as `megatrix contract` does.

    What was read is kept by the ids of the files it was read from, so commits that change nothing of it cost nothing.
    """

    def __init__(self, catalog: Catalog, clones: Sequence[Clone]) -> None:
        self._catalog, self._clones = catalog, {clone.path: clone for clone in clones}
        self._kept: dict[Any, Any] = {}

    def __call__(self, planned: Sequence[Planned], show: Show) -> None:
        """Read and judge each case."""
        for item in planned:
            failure = self._catalog.failure(item.failure)
            started = time.monotonic()
            outcome = self._outcome(item, failure.contract)
            outcome = replace(outcome, seconds=time.monotonic() - started)
            judgement = judge(failure, item.expectation, outcome, self._catalog.failures)
            where = CaseContext(reproduce=contract_line(item), run=LABEL)
            show(make_record(item, outcome, judgement, where, journal.utc_now()))

    def suspects(self, call: ContractCall, clone: Clone, commits: Sequence[Commit]) -> set[int]:
        """Return the places of the commits that changed a file in which the failure's callee is named.

        Read from trees and blobs alone, a hundred times as fast as the calls themselves. It says where to look first,
        never what to answer.
        """
        part = consuming.is_part if clone.package == MCORE else offering.is_part
        names = [name.encode() for name in re.findall(r"\w{2,}", call.callee)]
        naming: dict[str, bool] = {}

        def named(blob: str) -> bool:
            if blob not in naming:
                content = clone.blob(blob)
                naming[blob] = any(name in content for name in names)
            return naming[blob]

        files: dict[str, frozenset[tuple[str, str]]] = {}
        found = set()
        for place, commit in enumerate(commits):
            telling = {path: blob for path, blob in clone.files(commit.id, part).items() if named(blob)}
            files[commit.id] = frozenset(telling.items())
            before = [files[parent] for parent in commit.parents if parent in files]
            if before and files[commit.id] not in before:
                found.add(place)
        return found

    def _outcome(self, item: Planned, call: ContractCall | None) -> Outcome:
        if call is None:
            return Outcome(OutcomeKind.UNAVAILABLE, "the entry names no call to read")
        try:
            calls = self._facts(item.source, item.cell.mcore, consuming.is_part, reading.calls_of, _read_calls)
            surface = self._facts(item.te_source, item.cell.te, offering.is_part, reading.surface_of, _read_surface)
        except (MatrixError, SyntaxError) as error:
            said = error.brief if isinstance(error, MatrixError) else f"no Python that is read here: {error}"
            return Outcome(OutcomeKind.UNAVAILABLE, said)
        return outcome_of(call, calls, surface, item.cell.te)

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
            with _uncollected():
                self._kept[key] = make()
        return self._kept[key]


def _read_calls(files: Mapping[str, bytes], version: str) -> Calls:
    return consuming.read_calls(files, version)


def _read_surface(files: Mapping[str, bytes], version: str) -> Surface:
    return offering.read_offering(files, version)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Read without the garbage collector, which finds nothing: 0.4 s instead of 0.8 s for one megatron-core."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def contract_line(item: Planned) -> str:
    """Return the line that shows the findings of a point read at level contract."""
    mcore = item.cell.mcore if is_build(item.source) else item.source or item.cell.mcore
    te = item.cell.te if is_build(item.te_source) else item.te_source or item.cell.te
    return f"megatrix contract --mcore {shlex.quote(mcore)} --te {shlex.quote(te)}"


def is_build(source: str) -> bool:
    """Say whether a source is a build of the catalog (megatron-lm@REV): it is recorded, and read without a clone."""
    return source.partition("@")[0] in configuration.CLONES


class CellProbes:
    """Asks by running cells, all of a round in one run of the engine; verdicts that are known by content are used."""

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

    def __call__(self, planned: Sequence[Planned], show: Show) -> None:
        """Run the cases. What was not reached is shown as that."""
        shown: set[str] = set()

        def tell(record: Record) -> None:
            shown.add(record.key)
            show(record)

        request = run.Request(planned, self._out, self._cache, label=LABEL)
        ended = run.execute(request, self._catalog, self._engine, tell, self._warn, self._place)
        for record in ended.records:
            if record.key not in shown:
                show(record)


def line_of(failure: Failure, item: Planned) -> str:
    """Return the line that asks a point again."""
    return contract_line(item) if reads_only(failure, item.level) else reproduce_line(item)
