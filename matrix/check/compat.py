"""What is known to break in a stack that somebody has or wants: megatrix compat "mcore=0.9.0 te=1.9.0 torch=2.4.1"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Expectation, Level
from matrix.catalog.model import Catalog, Container
from matrix.catalog.versions import NONE, is_version
from matrix.contract import reading, table
from matrix.contract.finding import Finding, Kind, find
from matrix.errors import MatrixError, closest
from matrix.verdicts.outcome import Outcome, OutcomeKind
from matrix.verdicts.signature import owner

AXES: Final = ("base", "torch", "mcore", "te", "driver", "sm", "gpus")
HARDWARE: Final = ("driver", "sm", "gpus")
FORM: Final = (
    '"mcore=0.9.0 te=1.9.0+e79d915 torch=2.4.1 driver=535"; base=ngc-24.07 brings the torch and TE of an image'
)


def parse_stack(catalog: Catalog, text: str) -> Cell:
    """Return the stack as a cell; an axis that is not named is "none". Raises MatrixError with a suggestion."""
    named: dict[str, str] = {}
    for word in text.replace(",", " ").split():
        axis, equals, value = word.partition("=")
        if not equals or not value:
            raise MatrixError("not a stack", got=word, expected=FORM)
        if axis not in AXES:
            raise MatrixError("no such axis", got=axis, expected=FORM, fix=closest(axis, AXES))
        if axis in named:
            raise MatrixError("an axis is named twice", got=word, expected=f"one {axis}")
        if axis != "base" and not is_version(value):
            raise MatrixError("not a version", got=word, expected=f"a PEP 440 version, such as {axis}=2.4.1")
        named[axis] = value
    if not named:
        raise MatrixError("no stack", got=repr(text), expected=FORM)
    base = named.pop("base", "")
    if base:
        known = catalog.base(base)
        named.setdefault("torch", catalog.cell(base).torch)
        if isinstance(known, Container) and known.te:
            named.setdefault("te", known.te)
    return Cell(base, **{"torch": NONE, "mcore": NONE, **named})


def compat(catalog: Catalog, stack: Cell, levels: Mapping[str, frozenset[Level]]) -> list[dict[str, Any]]:
    """Return what each failure of the catalog says of the stack, broken ones first, as plain JSON values.

    `levels` are those at which each failure has ever run on this machine (matrix.store.history).
    """
    told = []
    for failure in catalog.failures:
        expectation, rule = failure.ruling(stack)
        told.append(
            {
                "failure": failure.id,
                "title": failure.title,
                "expectation": expectation.value,
                "reason": rule.reason if rule else "",
                "axes": [axis for axis, _ in rule.bounds()] if rule else [],
                "levels": sorted(level.value for level in levels.get(failure.id, ())),
                "fix": " ".join(failure.fix.split()),
                "workarounds": [{"text": one.text, "verified": one.verified} for one in failure.workaround],
                "references": list(failure.references),
            }
        )
    order = [Expectation.BROKEN.value, Expectation.UNKNOWN.value, Expectation.WORKS.value]
    return sorted(told, key=lambda one: order.index(str(one["expectation"])))


def unlisted(catalog: Catalog, stack: Cell) -> list[Finding]:
    """Return what level contract finds broken or misbound between the stack's Megatron and TE, less the catalog's own.

    Each concerns whoever reaches its line, which may take a flag. Raises MatrixError when a side is not recorded.
    """
    broken = [one for one in catalog.failures if one.expectation(stack) is Expectation.BROKEN]
    return [
        finding
        for finding in find(reading.calls_of(stack.mcore), reading.surface_of(stack.te))
        if finding.kind in (Kind.DEFINITE, Kind.MISBOUND)
        and owner(broken, Outcome(OutcomeKind.RAISED, chain=(finding.raised,))) is None
    ]


def findings_in_words(found: list[Finding], stack: Cell) -> str:
    """Return the findings for a terminal."""
    if not found:
        return "level contract finds nothing else in what Megatron calls of Transformer Engine"
    head = "level contract finds more in what Megatron calls of Transformer Engine; most of it takes a flag to reach:"
    return f"{head}\n\n{table.table(found, [stack.mcore], [stack.te])}"


def in_words(told: list[dict[str, Any]]) -> str:
    """Return the answer for a terminal."""
    lines = []
    for one in told:
        if one["expectation"] != Expectation.BROKEN.value:
            continue
        seen = f"seen here at level {', '.join(one['levels'])}" if one["levels"] else "never run on this machine"
        lines += [f"BREAKS {one['failure']}: {one['title']}", f"  {one['reason']}; {seen}", f"  fix: {one['fix']}"]
        for way in one["workarounds"]:
            lines.append(f"  way round: {way['text']}{' [' + way['verified'] + ']' if way['verified'] else ''}")
        lines.append(f"  {', '.join(one['references'])}")
    if not lines:
        lines.append("nothing in the catalog is known to break here")
    for kind, text in (("works", "known to work"), ("unknown", "nothing is known of")):
        found = [one for one in told if one["expectation"] == kind]
        if found:
            lines.append(f"{text}: {', '.join(one['failure'] for one in found)}")
        # Where the hardware decides, "works" says too little: it may go another way there.
        lines += [f"  {one['failure']}: {one['reason']}" for one in found if set(one["axes"]) & set(HARDWARE)]
    return "\n".join(lines)
