"""The parity oracle on real releases of megatron-core: planted defects, and deviations known from issues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.loading import load
from matrix.prove.parity.campaigns import CoreCell, core_cell
from tests.real.conftest import ROOT
from tests.real.parity_plants import MIXED_PLANTS, PLANTS, TE_MIXED_PLANTS, TE_PLANTS
from tests.schemas import items_of

POINT = "experts=4 per_token_loss=on balancing=aux_loss"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CoreCell]:
    """Return a cell for each release; its base and overlay are made where missing."""
    catalog = load()
    return {core: core_cell(catalog, core, print) for core in ("0.16.1", "0.19.2")}


def environment(cell: CoreCell) -> dict[str, str]:
    """Return the variables of a process in a cell."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{cell.overlay}", "PYTHONWARNINGS": "ignore"}


def run(cell: CoreCell, module: str, lines: str = "") -> list[dict[str, Any]]:
    """Run a module in a cell and return the JSON lines of its output."""
    command = [str(cell.python), "-m", module]
    done = subprocess.run(
        command, env=environment(cell), cwd=ROOT, input=lines, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def outcomes(cell: CoreCell, *points: str, dtype: str = "float64") -> list[tuple[str, str]]:
    """Return the outcome of each point, by two seeds, with the quantity that deviates first."""
    tasks = [{"point": point, "seed": seed, "dtype": dtype} for point in points for seed in (1, 2)]
    lines = "\n".join(map(json.dumps, tasks))
    rows = run(cell, "matrix.kit.parity.campaign", lines)
    found: list[tuple[str, str]] = [
        (row["outcome"], row["deviations"][0]["quantity"] if row["deviations"] else "") for row in rows
    ]
    assert found[::2] == found[1::2]
    return found[::2]


@pytest.mark.parametrize(
    ("te", "plants"), [("", {**PLANTS, **MIXED_PLANTS}), ("2.18.0", {**TE_PLANTS, **TE_MIXED_PLANTS})]
)
def test_every_planted_defect_deviates(te: str, plants: Mapping[str, Any]) -> None:
    rows = run(core_cell(load(), "0.19.2", print, te), "tests.real.parity_plants")
    assert len(rows) == 2 * len(plants)
    for row in rows:
        quantity = plants[row["plant"]][2]
        assert row["outcome"] == ("deviates" if quantity else "equal"), row
        assert row["first"].startswith(quantity), row


def test_modules_of_transformer_engine_are_judged(tmp_path: Path) -> None:
    """By `--te`: a layout that is equal, and one that the catalog states to deviate."""
    layouts = ("tp=2 sequence_parallel=on wgrad_fusion=on", "softmax=learnable cp=2 cp_comm=a2a")
    words = [word for layout in layouts for word in ("--layout", layout)]
    command = [sys.executable, "-m", "matrix", "parity", "--mcore", "0.19.2", "--te", "2.18.0", "--json", *words]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    (item,) = items_of(done.stdout, "parity")
    found = [(row["layout"].partition(" ")[0], row["outcome"]) for row in item["asked"]]
    assert (found, done.returncode) == ([("modules=te", "equal"), ("modules=te", "deviates")], 1), done.stderr
    assert item["asked"][1]["deviations"][0]["parameter"].endswith("softmax_offset")


def test_auxiliary_loss_of_issue_5047_deviates(cells: Mapping[str, CoreCell]) -> None:
    """Megatron-LM#5047 and #1652: repaired in 0.19."""
    points = (f"{POINT} tp=2 sequence_parallel=on", f"{POINT} cp=2")
    assert outcomes(cells["0.16.1"], *points) == [("deviates", "gradient")] * 2
    assert outcomes(cells["0.19.2"], *points) == [("equal", "")] * 2


def test_token_prediction_of_issue_7452_deviates(cells: Mapping[str, CoreCell]) -> None:
    """Megatron-LM#7452, finding 3: other micro-batches are another loss."""
    points = (
        "mtp=1 per_token_loss=on mask=uneven dp=4 micro_batches=2",
        "mtp=1 per_token_loss=on dp=4 micro_batches=2",
    )
    assert outcomes(cells["0.19.2"], *points) == [("deviates", "gradient"), ("equal", "")]


def test_half_precision_has_main_weights_of_its_own(cells: Mapping[str, CoreCell]) -> None:
    """A checkpoint by parameters is shifted, Megatron-LM#5077; where the buffer has one bucket, it is not."""
    shifted = "qkv_bias=on optimizer=adam pp=2 distributed_optimizer=on resume=same reshardable=on"
    points = (shifted, f"{shifted} untied=on", "tp=2 sequence_parallel=on", "experts=4 dp=2 ep=2 micro_batches=2")
    found = outcomes(cells["0.19.2"], *points, dtype="bfloat16")
    assert found == [("deviates", "parameter"), *[("equal", "")] * 3]


def test_megatron_fsdp_has_a_norm_in_float64(cells: Mapping[str, CoreCell]) -> None:
    """0.19.2 reports 0 without clipping, and that of one rank with it."""
    whole = "optimizer=adam dp=2 distributed_optimizer=on fsdp=optim_grads_params"
    points = (f"{whole} clip=off", whole)
    assert outcomes(cells["0.19.2"], *points) == [("deviates", "norm"), ("equal", "")]
