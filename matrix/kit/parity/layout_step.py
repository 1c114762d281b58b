"""Some training steps of a point on this rank, the numbers that they leave, and how these differ from the reference's.

The global batch of a step has the same samples under every layout, cut into its micro-batches.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.versions import Range
from matrix.kit.parity import tiny_model
from matrix.kit.parity.factors import FLOOR, GLOBAL_BATCH, STEPS, Difference, Leg, Point
from matrix.kit.parity.shards import Draw, Shard, context_positions, initial, shards
from matrix.kit.parity.tiny_model import SEQUENCE, VOCABULARY, Device, accepted, bare, sized

LOSSES: Final = Path(__file__).with_name("loss.toml")
Parts = list[tuple[str, Any, Any]]  # name of the parameter, "" for losses; flat index; values
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class MicroBatch:
    """Some samples, and of each the positions that a context parallel rank has. All are tensors.

    tokens, labels: int64 [samples, positions]. mask: [samples, positions], 0 where a token does not count.
    places: int64, the flat index of each token in the global batch [GLOBAL_BATCH, length].
    """

    tokens: Any
    labels: Any
    mask: Any
    positions: Any
    places: Any


def global_batch(point: Point, seed: int, step: int) -> tuple[Any, Any]:
    """Return the text [GLOBAL_BATCH, length + 1] of a step, and its mask [GLOBAL_BATCH, length]."""
    import torch

    generator = torch.Generator().manual_seed(seed * 1000 + step)
    length = sized(point, SEQUENCE)
    text = torch.randint(0, VOCABULARY, (GLOBAL_BATCH, length + 1), generator=generator)
    mask = torch.ones(GLOBAL_BATCH, length)
    if point["mask"] == "uneven":
        # Each sample has another number of tokens that count, and none has no token.
        counts = torch.randperm(length, generator=generator)[torch.arange(GLOBAL_BATCH) % length] + 1
        order = torch.rand(GLOBAL_BATCH, length, generator=generator).argsort(dim=1).argsort(dim=1)
        mask = (order < counts[:, None]).to(mask.dtype)
    return text, mask


def micro_batches(point: Point, seed: int, step: int) -> Iterator[MicroBatch]:
    """Yield the micro-batches of this rank: micro-batch i of data parallel rank d is number i * dp + d."""
    import torch
    from megatron.core import parallel_state

    text, mask = global_batch(point, seed, step)
    size, number = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    positions = context_positions(
        parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank(), text.shape[1] - 1
    )
    for index in range(point.count("micro_batches")):
        first = (index * size + number) * point.micro_batch
        rows = torch.arange(first, first + point.micro_batch)[:, None]
        yield MicroBatch(
            tokens=text[rows, positions].cuda(),
            labels=text[rows, positions + 1].cuda(),
            mask=mask[rows, positions].cuda(),
            positions=positions.expand(point.micro_batch, -1).cuda(),
            places=rows * mask.shape[1] + positions,
        )


def forward_step(losses: Parts, point: Point, batches: Any, model: Any) -> Any:
    """Upstream's callback: (iterator, model) -> (output, loss function). Losses are appended to `losses`."""
    import torch

    batch = next(batches)
    length = batch.tokens.shape[1]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1).cuda()  # True: hidden
    masked = "loss_mask" in inspect.signature(bare(model).forward).parameters  # multi-token prediction reads it
    options = {"loss_mask": batch.mask} if masked else {}
    output = model(batch.tokens, batch.positions, mask, labels=batch.labels, **options)
    return output, partial(masked_sum, losses, point, batch)


def masked_sum(losses: Parts, point: Point, batch: MicroBatch, output: Any) -> Any:
    """Return what upstream's schedules take, as Megatron-LM's own function does: see loss.toml."""
    import torch
    from megatron.core import parallel_state

    losses.append(("", batch.places.flatten(), kept(output).flatten()))
    contract = loss_contract()
    total, count = (output * batch.mask).sum(), batch.mask.sum().int()
    size, per_token = parallel_state.get_context_parallel_world_size(), bool(point["per_token_loss"])
    if size > 1 and contract.whole[per_token] and not point["own_loss"]:
        torch.distributed.all_reduce(count, group=parallel_state.get_context_parallel_group())
    if contract.times_cp[per_token] and not point["own_loss"]:
        total = total * size
    reported = {"lm loss": total.detach().clone()}
    return (total, count, reported) if contract.summed else (total / count, reported)


def kept(values: Any) -> Any:
    """Return a copy of values in float64 on the CPU, where they are compared."""
    import torch

    return values.detach().to("cpu", torch.float64, copy=True)


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


