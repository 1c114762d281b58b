"""The canonical name of each parameter of a rank, and which part of the whole parameter the rank has.

The canonical name is that of one rank with all layers and experts. Initial values come from that name and a seed, at
the whole shape, and are then sliced: every layout starts from the same model.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

EXPERT: Final = ".local_experts."
EXPERT_DIMENSIONS: Final = {"linear_fc1.weight": 0, "linear_fc1.bias": 0, "linear_fc2.weight": 1}
FUSED: Final = (
    (r"self_attention\.linear_qkv\.layer_norm_", "input_layernorm."),
    (r"linear_(q|kv)_up_proj\.layer_norm_", r"\1_layernorm."),
    (r"mlp\.linear_fc1\.layer_norm_", "pre_mlp_layernorm."),
    (r"\.experts\.(linear_fc[12])\.(weight|bias)(\d+)$", r".experts.local_experts.\3.\1.\2"),
)


@dataclass(frozen=True)
class Draw:
    """Weights and samples: a seed; `move`, where not 0, is a seed of the signs by which the weights are moved."""

    seed: int
    move: int = 0


@dataclass(frozen=True)
class Shard:
    """A parameter of a rank: its canonical name, its whole shape, and the flat index of each of its elements.

    `index` is an int64 tensor of the parameter's own shape.
    """

    name: str
    shape: tuple[int, ...]
    index: Any
    parameter: Any


def shards(chunk: Any, config: Any, *, tied: bool) -> Iterator[Shard]:
    """Yield the shards of one model chunk, in upstream's order."""
    import torch

    layers, experts = layer_numbers(chunk), expert_offset(chunk)
    for upstream, parameter in chunk.named_parameters():
        name = local_name(upstream)
        if tied and name == "output_layer.weight" and hasattr(chunk, "embedding"):
            continue  # a last stage with multi-token prediction has an embedding of its own, and uses that for both
        size, number = sizes(name)
        pieces = 2 if config.gated_linear_unit and ".linear_fc1." in name else 1
        dimension = split_dimension(name, parameter)
        shape = list(parameter.shape)
        if dimension is not None:
            shape[dimension] *= size
        yield Shard(
            canonical(name, layers, experts, tied=tied),
            tuple(shape),
            part(torch.arange(math.prod(shape)).view(shape), dimension, size, number, pieces),
            parameter,
        )


def local_name(name: str) -> str:
    """Return the name that a parameter of Transformer Engine's layers has in Megatron-LM's own.

    >>> local_name("decoder.layers.1.mlp.experts.linear_fc1.weight3")
    'decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight'
    >>> local_name("decoder.layers.1.mlp.linear_fc1.layer_norm_bias")
    'decoder.layers.1.pre_mlp_layernorm.bias'
    """
    for pattern, replacement in FUSED:
        name = re.sub(pattern, replacement, name)
    return name


def layer_numbers(chunk: Any) -> dict[str, int]:
    """Return the number, from 0, that each decoder layer of a chunk has in the whole model, by its name."""
    return {
        name: module.layer_number - 1
        for name, module in chunk.named_modules()
        if re.fullmatch(r"decoder\.layers\.\d+", name)
    }


def expert_offset(chunk: Any) -> int:
    """Return the number of the first expert of this rank."""
    indices = (module.local_expert_indices for module in chunk.modules() if hasattr(module, "local_expert_indices"))
    return int(next((first[0] for first in indices), 0))


def canonical(name: str, layers: dict[str, int], experts: int, *, tied: bool) -> str:
    """Return the name that a parameter has on one rank.

    >>> canonical("decoder.layers.0.mlp.linear_fc1.weight", {"decoder.layers.0": 3}, 0, tied=True)
    'decoder.layers.3.mlp.linear_fc1.weight'
    """
    for local, number in layers.items():
        if name.startswith(local + "."):
            name = f"decoder.layers.{number}{name[len(local) :]}"
            break
    before, marker, after = name.partition(EXPERT)
    if marker:
        expert, _, rest = after.partition(".")
        name = f"{before}{marker}{int(expert) + experts}.{rest}"
    return "embedding.word_embeddings.weight" if tied and name == "output_layer.weight" else name


def sizes(name: str) -> tuple[int, int]:
    """Return the number of tensor parallel ranks that share a parameter, and the number of this one."""
    from megatron.core import parallel_state as state

    if EXPERT in name and hasattr(state, "get_expert_tensor_parallel_world_size"):
        return state.get_expert_tensor_parallel_world_size(), state.get_expert_tensor_parallel_rank()
    return state.get_tensor_model_parallel_world_size(), state.get_tensor_model_parallel_rank()


def split_dimension(name: str, parameter: Any) -> int | None:
    """Return the dimension that tensor parallel ranks divide, None where each has the whole parameter."""
    if name.endswith("softmax_offset"):
        return 0  # one for each of the rank's heads; upstream does not mark it
    if EXPERT in name and not hasattr(parameter, "partition_dim"):  # nor, before 0.19, experts in one grouped layer
        return EXPERT_DIMENSIONS.get(name.partition(EXPERT)[2].partition(".")[2])
    return parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None


def part(whole: Any, dimension: int | None, size: int, number: int, pieces: int) -> Any:
    """Return the part of rank `number` of `size`; of each of `pieces` parts, as a gated layer has gate and up."""
    import torch

    if dimension is None or size == 1:
        return whole
    if dimension != 0:
        return whole.chunk(size, dimension)[number].contiguous()
    return torch.cat([piece.chunk(size, 0)[number] for piece in whole.chunk(pieces, 0)])


def context_positions(size: int, number: int, length: int) -> Any:
    """Return the positions of context parallel rank `number` of `size`: its slice, and as far from the end another.

    There are 2 * size slices.
    """
    import torch

    if size == 1:
        return torch.arange(length)
    slices = torch.arange(length).chunk(2 * size)
    return torch.cat([slices[number], slices[2 * size - 1 - number]])


def initial(shard: Shard, draw: Draw, unit: float = 0.0) -> Any:
    """Return the initial values of a shard: normal, neither zero nor one anywhere, so that each element matters.

    Where the draw has a move, each is one unit in the last place higher or lower; `unit` is that of 1.0.
    """
    import torch

    digest = hashlib.sha256(f"{draw.seed} {shard.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))
    values = torch.randn(shard.shape, generator=generator, dtype=torch.float64)
    if len(shard.shape) > 1:
        values *= shard.shape[-1] ** -0.5
    elif shard.name.endswith("norm.weight"):
        values = 1 + 0.1 * values
    else:
        values *= 0.1
    if draw.move:
        generator.manual_seed(int.from_bytes(digest[6:12], "little") + draw.move)
        signs = torch.randint(0, 2, shard.shape, generator=generator) * 2 - 1
        values += signs * torch.ldexp(torch.tensor(unit), values.frexp().exponent - 1)
    return values.flatten()[shard.index]
