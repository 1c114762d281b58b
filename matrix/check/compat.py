"""Look up the known failures of a stack: megatrix compat "mcore=0.9.0 te=1.9.0 torch=2.4.1"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Expectation, Failure, Level, Rule
from matrix.catalog.model import Catalog, Container
from matrix.catalog.versions import NONE, is_version
from matrix.contract import reading, table
from matrix.contract.finding import Finding, FindingKind, find
from matrix.errors import MatrixError, closest
from matrix.verdicts.outcome import Outcome, OutcomeKind
from matrix.verdicts.signature import owner

AXES: Final = ("base", "torch", "mcore", "te", "driver", "sm", "gpus")
HARDWARE: Final = ("driver", "sm", "gpus")
EXAMPLES: Final = {"torch": "2.4.1", "mcore": "0.9.0", "te": "1.9.0", "driver": "535", "sm": "9.0", "gpus": "8"}
RELEASE_TAG: Final = re.compile(r"^core_v(?=\d)")
FORM: Final = (
    '"mcore=0.9.0 te=1.9.0+e79d915 torch=2.4.1 driver=535"; base=ngc-24.07 stands for the torch and TE of an image'
)


def parse_stack(catalog: Catalog, text: str) -> Cell:
    """Return the stack as a cell; an axis without a value is "none". Raises MatrixError with a suggestion."""
    named: dict[str, str] = {}
    tags = {container.tag: container.id for container in catalog.containers}
    for word in text.replace(",", " ").split():
        axis, equals, value = word.partition("=")
        value = RELEASE_TAG.sub("", value.removeprefix("="))  # as written in a requirements file, or as a tag of git
        if word in tags or value in tags:
            axis, equals, value = "base", "=", tags.get(word) or tags[value]
        if not equals or not value:
            raise MatrixError("not a stack", got=word, expected=FORM)
        if axis not in AXES:
            raise MatrixError("no such axis", got=axis, expected=FORM, fix=closest(axis, AXES))
        if axis in named:
            raise MatrixError("an axis is named twice", got=word, expected=f"one {axis}")
        if axis != "base" and not is_version(value):
            raise MatrixError("not a version", got=word, expected=f"a PEP 440 version, such as {axis}={EXAMPLES[axis]}")
        named[axis] = value
    if not named:
        raise MatrixError("no stack", got=repr(text), expected=FORM)
    base = named.pop("base", "")
    if base:
        known = catalog.base(base)
        named.setdefault("torch", catalog.cell(base).torch)
        if isinstance(known, Container) and known.te:
            named.setdefault("te", known.te)
    image = None if base or "torch" not in named else catalog.container_of(named["torch"])
    axes: dict[str, Any] = {"torch": NONE, "mcore": NONE, **named}
    return Cell(base, **axes, image=image.id if image else NONE)


@dataclass(frozen=True)
class FailureInStack:
    """What the catalog expects of a failure in a stack; `rule` is None where no rule matches.

    `levels` are those at which the failure has ever run on this machine.
    """

    failure: Failure
    expectation: Expectation
    rule: Rule | None
    levels: frozenset[Level]

    @property
    def reason(self) -> str:
        """Return why this is expected, "" without a rule."""
        return self.rule.reason if self.rule else ""

    @property
    def axes(self) -> list[str]:
        """Return the axes that the rule bounds."""
        return [axis for axis, _ in self.rule.bounds()] if self.rule else []

    @property
    def seen(self) -> list[str]:
        """Return the levels by name, in order."""
        return sorted(level.value for level in self.levels)

    @property
    def fix(self) -> str:
        """Return the fix as one line."""
        return " ".join(self.failure.fix.split())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "failure": self.failure.id,
            "title": self.failure.title,
            "expectation": self.expectation.value,
            "reason": self.reason,
            "axes": self.axes,
            "levels": self.seen,
            "fix": self.fix,
            "workarounds": [{"text": one.text, "verified": one.verified} for one in self.failure.workaround],
            "references": list(self.failure.references),
        }


def compat(catalog: Catalog, stack: Cell, levels: Mapping[str, frozenset[Level]]) -> list[FailureInStack]:
    """Return the expectation of each failure of the catalog in the stack, broken ones first.

    `levels` are those at which each failure has ever run on this machine (matrix.store.history).
    """
    found = [
        FailureInStack(failure, *failure.ruling(stack), levels.get(failure.id, frozenset()))
        for failure in catalog.failures
    ]
    order = [Expectation.BROKEN, Expectation.UNKNOWN, Expectation.WORKS]
    return sorted(found, key=lambda one: order.index(one.expectation))


def unlisted(catalog: Catalog, stack: Cell) -> list[Finding]:
    """Return the calls from the stack's Megatron into its TE that break or are misbound and that the catalog lacks.

    A job is affected if it reaches the line, which may require a flag. Raises MatrixError when a side is not recorded.
    """
    broken = [one for one in catalog.failures if one.expectation(stack) is Expectation.BROKEN]
    return [
        finding
        for finding in find(reading.calls_of(stack.mcore), reading.surface_of(stack.te))
        if finding.kind in (FindingKind.DEFINITE, FindingKind.MISBOUND)
        and owner(broken, Outcome(OutcomeKind.RAISED, chain=(finding.raised,))) is None
    ]


def render_findings(found: list[Finding], stack: Cell) -> str:
    """Return the findings for a terminal."""
    if not found:
        return "level contract finds nothing else in the calls from Megatron into Transformer Engine"
    head = "level contract finds more in the calls from Megatron into Transformer Engine; most require a flag:"
    return f"{head}\n\n{table.table(found, [stack.mcore], [stack.te])}"
