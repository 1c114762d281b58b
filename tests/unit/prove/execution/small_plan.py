"""A plugin of pytest with a plan of nine cases, each of which is read or does what $DO names."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from matrix.ground.catalog.failure import Case, Failure, Level
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.stack import MCORE, Cell
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution import case_context, installation, plugin, session
from matrix.prove.execution.reproduction import Reproduction
from matrix.read.machine import installed as environments
from tests.unit.catalogs import case, catalog, failure

FOLDER = Path(os.environ["SMALL_PLAN"])  # holds the failure's folder, and `ran`: a line for each case that ran
NAMES = ("first", "second", "third")
ENTRY = failure(folder=FOLDER / "break", case=tuple(case(name, levels=(Level.CONTRACT,)) for name in NAMES))


DO = json.loads(os.environ.get("DO", "{}"))
real = session.Session.reproduction


def reproduction(own: session.Session, planned: Planned) -> Reproduction:
    """Return the reproduction of a case. Raises MatrixError for one that is refused, as where no rank starts."""
    if DO.get(f"{planned.case} {planned.cell.stack[MCORE]}") == "refuse":
        raise MatrixError("no rank starts")
    return real(own, planned)


def read_case(entry: Failure, chosen: Case, cell: Cell) -> Outcome:
    """Return the outcome of a case."""
    name = f"{chosen.name} {cell.stack[MCORE]}"
    with (FOLDER / "ran").open("a") as file:
        file.write(f"{name}\n")
    match DO.get(name):
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "wait":
            (FOLDER / "waits").write_text(str(os.getpid()))  # a FIFO
            time.sleep(60)
        case "fail":
            return Outcome(OutcomeKind.RAISED, "something else", 0, chain=(Raised("ValueError", "something else"),))
    return Outcome(OutcomeKind.PASSED)


for module, name, value in (
    (plugin, "FAILURES", FOLDER),
    (installation, "load", lambda: catalog(ENTRY)),
    (session, "read_case", read_case),
    (session.Session, "reproduction", reproduction),
    (environments, "current", lambda: PythonEnvironment("3.10.13", {"torch": "2.4.0"})),
    (case_context, "case_key", lambda *_: ""),  # to read the code takes a second
):
    setattr(module, name, value)
