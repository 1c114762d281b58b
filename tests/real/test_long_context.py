"""The attention mask that fills the host memory, in a real cell; and context-parallel slicing for any size."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.folders import default_root
from matrix.prove.provision.overlays import Overlays, OverlaySpec
from matrix.read.machine.installed import at
from matrix.read.package_source import parse
from tests.founding import MASK
from tests.profiles import tries
from tests.real.conftest import ROOT, Megatrix, Ran, made_base

BASE, CORE = "torch-2.13.0", "0.16.1"
EXPECTED = {
    "mask-on": ("reproduced", "allocation"),
    "mask-off": ("holds", None),
    "threshold": ("holds", None),
    "peak": ("holds", None),
    "worker-allocation": ("reproduced", "allocation-in-a-worker"),
    "worker-killed": ("reproduced", "worker-killed"),
    "worker-shm": ("reproduced", "shm-full"),
    "worker-mask-off": ("holds", None),
    "cp-slices": ("holds", None),
}
LIMITS = re.compile("memory cgroup|memory for its limit|/dev/shm")  # in the reason of a limit that can't be set
NEEDS_ROOT = ("worker-killed", "worker-shm")  # a memory cgroup, a mount: unavailable on machines without them


@pytest.fixture(scope="module")
def ran(megatrix: Megatrix) -> Ran:
    """Run all cases of one cell."""
    return megatrix("--select", f"torch==2.13.0 and mcore=={CORE} and failure=={MASK}")


def test_every_case_has_its_expected_verdict(ran: Ran) -> None:
    """The mask fails in four ways, the workaround and the law hold; cases without their limit are unavailable."""
    found = {one["case"]: (one["verdict"], one["signature"]) for one in ran.records}
    lacking = {
        one["case"]: (one["verdict"], one["signature"])
        for one in ran.records
        if one["case"] in NEEDS_ROOT and one["verdict"] == "unavailable" and LIMITS.search(one["reason"])
    }
    assert found == {**EXPECTED, **lacking}, ran.stderr
    assert ran.status == 0


def test_record_has_the_law_and_the_128k_prediction(ran: Ran) -> None:
    """Each peak is 8*S^2 within 2 %."""
    (peak,) = [one["detail"]["ranks"][0]["value"] for one in ran.records if one["case"] == "peak"]
    assert [tokens for tokens, _ in peak["points"]] == [4096, 8192, 16384]
    assert all(abs(bytes_ / (8 * tokens**2) - 1) < 0.02 for tokens, bytes_ in peak["points"])
    assert abs(peak["predicted"]["131072"] / 2**37 - 1) < 0.02


Slice = Callable[[int, int, int], dict[str, Any]]


@pytest.fixture(scope="module")
def cut(ran: Ran) -> Iterator[Slice]:
    """Return megatron-core's slicing in the cell of `ran`: (cp, length, batch) -> result (slicing.py)."""
    folder = made_base(BASE)
    environment = at(folder)
    assert environment is not None, ran.stderr
    overlay = Overlays(default_root()).provide(
        OverlaySpec((parse(CORE, "megatron-core"),), environment.minor, {}, folder / "bin" / "python")
    )
    process = subprocess.Popen(
        [folder / "bin" / "python", "-m", "tests.real.slicing"],
        cwd=ROOT,
        env={"PYTHONPATH": f"{overlay.path}:{ROOT}", "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def request(cp: int, length: int, batch: int) -> dict[str, Any]:
        process.stdin.write(json.dumps({"cp": cp, "length": length, "batch": batch}) + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        result: dict[str, Any] = json.loads(process.stdout.readline())  # type: ignore[union-attr]
        return result

    yield request
    process.stdin.close()
    process.stdout.close()
    process.wait(30)


sizes = st.integers(2, 16)  # of the context-parallel group
chunks = st.integers(1, 4)  # tokens in one of its 2*cp chunks
samples = st.integers(1, 2)
fifty = tries(50)


def chunk_rows(length: int, cp: int) -> list[list[int]]:
    """Return the positions of each rank by definition: chunks r and 2*cp-1-r."""
    size = length // (2 * cp)
    return [
        [chunk * size + place for chunk in (rank, 2 * cp - 1 - rank) for place in range(size)] for rank in range(cp)
    ]


@fifty
@given(sizes, chunks, samples)
def test_ranks_partition_the_positions(cut: Slice, cp: int, chunk: int, batch: int) -> None:
    """Each position of each sample is on exactly one rank."""
    length = 2 * cp * chunk
    held = [token for part in cut(cp, length, batch)["parts"] for row in part["tokens"] for token in row]
    assert sorted(held) == list(range(batch * length))


@fifty
@given(sizes, chunks, samples)
def test_every_key_is_sliced_alike(cut: Slice, cp: int, chunk: int, batch: int) -> None:
    """Each rank has the rows of its two chunks for every key, for the mask with all its columns."""
    length = 2 * cp * chunk
    for part, rows in zip(cut(cp, length, batch)["parts"], chunk_rows(length, cp), strict=True):
        assert part["tokens"] == [[sample * length + row for row in rows] for sample in range(batch)]
        assert part["labels"] == [[sample * length + row + 1 for row in rows] for sample in range(batch)]
        assert part["position_ids"] == [rows] * batch
        assert part["attention_mask"] == [
            [[[(sample * length + row) * length + column for column in range(length)] for row in rows]]
            for sample in range(batch)
        ]


@fifty
@given(sizes, chunks)
def test_label_in_a_chunk_is_the_next_token(cut: Slice, cp: int, chunk: int) -> None:
    for part in cut(cp, 2 * cp * chunk, 1)["parts"]:
        (tokens,), (labels,) = part["tokens"], part["labels"]
        for start in (0, chunk):
            assert labels[start : start + chunk - 1] == tokens[start + 1 : start + chunk]


@fifty
@given(sizes, chunks)
def test_causal_work_is_equal_on_all_ranks(cut: Slice, cp: int, chunk: int) -> None:
    """A query attends to itself and all before it; the sums over a rank's queries are equal."""
    work = {sum(position + 1 for position in part["position_ids"][0]) for part in cut(cp, 2 * cp * chunk, 1)["parts"]}
    assert len(work) == 1


@fifty
@given(sizes, st.integers(1, 128))
def test_indivisible_length_is_the_known_error(cut: Slice, cp: int, length: int) -> None:
    """2*cp must divide the length: Megatron-LM checks its arguments, megatron-core fails in view()."""
    result = cut(cp, length, 1)
    if length % (2 * cp):
        assert "is invalid for input of size" in result["error"]
    else:
        assert "error" not in result
