"""Start and stop megatron-core in a rank, on the rank's device."""

from __future__ import annotations

import ctypes
import importlib.util
from typing import TYPE_CHECKING, Any

from matrix.kit import absent_packages

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

SEED = 123  # the seed of upstream's example


def start(rank: Rank, *, tensor_parallel: int = 1, pipeline_parallel: int = 1, **groups: int) -> Any:
    """Initialise torch.distributed, model parallelism and the RNG tracker; return the torch module.

    `groups` are further arguments of megatron-core's initialize_model_parallel, such as expert_model_parallel_size.
    """
    import torch

    if rank.device == "cpu":
        from matrix.kit import cpu_device, te_extension

        cpu_device.install()
        if importlib.util.find_spec("transformer_engine") is not None:
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
