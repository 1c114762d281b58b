"""Some training steps of a point on this rank, and the numbers that they leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from matrix.kit.parity import global_batch, logged, tiny_model
from matrix.kit.parity.boundaries import BoundaryRecorder
from matrix.kit.parity.factors import Point
from matrix.kit.parity.shards import Shard, initial, shards

STEPS: Final = 2


@dataclass
class Step:
    """What a rank has after one step.

    `losses` are (places, values), see global_batch. `gradients` and `clipped` are (name, flat index, values) for each
    part of a parameter that this rank is responsible for, before and after clipping. `parameters` likewise, after the
    update. `norm` is what the optimizer reports.
    """

    losses: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    parameters: list[Any] = field(default_factory=list)
    norm: float | None = None
    clip: float | None = None
    logged: dict[str, float] = field(default_factory=dict)


@dataclass
class Numbers:
    """The numbers of one rank: the whole shape of each of its parameters, its steps, what its modules recorded."""

    shapes: dict[str, tuple[int, ...]]
    steps: list[Step]
    recorder: BoundaryRecorder


def run(point: Point, seed: int, *, record: bool = False) -> Numbers:
    """Initialise upstream's groups, build the model, train it. Needs a process group; once for each process.

    With `record` one step is run, and the outputs of modules are recorded.
    """
    import torch

    tiny_model.initialize(point)
    config = tiny_model.transformer_config(point)
    chunks = tiny_model.model_chunks(point, config)
    tied = not point["untied"]
    owned = [shard for wrapped in chunks for shard in shards(wrapped.module, config, tied=tied)]
    with torch.no_grad():
        for shard in owned:
            shard.parameter.copy_(initial(shard, seed))
    optimizer = tiny_model.optimizer(point, chunks)
    prepare(config, chunks, optimizer, point)
    numbers = Numbers({shard.name: shard.shape for shard in owned}, [], BoundaryRecorder())
    if record:
        numbers.recorder.attach(chunks)
    for number in range(1 if record else STEPS):
        batches = [global_batch.micro_batches(point, seed, number) for _ in chunks]
        numbers.steps.append(one_step(point, batches, chunks, optimizer, owned, numbers.recorder))
        numbers.steps[-1].logged = logged.logged(point, config)
    return numbers


def prepare(config: Any, chunks: list[Any], optimizer: Any, point: Point) -> None:
    """Set the functions of the configuration that Megatron-LM's train() sets."""
    from megatron.core.distributed import finalize_model_grads

    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if point["overlap_grad_reduce"]:
        syncs = [wrapped.no_sync for wrapped in chunks]
        config.no_sync_func = syncs if len(chunks) > 1 else syncs[0]


def one_step(
    point: Point, batches: list[Any], chunks: list[Any], optimizer: Any, owned: list[Shard], recorder: BoundaryRecorder
) -> Step:
    """Run forward, backward, the reduction of gradients and the optimizer's step once."""
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

    step = Step()
    for wrapped in chunks:
        wrapped.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=partial(global_batch.forward_step, step.losses, recorder, point),
        data_iterator=batches if len(chunks) > 1 else batches[0],
        model=chunks if len(chunks) > 1 else chunks[0],
        num_microbatches=point.count("micro_batches"),
        seq_length=tiny_model.SEQUENCE,
        micro_batch_size=point.micro_batch,
        decoder_seq_length=tiny_model.SEQUENCE,
        forward_only=False,
    )
    step.gradients = list(gradients(owned, optimizer))
    successful, norm, _ = optimizer.step()
    if not successful:
        raise RuntimeError("the optimizer skipped its step")
    step.norm = None if norm is None else float(norm)
    step.clip = shrunk(step.gradients, list(gradients(owned, optimizer)))
    if point["overlap_param_gather"]:
        for wrapped in chunks:
            wrapped.start_param_sync(force_sync=True)
    step.parameters = [
        (shard.name, shard.index.flatten(), shard.parameter.detach().flatten().clone()) for shard in owned
    ]
    return step


def gradients(owned: list[Shard], optimizer: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the reduced gradients of this rank: of each parameter, or of the part that its optimizer has."""
    for shard in owned:
        start, end = responsible(shard.parameter, optimizer)
        main = shard.parameter.main_grad.flatten()[start:end].clone()
        yield shard.name, shard.index.flatten()[start:end], main


def responsible(parameter: Any, optimizer: Any) -> tuple[int, int]:
    """Return the first and the end of the elements that this rank's optimizer updates."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if hasattr(part, "model_param_gbuf_map"):
            if parameter in part.model_param_gbuf_map:
                place = part._get_model_param_range_map(parameter)["param"]
                return place.start, place.end
        else:
            return 0, parameter.numel()
    return 0, 0


def shrunk(before: list[Any], after: list[Any]) -> float | None:
    """Return the factor by which the optimizer multiplied all gradients of this rank; None if it has none."""
    top = sum(float((values * clipped).sum()) for (*_, values), (*_, clipped) in zip(before, after, strict=True))
    bottom = sum(float((values * values).sum()) for *_, values in before)
    return top / bottom if bottom else None
