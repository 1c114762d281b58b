"""A night of one failure for the tests of commands."""

from __future__ import annotations

from matrix.ground.catalog.failure import Level
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.prove.planning.night import night, pairwise
from tests.unit import catalogs
from tests.unit.catalogs import case, clause, failure, stack

ENTRY = failure(
    "save-breaks",
    affected=(clause(mcore="<0.9", torch=">=2.4"),),
    works=(clause(mcore=">=0.9"), clause(torch="<2.4")),
    case=(case("tp2", (Level.CPU, Level.GPU)), case("pp2")),
)


KNOWN = catalogs.catalog(ENTRY, stacks=(stack("save-breaks", "torch-2.4.0", "0.8.0rc0"),))


NIGHT = night(KNOWN, pairwise)


CELL = "torch-2.4.0/mcore-0.8.0/te-none/driver-none"


KEY = f"{CELL} save-breaks tp2 cpu"


STRANGE = Outcome(OutcomeKind.RAISED, "rank 0 raised: KeyError", 0, chain=(Raised("KeyError", "'loss'"),))
