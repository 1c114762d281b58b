"""The draft of a new entry from a log: the signature of its first unknown fault, and the versions that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final

from matrix.catalog.checks import FRAME, NATIVE
from matrix.errors import MatrixError
from matrix.verdicts.crash import NativeCrash
from matrix.verdicts.kind_match import PACKAGES
from matrix.verdicts.log_match import LogFault, Reading
from matrix.verdicts.outcome import Frame, Raised
from matrix.verdicts.text import MASKED, mask, one_line, visible

LONGEST: Final = 200  # characters of a message in a signature: what comes after them differs from run to run
# What differs between runs of the same failure, and the expression that matches all of it.
_VOLATILE: Final = re.compile(
    rf"(?P<secret>{re.escape(MASKED)})"
    r"|(?P<address>0x[0-9a-fA-F]+)|(?P<path>(?<![\w.])/[^\s'\",:;()]+)|(?P<number>(?<![\w.])\d[\d.,]*(?![\w.]))"
)
_GENERAL: Final = {
    "secret": ".{1,500}",
    "address": "0x[0-9a-fA-F]+",
    "path": r"""[^\s'",:;()]+""",
    "number": r"[\d.,]+",
}
_ORIGIN: Final = re.compile(r"(?<=') \((?:/[^)]*|unknown location)\)$")
_PACKAGE_ROOT: Final = re.compile(r".*(?:-packages/|(?=megatron/|transformer_engine/))")
_ENTRY: Final = """\
id = {id}
title = {title}{todo_title}
topic = {topic}{todo_topic}
first_seen = "{month}"{todo_month}
references = {references}{todo_references}
axes = ["base", "mcore"]  # TODO: the components whose versions decide
symptom = "TODO: what happens, and who is affected."
cause = "TODO: the cause, as far as code or runs support it."
fix = "TODO: the release or commit that fixes it."

# From line {line} of the log: {text}
[[signature]]
name = "from-log"  # TODO: a name for what it compares
{keys}
{versions}[boundary.mcore]  # leave out a side that does not exist, and its rule
breaks = "0.0"  # TODO: the first release that it breaks with
fixed = "0.0"  # TODO: the first release without it

[[affected]]
mcore = "broken"
reason = "run with ..."

[[works]]
mcore = "fixed"
reason = "run with ..."

[night]
reason = "both sides of the change"
bases = ["torch-2.13.0"]
mcore = ["0.0", "0.0"]  # TODO: the releases on both sides of each change

[[case]]
name = "first"  # TODO
run = "reproduce"  # a function of reproduction.py
levels = ["cpu"]

[[workaround]]
text = "megatron-core {{mcore.fixed}} or later"  # TODO: or another one
"""


@dataclass(frozen=True)
class Thread:
    """A public thread: its title, its reference ("OWNER/REPOSITORY#NUMBER"), the day it was opened, all its text."""

    title: str
    reference: str
    day: str
    text: str


def entry_text(id: str, reading: Reading, today: date, thread: Thread | None = None) -> str:
    """Return the failure.toml of a fault in a log or a thread.

    Raises MatrixError where it has none that the catalog lacks.
    """
    fault = _fault(reading)
    topic = next((kind.kind.topic for kind in reading.kinds if kind.line == fault.line), "")
    versions = [f"{package} {' and '.join(seen)}" for package in PACKAGES if (seen := reading.versions.of(package))]
    return _ENTRY.format(
        id=json.dumps(id),
        title=json.dumps(thread.title if thread else one_line(fault.what)[:LONGEST], ensure_ascii=False),
        todo_title="  # TODO: the symptom, in one line",
        topic=json.dumps(topic or "options"),
        todo_topic="" if topic else "  # TODO: megatrix catalog list shows the topics",
        month=thread.day[:7] if thread else f"{today:%Y-%m}",
        todo_month="" if thread else "  # TODO: month of the first public report",
        references=json.dumps([thread.reference] if thread else []),
        todo_references="" if thread else '  # TODO: "OWNER/REPOSITORY#NUMBER" of reports',
        line=fault.line,
        text=one_line(fault.what),
        keys="".join(f"{key}\n" for key in _keys(fault)),
        versions=f"# The log names {', '.join(versions)}.\n" if versions else "",
    )


def _fault(reading: Reading) -> LogFault:
    """Return the fault that a draft is about: an exception with its traceback before others, the first in the log."""
    faults = [fault for fault in reading.unknown if fault.raised or fault.crash]
    if not faults:
        known_failures = ", ".join(sighting.failure.id for sighting in reading.known)
        raise MatrixError(
            "no fault in this log is new",
            got=f"known failures: {known_failures}" if known_failures else "no exception and no crash",
            expected="an exception or a native crash that no entry names",
            fix=f"megatrix catalog check {known_failures}"
            if known_failures
            else "name the log of the rank that failed",
        )
    return min(faults, key=lambda fault: not (fault.raised and fault.raised.frames))


def _keys(fault: LogFault) -> Iterator[str]:
    """Yield the keys of the signature, the narrowest that are the same in each run."""
    if isinstance(raised := fault.raised, Raised):
        yield f"exception = {json.dumps(raised.type)}"
        if raised.message:
            yield f"message = {json.dumps(generalised(raised.compared))}"
        frame = fault.frame or (raised.frames[-1] if raised.frames else None)
        location = f"{_within_package(frame)}:{frame.function}" if frame else ""
        if FRAME.fullmatch(location):
            yield f"{'frame' if frame == raised.frames[-1] else 'through'} = {json.dumps(location)}"
    elif isinstance(crash := fault.crash, NativeCrash):
        function = next((name for name in crash.frames if "::" in name), "")
        yield f"signal = {json.dumps(crash.signal)}" if crash.signal else f"exit_code = {crash.exit_code}"
        if NATIVE.fullmatch(function):
            yield f"stack = {json.dumps(function)}  # TODO: the function of the stack's own code"


def _within_package(frame: Frame) -> str:
    """Return the path of a frame's file from its package on: "megatron/core/optimizer.py"."""
    return _PACKAGE_ROOT.sub("", frame.file) or frame.file


def generalised(message: str) -> str:
    """Return an expression that matches a message in every run: its addresses, paths and numbers stand for any.

    Python ends "cannot import name" with the path of the module, which differs by machine, and threads often lack.
    """
    text = mask(visible(_ORIGIN.sub("", message.partition("\n")[0])))[:LONGEST]
    parts, end = [], 0
    for volatile in _VOLATILE.finditer(text):
        parts += [re.escape(text[end : volatile.start()]), _GENERAL[str(volatile.lastgroup)]]
        end = volatile.end()
    pattern = "".join([*parts, re.escape(text[end:])]).replace("\\ ", " ")
    return f"^{pattern}" + "$" * (text == message and not text.startswith("cannot import name "))
