"""The procedure of a bisection: open it, learn from its ends what is bad, search between them, confirm the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from matrix.bisection import axes
from matrix.bisection.axes import Subject
from matrix.bisection.clone import Clone
from matrix.bisection.commits import Suspects, none, of_call, of_signatures
from matrix.bisection.ends import confirmed, ended, keep_judged, learn, measured, ran, twice
from matrix.bisection.joint import BisectionAnswer, cataloged
from matrix.bisection.metric import LEAST
from matrix.bisection.noise import CERTAIN, Noise, Sample
from matrix.bisection.own import OwnCommand, read_signatures, table_of, toml_of
from matrix.bisection.probe_session import (
    BisectionSession,
    ProbeReport,
    ProbeStore,
    diverged_of,
    metric_of,
    runs_of_record,
    seen_of,
    store_name,
)
from matrix.bisection.probing import Ask, CellProbes, ContractProbes, reads_only
from matrix.bisection.question import BisectionQuestion, Stretch
from matrix.bisection.search import Plan
from matrix.catalog.failure import Level
from matrix.catalog.folders import ENTRY
from matrix.catalog.model import Catalog
from matrix.catalog.stack import PYTHON, component_named
from matrix.errors import MatrixError
from matrix.execution.engine import Engine
from matrix.kit.command import Repeats
from matrix.provision.extension import toolkit
from matrix.provision.host import ExecutionSite
from matrix.store.paths import Paths
from matrix.verdicts.record import Record

# Extra points that are probed at the end, outside the searched range; reading one takes under a second.
CHECKS_READ: Final = 6
BATCH_S: Final = 10.0  # seconds of the runs of one rank
PARTS: Final = 8  # parts of the error that a search of 64 points spends, one on each point: further runs are rare
CHECKS_MEASURED: Final = 2  # the same for a measured number: each costs several runs


@dataclass(frozen=True)
class BisectArguments:
    """What a user requests: the question, and how to search.

    `shows` is the probability that a run shows the failure, `checks` the number of extra points (None: by the kind of
    probe). With `fresh`, stored results are ignored. The rest is for a command: `signature` is a file of signatures,
    `metric` the expression of a number, `worse_than` the part of it that matters (0.05), `repeats` the runs of the
    command per probe, `deadline` the seconds of a run. With `shared_folder` all points run in the caller's folder;
    `override` are packages whose declared ranges do not count.
    """

    question: BisectionQuestion
    out: Path
    at_once: int = 1
    shows: float = 1.0
    confidence: float = 0.95
    checks: int | None = None
    fresh: bool = False
    signature: str = ""
    metric: str = ""
    worse_than: float = 0.0
    repeats: int = 1
    deadline: int = 0
    shared_folder: bool = False
    override: Sequence[str] = ()

    def command(self, folder: Path) -> OwnCommand | None:
        """Return the command to bisect, which runs in `folder`; None for a failure of the catalog.

        Raises MatrixError for options that do not fit.
        """
        question = self.question
        if not question.own:
            if not question.failure:
                raise MatrixError("nothing to bisect", expected="the id of a failure, or a command: -- COMMAND ...")
            if self.signature or self.metric or self.deadline:
                raise MatrixError("--signature, --metric and --deadline are for a command", expected="-- COMMAND ...")
            return None
        if question.failure or question.case or question.level == Level.CONTRACT.value:
            raise MatrixError(
                "a command is bisected instead of a failure",
                got=question.failure or (question.case and f"--case {question.case}") or "--level contract",
                expected="no failure, no --case, --level cpu or gpu",
            )
        if not (question.good and question.bad):
            raise MatrixError("a command needs both ends", expected="--good X --bad Y: it passes at X and fails at Y")
        if bool(self.metric) != bool(self.worse_than) or (self.metric and self.signature):
            raise MatrixError(
                "a number is compared, or a signature", expected="--metric REGEX --worse-than 5%, or --signature FILE"
            )
        fixed = ("bad", "axis", "base", "torch", "mcore", "te", "driver", "compile", "pin")
        ends = tuple(f"{name}={getattr(question, name)}" for name in fixed)
        level = Level(question.level or Level.CPU.value)
        return OwnCommand(
            *(tuple(question.own), folder, level, self.deadline, self.metric, self._runs, ends),
            *(self.shared_folder, tuple(self.override)),
        )

    @property
    def _runs(self) -> Repeats:
        """Return how often one rank runs the command: while that is short, so that a session starts once for many."""
        seconds = min(BATCH_S, self.deadline / 4) if self.deadline else BATCH_S
        if self.metric:
            return Repeats(self.repeats, self.repeats if self.repeats > 1 else LEAST, seconds)
        if self.shows == 1:
            return Repeats()
        return Repeats(1, Noise(self.shows).tries(1 - (1 - self.confidence) / PARTS), seconds)


@dataclass(frozen=True)
class BisectionEvents:
    """What a bisection calls: `show` with each probe, `say` with a line about its progress, `warn` with a warning."""

    show: Callable[[ProbeReport], None]
    say: Callable[[str], None]
    warn: Callable[[str], None]


class Procedure:
    """A bisection that is open: its points, the plan of its searches, and one session, whose counters live on.

    Its probe store and its clone close with `stack`; `start_engine` is called once. Raises MatrixError.
    """

    def __init__(
        self,
        arguments: BisectArguments,
        catalog: Catalog,
        start_engine: Callable[[], tuple[Engine, ExecutionSite | None]],
        events: BisectionEvents,
        stack: ExitStack,
    ) -> None:
        self._arguments, self._events, self._stack = arguments, events, stack
        question = arguments.question
        subject = question.subject(catalog)
        store = self._store(subject, fresh=arguments.fresh)
        self._clone: Clone | None = None
        if question.repo:
            package = axes.PACKAGES[axes.axis_named(question.axis)]
            self._clone = stack.enter_context(Clone(question.repo, package, compiled=question.compile))
        self._engine, self._site = start_engine()
        if question.compile and subject.base and (contents := self._engine.installed(subject.base)):
            toolkit(contents.features, subject.base, contents.image)
        self.session = BisectionSession(self._probe(subject), store, events.show, say=events.say)
        self._points = self._points_of(subject)
        reads = reads_only(subject.failure, subject.level)
        checks = CHECKS_READ if reads else CHECKS_MEASURED if arguments.metric else 0
        checks = checks if arguments.checks is None else arguments.checks
        self._plan = Plan(arguments.at_once, Noise(arguments.shows), arguments.confidence, checks)

    def search(self) -> BisectionAnswer:
        """Return the answer between the ends. Raises MatrixError for an end that is not as stated."""
        return self._points.search(self._plan, self.session)

    def search_by_number(self) -> BisectionAnswer:
        """Return the answer where bad is a number that differs: both ends are measured first. Raises MatrixError."""
        arguments, subject, ends = self._arguments, self._points.subject, self._points.ends
        self.session.read = partial(metric_of, repeats=arguments.repeats)
        self.session.repeats = arguments.repeats
        metric = measured(self.session, subject, *ends, arguments.worse_than, arguments.confidence)
        if metric is None:
            self._events.say("the number of the bad end is nan or inf: bad is a number that is not finite")
            self.session.read = diverged_of
            self.session.records.clear()
            return twice(self.search(), self.session)
        self._events.say(f"good: {metric.good}; bad: {metric.bad}")
        self._plan = replace(self._plan, noise=metric)
        bisected = self.search()
        if bisected.comparison:
            return bisected
        bisections = {
            axis: confirmed(bisection, metric, self.session) for axis, bisection in bisected.bisections.items()
        }
        return replace(bisected, bisections=bisections)

    def search_by_signature(self, own: OwnCommand, root: Path) -> BisectionAnswer:
        """Return the answer where bad is a signature, which is learned from the bad end unless it is known.

        The folder of the command under `root` is written with it. Raises MatrixError.
        """
        self.session.read = self._read
        if not self._points.subject.failure.signature:
            self._learn(own, root)
        signatures = self._points.subject.failure.signature
        entry = own.folder_in(root) / ENTRY
        self._events.say(f"bad is this signature; edit {entry}, or give --signature FILE, to change it:")
        self._events.say(toml_of({"signature": [*map(table_of, signatures)]}).strip())
        bisected = self.search()
        return twice(bisected, self.session) if self._plan.noise == CERTAIN else bisected

    def _learn(self, own: OwnCommand, root: Path) -> None:
        """Run both ends, and judge the points by the signature of the bad one from now on."""
        arguments, subject, (good, bad) = self._arguments, self._points.subject, self._points.ends
        self.session.read = ended
        tries = Noise(arguments.shows).tries(arguments.confidence)
        records = ran(self.session, subject, good, bad, tries)
        signatures = (learn(records[-1], bad, subject),)
        own.write(root, own.entry(signatures))
        catalog, failure = own.add_to(subject.catalog, signatures, root)
        subject = replace(subject, catalog=catalog, failure=failure, case=failure.case[0])
        store = self._store(subject, fresh=arguments.fresh)
        self.session.judge_anew(self._probe(subject), store, self._read)
        self._points = self._points_of(subject)
        keep_judged(self.session.store, failure, records)

    @property
    def _read(self) -> Callable[[Record], Sample]:
        """Return how a record of a command is judged: where it fails in a part of its runs, each run counts."""
        return seen_of if self._plan.noise == CERTAIN else runs_of_record

    def _store(self, subject: Subject, *, fresh: bool) -> ProbeStore:
        store = ProbeStore(Paths(self._arguments.out).bisections / store_name(subject), fresh=fresh)
        self._stack.callback(store.close)
        return store

    def _probe(self, subject: Subject) -> Ask:
        if reads_only(subject.failure, subject.level):
            return ContractProbes(subject.catalog, [self._clone] if self._clone else [])
        arguments = self._arguments
        return CellProbes(
            subject.catalog, self._engine, arguments.out, self._events.warn, self._site, cache=not arguments.fresh
        )

    def _points_of(self, subject: Subject) -> Stretch:
        suspects: Suspects = none
        if self._clone:
            call = subject.failure.contract if reads_only(subject.failure, subject.level) else None
            signatures = subject.failure.signature
            suspects = of_call(call, self._clone) if call else of_signatures(signatures, self._clone)
        contents = partial(contents_of, subject.catalog, self._engine)
        return self._arguments.question.points(subject, self._engine.lacks, self._clone, suspects, contents)


def contents_of(catalog: Catalog, engine: Engine, base: str) -> Mapping[str, str]:
    """Return the packages of a base by component, with the minor of its Python; of one that is not made, the pins."""
    environment = engine.installed(base)
    if environment is None or not environment.packages:
        return cataloged(catalog)(base)
    packages = {component_named(name, (name,)): version for name, version in environment.packages.items()}
    return {**packages, PYTHON: environment.minor}


def bisect_command(
    arguments: BisectArguments,
    own: OwnCommand,
    catalog: Catalog,
    start_engine: Callable[[Path], tuple[Engine, ExecutionSite | None]],
    events: BisectionEvents,
    stack: ExitStack,
) -> tuple[BisectionAnswer, BisectionSession]:
    """Bisect a command: return the answer and its session. Raises MatrixError.

    `start_engine` receives the folder of the command's failure, which the processes of the engine read.
    """
    root = folder_of(arguments, own) / "failures"
    signatures = read_signatures(Path(arguments.signature)) if arguments.signature else own.written_signatures(root)
    own.write(root, own.entry(signatures))
    extended, failure = own.add_to(catalog, signatures, root)
    arguments = replace(arguments, question=replace(arguments.question, failure=failure.id))
    procedure = Procedure(arguments, extended, lambda: start_engine(root), events, stack)
    by_number = bool(own.metric)
    bisected = procedure.search_by_number() if by_number else procedure.search_by_signature(own, root)
    return bisected, procedure.session


def folder_of(arguments: BisectArguments, own: OwnCommand) -> Path:
    """Return the folder of what a bisection writes about a command."""
    return Paths(arguments.out).bisections.absolute() / own.id
