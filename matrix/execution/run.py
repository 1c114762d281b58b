"""A run from plan to report: cached and unavailable cases are recorded at once, the engine runs the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Final

from matrix.catalog.failure import Level
from matrix.catalog.model import HOST, Catalog
from matrix.errors import ExitStatus, MatrixError, closest
from matrix.execution import interrupt
from matrix.execution.cache_key import case_key
from matrix.execution.engine import BaseContents, Engine, EngineResult, offer_of
from matrix.execution.relay import Receiver
from matrix.execution.reproduction import not_run
from matrix.planning.cases import on_python
from matrix.planning.requirements import BaseOffer, MachineOffer, lacks
from matrix.planning.rerun import plan_entry, reproduce_line
from matrix.provision import configuration, host
from matrix.provision.case_overlays import overlay_digest, overlay_specs
from matrix.store import journal, night
from matrix.store.history import History, with_history
from matrix.store.night import Night
from matrix.store.paths import NIGHT, Paths
from matrix.store.run_lock import RunLock
from matrix.store.secrets import mask_file
from matrix.verdicts.outcome import Outcome, OutcomeKind
from matrix.verdicts.planned import Planned
from matrix.verdicts.reason import Lack
from matrix.verdicts.record import SILENT, Record, Verdict

ENGINE_LOG: Final = "engine.log"  # in the run's folder: the output of tox and pytest


@dataclass(frozen=True)
class Request:
    """The options of a run. `resume` names an earlier run to finish with its own plan.

    With `attach` the engine uses the processes of that run that still run; otherwise they are awaited first. After
    `limit_s` seconds the run stops; cases without a result are not reached.
    """

    planned: Sequence[Planned] = ()
    out: Path = field(default_factory=lambda: Paths().out)
    cache: bool = True
    resume: str = ""
    attach: bool = False
    label: str = NIGHT
    limit_s: float | None = None


def execute(
    request: Request,
    catalog: Catalog,
    engine: Engine,
    show: Callable[[Record], None],
    warn: Callable[[str], None],
    place: host.ExecutionSite | None = None,
    begun: Callable[[str], None] = lambda key: None,
    report: Callable[[Path, History], Night] | None = None,
) -> Night:
    """Run the cases and return the night. `place` defaults to this machine.

    `show` is called with each record when it arrives, `warn` with warnings, `begun` with the key of each case that
    begins. `report` is called with the run's folder at the end, also after a Ctrl-C, which is raised again; the default
    adds the run to the history and writes no page. Without a usable history the run warns and has an empty one.

    Raises MatrixError, also if another process works on the run; a run that can't start leaves no folder.
    """
    paths = Paths(request.out)
    if not request.resume:
        engine.ready({item.cell.base for item in request.planned})
    warn_once = cache(warn)
    folder, lock = start(request, paths, catalog, warn)

    def reported() -> Night:
        return with_history(paths.history, partial(report or night.added, folder), warn_once)

    with lock:
        try:
            with_history(
                paths.history,
                lambda history: work(request, catalog, engine, folder, history, show, warn, place, begun),
                warn_once,
            )
        except MatrixError:
            if request.resume or (folder / ENGINE_LOG).exists():
                reported()
            else:  # the engine started nothing: no run to report or resume
                shutil.rmtree(folder, ignore_errors=True)
            raise
        except BaseException:
            reported()
            raise
        return reported()


def start(request: Request, paths: Paths, catalog: Catalog, warn: Callable[[str], None]) -> tuple[Path, RunLock]:
    """Return the folder of the run, which contains its plan, and the lock on it."""
    if request.resume:
        folder = paths.run(request.resume)
        if not folder.is_dir():
            known = [path.name for path in paths.run("").glob("*")]
            raise MatrixError(
                "no such run", got=request.resume, expected=f"a folder under {folder.parent}",
                fix=closest(request.resume, known),
            )  # fmt: skip
        lock = RunLock(folder)
        for item in night.planned(folder):
            check(item, catalog)
        if not request.attach:
            journal.settle(folder, lambda: warn("waiting until the processes of the interrupted run have ended"))
        return folder, lock
    folder = paths.new_run(request.label)
    lock = RunLock(folder)
    night.write_plan(folder, [plan_entry(item) for item in request.planned])
    return folder, lock


def check(item: Planned, catalog: Catalog) -> None:
    """Raise MatrixError unless the catalog has this case of a plan, as it was planned."""
    failure = catalog.failure(item.failure)
    if item.cell.base != HOST:
        catalog.base(item.cell.base)
    if not item.reproducible:
        return
    case = next((one for one in failure.case if one.name == item.case and item.level in one.levels), None)
    if case is None or (case.ranks, case.launcher) != (item.ranks, item.launcher):
        raise MatrixError(
            "the catalog does not have this planned case", got=f"{item.key}, {item.ranks} ranks, {item.launcher}",
            expected=f"{case.ranks} ranks, {case.launcher}" if case else "a case of the failure at this level",
            fix="start a new run: the plan was changed, or is of another version",
        )  # fmt: skip


def work(
    request: Request,
    catalog: Catalog,
    engine: Engine,
    folder: Path,
    history: History,
    show: Callable[[Record], None],
    warn: Callable[[str], None],
    place: host.ExecutionSite | None = None,
    begun: Callable[[str], None] = lambda key: None,
) -> None:
    """Record the cases that need no process, then run the others with the engine."""
    done = journal.read(folder).results
    pending = [item for item in night.planned(folder) if item.key not in done]
    site = place or host.look()
    installed = cache(engine.installed)  # 20 ms per environment, which hundreds of cases share
    offer = cache(lambda base: offer_of(catalog, engine, base))
    left: list[Planned] = []
    with journal.Journal.new(folder) as kept:
        for item in pending:
            record = None
            if lack := site.lack(catalog, item, offer(item.cell.base)):
                outcome = unavailable(catalog, item, offer(item.cell.base), site, lack)
                record = not_run(item, catalog, outcome, folder.name)
            if record is None and request.cache:
                record = cached(item, catalog, installed, site, history, folder.name)
            if record is None:
                left.append(item)
                continue
            kept.result(record)
            show(record)
    if not left:
        return
    bases = list(dict.fromkeys(item.cell.base for item in left))
    ending, passed = EngineResult(), False
    with Receiver(show, begun) as receiver:
        environ = {"MEGATRIX_RUN": str(folder.resolve()), "MEGATRIX_RELAY": receiver.address}
        try:
            with interrupt.after(request.limit_s):
                ending = engine.run(bases, environ, folder / ENGINE_LOG)
        except interrupt.TimeLimitReached:
            passed = True
        finally:
            mask_file(folder / ENGINE_LOG)
    done = journal.read(folder).results
    with journal.Journal.new(folder) as kept:
        for item in left:
            if item.key not in done and item.cell.base in ending.refused:
                outcome = Outcome(OutcomeKind.UNAVAILABLE, ending.refused[item.cell.base])
                record = not_run(item, catalog, outcome, folder.name)
                kept.result(record)
                show(record)
    lost = {item.key for item in left} - set(journal.read(folder).results)
    if lost and passed:
        warn(f"{len(lost)} of {len(left)} cases were not reached within the time limit; --resume runs them")
    elif lost:
        warn(
            f"{len(lost)} of {len(left)} cases were not reached: the engine ended with {ending.status}; "
            f"see its output in {folder / ENGINE_LOG}"
        )


def unavailable(catalog: Catalog, item: Planned, offer: BaseOffer, site: host.ExecutionSite, first: Lack) -> Outcome:
    """Return the outcome of a case that lacks something: `first`, which is its reason, and what it lacks besides."""
    added = replace(offer, lack="", clones=None)  # what the site lacks when base and clones are there
    others = (*lacks(catalog, item, offer, MachineOffer()), site.lack(catalog, item, added))
    every = tuple(dict.fromkeys(lack for lack in (first, *others) if lack))
    return Outcome(OutcomeKind.UNAVAILABLE, first.text, lacks=every)


def cached(
    item: Planned,
    catalog: Catalog,
    installed: Callable[[str], BaseContents | None],
    site: host.ExecutionSite,
    history: History,
    run: str,
) -> Record | None:
    """Return the cached record of a case with the same content, None if it must run.

    `installed` returns the contents of a base.
    """
    if item.level is Level.GPU:
        return None  # it also depends on the GPUs and the user-mode driver, which are unknown before the case runs
    held = installed(item.cell.base)
    if held is None:
        return None
    item = on_python(catalog, item, held.environment.minor)
    try:
        settings, both = configuration.load(), filter(None, (item, item.writer))
        place = held.environment, settings, held.interpreter, held.image
        digests = [overlay_digest(spec) for one in both for spec in overlay_specs(one, *place)]
        content = case_key(item, catalog.failure(item.failure), held.environment, digests, site, held.image)
        found = history.cached(content)
    except MatrixError:
        return (
            None  # a source is missing, which the case reports when it runs; or the history fails, as the report will
        )
    if found is None or found.key != item.key:
        return None
    return replace(found, planned=item, run=run, reproduce=reproduce_line(item))


def exit_status(ended: Night) -> ExitStatus:
    """Return BAD if a record is red or not reached, NOTHING if none has a result or a level is missing, else GOOD."""
    if any(record.verdict.colour == "red" or record.verdict is Verdict.NOT_REACHED for record in ended.records):
        return ExitStatus.BAD
    nothing = ended.missing or all(record.verdict in SILENT for record in ended.records)
    return ExitStatus.NOTHING if nothing else ExitStatus.GOOD
