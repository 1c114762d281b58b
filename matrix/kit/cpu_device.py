"""A stand-in for the CUDA names of torch that megatron-core uses unconditionally, for machines without CUDA.

A rank at level cpu uses it. It replaces only these names of torch, in a rank process that runs one case:

================================================  ====================================================================
name                                              why megatron-core needs it
================================================  ====================================================================
torch.cuda.current_device                         the device of every buffer and of every sharded tensor
torch.cuda.get_rng_state, .random.get_rng_state   the model-parallel RNG tracker reads and restores them
torch.cuda.default_generators                     the tracker (>= 0.8) takes the generator of the current device
torch.cuda._lazy_call                             the tracker sets its states through it; without CUDA torch queues the
                                                  call for ever, the RNG fork silently does nothing, and replicated
                                                  parameters differ between ranks
torch.cuda.synchronize                            the checkpoint writer (>= 0.8)
torch.{empty,zeros,...}(device="cuda")            metadata tensors of checkpointing and of pipeline communication
torch.Tensor.cuda                                 the same, <= 0.7
torch.compile                                     only for speed: 8.4 s -> 1.2 s a case, with the same values
torch.jit.script, before torch 2.2                its compiler, which megatron-core >= 0.11 calls there when it is
                                                  imported, can't read the replaced factories
================================================  ====================================================================

torch.cuda.Stream and Event are not replaced: that breaks the import of torch._dynamo.
Source of the list: runs of megatron-core 0.7.0 .. 0.16.1 on gloo.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any, Final

FACTORIES: Final = ("empty", "zeros", "ones", "full", "rand", "randn", "randint", "arange", "tensor", "as_tensor")
HOPPER: Final = types.SimpleNamespace(name="stand-in", major=9, minor=0, multi_processor_count=1)


def install() -> None:
    """Replace the names above in this process, once. Call it before megatron.core is imported."""
    import torch

    if getattr(torch, "compile", None) is _uncompiled:
        return
    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = lambda device=None: torch.get_rng_state()
    torch.cuda.default_generators = _OneGenerator(torch.default_generator)
    torch.cuda._lazy_call = lambda call, **_: call()
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.compile = _uncompiled
    if torch.__version__ < (2, 2):
        torch.jit.script = _uncompiled
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def claim_gpu() -> None:
    """Make torch.cuda report a GPU: a module of Transformer Engine requires one, and reads its properties.

    No graph is being captured on it.
    """
    import torch

    torch.cuda.is_available = lambda: True
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.get_device_properties = lambda *_: HOPPER


def without_streams() -> None:
    """Replace torch.cuda.current_stream: the data parallel wrapper of megatron-core >= 0.18 waits for it."""
    import torch

    torch.cuda.current_stream = lambda *_: IdleStream()


def two_devices() -> None:
    """Let is_cuda be true except for what cpu() returned, and replace streams: an optimizer may offload to the CPU."""
    import torch

    names = {torch.float32: "torch.cuda.FloatTensor", torch.bfloat16: "torch.cuda.BFloat16Tensor"}
    convert = torch.Tensor.type
    torch.Tensor.type = lambda tensor, *to: convert(tensor, *to) if to else names[tensor.dtype]
    claim_tensors(lambda tensor: True)
    without_streams()
    torch.cuda.stream = lambda stream: contextlib.nullcontext()


def claim_tensors(claimed: Callable[[Any], bool]) -> None:
    """Let is_cuda be what `claimed` returns of a tensor, and false for what cpu() returned."""
    import torch

    plain = {"__reduce_ex__": lambda tensor, protocol: tensor.as_subclass(torch.Tensor).__reduce_ex__(protocol)}
    on_host = type("OnHost", (torch.Tensor,), {"is_cuda": False, "pin_memory": lambda tensor, *_: tensor, **plain})
    torch.Tensor.is_cuda = property(claimed)
    torch.Tensor.cpu = lambda tensor: tensor.as_subclass(on_host)


def as_cuda(*tensors: Any) -> list[Any]:
    """Return the tensors with is_cuda true: upstream's Python checks it before a kernel starts."""
    import torch

    kind = type("OnCuda", (torch.Tensor,), {"is_cuda": True})
    return [tensor.as_subclass(kind) for tensor in tensors]


class IdleStream:
    """A stream or an event of which every method does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self


class _OneGenerator:
    """The CPU's generator under every index: megatron-core indexes with the result of current_device()."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __getitem__(self, index: object) -> Any:
        return self.generator


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return `factory` with every CUDA device replaced by the CPU, whose memory is not pinned."""

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith(("cuda", "0")):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return make


def _uncompiled(function: Any = None, **_: Any) -> Any:
    """Replace torch.compile and torch.jit.script, as `@torch.compile` and `@torch.compile(...)`; compile nothing."""
    return function if function is not None else lambda decorated: decorated