# The names that upstream's training.py gives to track_moe_metrics: what is not named is not summed over the stages.
NAMES = {
    "aux_loss": "load_balancing_loss",
    "seq_aux_loss": "seq_load_balancing_loss",
    "global_aux_loss": "global_load_balancing_loss",
}


def logged(point: Point, config: Any) -> dict[str, float]:
    """Return what this rank would write, by name. All ranks call it: upstream sums over them."""
    from megatron.core.transformer.moe import moe_utils

    scalars: dict[str, float] = {}
    writer = SimpleNamespace(add_scalar=lambda name, value, *_: scalars.update({name: float(value)}))
    scale = 1 / point.count("micro_batches")
    names = [NAMES[str(point["balancing"])]] if point["balancing"] in NAMES else []
    names += ["z_loss"] if point["z_loss"] else []
    if point["experts"] and names and hasattr(moe_utils, "track_moe_metrics"):
        options = {
            "force_initialize": True,
            "track_names": names,
            "num_layers": config.num_layers,
            "moe_layer_freq": getattr(config, "moe_layer_freq", 1),
            "mtp_num_layers": getattr(config, "mtp_num_layers", None),
        }
        function = moe_utils.track_moe_metrics
        options = accepted(function, options, **options)
        function(loss_scale=scale, iteration=0, writer=writer, wandb_writer=None, total_loss_dict=None, **options)
    if point["mtp"]:
        from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

        MTPLossLoggingHelper.track_mtp_metrics(scale, 0, writer)
    return {name: value for name, value in scalars.items() if "cumulative" not in name}  # since the process began


@dataclass
class Step:
    """What a rank has after one step.

    `losses` are those of its tokens by their places, see MicroBatch; `gradients` those of each part of a parameter that
    this rank is responsible for, before clipping; `parameters` likewise, after the update, without the move of the
    weights. `norm` is what the optimizer reports, `clip` the factor by which it multiplied the gradients.
    """

    losses: Parts = field(default_factory=list)
    gradients: Parts = field(default_factory=list)
    parameters: Parts = field(default_factory=list)
    norm: float | None = None
    clip: float | None = None
    logged: dict[str, float] = field(default_factory=dict)


@dataclass
class Numbers:
    """The numbers of one rank: the whole shape of each of its parameters, and its steps by their number."""

    shapes: Shapes
    steps: dict[int, Step]


def run(leg: Leg, draw: Draw, checkpoint: Path, device: Device) -> Numbers:
    """Build the model and train it. Needs upstream's groups of the layout.

    The steps after the first begin with loading the checkpoint; where steps are left, it is saved. What is loaded
    replaces weights of another seed.
    """

    point, steps = leg.point, leg.steps
    config = tiny_model.transformer_config(point, device)
    chunks = tiny_model.model_chunks(point, config)
    tied = not point["untied"]
    owned = [shard for module in chunks for shard in shards(bare(module), config, tied=tied)]
    begun = replace(draw, seed=draw.seed + steps.start)
    moves = [start(shard, begun, device.unit(shard.name, point["fp8"])) for shard in owned]
    chunks = tiny_model.data_parallel(point, config, chunks, device)
    if point["fsdp"] != "none":
        owned = tiny_model.divided(owned, chunks)
    optimizer = tiny_model.optimizer(point, config, chunks, device)
    prepare(config, chunks, optimizer, point)
    if steps.start:
        tiny_model.load(leg, chunks, optimizer, checkpoint)
    numbers = Numbers({shard.name: shard.shape for shard in owned}, {})
    for number in steps:
        batches = [micro_batches(point, draw.seed, number) for _ in chunks]
        numbers.steps[number] = one_step(point, batches, chunks, optimizer, owned)
        numbers.steps[number].logged = logged(point, config)
        if draw.move:
            rows = zip(numbers.steps[number].parameters, moves, strict=True)
            numbers.steps[number].parameters = [(name, index, values - move) for (name, index, values), move in rows]
    if steps.stop < STEPS:
        tiny_model.save(leg, chunks, optimizer, checkpoint)
    return numbers


def start(shard: Shard, draw: Draw, unit: float) -> Any:
    """Give a shard its initial values; return by how much a move changes them, flat."""
    import torch

    with torch.no_grad():
        plain = placed(shard, initial(shard, replace(draw, move=0)))
        return (placed(shard, initial(shard, draw, unit)) - plain).flatten()


def placed(shard: Shard, values: Any) -> Any:
    """Write the values of a parameter; return those from which the optimizer begins, of FP8 the ones beside it."""
    shard.parameter.copy_(values)
    beside = getattr(shard.parameter, "get_high_precision_init_val", None)
    return kept(beside().copy_(values) if beside else shard.parameter)


