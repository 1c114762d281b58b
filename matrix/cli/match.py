"""`megatrix match`."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from matrix.ask.check.kind_answer import KindAnswer, answer, says_something
from matrix.ask.check.log_reading import read_log
from matrix.ground.catalog.codec import encode
from matrix.ground.catalog.kinds import kind_table
from matrix.ground.errors import ExitStatus
from matrix.ground.verdicts.log_match import LogFault, Reading, Sighting, Similar
from matrix.ground.verdicts.outcome import Frame
from matrix.ground.verdicts.text import one_line
from matrix.show.known import advice, where
from matrix.show.terminal import Part, Prose, json_object, show, table, text

if TYPE_CHECKING:  # a log without a traceback needs no history
    from matrix.ask.history import Offered


def match_command(parsed: argparse.Namespace) -> int:
    """Print the known failures and the kinds of failure in the logs; return 1 where nothing is answered."""
    matched = read_log(*parsed.logs)
    answers = [answer(sighting, kind_table(), matched.versions) for sighting in matched.kinds]
    answers = [answered for answered in answers if says_something(answered)]
    history = _of_history(matched)
    if parsed.json:
        print(json_object("match/1", **to_json(matched, answers), history=[offer.to_json() for offer in history]))
    else:
        parts = render(matched, answers, "LOG" if parsed.logs == ["-"] else parsed.logs[0])
        show(*parts, *(part for offer in history for part in _history(offer)), quiet=parsed.quiet)
    named = any(standstill.ranks for standstill in matched.standstills)
    answered = any(kind.facts for kind in answers)
    return ExitStatus.GOOD if matched.known or answered or named else ExitStatus.BAD


def _of_history(reading: Reading) -> list[Offered]:
    """Return what upstream's history has for the exceptions of a log: each function once."""
    elsewhere = {sighting.line for sighting in reading.kinds if sighting.kind.topic in ELSEWHERE}
    faults = [fault for fault in reading.raised if fault.line not in elsewhere]
    raised = [fault.raised for fault in faults if fault.raised and fault.raised.frames]
    if not raised:
        return []
    from matrix.ask.history import offered, views

    parts = [part for exception in raised for part in views(exception)]
    offers = [offered(part, reading.versions.texts, reading.inferred) for part in parts]
    return list({offer.function: offer for offer in offers if offer}.values())[:SHOWN]


def _history(offered: Offered) -> Iterator[Part]:
    """Yield what history offers for an exception."""
    from matrix.ask.history import commit_in_words, in_words

    versions = (
        " or ".join(offered.releases)
        if len(offered.releases) < SHOWN
        else f"{offered.releases[0]} - {offered.releases[-1]}"
    )
    origin = "inferred from the lines of the traceback" if offered.inferred else "of the log"
    unknown = "not known: no known release has these lines, or the log prints no source lines"
    unknown += f"; {offered.earliest} at the earliest, by functions and lines" * bool(offered.earliest)
    releases = f"{versions}, {origin}" if offered.releases else unknown
    later = ", ".join(offered.changed_later) or f"no release up to {offered.history.releases[-1]}"
    by_release = [("changed before in:", offered.changed_before or "no release"), ("changed later in:", later)]
    yield ""
    yield Prose(f"history of {offered.history.extent}; no run shows that any of it applies:")
    facts = [
        ("function:", one_line(offered.function)),
        ("release:", releases),
        *(("may be fixed by:", one_line(in_words(offer), STATED)) for offer in offered.fixes),
        *([("changed before by:", one_line(commit_in_words(offered.cause.commit), STATED))] if offered.cause else []),
        *(by_release if offered.releases and not offered.history.has_commits else []),
        *([("message:", one_line(offered.message, STATED))] if offered.message else []),
    ]
    yield table(facts, indent=2)


API_ERRORS: Final = ("TypeError", "AttributeError", "ImportError", "ModuleNotFoundError")  # of a call that does not fit
ELSEWHERE: Final = ("memory", "driver", "hangs")  # topics of errors that the function that raises them does not cause
SHOWN: Final = 5  # faults listed of each kind
STATED: Final = 600  # characters shown of why ranks wait, and of an answer: it may quote the requirements that conflict
_LIBRARY: Final = re.compile(r"-packages/|/lib/python3|^<")  # a path below an interpreter's folders, or no file
_NOT: Final = "not "  # before a condition on arguments (matrix/ground/catalog/reach.py)


