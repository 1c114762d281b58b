"""The procedure of a bisection: open it, learn from its ends what is bad, search between them, confirm the answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from matrix.ground.catalog.folders import ENTRY
from matrix.ground.catalog.model import Catalog
from matrix.ground.verdicts.record import Record
from matrix.prove.bisection import axes
from matrix.prove.bisection.axes import Clone, Subject
from matrix.prove.bisection.bisect_arguments import (
    CHECKS_MEASURED,
    CHECKS_READ,
    BisectArguments,
    folder_of,
    given_signatures,
)
from matrix.prove.bisection.commits import Suspects, no_suspects, of_call, of_signatures
from matrix.prove.bisection.ends import (
    confirm_ends,
    confirmed,
    counted,
    keep_judged,
    learn,
    measured,
    other_failures,
    run_both_ends,
    seen_as_exit,
    this_failure,
)
from matrix.prove.bisection.joint import BisectionAnswer, contents_of
from matrix.prove.bisection.noise import CERTAIN, Noise, Sample
from matrix.prove.bisection.probe_session import (
    BisectionSession,
    ProbeReport,
    ProbeStore,
    diverged_of,
    metric_of,
    runs_of_record,
    seen_of,
    store_name,
    why,
)
from matrix.prove.bisection.probing import Ask, CellProbes, ContractProbes, reads_only
from matrix.prove.bisection.question import SearchRange
from matrix.prove.bisection.search import Plan, ResultKind
from matrix.prove.bisection.user_command import OwnCommand, table_of, toml_of
from matrix.prove.execution.engine import Engine
from matrix.prove.provision.host import ExecutionSite
from matrix.prove.provision.resolution import listed_releases
from matrix.prove.provision.te_wheels import toolkit
from matrix.prove.store.paths import Paths


@dataclass(frozen=True)
class BisectionEvents:
    """What a bisection calls: `show` with each probe, `say` with a line about its progress, `warn` with a warning."""

    show: Callable[[ProbeReport], None]
    say: Callable[[str], None]
    warn: Callable[[str], None]


class Procedure:
    """A bisection that is open: its points, the plan of its searches, and one session, whose counters live on.

    Its probe store and its clone close with `stack`; `start_engine` is called once, with the catalog whose failures
    the engine runs. `command` is the text of a command of the user's own. Raises MatrixError.
    """

    def __init__(
        self,
        arguments: BisectArguments,
        catalog: Catalog,
        start_engine: Callable[[Catalog], tuple[Engine, ExecutionSite | None]],
        events: BisectionEvents,
        stack: ExitStack,
        command: str = "",
    ) -> None:
        self._arguments, self._events, self._stack, self._command = arguments, events, stack, command
        question = arguments.question
        subject = replace(question.subject(catalog), listed=listed_releases)
        store = self._store(subject, fresh=arguments.fresh)
        self._clone: Clone | None = None
        if question.repo:
            package = axes.PACKAGES[axes.axis_named(question.axis)]
            self._clone = stack.enter_context(Clone(question.repo, package, compiled=question.compile))
        engine, self._site = start_engine(catalog)
        self._engine = engine
        if question.compile and subject.base and (contents := self._engine.installed(subject.base)):
            toolkit(contents.features, subject.base, contents.image)
        self.session = BisectionSession(
            self._probe(subject), store, events.show, say=events.say, made=lambda base: bool(engine.installed(base))
        )
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
            return confirm_ends(self.search(), self.session)
        self._events.say(f"good: {metric.good}; bad: {metric.bad}")
        self._plan = replace(self._plan, noise=metric)
        bisected = self.search()
        if bisected.comparison:
            return bisected
        bisections = {
            axis: confirmed(bisection, metric, self.session, arguments.metric)
            for axis, bisection in bisected.bisections.items()
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
        noise = self._plan.noise
        if noise != CERTAIN and isinstance(noise, Noise):
            counts = {axis: counted(bisection, noise) for axis, bisection in bisected.bisections.items()}
            return replace(bisected, bisections=counts)
        return confirm_ends(self._parted(bisected), self.session)

    def _parted(self, bisected: BisectionAnswer) -> BisectionAnswer:
        """Return an answer that ends at another failure as two: from where on each of them appears."""
        bisections = bisected.bisections.values()
        if bisected.comparison or not (others := [record for one in bisections for record in other_failures(one)]):
            return bisected
        answers = []
        for read in (seen_as_exit, this_failure):
            self.session.read = read
            answers.append(self.search())
        parted = {}
        for axis in answers[1].bisections:
            borders = [answer.bisections[axis] for answer in answers]
            points = borders[0].axis.points
            places = [points[border.result.candidates[0]].label for border in borders]
            doubts = [border for border in borders if border.result.kind is ResultKind.AMBIGUOUS]
            if borders[0].result.kind is ResultKind.FIRST_FIXED:  # what passes is fixed, and is the answer
                self.session.read = seen_as_exit
                bisection, text = borders[0], f"another failure from {places[1]} on, none from {places[0]} on"
            else:
                bisection, text = borders[1], f"another failure from {places[0]} on, this one from {places[1]} on"
            noted = replace(bisection, notes=(*bisection.notes, f"{text}; the other: {why(others[0])}"))
            parted[axis] = bisected.bisections[axis] if doubts else noted
        return replace(bisected, bisections=parted)

    def _learn(self, own: OwnCommand, root: Path) -> None:
        """Run both ends, and judge the points by the signature of the bad one from now on."""
        arguments, subject, (good, bad) = self._arguments, self._points.subject, self._points.ends
        self.session.read = seen_as_exit
        tries = Noise(arguments.shows).tries(arguments.confidence)
        records = run_both_ends(self.session, subject, good, bad, tries)
        signatures = (learn(records[-1], bad, subject),)
        catalog, failure = own.add_to(subject.catalog, signatures, root)
        subject = replace(subject, catalog=catalog, failure=failure, case=failure.case[0])
        store = self._store(subject, fresh=arguments.fresh)
        self.session.judge_anew(self._probe(subject), store, self._read)
        self._points = self._points_of(subject)
        keep_judged(self.session.store, failure, records)
        # Last: a search that finds the signature reads the store of that signature alone, which then has both ends.
        own.write(root, own.entry(signatures))

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

    def _points_of(self, subject: Subject) -> SearchRange:
        suspects: Suspects = no_suspects
        if self._clone:
            call = subject.failure.contract if reads_only(subject.failure, subject.level) else None
            signatures = subject.failure.signature
            suspects = of_call(call, self._clone) if call else of_signatures(signatures, self._clone, self._command)
        contents = partial(contents_of, subject.catalog, self._engine.installed)
        return self._arguments.question.points(subject, self._engine.lacks, self._clone, suspects, contents)


def bisect_user_command(
    arguments: BisectArguments,
    own: OwnCommand,
    catalog: Catalog,
    start_engine: Callable[[Catalog], tuple[Engine, ExecutionSite | None]],
    events: BisectionEvents,
    stack: ExitStack,
) -> tuple[BisectionAnswer, BisectionSession]:
    """Bisect a command: return the answer and its session. Raises MatrixError.

    `start_engine` receives the catalog with the command's failure, whose folder the processes of the engine read.
    """
    root = folder_of(arguments, own) / "failures"
    signatures = given_signatures(arguments) or own.written_signatures(root)
    own.write(root, own.entry(signatures))
    extended, failure = own.add_to(catalog, signatures, root)
    arguments = replace(arguments, question=replace(arguments.question, failure=failure.id))
    procedure = Procedure(arguments, extended, start_engine, events, stack, own.text)
    by_number = bool(own.metric)
    bisected = procedure.search_by_number() if by_number else procedure.search_by_signature(own, root)
    return bisected, procedure.session
