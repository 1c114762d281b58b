"""Start and stop megatron-core in a rank, on the rank's device."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from matrix.kit import absent_packages
from matrix.kit.rank import LackError

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

SEED = 123  # the seed of upstream's example
# Packages that 0.5 and 0.6 import when they save, and that an image may lack.
STORES: Final = {"zarr": "zarr<3", "tensorstore": "tensorstore"}
# What saves by default since 0.7, and uses psutil. (0.6 has it, too, and saves with zarr.)
WRITER: Final = "megatron.core.dist_checkpointing.strategies.filesystem_async"


def start(rank: Rank, *, tensor_parallel: int = 1, pipeline_parallel: int = 1, **groups: int) -> Any:
    """Initialise torch.distributed, model parallelism and the RNG tracker; return the torch module.

    `groups` are further arguments of megatron-core's initialize_model_parallel, such as expert_model_parallel_size.
    """
    import torch

    if rank.device == "cpu":
        from matrix.kit import cpu_device, te_extension

        cpu_device.install()
        if find_spec("transformer_engine") is not None:
            te_extension.install(rank.workdir / f"te-{rank.rank}")
    else:
        torch.cuda.set_device(device(rank))
    absent_packages.install(**rank.stand_ins)
    torch.distributed.init_process_group(
        rank.backend, init_method=rank.init_method, rank=rank.rank, world_size=rank.world_size
    )
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    parallel_state.initialize_model_parallel(tensor_parallel, pipeline_parallel, **groups)
    torch.manual_seed(SEED)
    model_parallel_cuda_manual_seed(SEED)
    return torch


def stop() -> None:
    """Destroy model parallelism and the process groups."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    leave()


def leave() -> None:
    """Wait for all ranks, otherwise they race to exit, and destroy the process groups; objects of gloo are never freed.

    ~ProcessGroupGloo holds the interpreter lock while it waits for a thread of gloo, which may need that lock to free
    a tensor (native stacks of both). torch 2.3.1 hung so in 5 of 100 runs of two ranks after one barrier, in 2 of 100
    after two, in none of 800 whose objects stay.
    """
    import torch

    wait_for_all()
    for group in [*torch.distributed.distributed_c10d._world.pg_map]:
        if torch.distributed.get_backend(group) == "gloo":
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    torch.distributed.destroy_process_group()


def wait_for_all() -> None:
    """Wait for all ranks, and until gloo's threads have released the tensors that they sent."""
    import torch

    torch.distributed.barrier()
    # The second one frees the interpreter lock, which gloo's thread needs to release the tensors of the first one.
    torch.distributed.barrier()


def device(rank: Rank) -> Any:
    """Return the torch device of this rank; where there are fewer GPUs than ranks, they share them round robin."""
    import torch

    return torch.device("cpu") if rank.device == "cpu" else torch.device("cuda", rank.rank % torch.cuda.device_count())


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Raise LackError where a save needs a package of STORES that is absent.

    Without psutil a save of megatron-core 0.13 - 0.16 does not return: it is not begun.
    """
    if find_spec("psutil") is None and find_spec(WRITER):
        raise LackError("needs psutil to save: pip install psutil")
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            absent = [cause.name] if isinstance(cause, ModuleNotFoundError) and cause.name in STORES else []
            if isinstance(cause, KeyError) and "'zarr'" in str(cause):  # 0.5 registers no strategy without both
                absent = [name for name in STORES if find_spec(name) is None]
            if absent:
                words = " ".join(f"'{STORES[name]}'" for name in absent)
                raise LackError(f"needs {' and '.join(absent)} to save: pip install {words}") from error
            cause = cause.__cause__
        raise
