"""`megatrix bisect --engine slurm` on a real Slurm: each round's points are an array."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.founding import SAVE
from tests.schemas import items_of
from tests.slurm.conftest import COMMAND_S, ROOT, Site

# Megatron-core 0.7.0 to 0.10.0 on torch 2.4.0: the fix is in 0.9.0. Four cases of two ranks at most.
QUESTION = (SAVE, "--axis", "mcore", "--torch", "2.4.0", "--bad", "0.7.0", "--good", "0.10.0")


def bisect(site: Site, engine: str, out: Path) -> dict[str, Any]:
    """Bisect and return the answer without machine-dependent fields: seconds and the order of the probes."""
    done = subprocess.run(
        [sys.executable, "-m", "matrix", "bisect", *QUESTION, "--json", "--engine", engine, "--out", str(out)],
        cwd=ROOT,
        env=os.environ | site.cluster.environ,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (report,) = items_of(done.stdout, "bisect")
    seen = {probe["label"]: (probe["seen"], probe["signature"]) for probe in report["probes"]}
    return {name: report[name] for name in ("answer", "kind", "candidates", "confidence", "fixed")} | {"seen": seen}


def test_bisection_on_slurm_finds_the_same_release(site: Site, tmp_path: Path) -> None:
    cluster = bisect(site, "slurm", site.out)
    assert cluster["answer"] == "0.9.0"
    assert cluster == bisect(site, "local", tmp_path / "alone")
    arrays = [folder for folder in (site.out / "runs").glob("*-bisect") if list(folder.glob("slurm/0000-*.log"))]
    assert len(arrays) >= 2
    site.quiet()
