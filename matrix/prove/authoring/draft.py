"""The draft of a new entry from a log: the signature of its first unknown fault, and the versions that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from matrix.ground.catalog.checks import FRAME, NATIVE
from matrix.ground.catalog.versions import PARTS, ReleaseBoundary
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.crash import NativeCrash
from matrix.ground.verdicts.kind_match import PACKAGES, KindSighting
from matrix.ground.verdicts.log_match import LogFault, Reading
from matrix.ground.verdicts.outcome import Frame, Raised
from matrix.ground.verdicts.text import MASKED, mask, one_line, visible
from matrix.prove.authoring.api_change import ApiChange, api_change

BASE_OF_DRAFTS: Final = "torch-2.13.0"  # the newest on which every megatron-core of the matrix was measured
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
_UPSTREAM: Final = re.compile("(megatron/core|transformer_engine)/")
_UNKNOWN: Final = """\
  # leave out a side that does not exist, and its rule
breaks = "0.0"  # TODO: the first release that it breaks with, - if no earlier one works
fixed = "0.0"  # TODO: the first release without it, - for none
"""
_CAUSE: Final = '"TODO: the cause, as far as code or runs support it."'
_REACHED: Final = """\
[[reached_by]]
when = {when}  # TODO: which jobs reach it
reason = "in the report"

"""
_FIX: Final = '"TODO: the release or commit that fixes it."'
_LATER: Final = "megatron-core {mcore.fixed} or later"
_RULE: Final = """
[[{table}]]
mcore = "{part}"
reason = "run with ..."
"""


@dataclass(frozen=True)
class Thread:
    """A public thread: its title, its reference ("OWNER/REPOSITORY#NUMBER"), the day it was opened, all its text."""

    title: str
    reference: str
    day: str
    text: str


def template(name: str) -> str:
    """Return the template of a file, for str.format."""
    return Path(__file__).with_name("templates").joinpath(f"{name}.txt").read_text(encoding="utf-8")


def entry_text(
    id: str,
    reading: Reading,
    today: date,
    thread: Thread | None = None,
    change: ApiChange | None = None,
    base: str = BASE_OF_DRAFTS,
) -> str:
    """Return the failure.toml of a fault in a log or a thread; `change` is what the recorded APIs show of it.

    Raises MatrixError where it has none that the catalog lacks.
    """
    fault = _fault(reading)
    sighting = _kind(reading, fault)
    topic = sighting.kind.topic if sighting else ""
    versions = [f"{package} {' and '.join(seen)}" for package in PACKAGES if (seen := reading.versions.of(package))]
    title = thread.title if thread else one_line(fault.what)[:LONGEST]
    parts = change.parts if change else PARTS[:3]
    fixed = change.boundary.fixed if change else ""
    workaround = f"megatron-core before {change.boundary.breaks}" if change and not fixed else _LATER
    return template("drafted_failure.toml").format(
        id=json.dumps(id),
        title=json.dumps(title, ensure_ascii=False),
        topic=json.dumps(topic or "options"),
        todo_topic="" if topic else "  # TODO: megatrix catalog list shows the topics",
        month=thread.day[:7] if thread else f"{today:%Y-%m}",
        todo_month="" if thread else "  # TODO: month of the first public report",
        references=json.dumps([thread.reference] if thread else []),
        todo_references="" if thread else '  # TODO: "OWNER/REPOSITORY#NUMBER" of reports',
        cause=f"{json.dumps(change.fact)}  # TODO: the cause" if change else _CAUSE,
        fix=f'"megatron-core {fixed} and later."  # TODO: the release or commit' if fixed else _FIX,
        name=json.dumps(_name(fault)),
        keys="".join(f"{key}\n" for key in _keys(fault, change)),
        reached=_REACHED.format(when=json.dumps(f"a program needs {change.title}")) if change else "",
        versions=f"# The log names {', '.join(versions)}.\n" if versions else "",
        boundary=_boundary(change.boundary) if change else _UNKNOWN,
        rules="".join(
            _RULE.format(table="affected" if part == "broken" else "works", part=part)
            for part in sorted(parts, key=lambda part: part != "broken")
        ),
        base=base,
        workaround=json.dumps(workaround),
    )


def change_of(reading: Reading) -> ApiChange | None:
    """Return what the recorded APIs show of the fault of a draft. Raises MatrixError where there is none."""
    sighting = _kind(reading, _fault(reading))
    return api_change(sighting.groups) if sighting else None


def _kind(reading: Reading, fault: LogFault) -> KindSighting | None:
    return next((sighting for sighting in reading.kinds if sighting.line == fault.line), None)


def _boundary(boundary: ReleaseBoundary) -> str:
    """Return the table of a boundary that the recorded APIs show."""
    rows = [f"{name} = {json.dumps(release)}\n" for name, release in vars(boundary).items() if release]
    return "  # as the recorded APIs show\n" + "".join(rows)


def _name(fault: LogFault) -> str:
    """Return a name for the signature: that of its exception or signal, in small letters."""
    name = fault.raised.type.rpartition(".")[2] if isinstance(fault.raised, Raised) else "crash"
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


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


def _keys(fault: LogFault, change: ApiChange | None) -> Iterator[str]:
    """Yield the keys of the signature, the narrowest that are the same in each run.

    A name that releases lack fails in each program that needs it: a frame of the program in the log is left out.
    """
    if isinstance(raised := fault.raised, Raised):
        yield f"exception = {json.dumps(raised.type)}"
        if raised.message:
            yield f"message = {json.dumps(generalised(raised.compared))}"
        frame = fault.frame or (raised.frames[-1] if raised.frames else None)
        location = f"{_within_package(frame)}:{frame.function}" if frame else ""
        if FRAME.fullmatch(location) and (change is None or _UPSTREAM.match(location)):
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