def render(reading: Reading, answers: Sequence[KindAnswer] = (), log: str = "LOG") -> Iterator[Part]:
    """Yield the known failures, the kinds, then the other errors; of a log without any, what to do next.

    Texts from the log are escaped and their secrets masked. `log` is its path.
    """

    def at(line: int) -> str:
        path, number = reading.place(line)
        return f"{one_line(path)}:{number}:" if path else f"line {number:,}:"

    yield from (text((_verdict(reading, answers), "bold green" if reading.known else "bold yellow")), "")
    for sighting in reading.known:
        yield from _known(sighting, at)
    for kind in answers[:SHOWN]:
        yield from _kind(kind, at)
    yield from _listed("lines of this log that state why:", reading.clues, at)
    head = "NOT IN THE CATALOG, further errors:" if reading.known or answers else "errors in this log:"
    explained = {answer.sighting.line for answer in answers}
    standstills = [LogFault(one.line, f"{one.position.value.upper()}: {one.text}") for one in reading.standstills]
    yield from _listed("why ranks wait:", standstills, at, STATED)
    unknown = [fault for fault in reading.unknown if fault.line not in explained]
    yield from _listed(head, unknown, at)
    if unknown and not reading.known and not answers:
        yield from _onward(unknown[0], log)
    yield from _similar(reading.similar, at)
    yield from _listed("consequences of another rank's failure, not causes:", reading.follows, at)
    if reading.root_rank is not None:
        yield Prose(f"torchrun reports rank {reading.root_rank} as the first failed rank")
    if reading.follows and not reading.known and not reading.unknown and not reading.standstills:
        rank = "another rank" if reading.root_rank is None else f"rank {reading.root_rank}"
        yield Prose(f"the cause is not in this log: look into the one of {rank}")


def _verdict(reading: Reading, answers: Sequence[KindAnswer]) -> str:
    """Return what is in the log, in one sentence."""
    certain = [str(sighting.failure.id) for sighting in reading.known if sighting.certain]
    likely = [str(sighting.failure.id) for sighting in reading.known if not sighting.certain]
    logs = "s" * (reading.lines != 1) + f" of {len(reading.starts)} logs" * (len(reading.starts) > 1)
    nothing = [] if reading.known else [f"nothing that the catalog knows is in the {reading.lines:,} line{logs}"]
    kinds = list(dict.fromkeys(answer.sighting.kind.id for answer in answers))
    named: dict[str, Sequence[str]] = {"known": certain, "likely": likely, "kind of failure": kinds}
    return "; ".join((*nothing, *(f"{word}: {', '.join(ids)}" for word, ids in named.items() if ids)))


def to_json(reading: Reading, answers: Sequence[KindAnswer] = ()) -> dict[str, list[dict[str, Any]]]:
    """Return the known failures, the kinds and why ranks wait, as plain JSON values with the log and line of each."""

    def located(item: dict[str, Any]) -> dict[str, Any]:
        log, number = reading.place(item["line"])
        return {**item, "line": number} | ({"log": log} if log else {})

    return {
        "items": [located(sighting.to_json()) for sighting in reading.known],
        "kinds": [located(answer.to_json()) for answer in answers],
        "clues": [located({"line": clue.line, "text": one_line(clue.what)}) for clue in reading.clues],
        "standstills": [located(encode(standstill)) for standstill in reading.standstills],
    }


def _known(sighting: Sighting, at: Callable[[int], str]) -> Iterator[Part]:
    failure = sighting.failure
    lacks = f": the log lacks {sighting.lacks}" if sighting.lacks else ""
    yield table([(f"{'' if sighting.certain else 'LIKELY '}{failure.id}:", failure.title)])
    facts = [
        (at(sighting.fault.line), f"{one_line(sighting.fault.what)}{_in_total(sighting.times)}"),
        ("signature:", f"{sighting.signature.name}, {'certain' if sighting.certain else 'likely'}{lacks}"),
        *([("options:", one_line(sighting.options))] if sighting.options else []),
        *([("other causes:", sighting.other_causes)] if sighting.other_causes else []),
        *(("look for:", sign) for sign in ([] if sighting.certain else to_look_for(sighting))),
        *(("breaks with:", f"{where(rule)} ({rule.reason})") for rule in failure.affected),
        *advice(failure),
    ]
    yield table(facts, indent=2)
    yield Prose(", ".join(failure.references), 2)
    yield ""


