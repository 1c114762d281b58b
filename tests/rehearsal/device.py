"""The stand-ins of a rehearsal in its ranks: the CPU for CUDA, gloo for NCCL, TE's extension.

The number of devices is not replaced: it is that of the stand-in driver, which reads CUDA_VISIBLE_DEVICES as the real
one does. A rank on a device that the driver does not show fails as with CUDA.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any, Final

from matrix.kit import cpu_device, te_extension
from matrix.kit.rank import Rank
from matrix.prove.execution.ranks.rank_main import imported
from matrix.read.machine.cuda import LIBRARY, MAJOR, MINOR, MULTICAST

# Classes of the extension that userbuffers create, in Transformer Engine 1.9 to 2.17: the stand-in makes an object.
USERBUFFERS: Final = (
    "UbufBootstrapCallbacks",
    "UbufP2PCommOverlap",
    "UbufCommOverlap",
    "CommOverlapHelper",
    "CommOverlapP2P",
    "CommOverlap",
)
ORDINAL: Final = "CUDA error: invalid device ordinal"
DUPLICATE: Final = "NCCL error: Duplicate GPU detected"


def rehearse(rank: Rank, *, target: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Run the body of a case; return its value, and what was replaced for it."""
    import torch

    replaced = install()
    if importlib.util.find_spec("transformer_engine") is not None:
        from . import kernels

        multicast = driver_attribute(MULTICAST)
        answers = {
            "device_supports_multicast": bool(multicast), "ubuf_built_with_mpi": False,
            "get_stream_priority_range": (0, -5),
        }  # fmt: skip
        te_extension.install(rank.workdir / f"te-{rank.rank}", {**answers, **dict.fromkeys(USERBUFFERS, object())})
        kernels.install()
        torch.cuda.Stream = torch.cuda.Event = Stream  # of TE's stand-in they have no methods
        replaced["Transformer Engine's extension"] = "a stand-in"
    value = imported(target)(rank, **arguments)
    return {"value": value, "replaced": replaced}


class Stream:
    """Replaces CUDA streams and events: on the CPU all work is done when it is next looked at."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, *_: Any) -> None:
        """Do nothing."""

    wait_stream = wait_event = record = synchronize = wait

    def record_event(self, event: Stream | None = None) -> Stream:
        """Return the event."""
        return event or Stream()

    def is_capturing(self) -> bool:
        """Return False: no graph is captured."""
        return False


def driver_devices() -> int:
    """Return the number of GPUs that the driver shows to this process."""
    count = ctypes.c_int()
    driver = ctypes.CDLL(LIBRARY)
    driver.cuInit(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    return count.value


def driver_attribute(attribute: int) -> int:
    """Return an attribute of the first GPU."""
    value = ctypes.c_int()
    ctypes.CDLL(LIBRARY).cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
    return value.value


def install() -> dict[str, str]:
    """Replace CUDA and NCCL in this process; return a dictionary that receives what was used in place of what."""
    import torch
    import torch._dynamo  # it reads torch.cuda.Stream at import, which must still be the real one

    replaced: dict[str, str] = {}
    chosen = [0]  # the current device
    devices = driver_devices()
    cpu_device.install()

    def on_cpu(value: Any) -> Any:
        name = str(value) if isinstance(value, (str, torch.device)) else ""
        if not name.startswith("cuda"):
            return value
        if (place := name.partition(":")[2]).isdigit() and int(place) >= devices:
            raise RuntimeError(ORDINAL)
        replaced[name] = "cpu"
        return torch.device("cpu")

    def moved(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            named.pop("pin_memory", None)
            return function(*map(on_cpu, arguments), **{name: on_cpu(value) for name, value in named.items()})

        return call

    def set_device(device: Any) -> None:
        place = device if isinstance(device, int) else torch.device(device).index
        if place is not None and not 0 <= place < devices:
            raise RuntimeError(ORDINAL)
        chosen[0] = place or 0

    torch.cuda.device_count = lambda: devices
    torch.cuda.is_available = lambda: devices > 0
    torch.cuda.set_device = set_device
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.current_stream = torch.cuda.default_stream = Stream
    torch.cuda.set_stream = lambda stream: None
    torch.cuda.stream = lambda stream: stream or Stream()
    if accelerator := getattr(torch, "accelerator", None):  # torch >= 2.6 asks it in optimizers and data loaders
        accelerator.current_stream, accelerator.current_device_index = Stream, lambda: chosen[0]
        accelerator.set_device_index = set_device
    major, minor = map(driver_attribute, (MAJOR, MINOR))
    torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(
        name="Stand-in GPU", major=major, minor=minor, multi_processor_count=132
    )
    for name in cpu_device.FACTORIES:
        setattr(torch, name, moved(getattr(torch, name)))
    torch.Tensor.to, torch.load = moved(torch.Tensor.to), moved(torch.load)
    torch.Tensor.is_cuda = property(lambda self: True)  # upstream's Python checks it before a kernel starts
    on_host = type("OnHost", (torch.Tensor,), {"is_cuda": False})
    torch.Tensor.cpu = lambda self, *_: self.clone().as_subclass(on_host) if self.is_cuda else self
    torch.Tensor.pin_memory = lambda self, *_: self
    torch.Tensor.record_stream = lambda self, stream: None
    histc = torch.histc  # on CUDA also of integers
    torch.histc = lambda values, *rest, **named: histc(values.float(), *rest, **named).to(values.dtype)
    torch.Tensor.type = typed(torch.Tensor.type)
    distributed = torch.distributed
    for name in ("init_process_group", "new_group"):
        setattr(distributed, name, over_gloo(getattr(distributed, name), replaced, chosen))
    from_group = distributed.DeviceMesh.from_group  # FSDP2's mesh
    distributed.DeviceMesh.from_group = lambda group, device, **named: from_group(group, str(on_cpu(device)), **named)
    return replaced


def typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return Tensor.type, whose name of a type is that on CUDA: Megatron-LM's optimizer of bf16 compares it."""

    @wraps(function)
    def call(tensor: Any, *arguments: Any, **named: Any) -> Any:
        made = function(tensor, *arguments, **named)
        return made.replace("torch.", "torch.cuda.") if isinstance(made, str) else made

    return call


def over_gloo(function: Callable[..., Any], replaced: dict[str, str], chosen: Sequence[int]) -> Callable[..., Any]:
    """Return init_process_group or new_group, which makes a group of gloo where one of NCCL is asked for.

    Like NCCL it refuses two ranks on one device; `chosen` holds that of this rank.
    """
    whole = function.__name__ == "init_process_group"  # its first argument is the backend, that of new_group the ranks

    @wraps(function)
    def call(*arguments: Any, backend: str | None = None, **named: Any) -> Any:
        if whole and arguments:
            backend, arguments = arguments[0], arguments[1:]
        on_gpus = backend == "nccl"
        if on_gpus:
            replaced["nccl"] = backend = "gloo"
        made = function(*arguments, backend=backend, **named)
        if whole and on_gpus:
            import torch

            devices = [0] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(devices, chosen[0])
            if len(set(devices)) < len(devices) and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
                raise RuntimeError(DUPLICATE)
        return made

    return call
