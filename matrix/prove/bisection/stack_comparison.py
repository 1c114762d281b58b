"""Compare two stacks by their tests: run them in turns until each is decided, and name what brought a change."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.model import Catalog
from matrix.ground.errors import MatrixError
from matrix.kit.command import EXIT
from matrix.prove.bisection.axes import Subject
from matrix.prove.bisection.bisect_arguments import BisectArguments
from matrix.prove.bisection.ends import seen_as_exit
from matrix.prove.bisection.joint import StackPair, contents_of, read_pair
from matrix.prove.bisection.odds import JudgedRuns, StackEffect
from matrix.prove.bisection.probe_session import BisectionSession, ProbeStore
from matrix.prove.bisection.probing import CellProbes
from matrix.prove.bisection.procedure import BisectionEvents, bisect_user_command
from matrix.prove.bisection.question import BisectionQuestion
from matrix.prove.bisection.result_summary import summarize
from matrix.prove.bisection.turns import JudgedTest, Trial, TurnLimits, Turns, catalog_trials, sides_of
from matrix.prove.bisection.user_command import OwnCommand
from matrix.prove.execution.cache_key import code_digest, modules_of
from matrix.prove.execution.engine import Engine
from matrix.prove.provision.host import ExecutionSite
from matrix.prove.store.paths import Paths, make_folder, write_whole

COMPLETE: Final = "complete"  # the file that marks the runs of a comparison that ended: the next one runs anew
LEAST_SHOWN: Final = 0.1  # part of the runs: a failure that shows in fewer is searched as one that shows in this part
StartEngine = Callable[[Catalog], tuple[Engine, ExecutionSite | None]]


@dataclass(frozen=True)
class CompareArguments:
    """What a user requests: two stacks, a command or a selection of the catalog's cases, and how far to go.

    `junit` is the file that the command writes, `metrics` the expressions of numbers by name, "" of a property in that
    file. With `same` both stacks may be one: every difference is then noise.
    """

    old: str
    new: str
    out: Path
    own: OwnCommand | None = None
    select: str = ""
    level: Level = Level.CPU
    limits: TurnLimits = field(default_factory=TurnLimits)
    junit: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)
    same: bool = False
    fresh: bool = False

    @property
    def command(self) -> OwnCommand | None:
        """Return the command with the results of its runs, None where the catalog's cases run."""
        options: dict[str, Any] = {"junit": self.junit} if self.junit else {}
        options |= {"numbers": dict(self.metrics)} if self.metrics else {}
        return replace(self.own, tested=options, ends=(self.old, self.new)) if self.own else None

    @property
    def folder(self) -> Path:
        """Return the folder of the runs and of what is written about them."""
        content = [self.old, self.new, self.select, self.level.value, self.command.id if self.command else ""]
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
        return Paths(self.out).bisections.resolve() / f"compare-{digest}"


def compare_stacks(
    arguments: CompareArguments, catalog: Catalog, start_engine: StartEngine, events: BisectionEvents, stack: ExitStack
) -> Turns:
    """Run the tests in turns and return them. Raises MatrixError where nothing can be compared."""
    own, root = arguments.command, arguments.folder / "failures"
    if own:
        own.write(root, own.entry(()))
        catalog, failure = own.add_to(catalog, (), root)
    engine, site = start_engine(catalog)
    contents = partial(contents_of, catalog, engine.installed)

    def pair_of(subject: Subject) -> StackPair:
        return read_pair(subject, arguments.old, arguments.new, engine.lacks, contents)

    if own:
        pair = pair_of(Subject(catalog, failure, failure.case[0], arguments.level))
        if not pair.differing and not arguments.same:
            fix = "name another one; --same measures the noise of one stack"
            raise MatrixError("both stacks are the same", got=f"{arguments.old} and {arguments.new}", fix=fix)
        sides, notes = sides_of(pair), pair.replaced
        trials = [Trial(own.line, sides, own=True)] if sides else []
    else:
        notes = ()
        trials = [*catalog_trials(catalog, arguments.level, pair_of, arguments.select)]
    if not trials:
        raise MatrixError(
            "no case fits both stacks", got=f"{arguments.old} and {arguments.new}", fix="or: -- COMMAND ..."
        )
    probe = CellProbes(catalog, engine, arguments.out, events.warn, site, cache=False)
    store = store_of(arguments, trials, stack)
    session = BisectionSession(probe, store, events.show, read=seen_as_exit, say=events.say)
    turns = Turns(trials, session, arguments.limits, arguments.junit, [*arguments.metrics], events.say, notes)
    turns.run()
    if not turns.unreached:
        write_whole(arguments.folder / COMPLETE, "")
    return turns


