"""Findings: what a command found, with its place. The formats take them alike from check, contract and bisection."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from matrix.ground.catalog.place import Place


class Severity(str, Enum):
    """How certain it is that something breaks; NONE: nothing was checked."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    NONE = "none"


@dataclass(frozen=True)
class FindingTopic:
    """What several findings share: a failure, or a kind of break. `help` is where to read on, "" without such."""

    id: str
    title: str
    help: str = ""


@dataclass(frozen=True)
class ReportedFinding:
    """One thing that breaks. `headline` names it, `message` stands by itself; `place`: None where no file states it."""

    topic: FindingTopic
    headline: str
    message: str
    severity: Severity
    place: Place | None = None


@dataclass(frozen=True)
class Findings:
    """All findings of one call of `command`, such as "megatrix check", and `summary`, sentences about the whole."""

    command: str
    findings: tuple[ReportedFinding, ...] = ()
    summary: tuple[str, ...] = ()
