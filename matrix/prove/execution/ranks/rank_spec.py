"""The rank spec: the task of a rank as JSON values, with the environment variables that its launcher sets."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matrix.ground.catalog.codec import encode
from matrix.kit.rank import Rank
from matrix.prove.execution.ranks import mpirun, variables
from matrix.prove.execution.ranks.job import RankJob


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
            "env": {"TORCH_EXTENSIONS_DIR": f"{folder}/extensions", **environment(job, number, port)},
            "path": [*job.path, *self.path],
            "preloaded": [] if job.fresh else list(self.preloaded),
            "fresh": job.fresh,
            "address_space": job.limits.address_space,
            "shm": job.limits.shm,
            "memory_group": self.memory_group,
            "gate": self.gate(number),
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
        **dict.fromkeys(("RANK", "LOCAL_RANK"), number),
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
