"""The runs of a command outside the search: of both ends, to learn what is bad, and of both sides of the change."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from matrix.ground.catalog.failure import Failure, Signature
from matrix.ground.catalog.schema import Identifier, Pattern
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.crash import crashes
from matrix.ground.verdicts.judge import judge
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.record import Record
from matrix.ground.verdicts.signature_match import SILENT
from matrix.ground.verdicts.text import tail
from matrix.prove.bisection import noise as metrics
from matrix.prove.bisection.axes import Subject
from matrix.prove.bisection.joint import BisectionAnswer
from matrix.prove.bisection.noise import Metric, Noise, ProbeResult
from matrix.prove.bisection.probe_session import (
    NOT_STORED,
    Bisection,
    BisectionSession,
    End,
    ProbeStore,
    line_of,
    numbers_of,
    runs_of_record,
    why,
)
from matrix.prove.bisection.search import ResultKind

# What programs print where standard input or output is no terminal.
_NO_TERMINAL: Final = re.compile(
    r"not a (tty|terminal)|tty get|inappropriate ioctl|EOFError: EOF when reading|TERM environment variable|/dev/tty"
    r"|(opening|needs?|requires?|in|from) (a |an |the )?(interactive )?terminal",
    re.I,
)


def seen_as_exit(record: Record) -> ProbeResult:
    """Return the result of a run before a signature is known: any failure is bad."""
    if record.outcome.kind in NOT_STORED:
        return ProbeResult.SKIP
    return ProbeResult.GOOD if record.outcome.kind is OutcomeKind.PASSED else ProbeResult.BAD


def run_both_ends(session: BisectionSession, subject: Subject, good: End, bad: End, tries: int) -> list[Record]:
    """Run both ends, the failing one until it fails, and return their records, its failure last.

    Raises MatrixError unless the good end passes and the bad end fails in one of `tries` runs.
    """
    session.seen([end.planned for end in (good, bad)], [end.label for end in (good, bad)], [1, 1])
    good_record, records = session.records[good.planned.key][0], session.records[bad.planned.key]
    if good_record.outcome.kind is not OutcomeKind.PASSED:
        hint = {
            ProbeResult.GOOD: "the bad end passes: the ends may be swapped, or the command flaky",
            ProbeResult.BAD: "nothing was searched: both ends fail; name a good one where the command passes",
            ProbeResult.SKIP: "nothing was searched",
        }[seen_as_exit(records[-1])]
        raise not_as_stated("good", good, good_record, subject, "a pass: the command ends with status 0", hint)
    while records[-1].outcome.kind is OutcomeKind.PASSED and passes(records) < tries:
        session.seen([bad.planned], [bad.label], [len(records) + 1])
    if seen_as_exit(records[-1]) is not ProbeResult.BAD:
        expected = "a failure: another status than 0, or a signal" + f", in one of {tries} runs" * (tries > 1)
        raise not_as_stated("bad", bad, records[-1], subject, expected)
    return [good_record, *records]


def passes(records: Sequence[Record]) -> int:
    """Return the number of runs that passed, in these records of passes."""
    return sum(len(result) if isinstance(result := runs_of_record(record), tuple) else 1 for record in records)


def learn(record: Record, end: End, subject: Subject) -> Signature:
    """Return the signature of the failing end. Raises MatrixError where it hangs."""
    signature = learned(record.outcome)
    if signature is None:
        raise MatrixError(
            "no signature can be learned from the bad end",
            where=end.label,
            got=why(record),
            expected="an exception, a signal or a status",
            fix="a command that hangs: -- timeout 60 COMMAND ends it with status 124; a slow one: --deadline SECONDS; "
            f"reproduce it: {line_of(subject, end.planned)}",
        )
    return signature


def not_as_stated(
    name: str, end: End, record: Record, subject: Subject, expected: str, hint: str = "nothing was searched"
) -> MatrixError:
    """Return the error for an end that passes or fails where it should not, with the last lines of its output."""
    outcome = record.outcome
    log = outcome.evidence.rpartition("end of rank 0's log:\n")[2]  # after the stacks of a rank that hangs
    printed = tail(log.strip("\n"), 5) if outcome.kind is not OutcomeKind.RAISED else ""
    if outcome.kind is OutcomeKind.PASSED:
        hint = "both ends pass; a command that fails in a part of its runs: --shows P repeats it"
    elif outcome.kind is OutcomeKind.HUNG:
        hint = "a slower command: --deadline SECONDS"
    elif _NO_TERMINAL.search(f"{outcome.reason}\n{outcome.evidence}"):
        hint = "it has no terminal; util-linux's script provides one: -- script -qec 'COMMAND' /dev/null"
    is_not = "can't run" if outcome.kind is OutcomeKind.UNAVAILABLE else f"is not {name}"
    return MatrixError(
        f"the {name} end {is_not}",
        where=end.label,
        got=why(record) + "".join(f"\n            {line}" for line in printed.splitlines()),
        expected=expected,
        fix=f"{hint}; reproduce it: {line_of(subject, end.planned)}",
    )


def keep_judged(store: ProbeStore, failure: Failure, records: Sequence[Record]) -> None:
    """Store the runs of both ends as probes, judged by the signature that the last one provided."""
    runs: Counter[str] = Counter()
    for record in records:
        runs[record.key] += 1
        if record.key not in store.known(runs[record.key]):
            judgement = judge(failure, record.expectation, record.outcome)
            judged = replace(record, verdict=judgement.verdict, signature=judgement.signature, other=None)
            store.keep(runs[record.key], judged)


def measured(
    session: BisectionSession, subject: Subject, good: End, bad: End, worse: float, confidence: float
) -> Metric | None:
    """Measure both ends until the noise allows the test, and return it; None where the bad end's number is nan or inf.

    Raises MatrixError.
    """
    count = metrics.LEAST
    while True:
        numbers = {}
        for end, name in ((good, "good"), (bad, "bad")):
            numbers[name] = runs_of(session, subject, end, name, count)
            if not all(map(math.isfinite, numbers[name])):
                if name == "bad":
                    return None
                record = session.records[end.planned.key][-1]
                raise not_as_stated(name, end, record, subject, "a finite number: a diverged one has no level")
        needed = metrics.runs_needed(numbers["good"], numbers["bad"], worse)
        if needed > metrics.MOST:
            raise MatrixError(
                "the number is too noisy",
                expected=f"at most {metrics.MOST} runs of each end",
                got=f"{needed} needed",
                fix="a larger --worse-than, --repeats N for the mean of N runs, or a quieter machine",
            )
        if needed <= count:
            return metrics.calibrated(numbers["good"], numbers["bad"], worse, confidence)
        count = needed


def runs_of(session: BisectionSession, subject: Subject, end: End, name: str, count: int) -> list[float]:
    """Return the numbers of at least `count` runs of a point, in as few records as have them.

    Raises MatrixError for a run without one.
    """
    numbers: list[float] = []
    record_number = 0
    while len(numbers) < count:
        record_number += 1
        session.seen([end.planned], [end.label], [record_number])
        record = session.records[end.planned.key][record_number - 1]
        if not numbers_of(record):
            raise not_as_stated(name, end, record, subject, "a pass with a number that --metric matches")
        numbers += numbers_of(record, session.repeats)
        if not math.isfinite(numbers[-1]):
            break
    return numbers


def repeated(bisection: Bisection, session: BisectionSession) -> Bisection:
    """Return the result after a second run on both sides of the change; ambiguous where it differs from the first."""
    labels = [bisection.axis.points[index].label for index in bisection.sides]
    results = session.seen([*map(bisection.axis.case_at, bisection.sides)], labels, [2] * len(labels))
    results_before = [bisection.result.tallies[index].settled for index in bisection.sides]
    flaky = [
        f"{label} is {was.value}, and {becomes.value} when it runs again: the command is flaky; --shows P repeats it"
        for label, was, becomes in zip(labels, results_before, results, strict=True)
        if isinstance(was, ProbeResult) and isinstance(becomes, ProbeResult) and was is not becomes
    ]
    return bisection.doubted(*flaky) if flaky else bisection


def confirm_ends(answer: BisectionAnswer, session: BisectionSession) -> BisectionAnswer:
    """Return the answer after a second run on both sides of each change."""
    bisections = {axis: repeated(bisection, session) for axis, bisection in answer.bisections.items()}
    doubts = (
        note for axis, bisection in bisections.items() for note in bisection.notes[len(answer.bisections[axis].notes) :]
    )
    return replace(answer, bisections=bisections, notes=(*answer.notes, *doubts))


def confirmed(bisection: Bisection, metric: Metric, session: BisectionSession, regex: str = "") -> Bisection:
    """Return the result with its step measured on both sides; ambiguous where the step is not the whole difference.

    `regex` finds the number in the output.
    """
    axis, subject = bisection.axis, bisection.subject
    ends = [End(axis.case_at(index), axis.points[index].label) for index in bisection.sides]
    if not ends:
        return bisection
    numbers = [runs_of(session, subject, end, "measured", metric.good.count) for end in ends]
    whole, text = metrics.one_step(metric, *numbers)
    runs = sum(len(numbers_of(record)) for records in session.records.values() for record in records)
    text = f"{text}; good {metric.good}, bad {metric.bad}; {runs} runs in all; the number is what {regex!r} finds"
    if whole:
        return replace(bisection, notes=(*bisection.notes, text))
    reason = "the history is not one step: other points between the ends change the number too"
    return bisection.doubted(text, reason)


def counted(bisection: Bisection, noise: Noise) -> Bisection:
    """Return the result of a flaky failure with what its runs show: where it appeared, and how often it did not."""
    runs = Counter[tuple[ProbeResult | None, ProbeResult]]()
    for tally in bisection.result.tallies.values():
        runs.update({(tally.settled, result): count for result, count in tally.runs.items()})
    bad, good = ProbeResult.BAD, ProbeResult.GOOD
    text = (
        f"where it is present, {runs[bad, bad] + runs[bad, good]} runs showed it {runs[bad, bad]} times, each point "
        f"until it did; where it is absent, {runs[good, good]} runs passed; a wrong answer has a probability of "
        f"{1 - bisection.result.confidence:.1%} at most, if one run shows it with {noise.shows:.0%}"
    )
    return replace(bisection, notes=(*bisection.notes, text))


def other_failures(bisection: Bisection) -> list[Record]:
    """Return a record of each place where the search stopped at another failure; [] if it stopped at anything else."""
    candidates = [place for place in bisection.result.candidates if place in bisection.records]
    ends = [bisection.records[place][-1] for place in candidates]
    skipped = [end for end in ends if end.signature is None and seen_as_exit(end) is not ProbeResult.GOOD]
    only = bool(skipped) and all(seen_as_exit(record) is ProbeResult.BAD for record in skipped)
    return skipped if only and bisection.result.kind is ResultKind.AMBIGUOUS and not bisection.result.flips else []


def this_failure(record: Record) -> ProbeResult:
    """Return whether a record shows this failure; a pass and another failure do not."""
    result = seen_as_exit(record)
    return ProbeResult.GOOD if result is ProbeResult.BAD and record.signature is None else result


NAME: Final = "learned"
LONGEST: Final = 200  # characters of a message or line that are compared
# Letters in a row that make a message specific enough to go without its frame. A frame is left out where it can be: a
# refactoring moves it, and another place is then taken for another failure.
SPECIFIC: Final = 8
# What differs between two runs of one failure, and the pattern that replaces it.
_VARIABLE: Final = re.compile(
    r"(?P<address>0x[0-9a-fA-F]+)"
    r"|(?P<path>(?<![\w./~-])[\w.~-]*/[\w.~+/-]*)"
    r"|(?P<number>(?<![A-Za-z_])\d+(?:[.:]\d+)*(?:e[+-]?\d+)?)"
)
_PATTERNS: Final = {"address": "0x[0-9a-fA-F]+", "path": r"[\w.~+/-]+", "number": r"[\d.:e+-]+"}
# Frames of every abort, which name no cause.
_ENDS: Final = re.compile(
    r"_*(raise|gsignal|abort|terminate|pthread_kill\w*|restore_rt|libc_\w+|clone\d*|start_thread)$"
)
_FRAME: Final = re.compile(r"~?\w+(::~?\w+)*")


def learned(outcome: Outcome) -> Signature | None:
    """Return the signature of an outcome, None where it holds no evidence: a pass, a hang, no result."""
    if outcome.kind in (*SILENT, OutcomeKind.HUNG):
        return None
    if outcome.chain:
        return of_exception(outcome.chain[0])
    if outcome.signal is not None:
        return Signature(Identifier(NAME), signal=outcome.signal, stack=crashed_in(outcome))
    printed = of_log((), outcome.evidence.split("\n")) or Signature(Identifier(NAME))
    return replace(printed, exit_code=outcome.exit_code)


def of_log(printed: Sequence[Raised], lines: Sequence[str]) -> Signature | None:
    """Return the signature of a log: of the exception that it printed last, else of its last line; None without one."""
    if printed:
        return of_exception(printed[-1])
    final_line = next((line for line in reversed(lines) if line.strip()), "")
    return Signature(Identifier(NAME), log=Pattern(f"(?m)^{generalised(final_line)}")) if final_line else None


def of_exception(raised: Raised) -> Signature:
    """Return the signature of an exception: its message, and its frame where the message alone is not specific."""
    line = raised.compared.strip().partition("\n")[0]
    message = Pattern(generalised(line)) if line else Pattern("^$") if not raised.message else None
    frame = raised.frames[-1] if raised.frames else None
    specific = sum(len(word) for word in re.findall(r"[^\W\d_]{3,}", _VARIABLE.sub(" ", line))) >= SPECIFIC
    frame_text = ""
    if frame and not specific and frame.function.isidentifier() and frame.file.endswith(".py"):
        frame_text = f"{frame.file.replace(':', '/').rpartition('/')[2]}:{frame.function}"
    return Signature(Identifier(NAME), exception=raised.type, message=message, frame=frame_text or None)


def crashed_in(outcome: Outcome) -> str | None:
    """Return the innermost function on the stack of the outcome's crash that is not part of every abort."""
    stacks = (crash.frames for crash in crashes(outcome.evidence) if crash.signal == outcome.signal)
    return next((name for name in chain(*stacks) if _FRAME.fullmatch(name) and not _ENDS.match(name)), None)


def generalised(text: str) -> str:
    """Return a pattern that matches the text with any addresses, numbers and paths; long texts are cut."""
    cut, pattern, end = text.rstrip()[:LONGEST], "", 0
    for variable in _VARIABLE.finditer(cut):
        pattern += _escaped(cut[end : variable.start()]) + _PATTERNS[str(variable.lastgroup)]
        end = variable.end()
    return pattern + _escaped(cut[end:])


def in_words(signature: Signature) -> str:
    """Return a learned signature for readers: what differs between two runs is "..."."""
    status = signature.exit_code is not None and f"status {signature.exit_code}"
    text = signature.message or signature.log or signature.stack or ""
    for pattern in _PATTERNS.values():
        text = text.replace(pattern, "...")
    text = re.sub(r"\\(\W)", r"\1", text.removeprefix("(?m)^").replace("^$", ""))
    kind = signature.exception or signature.signal or status or ""
    return ": ".join(filter(None, (kind, text))) + (f" in {signature.frame}" if signature.frame else "")


def _escaped(text: str) -> str:
    """Return the pattern of a text, with its spaces as they are: a reader edits it."""
    return re.escape(text).replace("\\ ", " ")
