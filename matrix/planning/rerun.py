"""The line that runs a case again, as plans, records and pages have it."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from matrix.catalog.model import HOST
from matrix.planning.cases import CLONE
from matrix.planning.planned import Planned

RERUN: Final = "MEGATRIX_PYTEST"  # how the cases of the base `host` are run, for the line that runs one again


def plan_entry(planned: Planned) -> dict[str, Any]:
    """Return the case as a run's plan.json holds it."""
    return {**planned.to_json(), "reproduce": reproduce_line(planned)}


def reproduce_line(planned: Planned) -> str:
    """Return the line that runs this case again, on any machine that has the project and what the case needs.

    Where one stands is a base that nothing else has: there it is pytest again, as it was called ($MEGATRIX_PYTEST).
    """
    if planned.cell.base == HOST:
        pytest = os.environ.get(RERUN, "python3 -m pytest tests/failures")
        named = {
            "cell": planned.cell.id,
            "failure": planned.failure,
            "case": planned.case,
            "level": planned.level.value,
        }
        return f'{pytest} --select "{" and ".join(f"{name}=={value}" for name, value in named.items())}"'
    command = os.environ.get("MEGATRIX_COMMAND", "megatrix")
    given = planned.source and not planned.source.startswith(tuple(CLONE.values()))
    source = f" --mcore {json.dumps(planned.source)}" if given else ""
    return f'{command} run{source} --case "{planned.key}"'
