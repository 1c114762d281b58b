"""Run a rank that allocates more than the limit of its job, and print how it ended; for a container with that limit."""

from __future__ import annotations

import sys
from pathlib import Path

from matrix.ground.catalog.failure import Limits
from matrix.ground.catalog.schema import Size
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.supervisor import Supervisor

if __name__ == "__main__":
    limits = Limits(memory=Size(sys.argv[1]))  # in bytes
    job = RankJob(
        "tests.unit.prove.execution.ranks.bodies:fill_memory", {}, 1, (), {}, 60.0, Path("/tmp/log"), limits=limits
    )
    with Supervisor(preload=("json",)) as supervisor:
        sys.stdout.write(f"{supervisor.run(job).kind.value}\n")
