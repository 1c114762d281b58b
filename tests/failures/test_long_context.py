"""Megatron-LM#1025, #1657: at 131072 tokens the attention mask eats the host's memory. Context parallelism is innocent.

No case can take the machine down: each has a cap on its address space, set before anything is imported, and lowers it
to what it has mapped by then plus 2.5 GiB (long_context.ROOM).
"""

from __future__ import annotations

import pytest

from matrix.catalog.limits import GIB, MIB, Limits
from matrix.execution.reproduction import Reproduction
from matrix.provision import configuration
from tests.failures.long_context import LONG

# Bytes that a process may map: 3.4 GiB are by the import of megatron-core 0.19, 3.2 GiB by a CUDA build of torch, and
# the room of a case comes on top. Of memory no process gets more than that room.
CAP = 9 * GIB
CAPPED = Limits(address_space_bytes=CAP)

WORKERS = {
    "worker-allocation": (LONG, CAPPED),
    "worker-killed": (16384, Limits(address_space_bytes=CAP, memory_bytes=GIB)),  # it wants 2 GiB
    "worker-shm": (8192, Limits(address_space_bytes=CAP, shm_bytes=64 * MIB)),  # a container's default, one mask
}

# Address space means nothing with CUDA, which maps hundreds of GiB. The first samples of 65536 tokens take 128 GiB on
# two ranks with two workers each, those of 131072 tokens 256 GiB on one and 512 GiB on two.
HOST = Limits(memory_bytes=200 * GIB)


@pytest.mark.failure("long-context")
def test_sample(reproduction: Reproduction) -> None:
    """A sample of 131072 tokens can be made."""
    mask = reproduction.case == "mask-on"
    reproduction.run("tests.failures.long_context:sample", limits=CAPPED, mask=mask, stand_ins=reproduction.stand_ins)


@pytest.mark.failure("long-context")
def test_threshold(reproduction: Reproduction) -> None:
    """Under a cap the longest sequence is sqrt((cap - VmSize) / 8)."""
    reproduction.run("tests.failures.long_context:threshold", limits=CAPPED, stand_ins=reproduction.stand_ins)


@pytest.mark.failure("long-context")
def test_peak(reproduction: Reproduction) -> None:
    """A first sample takes 8*S^2 bytes at its peak."""
    reproduction.run("tests.failures.long_context:peak", limits=CAPPED, stand_ins=reproduction.stand_ins)


@pytest.mark.failure("long-context")
def test_workers(reproduction: Reproduction) -> None:
    """Two workers of a DataLoader can bring samples with a mask."""
    sequence, limits = WORKERS[reproduction.case]
    reproduction.run(
        "tests.failures.long_context:through_workers",
        limits=limits,
        sequence=sequence,
        mask=True,
        stand_ins=reproduction.stand_ins,
    )


@pytest.mark.failure("long-context")
def test_workers_without_mask(reproduction: Reproduction) -> None:
    """Two workers of a DataLoader can bring samples of 131072 tokens without a mask."""
    reproduction.run(
        "tests.failures.long_context:through_workers",
        limits=CAPPED,
        sequence=LONG,
        mask=False,
        stand_ins=reproduction.stand_ins,
    )


@pytest.mark.failure("long-context")
def test_slices(reproduction: Reproduction) -> None:
    """Context-parallel ranks hold, together, exactly the batch; each has paid for all of it."""
    reproduction.run("tests.failures.long_context_slices:slices", limits=CAPPED, stand_ins=reproduction.stand_ins)


@pytest.mark.failure("long-context")
def test_pretrain(reproduction: Reproduction) -> None:
    """Megatron-LM trains at the report's length, and at half of it."""
    reproduction.run(
        "tests.failures.long_context_pretrain:pretrain",
        limits=HOST,
        clone=configuration.load().sources.get("megatron-lm", ""),
        revision=f"core_v{reproduction.planned.cell.mcore}",
        sequence=LONG // 2 if reproduction.case == "pretrain-64k" else LONG,
        mask=reproduction.case != "pretrain-mask-off",
    )


@pytest.mark.failure("reset-mask-dropped")
def test_reset(reproduction: Reproduction) -> None:
    """With reset_attention_mask a sample keeps its documents apart."""
    mask = reproduction.case == "mask-on"
    reproduction.run(
        "tests.failures.long_context_reset:reset", limits=CAPPED, mask=mask, stand_ins=reproduction.stand_ins
    )