def _kind(answer: KindAnswer, at: Callable[[int], str]) -> Iterator[Part]:
    sighting, kind = answer.sighting, answer.sighting.kind
    yield table([(f"KIND {kind.id}:", kind.title)])
    facts = [
        (at(sighting.line), f"{one_line(sighting.text)}{_in_total(sighting.times)}"),
        *_look_at(sighting.frame),
        *(("answer:", one_line(fact, STATED)) for fact in answer.facts),
        ("means:", kind.means),
    ]
    yield table(facts, indent=2)
    yield from (f"  $ {one_line(command)}" for command in answer.commands)
    yield ""


def _in_total(times: int) -> str:
    return f", {times} times in total" if times > 1 else ""


def _look_at(frame: Frame | None) -> list[tuple[str, str]]:
    return [("look at:", one_line(f"{frame.function}, {frame.file}:{frame.line}"))] if frame else []


def _onward(fault: LogFault, log: str) -> Iterator[Part]:
    """Yield what an unknown fault is, where to look, and the commands that go on."""
    yield table([("sort:", sort_of(fault)), *_look_at(_innermost(fault))], indent=2)
    if fault.raised and fault.raised.type in API_ERRORS:
        yield "  $ megatrix contract --consumer FOLDER  # FOLDER: the program that makes the call"
    yield "  $ megatrix check  # in the environment of the job; or: megatrix check JOB_SCRIPT"
    frame = _innermost(fault)
    if frame and frame == fault.frame and (axis := kind_table().axis_of(frame.file)):  # not of a program that calls it
        points = "--torch TORCH_VERSION --good GOOD_VERSION --bad BAD_VERSION"
        yield f"  $ megatrix bisect --axis {axis} {points} -- COMMAND"
    yield f"  $ megatrix catalog new ID --from {shlex.quote(one_line(log))}"


def _innermost(fault: LogFault) -> Frame | None:
    """Return the innermost frame of the stack or of the program that calls it, not of a library below them."""
    frames = fault.raised.frames if fault.raised else ()
    owned = [frame for frame in frames if frame == fault.frame or not _LIBRARY.search(frame.file)]
    return next(reversed([*owned, *(frames[-1:] if not owned else ())]), None)


def sort_of(fault: LogFault) -> str:
    """Return which sort of failure a fault is."""
    if fault.raised:
        in_stack = fault.frame and fault.frame == fault.raised.frames[-1]
        below = "below" if fault.frame else "outside of"
        origin = f"{'in' if in_stack else below} Megatron's stack"
        return f"a Python exception, raised {origin}" if fault.raised.frames else "a Python exception without traceback"
    if fault.crash is None:
        return "a log that ends within a traceback"
    if fault.crash.signal == "SIGKILL":
        return "a kill: the operating system or the scheduler ended it, most often for memory or time"
    return (
        "a native crash" if fault.crash.signal else "an exit status without an error message: look into the rank's log"
    )


def to_look_for(sighting: Sighting) -> list[str]:
    """Return what confirms a likely failure: the part of the log that is missing, the job's arguments, its versions."""
    place = f": this failure is raised {sighting.signature.place}" if sighting.signature.place else ""
    signs = [f"{sighting.lacks}{place}"] if sighting.lacks else []
    for way in () if sighting.options else sighting.failure.reached_by:
        needed = " and ".join(condition for condition in way.arguments if not condition.startswith(_NOT))
        excluded = " or ".join(
            condition.removeprefix(_NOT) for condition in way.arguments if condition.startswith(_NOT)
        )
        command = f"a command with {needed}" * bool(needed) + f" without {excluded}" * bool(excluded)
        signs.append(", and ".join(part for part in (command.strip(), way.when) if part))
    return list(dict.fromkeys(sign for sign in signs if sign)) or ["a stack that it breaks with"]


def _similar(similar: Sequence[Similar], at: Callable[[int], str]) -> Iterator[Part]:
    if similar:
        yield "similar, not the same:"
    for match in similar[:SHOWN]:
        yield table([(f"{match.failure.id}:", match.failure.title)], indent=2)
        yield table([(at(match.fault.line), one_line(match.differs))], indent=4)


def _listed(head: str, faults: Sequence[LogFault], at: Callable[[int], str], width: int = 200) -> Iterator[Part]:
    if faults:
        yield Prose(head)
        yield table([(at(fault.line), one_line(fault.what, width)) for fault in faults[:SHOWN]], indent=2)
    if len(faults) > SHOWN:
        yield f"  and {len(faults) - SHOWN} more"
