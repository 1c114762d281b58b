"""The mask that eats the host, in a real cell; and context-parallel slicing, which is innocent of it, for any size."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.execution.engine import environment_folder
from matrix.provision.installed import at
from matrix.provision.overlays import Overlays, OverlaySpec, default_root
from matrix.provision.sources import parse
from tests.founding import MASK
from tests.real.conftest import ROOT, Megatrix, Ran

pytestmark = pytest.mark.real

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
NEEDS_ROOT = ("worker-killed", "worker-shm")  # a memory cgroup, a mount: unavailable where a machine gives neither


@pytest.fixture(scope="module")
def ran(megatrix: Megatrix) -> Ran:
    """All cases of one cell, run."""
    return megatrix("--select", f"torch==2.13.0 and mcore=={CORE} and failure=={MASK}")


def test_every_case_does_what_the_catalog_says(ran: Ran) -> None:
    """The mask fails in its four ways, the way round holds, the law holds; what is lacking here says so."""
    found = {one["case"]: (one["verdict"], one["signature"]) for one in ran.records}
    lacking = {
        one["case"]: (one["verdict"], one["signature"])
        for one in ran.records
        if one["case"] in NEEDS_ROOT and one["verdict"] == "unavailable" and "here" in one["reason"]
    }
    assert found == {**EXPECTED, **lacking}, ran.stderr
    assert ran.status == 0


def test_the_law_is_in_the_record_and_128k_is_predicted(ran: Ran) -> None:
    """Each peak is 8*S^2 within 2 %."""
    (peak,) = [one["detail"]["ranks"][0]["value"] for one in ran.records if one["case"] == "peak"]
    assert [tokens for tokens, _ in peak["points"]] == [4096, 8192, 16384]
    assert all(abs(bytes_ / (8 * tokens**2) - 1) < 0.02 for tokens, bytes_ in peak["points"])
    assert abs(peak["predicted"]["131072"] / 2**37 - 1) < 0.02


Slice = Callable[[int, int, int], dict[str, Any]]


@pytest.fixture(scope="module")
def cut(ran: Ran) -> Iterator[Slice]:
    """Return megatron-core's own slicing, in the cell that `ran` made: (cp, length, batch) -> answer (slicing.py)."""
    folder = environment_folder(BASE)
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

    def ask(cp: int, length: int, batch: int) -> dict[str, Any]:
        process.stdin.write(json.dumps({"cp": cp, "length": length, "batch": batch}) + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        answer: dict[str, Any] = json.loads(process.stdout.readline())  # type: ignore[union-attr]
        return answer

    yield ask
    process.stdin.close()
    process.stdout.close()
    process.wait(30)


sizes = st.integers(2, 16)  # of the context-parallel group
chunks = st.integers(1, 4)  # tokens in one of its 2*cp chunks
samples = st.integers(1, 2)
examples = settings(max_examples=50, deadline=None)


def chunk_rows(length: int, cp: int) -> list[list[int]]:
    """Return the positions that each rank has, from the definition: chunks r and 2*cp-1-r."""
    size = length // (2 * cp)
    return [
        [chunk * size + place for chunk in (rank, 2 * cp - 1 - rank) for place in range(size)] for rank in range(cp)
    ]


@examples
@given(sizes, chunks, samples)
def test_the_ranks_share_the_positions_out(cut: Slice, cp: int, chunk: int, batch: int) -> None:
    """Partition: each position of each sample is on exactly one rank."""
    length = 2 * cp * chunk
    held = [token for part in cut(cp, length, batch)["parts"] for row in part["tokens"] for token in row]
    assert sorted(held) == list(range(batch * length))


@examples
@given(sizes, chunks, samples)
def test_every_key_is_cut_alike_and_whole_again_when_put_together(cut: Slice, cp: int, chunk: int, batch: int) -> None:
    """Reassembly: each rank has the rows of its two chunks, of every key, of the mask with all its columns."""
    length = 2 * cp * chunk
    for part, rows in zip(cut(cp, length, batch)["parts"], chunk_rows(length, cp), strict=True):
        assert part["tokens"] == [[sample * length + row for row in rows] for sample in range(batch)]
        assert part["labels"] == [[sample * length + row + 1 for row in rows] for sample in range(batch)]
        assert part["position_ids"] == [rows] * batch
        assert part["attention_mask"] == [
            [[[(sample * length + row) * length + column for column in range(length)] for row in rows]]
            for sample in range(batch)
        ]


@examples
@given(sizes, chunks)
def test_inside_a_chunk_the_label_is_the_next_token(cut: Slice, cp: int, chunk: int) -> None:
    for part in cut(cp, 2 * cp * chunk, 1)["parts"]:
        (tokens,), (labels,) = part["tokens"], part["labels"]
        for start in (0, chunk):
            assert labels[start : start + chunk - 1] == tokens[start + 1 : start + chunk]


@examples
@given(sizes, chunks)
def test_every_rank_has_as_much_causal_work(cut: Slice, cp: int, chunk: int) -> None:
    """A query attends to itself and all before it; the sums over a rank's queries are equal."""
    work = {sum(position + 1 for position in part["position_ids"][0]) for part in cut(cp, 2 * cp * chunk, 1)["parts"]}
    assert len(work) == 1


@examples
@given(sizes, st.integers(1, 128))
def test_a_length_that_does_not_divide_is_the_known_error(cut: Slice, cp: int, length: int) -> None:
    """2*cp has to divide the length; Megatron-LM's own arguments check it, megatron-core runs into view()."""
    answer = cut(cp, length, 1)
    if length % (2 * cp):
        assert "is invalid for input of size" in answer["error"]
    else:
        assert "error" not in answer
