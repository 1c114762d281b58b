"""The CPU stands in for CUDA, and float64 for float32, in a process that compares training steps.

In float64 two orders of a reduction differ by 1e-15, and a defect by more than 1e-9; in float32 a real defect was as
small as rounding. megatron-core names torch.float32 where it needs precision (optimizer, router, gradients), so the
names themselves are replaced, before it is imported.

This adds to matrix.kit.cpu_device what a whole training step needs:

============================================  ========================================================================
name                                          why megatron-core needs it
============================================  ========================================================================
torch.float32, torch.float, Tensor.float      the precision of gradients, of the router, of the optimizer's state
Tensor.type                                   clipping and the distributed optimizer compare it with torch.cuda's names
all_to_all_single, all_gather, reduce_scatter  gloo takes sizes as lists; and refuses tensors of different sizes
torch.histc                                   routers before 0.11 count the tokens of experts: integers
torch.cuda.Stream, Event, current_stream ...  overlaps, shared experts and dispatchers; one stream, all in order
Tensor.record_stream, pin_memory              the same
============================================  ========================================================================
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any, Final

from matrix.kit import cpu_device, te_extension

SIZES: Final = ("output_split_sizes", "input_split_sizes")


def install() -> None:
    """Replace the names above in this process. Call it once, before megatron.core is imported."""
    import torch
    import torch._dynamo  # it reads torch.cuda.Stream and torch.float32 at import: both must still be the real ones

    cpu_device.install()
    if importlib.util.find_spec("triton") is None:  # megatron-core >= 0.17 defines kernels with it at import
        sys.meta_path.append(te_extension.AnyFinder(["triton"]))
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.Tensor.type = _cuda_names(torch.Tensor.type)
    torch.Tensor.record_stream = lambda self, stream: None
    torch.Tensor.pin_memory = lambda self, device=None: self
    torch.histc = _counting_integers(torch.histc)
    torch.distributed.all_to_all_single = _with_lists(torch.distributed.all_to_all_single)
    torch.distributed.all_gather = _gathering_uneven(torch.distributed.all_gather)
    torch.distributed.reduce_scatter = _scattering_uneven(torch.distributed.reduce_scatter)
    torch.cuda.Stream = torch.cuda.Event = Stream
    torch.cuda.current_stream = torch.cuda.default_stream = lambda device=None: ONLY
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.set_device = lambda device: None
    torch.cuda.device_count = lambda: 1
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_, **__: None


def _with_lists(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return all_to_all_single for sizes that are tensors; upstream copies them from CUDA as such, gloo takes lists."""

    def exchange(output: Any, given: Any, *sizes: Any, **keywords: Any) -> Any:
        keywords |= dict(zip(SIZES, sizes, strict=False))
        rows = {name: row.tolist() if hasattr(row, "tolist") else row for name, row in keywords.items()}
        return original(output, given, **rows)

    return exchange


def _counting_integers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return histc for integers, which CUDA counts and the CPU refuses; routers count the tokens of experts with it."""

    def count(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        counts = original(tensor.double(), *arguments, **keywords)
        return counts if tensor.is_floating_point() else counts.to(tensor.dtype)

    return count


def _uneven(tensors: list[Any]) -> bool:
    return len({tensor.shape for tensor in tensors}) > 1


def _gathering_uneven(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return all_gather for tensors of different sizes, which gloo refuses: each rank sends its own to all."""
    import torch

    def gather(outputs: list[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        if not _uneven(outputs):
            return original(outputs, tensor, group=group, async_op=async_op)
        outputs[torch.distributed.get_rank(group)].copy_(tensor)
        for rank, output in enumerate(outputs):
            torch.distributed.broadcast(output, torch.distributed.get_global_rank(group, rank), group=group)
        return None

    return gather


def _scattering_uneven(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return reduce_scatter for tensors of different sizes, which gloo refuses: all ranks sum all."""
    import torch

    def scatter(output: Any, tensors: list[Any], op: Any = None, group: Any = None, **keywords: Any) -> Any:
        operation = op or torch.distributed.ReduceOp.SUM
        if not _uneven(tensors):
            return original(output, tensors, op=operation, group=group, **keywords)
        for rank, tensor in enumerate(tensors):
            total = tensor.clone()
            torch.distributed.all_reduce(total, op=operation, group=group)
            if rank == torch.distributed.get_rank(group):
                output.copy_(total)
        return None

    return scatter


class Stream:
    """Replaces CUDA's streams and events: all work is done in the order of its calls."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority."""
        return 0, 0

    def query(self) -> bool:
        """Return whether all work is done."""
        return True

    def record_event(self, event: Any = None) -> Any:
        """Return an event that has happened."""
        return event or Stream()

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Nothing is left to be done."""

    record = wait = synchronize = wait_stream = wait_event = _nothing


ONLY = Stream()


def _cuda_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return Tensor.type with the name of CUDA's float32 tensors for those of float64."""

    def kind(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        answer = original(tensor, *arguments, **keywords)
        return "torch.cuda.FloatTensor" if answer in ("torch.DoubleTensor", "torch.FloatTensor") else answer

    return kind