def prepare(config: Any, chunks: list[Any], optimizer: Any, point: Point) -> None:
    """Set the functions of the configuration that Megatron-LM's train() sets."""
    from megatron.core.distributed import finalize_model_grads

    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if point["overlap_grad_reduce"]:
        syncs = [wrapped.no_sync for wrapped in chunks]
        config.no_sync_func = syncs if len(chunks) > 1 else syncs[0]


def one_step(point: Point, batches: list[Any], chunks: list[Any], optimizer: Any, owned: list[Shard]) -> Step:
    """Run forward, backward, the reduction of gradients and the optimizer's step once."""
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

    step = Step()
    for wrapped in chunks:
        wrapped.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=partial(forward_step, step.losses, point),
        data_iterator=batches if len(chunks) > 1 else batches[0],
        model=chunks if len(chunks) > 1 else chunks[0],
        num_microbatches=point.count("micro_batches"),
        seq_length=sized(point, SEQUENCE),
        micro_batch_size=point.micro_batch,
        decoder_seq_length=sized(point, SEQUENCE),
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
    step.parameters = list(parameters(owned, optimizer))
    return step


def parameters(owned: list[Shard], optimizer: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parameters of this rank; of those in half precision the part that its optimizer updates, in float32."""
    import torch

    for shard in owned:
        values, (first, end) = local(shard.parameter), (0, shard.index.numel())
        if values.dtype is torch.bfloat16 and hasattr(values, "main_param"):
            first, end = responsible(values, optimizer)
            if end and values.main_param is None:  # the precision-aware one keeps it with its state
                states = owner(values, optimizer)._get_main_param_and_optimizer_states(values)
                values.main_param = states["param"]
            values = values.main_param
        if values is not None:
            yield shard.name, shard.index.flatten()[first:end], kept(values).flatten()


def gradients(owned: list[Shard], optimizer: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the reduced gradients of this rank: of each parameter, or of the part that its optimizer has."""
    for shard in owned:
        if hasattr(shard.parameter, "orig_param"):  # Megatron-FSDP's: the part of this rank, None where it has none
            start, end, whole = 0, shard.index.numel(), shard.parameter.grad
        else:
            (start, end), whole = responsible(shard.parameter, optimizer), shard.parameter.main_grad
        if whole is not None:
            yield shard.name, shard.index.flatten()[start:end], kept(local(whole).flatten()[start:end])


def local(tensor: Any) -> Any:
    """Return what this rank has of a tensor of torch's, of a distributed one of its part."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def responsible(parameter: Any, optimizer: Any) -> tuple[int, int]:
    """Return the first and the end of the elements that this rank's optimizer updates."""
    part = owner(parameter, optimizer)
    if part is None or not hasattr(part, "model_param_gbuf_map"):
        return 0, parameter.numel() * (part is not None)
    span = part._get_model_param_range_map(parameter)["param"]
    return span.start, span.end


def owner(parameter: Any, optimizer: Any) -> Any:
    """Return the optimizer of a chain, or of a chain in it, that updates a parameter on this rank, or None."""
    if hasattr(optimizer, "chained_optimizers"):
        owners = (owner(parameter, part) for part in optimizer.chained_optimizers)
        return next((part for part in owners if part is not None), None)
    if hasattr(optimizer, "model_param_gbuf_map"):
        return optimizer if parameter in optimizer.model_param_gbuf_map else None
    main = getattr(parameter, "main_param", parameter)
    return optimizer if any(main is other for other in optimizer.get_parameters()) else None


def shrunk(before: list[Any], after: list[Any]) -> float | None:
    """Return the factor by which the optimizer multiplied all gradients of this rank; None if it has none."""
    top = sum(float((values * clipped).sum()) for (*_, values), (*_, clipped) in zip(before, after, strict=True))
    bottom = sum(float((values * values).sum()) for *_, values in before)
    return top / bottom if bottom else None


class NoNumberError(Exception):
    """The reference has a value that is not a number: whatever a layout has, nothing is compared."""


class HarnessError(Exception):
    """The comparison itself is wrong: numbers are missing, or none depends on the model."""


def differences(reference: Numbers, ranks: Sequence[Numbers]) -> Iterator[Difference]:
    """Yield every difference of every rank from the reference. Raises HarnessError where some numbers are missing."""
    shapes: dict[str, tuple[int, ...]] = {}
    for numbers in ranks:
        shapes |= numbers.shapes
    if shapes != reference.shapes:
        names = sorted(name for name in {*shapes, *reference.shapes} if shapes.get(name) != reference.shapes.get(name))
        raise HarnessError(f"other parameters than those of the reference: {', '.join(names)}")
    for number in ranks[0].steps:
        steps = [numbers.steps[number] for numbers in ranks]
        yield from step_differences(number, reference.steps[number], steps, shapes)


def step_differences(number: int, expected: Step, steps: Sequence[Step], shapes: Shapes) -> Iterator[Difference]:
    """Yield the differences of one step."""
    tokens = {"": (sum(values.numel() for *_, values in expected.losses),)}
    yield from _elementwise("loss", number, tokens, expected.losses, [step.losses for step in steps])
    gradients, norms = [step.gradients for step in steps], [step.norm for step in steps]
    yield from _elementwise("gradient", number, shapes, expected.gradients, gradients)
    yield from _scalars("norm", number, expected.norm, norms)
    norm = math.sqrt(sum(float(values.square().sum()) for values in assemble(shapes, gradients).values()))
    yield from _scalars("norm of gathered", number, norm, norms)
    yield from _scalars("clip", number, expected.clip, [step.clip for step in steps])
    yield from _elementwise("parameter", number, shapes, expected.parameters, [step.parameters for step in steps])
    for name, value in expected.logged.items():
        logged = [step.logged[name] for step in steps if name in step.logged]
        if not logged:
            raise HarnessError(f"no rank logs {name}")
        # Before 0.19 each data parallel rank logs what its own samples have.
        yield from _scalars("logged", number, value, [sum(logged) / len(logged)], name)


def check_reference(reference: Numbers, idle: float) -> None:
    """Raise HarnessError or NoNumberError where a comparison with this reference would show nothing.

    `idle`: see Device.
    """
    for number, step in reference.steps.items():
        losses = [float(value) for *_, values in step.losses for value in values]
        for name, _, values in (*step.losses, *step.gradients, *step.parameters):
            if not bool(values.isfinite().all()):
                raise NoNumberError(f"{name or 'loss'} of step {number} of the reference is not a number")
        if max(losses) - min(losses) < FLOOR:
            raise HarnessError(f"the loss of step {number} is flat")
        if not any(float(values.abs().max()) > 0 for *_, values in step.gradients if values.numel()):
            raise HarnessError(f"all gradients of step {number} are zero")
    start, end = reference.steps[0], reference.steps[len(reference.steps) - 1]
    for (name, _, before), (_, _, after) in zip(start.parameters, end.parameters, strict=True):
        gradients = [values for parameter, _, values in end.gradients if parameter == name]
        moved = any(float(values.abs().max()) > idle for values in gradients)
        if len(reference.steps) > 1 and moved and bool((before == after).all()):
            raise HarnessError(f"{name} has a gradient and is not updated")


def assemble(shapes: Shapes, ranks: Sequence[Parts]) -> dict[str, Any]:
    """Return every parameter, flat, from its parts. Raises HarnessError where an element is in no part."""
    import torch

    whole = {name: torch.full((math.prod(shape),), math.nan, dtype=torch.float64) for name, shape in shapes.items()}
    missing = {name: torch.ones(len(values), dtype=torch.bool) for name, values in whole.items()}
    for name, index, values in (part for parts in reversed(ranks) for part in reversed(parts)):
        whole[name][index], missing[name][index] = values, False
    for name, absent in missing.items():
        if bool(absent.any()):
            raise HarnessError(f"{int(absent.sum())} of {len(absent)} elements of {name or 'the loss'} are missing")
    return whole


def _elementwise(
    quantity: str, number: int, shapes: Shapes, reference: Parts, ranks: Sequence[Parts]
) -> Iterator[Difference]:
    expected = assemble(shapes, [reference])
    largest = max((float(values.abs().max()) for values in expected.values()), default=0.0)
    for name, values in expected.items():
        parts = [(rank, row) for rank, rows in enumerate(ranks) for row in rows if row[0] == name and row[2].numel()]
        if not parts:
            raise HarnessError(f"no rank has the {quantity} of {name}")
        scale = max(float(values.abs().max()), FLOOR * largest)
        for rank, (_, index, part) in parts:
            target = values[index]
            square = float((target * target).sum())
            ratio = float((part * target).sum()) / square if square else None
            yield Difference(quantity, name, number, rank, float((part - target).abs().max()), scale, ratio)


def _scalars(
    quantity: str, number: int, expected: float | None, values: Sequence[float | None], name: str = ""
) -> Iterator[Difference]:
    for rank, value in enumerate(values):
        if value is not None and expected:
            difference = abs(value - expected)
            yield Difference(quantity, name, number, rank, difference, abs(expected), value / expected)
