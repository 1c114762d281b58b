"""What one array task does on its node, in the interpreter of its base: `python -m matrix.slurm.task PART`.

It holds a lock for as long as it lives. A task that Slurm started again elsewhere, because it lost sight of a node that
still works, waits there for the first to end, and then runs only what that one left.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from matrix.ranks.kernel import die_with_parent
from matrix.session import Session  # noqa: F401  # what takes a second to import is imported before the lock
from reports import journal, night

# pytest's own: all passed, some failed. A failed test is a red verdict, which is kept; Slurm need not hear of it.
DONE: Final = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def main(part: Path) -> int:
    """Run the cases of this task that have no result; return 0 when each has one."""
    die_with_parent(os.getppid())
    told = json.loads(part.read_text("utf-8"))
    index = int(os.environ["SLURM_ARRAY_TASK_ID"])
    with part.with_name(f"{part.stem}-{index}.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        folder = Path(os.environ["MEGATRIX_RUN"])
        done = journal.read(folder).results
        keys = [key for key in told["tasks"][index] if key not in done]
        if not keys:
            return 0
        node = os.environ["SLURMD_NODENAME"]
        os.environ["MEGATRIX_KEYS"] = json.dumps(keys)
        os.environ["MEGATRIX_PLACE"] = f"node {node}: {', '.join(told['nodes'].get(node, ())) or 'no features'}"
        tests = {case["test"].partition("::")[0] for case in night.plan(folder) if case["key"] in set(keys)}
        status = pytest.main([*sorted(tests)])
        missing = set(keys) - set(journal.read(folder).results)
    if missing:
        print(f"{len(missing)} of {len(keys)} cases have no result; pytest ended with {int(status)}", file=sys.stderr)  # noqa: T201  (into the task's log)
    return 0 if not missing and status in DONE else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
