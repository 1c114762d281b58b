"""Will --tp-comm-overlap start? Told from versions, launcher and host alone, before the job is started.

Userbuffers bootstrap over a process group. Where that group is an mpi one, MPI must have been started by its own
launcher: under torchrun MPI_COMM_WORLD has one process, and the group is given ranks that are not in it. See
docs/overlap.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from matrix.catalog.schema import build, read_toml
from matrix.catalog.versions import Range
from matrix.check import multicast
from matrix.check.answer import Answer, Word, known
from matrix.check.launch import mpi_world, world_of
from matrix.check.multicast import Device, Needs, Window
from matrix.contract import reading
from matrix.contract.finding import Kind, find
from matrix.contract.guard import Judge, Truth
from matrix.contract.surface import Surface
from matrix.contract.usage import Calls

FACTS: Final = Path(__file__).parents[1] / "catalog" / "facts" / "overlap.toml"
INITIALIZE: Final = "initialize_ub"
DEFINED: Final = "transformer_engine.pytorch.module.base:initialize_ub"
PARAMETER: Final = "bootstrap_backend"
BACKENDS: Final = ("nccl", "gloo", "mpi")


@dataclass(frozen=True)
class Megatron:
    """The backend that Megatron-LM's own option has by default."""

    backend: str
    source: str


@dataclass(frozen=True)
class Bootstrap:
    """In which order the Transformer Engines of a range try backends when they are given none."""

    te: Range
    order: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Userbuffers:
    """What the Transformer Engines of a range must have been built with to have userbuffers."""

    te: Range
    build: str
    source: str


@dataclass(frozen=True)
class Facts:
    """matrix/catalog/facts/overlap.toml."""

    megatron: Megatron
    userbuffers: Userbuffers
    bootstrap: tuple[Bootstrap, ...]
    multicast: Needs
    window: tuple[Window, ...]


@dataclass(frozen=True)
class Setting:
    """A job with --tp-comm-overlap. What is None is not known, or not set.

    `mcore` and `te` are what matrix.contract.reading takes: a recorded version, a wheel, a folder, PATH@REV. Without
    `mcore`, initialize_ub is called directly. `torch_mpi`: PyTorch has its mpi backend. `built_with_mpi`: Transformer
    Engine was built with NVTE_UB_WITH_MPI=1. `environ` is that of a process of the job, as far as its launcher sets it
    (launch.VARIABLES); `skipmc` is UB_SKIPMC.
    """

    te: str
    mcore: str | None = None
    bootstrap: str | None = None
    torch_mpi: bool | None = None
    built_with_mpi: bool | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    skipmc: str | None = None
    device: Device = field(default_factory=Device)


@dataclass(frozen=True)
class Call:
    """How Megatron-LM calls initialize_ub of a Transformer Engine that calls itself `te`.

    `passes`: with a bootstrap backend, so that no group is made beforehand; where it is called directly, whether it
    takes one. `misfit` is what Python says of the call or of what comes before it, "" where all fits; `where` is the
    call, "" where it is not reached.
    """

    te: str
    passes: bool
    where: str = ""
    misfit: str = ""


@cache
def facts() -> Facts:
    """Return the facts. Raises MatrixError."""
    return build(Facts, read_toml(FACTS), str(FACTS))


def contract(setting: Setting) -> tuple[Answer, ...]:
    """Return what is to be known of the job. Raises MatrixError for a release that is not recorded."""
    call = call_of(setting.mcore, setting.te)
    group = mpi_group(setting, call)
    made = None if group.word is Word.UNKNOWN else group.word is Word.YES
    return (
        group,
        *((mpi_backend(setting.torch_mpi),) if made else ()),
        mpi_world(world_of(setting.environ), used=made and setting.torch_mpi is not False),
        signature(setting, call),
        *((userbuffers(call.te),) if call.te in facts().userbuffers.te else ()),
        *multicast.answers(call.te, setting.device, setting.skipmc, facts().multicast, facts().window),
    )


