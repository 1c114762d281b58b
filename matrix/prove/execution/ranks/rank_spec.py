"""The job of a set of ranks, its timeouts, and the task of each rank as JSON values with its launcher's variables."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.codec import encode
from matrix.ground.catalog.failure import NO_LIMITS, Limits
from matrix.kit.rank import Rank
from matrix.prove.execution.ranks import mpirun, variables
from matrix.prove.execution.ranks.shared_gpu import log_file

OVERTIME_S: Final = 5.0  # s: the longest stop after the deadline or a Ctrl-C
# What a job holds from when its ranks are ready until their end; it yields variables that are added to theirs.
Admission = Callable[[], AbstractContextManager[Mapping[str, str]]]


@dataclass(frozen=True)
class Timeouts:
    """Timeouts of a stop in seconds; their sum without the peers' grace is at most OVERTIME_S.

    peer_grace_s: for the peers of a rank that died or raised to end by themselves; their exceptions are evidence. In a
        gloo collective they ended within 2 to 21 ms; a peer that waits for a store or for NCCL takes minutes.
    stacks_s: for all stacks. faulthandler took 1 ms; py-spy, on 3 processes with torch at once, 0.1 s.
    terminate_s: between SIGTERM and SIGKILL. Python's default handler took 12 ms; other handlers may write files.
    kill_s: after SIGKILL. Took 80 ms with 1 GiB to free.
    sweep_s: for the descendants that ranks leave running, see descendants.py.
    """

    peer_grace_s: float = 2.0
    stacks_s: float = 2.0
    terminate_s: float = 1.0
    kill_s: float = 0.7
    sweep_s: float = 0.5


@dataclass(frozen=True)
class RankJob:
    """One call of `target` on `world_size` ranks, each its own process.

    `target` is "package.module:function", or "FOLDER/module.py:function" in a failure's folder. The function is
    called with (rank: Rank, **kwargs) and returns JSON or None. `stand_ins`, `clones`, `backend` and `checkpoint` are
    passed to the Rank.
    `path` lists overlay directories, which come first on sys.path of every rank before it imports the target.
    `hidden` are packages of the base that ranks can't import.
    `env` is added to each rank's environment (variables.py). A variable that a preloaded package
    reads at its import (e.g. a thread count) has an effect only with `fresh`.
    `deadline_s` counts from the start of the first rank. `log_dir` receives rank-N.log and, for stopped ranks,
    rank-N.stacks.
    `limits` are set before the target is imported; if one can't be set, the outcome is `unavailable`.
    `fresh` starts a new interpreter per rank instead of a fork of the preloaded one.
    `launcher` is "torchrun", which only sets its environment variables, or "mpirun", Open MPI's launcher, whose ranks
    are always fresh.
    `gpus` is the number of GPUs of all ranks, 0 without any. `libraries` are loaded before torch, which needs `fresh`.
    The ranks share a GPU over NCCL of the version `nccl`, "" where they do not.
    """

    target: str
    kwargs: Mapping[str, Any]
    world_size: int
    path: tuple[str, ...]
    env: Mapping[str, str]
    deadline_s: float
    log_dir: Path
    fresh: bool = False
    device: str = "cpu"
    limits: Limits = NO_LIMITS
    launcher: str = "torchrun"
    hidden: tuple[str, ...] = ()
    stand_ins: Mapping[str, Any] = field(default_factory=dict)
    clones: Mapping[str, str] = field(default_factory=dict)
    backend: str = "gloo"
    checkpoint: Path = Path()
    gpus: int = 0
    nccl: str = ""
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupRequest:
    """The ranks of `job` to start.

    `folder` belongs to the job, `path` is every rank's sys.path after the overlays, `preloaded` lists the modules of
    the forkserver. The ranks join the cgroup `memory_group` ("": none). With `gated`, each waits before its body, at
    the FIFO `gate`.
    """

    job: RankJob
    folder: Path
    path: Sequence[str]
    preloaded: Sequence[str] = ()
    memory_group: str = ""
    gated: bool = False

    def specs(self) -> list[str]:
        """Return the rank spec of each rank as JSON, which matrix.prove.execution.ranks.rank_main.work reads."""
        port = free_port()
        return [json.dumps(self._spec(rank, port)) for rank in range(self.job.world_size)]

    def gate(self, number: int) -> str:
        """Return the path of a rank's gate, "" without one."""
        return f"{self.folder}/gate-{number}" if self.gated else ""

    def _spec(self, number: int, port: int) -> dict[str, Any]:
        job, folder = self.job, self.folder
        rank = Rank(
            number,
            job.world_size,
            job.device,
            init_method=f"file://{folder}/store",
            workdir=folder / "work",
            stand_ins=job.stand_ins,
            clones=job.clones,
            backend=job.backend,
            checkpoint=job.checkpoint,
            overlays=job.path,
            hidden=job.hidden,
        )
        return {
            "rank": encode(rank),
            "target": job.target,
            "kwargs": dict(job.kwargs),
            # A killed rank leaves a lock where it compiled an extension (core 0.15 does at its import).
            "env": {
                "TORCH_EXTENSIONS_DIR": f"{folder}/extensions",
                **environment(job, number, port),
                **({"NCCL_DEBUG_FILE": log_file(folder, number)} if job.nccl else {}),
            },
            "path": [*job.path, *self.path],
            "preloaded": [] if job.fresh else list(self.preloaded),
            "fresh": job.fresh,
            "address_space": job.limits.address_space,
            "shm": job.limits.shm,
            "memory_group": self.memory_group,
            "gate": self.gate(number),
            "nccl": job.nccl,
            "libraries": job.libraries,
        }


def environment(job: RankJob, rank: int, port: int) -> dict[str, str]:
    """Return the environment of a rank: that of its device, the variables of its launcher, those of the job.

    mpirun does not set RANK; job scripts derive it from mpirun's variables. TORCHELASTIC_USE_AGENT_STORE is left out,
    because it means that torchrun's agent serves a store at MASTER_PORT.
    """
    number, size = str(rank), str(job.world_size)
    torchrun = {
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_RANK": number,
        "ROLE_WORLD_SIZE": size,
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "none",  # torchrun's default for one node
    }
    return {
        **environment_of_device(job.device),
        **({} if job.launcher == mpirun.NAME else torchrun),
        "RANK": number,
        "LOCAL_RANK": str(rank % (job.gpus or job.world_size)),  # upstream takes it for the number of the GPU
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **job.env,
    }


def environment_of_device(device: str) -> dict[str, str]:
    """Return the variables that all ranks on a device have in common."""
    return {
        **variables.of_device(device),
        "GLOO_SOCKET_IFNAME": "lo",  # works if the host name does not resolve; traffic stays on the machine
        "OMP_NUM_THREADS": "1",  # as torchrun sets it
        **({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}),  # the verdict of a machine without a GPU
    }


def free_port() -> int:
    """Return a TCP port that is free at the call. Only for code that requires env://, see Rank.init_method."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
