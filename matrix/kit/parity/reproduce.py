"""A point of parity as the body of ordinary ranks: what a failure's reproduction calls.

Rank 0 forks the reference, a world of one, before any process group exists. Then all ranks run the layout, and each
compares the numbers of all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from matrix.kit.parity import forked_ranks
from matrix.kit.parity.deviations import Deviation, compare
from matrix.kit.parity.factors import Point, Value

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

REFERENCE_S = 100.0  # s for the reference; it takes about one
LONGEST = 4  # deviations in a message


class ParityDeviation(AssertionError):
    """The layout's numbers are not those of one rank; the message names quantity, parameter, ratio and step."""


class PointRefused(RuntimeError):
    """The reference does not run: the message is upstream's."""


def deviation(rank: Rank, *, seed: int = 1, **point: Value) -> None:
    """Raise ParityDeviation in every rank if the layout of a point deviates from one rank.

    `point` has the values of factors.toml that are not the default. Raises PointRefused, and ValueError where the job
    has another number of ranks than the layout.
    """
    chosen = Point.of(point)
    if rank.world_size != chosen.ranks:
        raise ValueError(f"{chosen} needs {chosen.ranks} ranks, the job has {rank.world_size}")
    deviations = measured(rank, chosen, seed)
    if deviations:
        rest = f"; {len(deviations)} in all" if len(deviations) > LONGEST else ""
        raise ParityDeviation(f"{chosen}: {'; '.join(map(str, deviations[:LONGEST]))}{rest}")


def measured(rank: Rank, point: Point, seed: int) -> tuple[Deviation, ...]:
    """Return the deviations, the same in every rank. Call it before megatron-core is imported."""
    from matrix.kit.parity import campaign, gathered

    campaign.prepare(rank.stand_ins)
    import torch

    reference = rank.workdir / "reference"
    if rank.rank == 0:
        reference.mkdir()
        body = partial(campaign.save_numbers, point.reference(), seed, reference)
        failures = forked_ranks.run(1, body, reference, REFERENCE_S)
        if failures:
            raise PointRefused(failures[0].text)
    campaign.save_numbers(point, seed, rank.workdir, rank.rank)
    ranks = [campaign.load_numbers(rank.workdir, number) for number in range(point.ranks)]
    expected = campaign.load_numbers(reference, 0)
    gathered.check_reference(expected)
    torch.distributed.destroy_process_group()
    return compare(gathered.differences(expected, ranks))