def store_of(arguments: CompareArguments, trials: Sequence[Trial], stack: ExitStack) -> ProbeStore:
    """Return the stored runs of this comparison: those of one that was interrupted, else none."""
    make_folder(arguments.folder, exist_ok=True)
    failures = [trial.subjects[0].failure for trial in trials]
    code = "".join(sorted({code_digest(one.folder, arguments.level, modules_of(one)) for one in failures}))
    mark, complete = arguments.folder / "code", arguments.folder / COMPLETE
    code += platform.node() * bool(arguments.metrics)  # of one machine are both numbers of a pair
    anew = arguments.fresh or complete.exists() or (mark.exists() and mark.read_text() != code)
    store = ProbeStore(arguments.folder / "runs", fresh=anew)
    stack.callback(store.close)
    complete.unlink(missing_ok=True)
    write_whole(mark, code)
    return store


SEARCHED: Final = (StackEffect.NEW, StackEffect.WORSE, StackEffect.DRIFT)


def attributed(
    arguments: CompareArguments,
    judged: Sequence[JudgedTest],
    catalog: Catalog,
    start_engine: StartEngine,
    events: BisectionEvents,
    stack: ExitStack,
) -> dict[str, str]:
    """Return what brought each change, by test: the component and its release, or why that is not known.

    Tests that fail with one signature are searched once.
    """
    own = arguments.own
    if own is None:
        return {}
    found, causes = dict[tuple[str, bool], str](), dict[str, str]()
    for test in (test for test in judged if test.finding.change in SEARCHED):
        key = (test.name if test.number else test.finding.signature), test.number
        if key not in found:
            events.say(f"bisecting {test.name}")
            try:
                options, command = search_of(arguments, own, test)
                answer, session = bisect_user_command(options, command, catalog, start_engine, events, stack)
                found[key] = "; ".join(summarize(answer, session).headlines)
            except MatrixError as error:
                found[key] = f"not attributed: {error.brief}"
        causes[test.name] = found[key]
    return causes


def search_of(arguments: CompareArguments, own: OwnCommand, test: JudgedTest) -> tuple[BisectArguments, OwnCommand]:
    """Return the bisection of a change: between the two stacks, by the one test or number."""
    question = BisectionQuestion(
        **dict.fromkeys(("failure", "axis", "repo", "case", "base", "torch", "mcore", "te", "writer", "driver"), ""),
        good=arguments.old,
        bad=arguments.new,
        level=arguments.level.value,
        compile=False,
        own=own.command,
    )
    options = BisectArguments(question, arguments.out, shows=shows(test.finding), override=own.overrides)
    if test.number:
        ratio = test.finding.interval or (1.0, 1.0)
        worse = max(abs(math.sqrt(ratio[0] * ratio[1]) - 1) / 2, 1e-9)
        options = replace(options, metric=arguments.metrics[test.name], worse_than=worse)
        return options, replace(own, metric=options.metric, repeats=options.runs)
    if test.name == EXIT or not arguments.junit:
        return options, own
    return options, replace(own, tested={"junit": arguments.junit, "test": test.name})


def shows(finding: JudgedRuns) -> float:
    """Return in which part of the runs a failure shows at least: all, or less than was seen."""
    failed, count = finding.failures[1], finding.runs[1]
    return 1.0 if failed == count or not count else max(LEAST_SHOWN, 0.7 * failed / count)
