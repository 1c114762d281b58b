"""The global batch of each step: the same samples under every layout, cut into its micro-batches."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.versions import Range
from matrix.kit.parity.factors import GLOBAL_BATCH, Point
from matrix.kit.parity.shards import context_positions
from matrix.kit.parity.tiny_model import SEQUENCE, VOCABULARY

LOSSES: Final = Path(__file__).with_name("loss.toml")


@dataclass(frozen=True)
class MicroBatch:
    """Some samples, and of each the positions that a context parallel rank has. All are tensors.

    tokens, labels: int64 [samples, positions]. mask: [samples, positions], 0 where a token does not count.
    places: int64, the flat index of each token in the global batch [GLOBAL_BATCH, SEQUENCE].
    """

    tokens: Any
    labels: Any
    mask: Any
    positions: Any
    places: Any


def global_batch(point: Point, seed: int, step: int) -> tuple[Any, Any]:
    """Return the text [GLOBAL_BATCH, SEQUENCE + 1] of a step, and its mask [GLOBAL_BATCH, SEQUENCE]."""
    import torch

    generator = torch.Generator().manual_seed(seed * 1000 + step)
    text = torch.randint(0, VOCABULARY, (GLOBAL_BATCH, SEQUENCE + 1), generator=generator)
    mask = torch.ones(GLOBAL_BATCH, SEQUENCE)
    if point["mask"] == "uneven":
        # Each sample has another number of tokens that count, and none has no token.
        counts = torch.randperm(SEQUENCE, generator=generator)[torch.arange(GLOBAL_BATCH) % SEQUENCE] + 1
        order = torch.rand(GLOBAL_BATCH, SEQUENCE, generator=generator).argsort(dim=1).argsort(dim=1)
        mask = (order < counts[:, None]).to(mask.dtype)
    return text, mask


def micro_batches(point: Point, seed: int, step: int) -> Iterator[MicroBatch]:
    """Yield the micro-batches of this rank: micro-batch i of data parallel rank d is number i * dp + d."""
    import torch
    from megatron.core import parallel_state

    text, mask = global_batch(point, seed, step)
    size, number = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    positions = context_positions(
        parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank(), SEQUENCE
    )
    for index in range(point.count("micro_batches")):
        first = (index * size + number) * point.micro_batch
        rows = torch.arange(first, first + point.micro_batch)[:, None]
        yield MicroBatch(
            tokens=text[rows, positions],
            labels=text[rows, positions + 1],
            mask=mask[rows, positions],
            positions=positions.expand(point.micro_batch, -1),
            places=rows * SEQUENCE + positions,
        )


def forward_step(losses: list[Any], recorder: Any, point: Point, batches: Any, model: Any) -> Any:
    """Upstream's callback: (iterator, model) -> (output, loss function). Losses are appended to `losses`.

    `recorder` (see boundaries) is given the places of each micro-batch.
    """
    import torch

    batch = next(batches)
    recorder.places = batch.places
    length = batch.tokens.shape[1]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)  # True: hidden
    masked = "loss_mask" in inspect.signature(model.module.forward).parameters  # multi-token prediction reads it
    options = {"loss_mask": batch.mask} if masked else {}
    output = model(batch.tokens, batch.positions, mask, labels=batch.labels, **options)
    return output, partial(masked_sum, losses, point, batch)


def masked_sum(losses: list[Any], point: Point, batch: MicroBatch, output: Any) -> Any:
    """Return what upstream's schedules take, as Megatron-LM's own function does: see loss.toml."""
    import torch
    from megatron.core import parallel_state

    losses.append((batch.places, output.detach().clone()))
    contract = loss_contract()
    total, count = (output * batch.mask).sum(), batch.mask.sum().int()
    size, per_token = parallel_state.get_context_parallel_world_size(), bool(point["per_token_loss"])
    if size > 1 and contract.whole[per_token] and not point["own_loss"]:
        torch.distributed.all_reduce(count, group=parallel_state.get_context_parallel_group())
    if contract.times_cp[per_token] and not point["own_loss"]:
        total = total * size
    reported = {"lm loss": total.detach().clone()}
    return (total, count, reported) if contract.summed else (total / count, reported)


@dataclass(frozen=True)
class LossContract:
    """A row of loss.toml."""

    mcore: Range
    summed: bool
    whole: tuple[bool, bool]
    times_cp: tuple[bool, bool]


@dataclass(frozen=True)
class LossTable:
    """The file."""

    loss: tuple[LossContract, ...]


@cache
def loss_contract() -> LossContract:
    """Return the row of the megatron-core that is imported."""
    from megatron.core import package_info

    table = decode(LossTable, read_toml(LOSSES), str(LOSSES))
    return next(row for row in table.loss if package_info.__version__ in row.mcore)
