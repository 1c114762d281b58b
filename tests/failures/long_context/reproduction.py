"""Take samples whose mask exhausts the host's memory, directly or through a DataLoader, under a memory limit.

S is the sequence length in tokens. The law: GPTDataset makes the mask as a float32 triangle of float32 ones, so the
first sample takes 8*S^2 bytes at its peak, of which S^2 stay (the mask as bool).
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

from matrix.kit import absent_packages
from matrix.kit import gpt_dataset as data
from matrix.kit.gpt_dataset import ROOM

from . import measure
from .law import KEPT_PER_TOKEN_PAIR, LONG, PEAK_TOLERANCE, PER_TOKEN_PAIR, SHORT, LawBroken, law

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

GIB = 2**30  # bytes
TIGHT = GIB // 2  # bytes for the threshold: S = 8192, half a second a try
LENGTHS = (4096, 8192, 16384)  # measured; 128 MiB, 512 MiB, 2 GiB
# of the threshold: the search uses steps of 32 tokens, and the allocator adds some pages
THRESHOLD_TOLERANCE = 0.01
STEP = 32  # tokens


class MaskThere(AssertionError):
    """A sample has a mask although none was requested."""


def sample(rank: Rank, *, mask: bool) -> dict[str, Any]:
    """Take the first sample of 131072 tokens; return its length, the limit and the memory it took, in bytes."""
    absent_packages.install(**rank.stand_ins)
    samples = data.dataset(rank.workdir, LONG, mask=mask)
    cap = data.leave_room(ROOM)
    before = data.held("VmRSS")
    taken = samples[0]
    if taken.get("attention_mask") is not None:
        raise MaskThere(f"a mask of {tuple(taken['attention_mask'].shape)}")
    return {"sequence": taken["tokens"].numel(), "cap": cap, "took": data.held("VmHWM") - before}


def threshold(rank: Rank) -> dict[str, Any]:
    """Find the longest sequence that fits under a cap. Raises LawBroken when it is not sqrt((cap - VmSize) / 8)."""
    absent_packages.install(**rank.stand_ins)
    data.dataset(rank.workdir, SHORT, mask=True)[0]  # makes the permanent mappings of a first sample in advance
    cap = data.leave_room(TIGHT)
    mapped = data.held("VmSize")
    predicted = sqrt((cap - mapped) / PER_TOKEN_PAIR)
    fits, fails = int(predicted * 0.9) // STEP, int(predicted * 1.1) // STEP + 1  # in steps
    for steps, expected in ((fits, True), (fails, False)):
        if does_fit(rank, steps * STEP) is not expected:
            raise LawBroken(f"{steps * STEP} tokens {'do not fit' if expected else 'fit'}; predicted: {predicted:.0f}")
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if does_fit(rank, middle * STEP) else (fits, middle)
    if abs(fits * STEP / predicted - 1) > THRESHOLD_TOLERANCE:
        raise LawBroken(f"{fits * STEP} tokens fit under {cap} bytes with {mapped} mapped; predicted: {predicted:.0f}")
    return {"cap": cap, "mapped": mapped, "longest": fits * STEP, "predicted": round(predicted)}


def does_fit(rank: Rank, sequence: int) -> bool:
    """Return whether a sample of that length can be made; failures other than for memory are raised.

    It runs in a forked process: where memory was refused, glibc may have mapped another arena (64 MiB) before.
    """
    samples = data.dataset(rank.workdir, sequence, mask=True)

    def attempt() -> bool:
        try:
            samples[0]
        except RuntimeError as error:
            if "DefaultCPUAllocator: can't allocate memory" not in str(error):
                raise
            return False
        return True

    return bool(measure.forked(attempt))


def peak(rank: Rank) -> dict[str, Any]:
    """Measure the peak at three lengths. Raises LawBroken unless each is 8*S^2 within 2 %; 131072 is predicted."""
    absent_packages.install(**rank.stand_ins)
    short, *samples = (data.dataset(rank.workdir, length, mask=True) for length in (SHORT, *LENGTHS))
    cap = data.leave_room(ROOM)
    taken = {length: measure.taken(each, short) for length, each in zip(LENGTHS, samples, strict=True)}
    kept = taken[LENGTHS[-1]][1] / LENGTHS[-1] ** 2  # of the longest length: at 4096 the page tables are significant
    if abs(kept / KEPT_PER_TOKEN_PAIR - 1) > PEAK_TOLERANCE:
        raise LawBroken(f"{kept:.3f} * S^2 bytes stay at {LENGTHS[-1]} tokens, not {KEPT_PER_TOKEN_PAIR} * S^2")
    figures = {"cap": cap, "kept": round(kept, 4), "host": measure.machine_memory()}
    return {**figures, **law({length: peak for length, (peak, _) in taken.items()})}


def through_workers(rank: Rank, *, sequence: int, mask: bool) -> dict[str, Any]:
    """Take two batches of one sample through a DataLoader with two workers, as training does."""
    absent_packages.install(**rank.stand_ins)
    import torch

    samples = data.dataset(rank.workdir, sequence, mask=mask)
    cap = data.leave_room(ROOM)
    loader = torch.utils.data.DataLoader(samples, batch_size=1, num_workers=2)
    batches = iter(loader)
    taken = [next(batches)["tokens"].numel() for _ in range(2)]
    return {"sequence": taken[0], "cap": cap}
