"""`megatrix parity --device cuda` on stand-ins: of the driver, CUDA (the CPU), NCCL's collectives (gloo), TE's kernels.

The command, the claim of the GPU, the real wheel of NCCL, the forked ranks, Megatron-LM and Transformer Engine's Python
are real, and so are bfloat16 and float32, of the CPU.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.errors import ExitStatus
from matrix.prove.execution.ranks.shared_gpu import CONTROL
from tests.real.conftest import ROOT
from tests.rehearsal.conftest import Rehearsals
from tests.rehearsal.parity_ranks import PLANT, STARTED
from tests.rehearsal.test_rehearsal import FIRST
from tests.schemas import items_of
from tests.unit.prove.execution.ranks.test_shared_gpu import CONTROL as STAND_IN

# The process in the cell is one with stand-ins; nothing else of the command is replaced.
CODE = """
import sys
from matrix.prove.parity import campaigns
from matrix.cli.main import main
campaigns.MODULE = "tests.rehearsal.parity_ranks"
sys.exit(main(["parity", "--device", "cuda", "--mcore", "0.19.2", "--json", *sys.argv[1:]]))
"""
LAYOUTS = (
    "tp=2 sequence_parallel=on",
    "dp=4 micro_batches=2 optimizer=adam distributed_optimizer=on",
    "pp=2 experts=4",
    "experts=4 dp=2 ep=2",
    "optimizer=adam tp=2 resume=one",
    "fp8=tensorwise tp=2 sequence_parallel=on",
    "fp8=delayed dp=2",
    "fp8=blockwise experts=4 dp=2 ep=2",
    "modules=local tp=2",
    "optimizer=adam dp=2 distributed_optimizer=on fsdp=optim_grads_params",
    "modules=local optimizer=adam dp=2 distributed_optimizer=on fsdp=optim",
)
OFFLOADED = "modules=local optimizer=adam dp=2 distributed_optimizer=on offload=half"  # float32 lacks a stand-in


@dataclass(frozen=True)
class Card:
    """A rehearsed card: runs the command there."""

    rehearsals: Rehearsals
    out: Path

    def parity(self, *words: str, **variables: str) -> tuple[int, dict[str, Any]]:
        """Return the exit status of the command and the result of its one core."""
        environ = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.rehearsals.drivers),
            "CUDA_VISIBLE_DEVICES": FIRST,
            "MEGATRIX_GPU_LOCKS": str(self.out / "locks"),
            **variables,
        }
        command = [str(self.rehearsals.python), "-c", CODE, *words, "--out", str(self.out)]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=900, check=False)
        assert done.stdout, done.stderr
        (item,) = items_of(done.stdout, "parity")
        return done.returncode, item


@pytest.fixture
def card(rehearsals: Callable[[str], Rehearsals], tmp_path: Path) -> Card:
    return Card(rehearsals("torch-2.15.0"), tmp_path)


@pytest.mark.parametrize(("dtype", "layouts"), [("bfloat16", (*LAYOUTS, OFFLOADED)), ("float32", LAYOUTS)])
def test_unchanged_layouts_are_equal(card: Card, dtype: str, layouts: tuple[str, ...]) -> None:
    words = [word for layout in layouts for word in ("--layout", layout)]
    status, item = card.parity("--dtype", dtype, *words)
    assert [(row["layout"], row["outcome"], row["text"]) for row in item["asked"]] == [
        (row["layout"], "equal", "") for row in item["asked"]
    ]
    assert (len(item["asked"]), status) == (len(layouts), ExitStatus.GOOD)


@pytest.mark.parametrize(
    ("plant", "layout", "quantity"),
    [
        ("te dropped gradient", "tp=2 sequence_parallel=on", "gradient"),
        ("te dropped expert", "experts=4 dp=2 ep=2", "gradient"),
        ("wrong norm", "tp=2", "norm of gathered"),
    ],
)
def test_search_confirms_a_planted_defect(card: Card, plant: str, layout: str, quantity: str) -> None:
    """In bfloat16, with two seeds, and in float32 or under the layout from which it was shrunk."""
    status, item = card.parity("--given", layout, "--unaided", "--seconds", "600", **{PLANT: plant})
    found = [(row["certainty"], row["deviations"][0]["quantity"]) for row in item["causes"]]
    assert (found, status) == ([("confirmed", quantity)], ExitStatus.BAD)
    assert item["causes"][0]["reproduce"].endswith("--seed 1 --device cuda")


def test_defect_of_a_thousandth_needs_float32(card: Card) -> None:
    words = ("--layout", "tp=2 sequence_parallel=on")
    rows = [card.parity("--dtype", dtype, *words, **{PLANT: "te wrong scale"}) for dtype in ("bfloat16", "float32")]
    assert [(status, item["asked"][0]["outcome"]) for status, item in rows] == [(0, "equal"), (1, "deviates")]


def test_ranks_import_by_themselves_where_cuda_started(card: Card) -> None:
    status, item = card.parity("--layout", "tp=2", **{STARTED: "1"})
    assert (status, item["asked"][0]["outcome"]) == (ExitStatus.GOOD, "equal")


def test_ranks_share_through_a_daemon_of_mps(card: Card) -> None:
    """Which has ended when the command has. Muon's package is not in this environment: upstream says so."""
    program = card.out / "bin" / CONTROL
    program.parent.mkdir()
    shell, rest = STAND_IN.split("\n", 1)
    program.write_text(f'{shell}\necho "$CUDA_MPS_PIPE_DIRECTORY" >>{card.out}/started\n{rest}')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    status, item = card.parity("--mps", "--layout", "tp=2", "--layout", "optimizer=muon tp=2", PATH=path)
    assert ([row["outcome"] for row in item["asked"]], status) == (["equal", "refused"], ExitStatus.NOTHING)
    assert "emerging-optimizers package is required" in item["asked"][1]["text"]
    assert "/locks/mps-" in (card.out / "started").read_text()
    assert not list((card.out / "locks").glob("mps-*"))


@pytest.mark.parametrize("variables", [{"CUDA_VISIBLE_DEVICES": ""}, {"LD_LIBRARY_PATH": "/nowhere"}])
def test_machine_without_a_card_decides_nothing(card: Card, variables: dict[str, str]) -> None:
    status, item = card.parity("--layout", "tp=2", **variables)
    assert (status, item["asked"]) == (ExitStatus.NOTHING, [])
    assert "no card for parity: needs 1 GPU" in item["problem"]
