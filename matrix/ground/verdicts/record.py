"""One judged case: the value that goes into journals, the history, reports and `megatrix run --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from matrix.ground.catalog.codec import encode
from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.catalog.stack import Cell
from matrix.ground.verdicts.outcome import Outcome
from matrix.ground.verdicts.planned import Planned, Reason


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
        return "green" if self in GREEN else "red" if self in RED else self.value


GREEN: Final = frozenset({Verdict.REPRODUCED, Verdict.HOLDS})
RED: Final = frozenset({Verdict.VANISHED, Verdict.REGRESSED, Verdict.UNEXPLAINED})
SILENT: Final = frozenset({Verdict.UNAVAILABLE, Verdict.NOT_REACHED})  # verdicts without information on the cell


PLANNED: Final = ("failure", "case", "cell", "level", "expectation", "why")  # its keys in the JSON of a record
MACHINE: Final = "machine"  # of `resolved`, at level gpu: its GPUs, driver, cores and memory
OUTCOME: Final = {"outcome": "kind", "seconds": "seconds", "reason": "reason"}


@dataclass(frozen=True)
class Record:
    """One planned case and its result.

    `content` is the verdict-cache key ("" if the result must not be cached). `other` is the id of the catalog entry
    whose signature matched when it is not this failure's. `notes` qualify the result for the reader: twin, stand-ins, a
    different Python.
    """

    planned: Planned
    verdict: Verdict
    outcome: Outcome
    signature: str | None = None  # name of the matched signature
    reproduce: str = ""  # a command line that reproduces it
    other: str | None = None
    notes: tuple[str, ...] = ()
    resolved: Mapping[str, str] = field(default_factory=dict)  # package -> installed version; also python, image, host
    content: str = ""
    cached_from: str = ""  # run id, when the verdict came from the cache
    run: str = ""
    started: str = ""  # UTC, ISO 8601

    @property
    def key(self) -> str:
        """Return the case's name within a plan."""
        return self.planned.key

    @property
    def failure(self) -> str:
        """Return the failure's id."""
        return self.planned.failure

    @property
    def case(self) -> str:
        """Return the name of the failure's case."""
        return self.planned.case

    @property
    def cell(self) -> Cell:
        """Return the cell in which it ran."""
        return self.planned.cell

    @property
    def level(self) -> Level:
        """Return the level of the reproduction."""
        return self.planned.level

    @property
    def expectation(self) -> Expectation:
        """Return the expectation that its verdict compares the outcome with."""
        return self.planned.expectation

    @property
    def why(self) -> tuple[Reason, ...]:
        """Return the reasons for which it is in the plan."""
        return self.planned.why

    def to_json(self) -> dict[str, Any]:
        """Return what commands print (docs/schema/records.json): flat, `detail` has the rest of the outcome."""
        plain = encode(self)
        planned, outcome = plain.pop("planned"), plain.pop("outcome")
        flat = {key: planned[key] for key in PLANNED} | {key: outcome.pop(name) for key, name in OUTCOME.items()}
        return {**flat, "seconds": round(flat["seconds"], 3), **plain, "detail": outcome}
