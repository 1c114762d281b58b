"""Level cpu on a machine with GPUs, which stand-ins of the drivers show: its records are those of a machine without."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from matrix.prove.execution.engine import settings
from matrix.prove.provision.bases import CELL_SETTINGS
from matrix.prove.store import journal
from tests.founding import MASK
from tests.image import standin
from tests.real.conftest import COMMAND_S, ROOT, made_base

BASE, DRIVER = "torch-2.4.0", "550.54.14"
SLICE = f"level==cpu and mcore==0.9.0 and failure!={MASK}"  # 18 cases; those of the mask take minutes


def facts(out: Path, **variables: str) -> tuple[set[str], dict[str, tuple[Any, ...]]]:
    """Run the slice at level cpu; return the host drivers that its records name, and by case what else they state."""
    environ = {
        **os.environ, **CELL_SETTINGS, **settings(), "MEGATRIX_BASE": BASE, "MEGATRIX_OUT": str(out), **variables
    }  # fmt: skip
    ran = subprocess.run(
        [made_base(BASE) / "bin" / "python", "-m", "pytest", "-n", "2", "tests/failures", "--megatrix-select", SLICE],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip
    records = [record for run in out.glob("runs/*") for record in journal.read(run).results.values()]
    assert records, ran.stdout + ran.stderr
    return {record.resolved.get("host driver", "") for record in records}, {
        record.key: (record.verdict, record.signature, record.outcome.kind, record.notes) for record in records
    }


def test_gpus_change_no_record_of_level_cpu(tmp_path: Path) -> None:
    drivers = standin.driver(tmp_path / "driver", DRIVER, 12040, "-DGPUS=8")
    without, alone = facts(tmp_path / "without")
    within, beside = facts(tmp_path / "with", LD_LIBRARY_PATH=str(drivers))
    assert (without, within) == ({""}, {DRIVER})
    assert beside == alone
