"""One case to run, as it is stored in a run's plan and sent to the process that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from matrix.catalog.cell import Cell
from matrix.catalog.conform import conforming, items
from matrix.catalog.failure import LAUNCHERS, Expectation, Level
from matrix.verdicts.reason import Reason
from matrix.verdicts.record import case_key

FIELDS: Final = (
    "key",
    "failure",
    "case",
    "reproducible",
    "ranks",
    "gpus",
    "launcher",
    "source",
    "te_source",
    "writer_source",
    "compiled",
    "seconds",
)  # fields whose values are JSON


@dataclass(frozen=True)
class Planned:
    """One case to run (or to report as `unavailable`): a case of a failure, at a level, in a cell.

    `why` holds the reasons for which it is in the plan. `reproducible`: the catalog has a reproduction of it. `source`
    and `te_source` are the sources of megatron-core and Transformer Engine that are not PyPI (a wheel, a
    clone@revision, a working tree); `writer_source` is that of the writer's megatron-core. `compiled`: a clone's
    Transformer Engine is built with its extension. `packages` ("NAME==VERSION") are laid over the base too. What any of
    them requires of a package in `overrides` does not count. `seconds` is its expected time, 0 for unknown.
    """

    cell: Cell
    failure: str
    case: str
    level: Level
    expectation: Expectation
    reproducible: bool
    ranks: int
    gpus: int
    launcher: str = LAUNCHERS[0]
    packages: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    source: str = ""
    te_source: str = ""
    writer_source: str = ""
    compiled: bool = False
    seconds: float = 0.0
    why: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Return the case's name within a plan."""
        return case_key(self.cell.id, self.failure, self.case, self.level)

    @property
    def writer(self) -> Planned | None:
        """Return the case in the cell that writes the checkpoint it reads, None if it reads none."""
        cell = self.cell.writer
        if not cell:
            return None
        unknown = Expectation.UNKNOWN
        return replace(self, cell=cell, expectation=unknown, source=self.writer_source, te_source="", writer_source="")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: the fields and the key."""
        return {
            **{name: getattr(self, name) for name in FIELDS},
            "cell": self.cell.to_json(),
            "level": self.level.value,
            "expectation": self.expectation.value,
            "packages": list(self.packages),
            "overrides": list(self.overrides),
            "why": [reason.to_json() for reason in self.why],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Planned:
        """Build a case from the JSON of `to_json`. Raises one of MALFORMED (catalog.conform) on anything else."""
        made = cls(
            cell=Cell.from_json(record["cell"], record.get("stack", {})),
            failure=record["failure"],
            case=record["case"],
            level=Level(record["level"]),
            expectation=Expectation(record["expectation"]),
            reproducible=record["reproducible"],
            ranks=record["ranks"],
            gpus=record["gpus"],
            launcher=record["launcher"],
            packages=items(record["packages"]),
            overrides=items(record.get("overrides", ())),  # plans of earlier versions have none
            source=record["source"],
            te_source=record["te_source"],
            writer_source=record.get("writer_source", ""),  # plans of earlier versions have none
            compiled=record.get("compiled", False),
            seconds=record.get("seconds", 0.0),
            why=tuple(map(Reason.from_json, items(record["why"]))),
            notes=items(record["notes"]),
        )
        if record["key"] != made.key:
            raise ValueError(f"the key is {repr(record['key'])[:80]}, not {made.key}")
        if made.ranks < 1 or made.gpus < 0 or made.launcher not in LAUNCHERS:
            raise ValueError(f"{made.ranks} ranks, {made.gpus} GPUs, launcher {made.launcher}")
        return conforming(made)
