"""A point of parity as the body of ordinary ranks: what a failure's reproduction calls.

The ranks run the layout first. Then rank 0 alone runs the reference, in a world of one, and compares.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from matrix.kit.parity.deviations import Deviation, compare
from matrix.kit.parity.factors import Point, Value

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class ParityDeviation(AssertionError):
    """The layout's numbers are not those of one rank; the message names quantity, parameter, ratio and step."""


class RankCountWrong(ValueError):
    """The job has another number of ranks than the point."""


def deviation(rank: Rank, *, seed: int = 1, **point: Value) -> None:
    """Raise ParityDeviation in every rank where the layout of a point deviates from one rank.

    `point` are the values of factors.toml that are not the default. Raises RankCountWrong.
    """
    chosen = Point.of(point)
    if rank.world_size != chosen.ranks:
        raise RankCountWrong(f"{chosen} needs {chosen.ranks} ranks, the job has {rank.world_size}")
    deviations = measured(rank, chosen, seed)
    if deviations:
        lines = "; ".join(map(str, deviations[:4]))
        raise ParityDeviation(f"{chosen}: {lines}" + f"; {len(deviations)} in all" * (len(deviations) > 4))


def measured(rank: Rank, point: Point, seed: int) -> tuple[Deviation, ...]:
    """Return the deviations, the same in every rank. Needs megatron-core not to be imported yet."""
    from matrix.kit.parity import float64_device

    float64_device.install()
    import torch

    from matrix.kit.parity import gathered, layout_step

    torch.distributed.init_process_group("gloo", init_method=rank.init_method, rank=rank.rank, world_size=point.ranks)
    torch.save(layout_step.run(point, seed), rank.workdir / f"numbers-{rank.rank}.pt")
    torch.distributed.barrier()
    answer, rows = rank.workdir / "deviations.json", []
    layout_step.forget()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    raise NotImplementedError
