"""`megatrix bisect --engine slurm` on a real Slurm, of a failure and of a command: each round's points are an array."""

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
# What a user runs without the catalog.
SCRIPT = """
import tempfile, torch
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
if __name__ == "__main__":
    torch.distributed.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2, use_cpu_initialization=True)
    layer = tensor_parallel.ColumnParallelLinear(8, 8, config=config, init_method=torch.nn.init.zeros_)
    dist_checkpointing.save(layer.sharded_state_dict("layer."), tempfile.mkdtemp(), ("torch_dist", 1))
"""
GOOD, BAD = "torch-2.3.1/mcore-0.9.0/te-none/driver-none", "torch-2.4.1/mcore-0.8.0/te-none/driver-none"


def answer(site: Site, engine: str, out: Path, *question: str, folder: Path = ROOT) -> dict[str, Any]:
    """Bisect and return the answer."""
    done = subprocess.run(
        [sys.executable, "-m", "matrix", "bisect", "--json", "--engine", engine, "--out", str(out), *question],
        cwd=folder,
        env={**os.environ, **site.cluster.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (report,) = items_of(done.stdout, "bisect")
    return report


def bisect(site: Site, engine: str, out: Path) -> dict[str, Any]:
    """Bisect and return the answer without machine-dependent fields: seconds and the order of the probes."""
    report = answer(site, engine, out, *QUESTION)
    seen = {probe["label"]: (probe["seen"], probe["signature"]) for probe in report["probes"]}
    return {name: report[name] for name in ("answer", "kind", "candidates", "confidence", "fixed")} | {"seen": seen}


def test_bisection_on_slurm_finds_the_same_release(site: Site, tmp_path: Path) -> None:
    cluster = bisect(site, "slurm", site.out)
    assert cluster["answer"] == "0.9.0"
    assert cluster == bisect(site, "local", tmp_path / "alone")
    arrays = [folder for folder in (site.out / "runs").glob("*-bisect") if list(folder.glob("slurm/0000-*.log"))]
    assert len(arrays) >= 2
    site.quiet()


def test_culprits_of_a_command_are_found_on_nodes(site: Site, tmp_path: Path) -> None:
    """It starts in the folder of the call, which the nodes share."""
    (tmp_path / "save.py").write_text(SCRIPT)
    line = ("--good", GOOD, "--bad", BAD, "--at-once", "2", "--deadline", "600", "--", "python", "save.py")
    report = answer(site, "slurm", site.out, *line, folder=tmp_path)

    assert report["answer"] == ["mcore", "torch"]
    assert {name: inside["answer"] for name, inside in report["inside"].items()} == {"mcore": "0.9.0", "torch": "2.4.0"}
    site.quiet()
