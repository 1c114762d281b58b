"""Where a layout first deviates: outputs of modules, and their gradients, recorded on both sides of a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from matrix.kit.parity.deviations import TOLERANCE
from matrix.kit.parity.factors import GLOBAL_BATCH, Point
from matrix.kit.parity.shards import canonical, expert_offset, layer_numbers
from matrix.kit.parity.tiny_model import HIDDEN, SEQUENCE

# Their outputs are [positions, samples, HIDDEN]: whole in each tensor parallel rank, or divided by positions.
# No embedding: with multi-token prediction it is called twice, for other tokens.
NAMES: Final = ("input_layernorm", "self_attention", "pre_mlp_layernorm", "mlp", "final_layernorm")
SHAPE: Final = (GLOBAL_BATCH * SEQUENCE * HIDDEN,)


@dataclass
class BoundaryRecorder:
    """What one rank records in one step: (module, flat index in the global batch, values), in the order of execution.

    `places` are those of the micro-batch that runs, see global_batch.
    """

    places: Any = None
    forward: list[tuple[str, Any, Any]] = field(default_factory=list)
    backward: list[tuple[str, Any, Any]] = field(default_factory=list)

    def attach(self, chunks: Sequence[Any]) -> None:
        """Record the modules of these chunks from now on."""
        for wrapped in chunks:
            layers, experts = layer_numbers(wrapped.module), expert_offset(wrapped.module)
            for name, module in wrapped.module.named_modules():
                if name in layers or name.rpartition(".")[2] in NAMES:
                    whole_name = canonical(f"{name}.", layers, experts, tied=False).rstrip(".")
                    module.register_forward_hook(lambda _, __, output, name=whole_name: self._take(name, output))

    def _take(self, name: str, output: Any) -> None:
        import torch

        tensor = output[0] if isinstance(output, tuple) else output
        if tensor is None or tensor.dim() != 3 or tensor.shape[-1] != HIDDEN:
            return
        if torch._C._current_graph_task_id() != -1:
            return  # recomputed within backward, when `places` are those of another micro-batch
        index = self._index(tensor)
        self.forward.append((name, index, tensor.detach().flatten().clone()))
        if tensor.requires_grad:
            tensor.register_hook(lambda grad: self.backward.append((name, index, grad.detach().flatten().clone())))

    def _index(self, tensor: Any) -> Any:
        """Return where each element stands in the global batch."""
        import torch
        from megatron.core import parallel_state

        rows = self.places.t()
        if tensor.shape[0] != rows.shape[0]:
            size = parallel_state.get_tensor_model_parallel_world_size()
            rows = rows.chunk(size)[parallel_state.get_tensor_model_parallel_rank()]
        return (rows[..., None] * HIDDEN + torch.arange(HIDDEN)).flatten()


@dataclass(frozen=True)
class Boundary:
    """The first module whose output, or whose output's gradient, deviates.

    `direction` is forward, backward, or "after backward" where no module deviates: in the reduction of gradients, in
    clipping or in the update.
    """

    direction: str
    module: str
    size: float


def first_boundary(point: Point, reference: BoundaryRecorder, ranks: Sequence[BoundaryRecorder]) -> Boundary:
    """Return the first module that deviates: forward in the order of execution, else backward."""
    order = list(dict.fromkeys(name for name, *_ in reference.forward))
    # A rank's loss is the mean over its own samples: the mean over ranks is taken of the parameters' gradients.
    scale = 1 if point["per_token_loss"] else point.count("dp") * point.count("cp")
    for direction, names, factor in (("forward", order, 1), ("backward", order[::-1], scale)):
        expected, computed = ([getattr(side, direction) for side in sides] for sides in ([reference], ranks))
        for name in names:
            size = _size(name, expected, computed, factor)
            if not size <= TOLERANCE:
                return Boundary(direction, name, size)
    return Boundary("after backward", "", 0.0)


def _size(name: str, expected: list[Any], computed: list[Any], factor: int) -> float:
    """Return the largest difference of a module's values, relative to their largest; 0 where a side has none."""
    import torch

    values = torch.full(SHAPE, math.nan)
    for part, index, row in expected[0]:
        if part == name:
            values[index] = row * factor
    rows = [(row - values[index]).abs().max() for rank in computed for part, index, row in rank if part == name]
    largest = float(values.nan_to_num().abs().max())
    return float(torch.stack(rows).max()) / largest if rows and largest else 0.0