def mpi_group(setting: Setting, call: Call) -> Answer:
    """Say whether an mpi process group of all ranks will be made."""
    question = "an mpi process group is made"
    if setting.built_with_mpi:
        return Answer(question, Word.YES, "Transformer Engine was built with NVTE_UB_WITH_MPI=1, whatever is asked for")
    if setting.mcore and not call.where:
        return Answer(question, Word.NO, "Megatron-LM ends before it")
    if setting.mcore and not call.passes:
        asked = f"; {setting.bootstrap} is not passed on" if setting.bootstrap not in (None, "mpi") else ""
        return Answer(question, Word.YES, f"Megatron-LM makes it itself before {call.where}{asked}")
    backend = setting.bootstrap or (facts().megatron.backend if setting.mcore else None)
    if backend:
        return Answer(question, known(backend == "mpi"), f"userbuffers bootstrap over {backend}")
    window = next((one for one in facts().bootstrap if call.te in one.te), None)
    if window is None:
        return Answer(question, Word.UNKNOWN, f"nothing is known of what transformer-engine {call.te} makes by itself")
    tried = f"no backend is asked for, and transformer-engine {call.te} tries {', '.join(window.order)}"
    first = window.order[0]  # gloo and nccl are in every PyTorch that this is about
    return Answer(question, known(first == "mpi" and setting.torch_mpi), tried)


def mpi_backend(there: bool | None) -> Answer:
    """Say whether PyTorch can make an mpi group at all."""
    return Answer(
        "PyTorch has its mpi backend",
        known(there),
        {
            True: "torch.distributed.is_mpi_available()",
            False: "PyPI's wheels are built without it; NGC's and Debian's have it",
            None: "no PyTorch was asked",
        }[there],
        breaks="RuntimeError: Distributed package doesn't have MPI built in" if there is False else "",
    )


def signature(setting: Setting, call: Call) -> Answer:
    """Say whether the call of initialize_ub fits what it meets."""
    misfit = call.misfit
    if not setting.mcore and setting.bootstrap and not call.passes:
        misfit = f"TypeError: {INITIALIZE}() got an unexpected keyword argument '{PARAMETER}'"
    return Answer(
        "initialize_ub takes what it is called with",
        known(not misfit),
        call.where or ("it is not reached" if setting.mcore else "it is called directly"),
        breaks=misfit,
    )


def userbuffers(te: str) -> Answer:
    """Say what a Transformer Engine must have been built with; no package tells of it."""
    return Answer(
        "userbuffers are in the build",
        Word.UNKNOWN,
        f"transformer-engine {te} has them only when it was built with {facts().userbuffers.build}",
    )


@cache
def call_of(mcore: str | None, te: str) -> Call:
    """Read how a Megatron-LM calls initialize_ub of a Transformer Engine; directly, None, with what it takes.

    Raises MatrixError for a release that is not recorded.
    """
    surface = surface_of(te)
    if mcore is None:
        return Call(surface.version, passes=surface.takes(DEFINED, PARAMETER) is True)
    calls = calls_of(mcore)
    judge = Judge(surface, surface.version)
    reached = [
        use for use in calls.uses if INITIALIZE in use.path and use.arguments and judge.truth(use.guard) is not Truth.NO
    ]
    broken = [f"{one.exception}: {one.message}" for one in find(calls, surface) if one.kind is Kind.DEFINITE]
    return Call(
        surface.version,
        passes=any(name == PARAMETER for use in reached if use.arguments for name, _ in use.arguments.keywords),
        where=str(reached[0].site) if reached else "",
        misfit=broken[0] if broken else "",
    )


@cache
def surface_of(te: str) -> Surface:
    """Return a Transformer Engine's surface."""
    return reading.surface_of(te)


@cache
def calls_of(mcore: str) -> Calls:
    """Return what a Megatron-LM uses in the function that calls initialize_ub, and nothing else."""
    calls = reading.calls_of(mcore)
    functions = {(use.site.path, use.site.function) for use in calls.uses if INITIALIZE in use.path}
    uses = tuple(use for use in calls.uses if (use.site.path, use.site.function) in functions)
    return Calls(calls.version, uses, calls.origin)
