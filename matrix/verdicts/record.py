"""One judged case: the value that goes into journals, the history, reports and `megatrix run --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from matrix.catalog.cell import Cell
from matrix.catalog.conform import conforming, items
from matrix.catalog.failure import Expectation, Level
from matrix.verdicts.outcome import Outcome
from matrix.verdicts.reason import Reason


class Verdict(str, Enum):
    """Outcome against expectation. `unavailable` and `not-reached` have their own colours and are never green."""

    REPRODUCED = "reproduced"  # green: broken, and with this failure's signature
    HOLDS = "holds"  # green: the gate
    LEARNED = "learned"  # recorded, offered as a catalog change
    VANISHED = "vanished"  # red: the reproduction no longer works, or the failure was fixed
    REGRESSED = "regressed"  # red: this failure's signature where it should work
    UNEXPLAINED = "unexplained"  # red: another failure
    UNAVAILABLE = "unavailable"
    NOT_REACHED = "not-reached"

    @property
    def colour(self) -> str:
        """Return "green", "red", "learned", "unavailable" or "not-reached"."""
        return COLOURS.get(self, self.value)


COLOURS = {
    Verdict.REPRODUCED: "green",
    Verdict.HOLDS: "green",
    Verdict.VANISHED: "red",
    Verdict.REGRESSED: "red",
    Verdict.UNEXPLAINED: "red",
}


SILENT: Final = frozenset({Verdict.UNAVAILABLE, Verdict.NOT_REACHED})  # verdicts without information on the cell


@dataclass(frozen=True)
class Record:
    """One planned case and its result.

    `key` names the case within a plan ("CELL FAILURE CASE LEVEL"), `content` is the verdict-cache key ("" if the
    result must not be cached). `other` is the id of the catalog entry whose signature matched when it is not this
    failure's. `notes` qualify the result for the reader: twin, stand-ins, a different Python.
    """

    failure: str
    case: str
    cell: Cell
    level: Level
    expectation: Expectation
    verdict: Verdict
    outcome: Outcome
    signature: str | None  # name of the matched signature
    reproduce: str  # a command line that reproduces it
    other: str | None = None
    notes: tuple[str, ...] = ()
    why: tuple[Reason, ...] = ()  # why the case is in the plan
    resolved: Mapping[str, str] = field(default_factory=dict)  # package -> installed version; also python, image, host
    content: str = ""
    cached_from: str = ""  # run id, when the verdict came from the cache
    run: str = ""
    started: str = ""  # UTC, ISO 8601

    @property
    def key(self) -> str:
        """Return the case's name within a plan."""
        return case_key(self.cell.id, self.failure, self.case, self.level)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values. `outcome` holds the kind of the outcome, `detail` the whole of it."""
        detail = self.outcome.to_json()
        return {
            "failure": self.failure,
            "case": self.case,
            "cell": self.cell.to_json(),
            "level": self.level.value,
            "outcome": self.outcome.kind.value,
            "expectation": self.expectation.value,
            "verdict": self.verdict.value,
            "signature": self.signature,
            "seconds": round(self.outcome.seconds, 3),
            "reproduce": self.reproduce,
            "other": self.other,
            "reason": self.outcome.reason,
            "notes": list(self.notes),
            "why": [reason.to_json() for reason in self.why],
            "resolved": dict(self.resolved),
            "content": self.content,
            "cached_from": self.cached_from,
            "run": self.run,
            "started": self.started,
            "detail": detail,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Record:
        """Build a record from the JSON of `to_json`. Raises one of MALFORMED (catalog.conform) on anything else."""
        made = cls(
            failure=record["failure"],
            case=record["case"],
            cell=Cell.from_json(record["cell"]),
            level=Level(record["level"]),
            expectation=Expectation(record["expectation"]),
            verdict=Verdict(record["verdict"]),
            outcome=Outcome.from_json(record["detail"]),
            signature=record["signature"],
            reproduce=record["reproduce"],
            other=record["other"],
            notes=items(record["notes"]),
            why=tuple(map(Reason.from_json, items(record["why"]))),
            resolved=record["resolved"],
            content=record["content"],
            cached_from=record["cached_from"],
            run=record["run"],
            started=record["started"],
        )
        return conforming(made)


def case_key(cell: str, failure: str, case: str, level: Level) -> str:
    """Return the name of one case within a plan; the same four words select it on the command line."""
    return f"{cell} {failure} {case} {level.value}"
