"""Preflight of the split of sequences: of what number their lengths must be a multiple."""

from __future__ import annotations

from math import lcm

from matrix.kit.preflight import Answer, Contracts, Error, Machine, Report, TrainingJob, status_of, unjudged

MESSAGE = "First dimension of the tensor should be divisible by tensor parallel size"


def examine(job: TrainingJob, _: Machine, __: Contracts) -> Report:
    """Return whether --seq-length is a multiple; the lengths of packed sequences are in the job's data."""
    sizes = {name: job.command.get(f"{name}-parallel-size", "1") for name in ("tensor-model", "context")}
    if unread := [f"--{name}-parallel-size" for name, size in sizes.items() if not size.isdecimal() or size == "0"]:
        return unjudged(f"{' and '.join(unread)} would name the multiple")
    tensor = int(sizes["tensor-model"]) if "sequence-parallel" in job.command else 1
    number = multiple(tensor, int(sizes["context"]))
    reason = f"each length must be a multiple of {number}: lcm(2 x CP, CP x TP), CP {sizes['context']}, TP {tensor}"
    length = job.command.get("seq-length", "")
    fits = int(length) % number == 0 if length.isdecimal() else None
    error = Error("AssertionError", MESSAGE) if fits is False else None
    changes = ((f"pad each sequence to a multiple of {number}",),) if error else ()
    answer = Answer("the sequences can be split over the ranks", status_of(fits), reason, error)
    return Report((answer,), changes, open="the lengths of packed sequences", data={"multiple": number})


def multiple(tensor: int, context: int) -> int:
    """Return the least number of which a length must be a multiple: the chunks of a rank are then split by TP."""
    return lcm(2 * context if context > 1 else 1, context * tensor)
