"""The rank spec: the task of a rank as JSON values, with the environment variables that its launcher sets."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matrix.execution.ranks import mpirun, variables
from matrix.execution.ranks.job import RankJob


def rank_spec(
    job: RankJob, rank: int, port: int, folder: Path, path: Sequence[str], preloaded: Sequence[str], memory_group: str
) -> dict[str, Any]:
    """Return the rank spec as JSON values; matrix.execution.ranks.rank.work reads it."""
    return {
        "target": job.target,
        "kwargs": dict(job.kwargs),
        "rank": rank,
        "world_size": job.world_size,
        "device": job.device,
        "init_method": f"file://{folder}/store",
        "workdir": f"{folder}/work",
        "stand_ins": dict(job.stand_ins),
        "clones": dict(job.clones),
        "backend": job.backend,
        "checkpoint": str(job.checkpoint),
        # A killed rank leaves a lock where it compiled an extension (core 0.15 does at its import).
        "env": {"TORCH_EXTENSIONS_DIR": f"{folder}/extensions", **environment(job, rank, port)},
        "path": [*job.path, *path],
        "overlays": list(job.path),
        "hidden": list(job.hidden),
        "preloaded": [] if job.fresh else list(preloaded),
        "fresh": job.fresh,
        "address_space": job.limits.address_space,
        "shm": job.limits.shm,
        "memory_group": memory_group,
    }


def environment(job: RankJob, rank: int, port: int) -> dict[str, str]:
    """Return the environment of a rank: that of its device, the variables of its launcher, those of the job.

    mpirun does not set RANK; job scripts derive it from mpirun's variables. TORCHELASTIC_USE_AGENT_STORE is left out,
    because it means that torchrun's agent serves a store at MASTER_PORT.
    """
    torchrun = {
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(job.world_size),
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "none",  # torchrun's default for one node
    }
    return {
        **variables.of_device(job.device),
        **({} if job.launcher == mpirun.NAME else torchrun),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_WORLD_SIZE": str(job.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",  # works if the host name does not resolve; traffic stays on the machine
        "OMP_NUM_THREADS": "1",  # as torchrun sets it
        **({"CUDA_VISIBLE_DEVICES": ""} if job.device == "cpu" else {}),  # the verdict of a machine without a GPU
        **job.env,
    }


def free_port() -> int:
    """Return a TCP port that is free at the call. Only for code that requires env://, see Rank.init_method."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
