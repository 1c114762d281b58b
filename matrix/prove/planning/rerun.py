"""The command line that runs a case again, for plans, records and pages."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from matrix.ground.cases.cells import CLONE
from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.folders import SITE
from matrix.ground.catalog.model import HOST
from matrix.ground.verdicts.planned import Planned

RERUN: Final = "MEGATRIX_PYTEST"  # environment variable with the command that runs the cases of the base `host`
RERUN_HERE: Final = "megatrix run --here"  # its value in a run in this environment


@dataclass(frozen=True)
class PlanEntry:
    """A case as a run's plan.json holds it: its fields, and `reproduce`, the command line that runs it again."""

    planned: Planned
    reproduce: str

    def to_plain(self) -> dict[str, Any]:
        """Return the fields of the case and the command line, side by side."""
        return {**self.planned.to_plain(), "reproduce": self.reproduce}

    @classmethod
    def from_plain(cls, value: Mapping[str, Any]) -> PlanEntry:
        """Return the entry of this JSON. Raises MalformedError."""
        return cls(decode(Planned, value), decode(str, value["reproduce"]))


def reproduce_line(planned: Planned, environ: Mapping[str, str]) -> str:
    """Return the command line that runs this case again, on any machine with the project and the case's requirements.

    `environ` are the variables of the user: the command of this project (MEGATRIX_COMMAND), folders of failures. The
    base `host` exists only in the current environment: its line calls pytest, with the command in MEGATRIX_PYTEST.
    """
    if planned.cell.base == HOST:
        pytest = environ.get(RERUN, "python3 -m pytest tests/failures")
        parts = {
            "cell": planned.cell.id,
            "failure": planned.failure,
            "case": planned.case,
            "level": planned.level.value,
        }
        option = "--select" if pytest == RERUN_HERE else "--megatrix-select"
        return f"{pytest} {option} {shlex.quote(' and '.join(f'{name}=={value}' for name, value in parts.items()))}"
    command = environ.get("MEGATRIX_COMMAND", "megatrix")
    if folders := environ.get(SITE):
        command = f"{SITE}={shlex.quote(folders)} {command}"
    parts = {"mcore": planned.source, "te": planned.te_source, "writer": planned.writer_source}
    options = [
        f" --{name} {shlex.quote(source)}"
        for name, source in parts.items()
        if source and not source.startswith(tuple(CLONE.values()))
    ]
    options += [" --compile"] if planned.compiled else []
    return f"{command} run{''.join(options)} --case {shlex.quote(planned.key)}"
