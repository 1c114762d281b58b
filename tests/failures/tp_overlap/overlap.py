"""Prediction whether --tp-comm-overlap starts, from versions, launcher and host, before the job is started.

Userbuffers bootstrap over a process group. Where that group is an mpi one, MPI's own launcher must have started MPI:
under torchrun MPI_COMM_WORLD has one process, and the group gets ranks that are not in it. See README.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from matrix.kit.preflight import (
    Answer,
    Call,
    Contracts,
    Error,
    Machine,
    Range,
    Status,
    TrainingJob,
    read_facts,
    status_of,
)

from . import multicast
from .launch import mpi_world
from .multicast import Needs, Window

INITIALIZE: Final = "initialize_ub"
DEFINED: Final = "transformer_engine.pytorch.module.base:initialize_ub"
PARAMETER: Final = "bootstrap_backend"
BOOTSTRAP: Final = "bootstrap"  # the option, and the argument of the job
GROUP: Final = "an mpi process group is made"


@dataclass(frozen=True)
class Megatron:
    """The default backend of Megatron-LM's option."""

    backend: str
    source: str


@dataclass(frozen=True)
class Bootstrap:
    """The order in which a range of Transformer Engines tries backends when none is given."""

    te: Range
    order: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Userbuffers:
    """The build settings that a range of Transformer Engines needs to have userbuffers."""

    te: Range
    build: str
    source: str


@dataclass(frozen=True)
class Facts:
    """The contents of overlap.toml."""

    megatron: Megatron
    userbuffers: Userbuffers
    bootstrap: tuple[Bootstrap, ...]
    multicast: Needs
    window: tuple[Window, ...]


@cache
def facts() -> Facts:
    """Return the facts. Raises MatrixError."""
    return read_facts(Facts, Path(__file__).with_name("overlap.toml"))


def contract(job: TrainingJob, machine: Machine, contracts: Contracts) -> tuple[Answer, ...]:
    """Return the answers that decide whether the job starts. Raises MatrixError for an unrecorded release."""
    te = contracts.version(job.te)
    call = _call(job, contracts)
    group = mpi_group(te, job, call)
    made = None if group.status is Status.UNKNOWN else group.status is Status.YES
    return (
        group,
        *((mpi_backend(job.torch_mpi),) if made else ()),
        mpi_world(job.world, used=made and job.torch_mpi is not False, why=group.reason),
        Answer(
            "initialize_ub accepts its arguments",
            status_of(not call.error),
            call.site or _no_site(job, call),
            call.error,
        ),
        *((userbuffers(te),) if te in facts().userbuffers.te else ()),
        *multicast.answers(te, machine, job.environ.get(multicast.VARIABLE), facts().multicast, facts().window),
    )


def _no_site(job: TrainingJob, call: Call) -> str:
    """Return why there is no line of the call."""
    if not job.mcore:
        return "it is called directly"
    return "Megatron-LM ends with that error before it" if call.error else "Megatron-LM does not call it"


def mpi_group(te: str, job: TrainingJob, call: Call) -> Answer:
    """Return whether an mpi process group of all ranks will be made; `te` is Transformer Engine's version."""
    bootstrap = job.arguments.get(BOOTSTRAP)
    if job.te_mpi:
        return Answer(
            GROUP, Status.YES, "Transformer Engine was built with NVTE_UB_WITH_MPI=1, which ignores the option"
        )
    if job.mcore and not call.site:
        return Answer(GROUP, Status.NO, "Megatron-LM ends before it")
    if job.mcore and PARAMETER not in call.keywords:
        asked = f"; {bootstrap} is not passed on" if bootstrap not in (None, "mpi") else ""
        return Answer(GROUP, Status.YES, f"Megatron-LM makes it itself before {call.site}{asked}")
    backend = bootstrap or (facts().megatron.backend if job.mcore else None)
    if backend:
        return Answer(GROUP, status_of(backend == "mpi"), f"userbuffers bootstrap over {backend}")
    window = next((one for one in facts().bootstrap if te in one.te), None)
    if window is None:
        return Answer(GROUP, Status.UNKNOWN, f"nothing is known of what transformer-engine {te} makes by itself")
    tried = f"no backend is given, and transformer-engine {te} tries {', '.join(window.order)}"
    first = window.order[0]  # every supported PyTorch has gloo and nccl
    return Answer(GROUP, status_of(first == "mpi" and job.torch_mpi), tried)


def mpi_backend(there: bool | None) -> Answer:
    """Return whether PyTorch can make an mpi group at all."""
    return Answer(
        "PyTorch has its mpi backend",
        status_of(there),
        {
            True: "torch.distributed.is_mpi_available()",
            False: "PyPI's wheels are built without it; NGC's and Debian's have it",
            None: "no PyTorch was checked",
        }[there],
        Error("RuntimeError", "Distributed package doesn't have MPI built in") if there is False else None,
    )


def userbuffers(te: str) -> Answer:
    """Return the answer on the build settings of a Transformer Engine; no package records them."""
    return Answer(
        "userbuffers are in the build",
        Status.UNKNOWN,
        f"transformer-engine {te} has them only when it was built with {facts().userbuffers.build}",
    )


def _call(job: TrainingJob, contracts: Contracts) -> Call:
    """Return Megatron-LM's call of initialize_ub; without Megatron-LM the call is direct."""
    if job.mcore:
        return contracts.call(job.mcore, job.te, INITIALIZE)
    if BOOTSTRAP in job.arguments and contracts.takes(job.te, DEFINED, PARAMETER) is not True:
        return Call(error=Error("TypeError", f"{INITIALIZE}() got an unexpected keyword argument '{PARAMETER}'"))
    return Call()
