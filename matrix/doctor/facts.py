"""What is known of a machine, and each capability as an answer: there or not, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from matrix.answer import Answer, Word, known
from matrix.launch import world_of

PACKAGES: Final = ("torch", "megatron-core", "transformer-engine")  # whose versions decide
GIB: Final = 2**30


@dataclass(frozen=True)
class Gpu:
    """A GPU as its user-mode driver describes it; `memory` in bytes, `multicast` as the driver says of the device."""

    name: str
    sm: str
    memory: int
    multicast: bool


@dataclass(frozen=True)
class Cuda:
    """The user-mode driver: the CUDA version that it offers ("12.4"), the file that it is, and its GPUs.

    `problem` is why there is none, or why it shows no GPU.
    """

    version: str | None = None
    library: str = ""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Mpi:
    """The mpirun on PATH, and what it says of itself."""

    path: str
    version: str


@dataclass(frozen=True)
class Interpreter:
    """A Python with what decides: its packages by PACKAGES, whether its torch has the mpi backend, how TE was built.

    `problems` are why something could not be told.
    """

    path: str
    python: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    torch_mpi: bool | None = None
    built_with_mpi: bool | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostFacts:
    """A machine. `driver` is the kernel's NVIDIA driver; `shm` and `memory` are bytes, None where they can't be told.

    `environ` holds launch.VARIABLES and nothing else, `skipmc` is UB_SKIPMC.
    """

    interpreter: Interpreter
    driver: str | None = None
    cuda: Cuda = field(default_factory=Cuda)
    mpi: Mpi | None = None
    shm: int | None = None
    memory: int | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    skipmc: str | None = None


def capabilities(host: HostFacts) -> tuple[Answer, ...]:
    """Return what the machine has: each yes or no with the reason."""
    return (
        *_gpus(host),
        _mpi(host),
        *_interpreter(host.interpreter),
        _bytes("shared memory", host.shm),
        _bytes("host memory", host.memory),
        _launcher(host),
    )


def _gpus(host: HostFacts) -> tuple[Answer, ...]:
    cuda = host.cuda
    kinds = dict.fromkeys(f"{cuda.gpus.count(gpu)} x {gpu.name}, SM {gpu.sm}, {_gib(gpu.memory)}" for gpu in cuda.gpus)
    with_multicast = sum(gpu.multicast for gpu in cuda.gpus)
    return (
        Answer(
            "NVIDIA kernel driver",
            known(host.driver is not None),
            host.driver or "/proc/driver/nvidia/version is not there",
        ),
        Answer(
            "user-mode driver",
            known(cuda.version is not None),
            f"CUDA {cuda.version}, {cuda.library}" if cuda.version else cuda.problem,
        ),
        Answer("GPU", known(bool(cuda.gpus)), "; ".join(kinds) or cuda.problem),
        Answer(
            "CUDA Multicast",
            known(bool(cuda.gpus) and with_multicast == len(cuda.gpus)),
            f"the driver says so of {with_multicast} of {len(cuda.gpus)} GPUs" if cuda.gpus else "no GPU",
        ),
    )


def _mpi(host: HostFacts) -> Answer:
    if host.mpi is None:
        return Answer("mpirun", Word.NO, "not on PATH")
    return Answer("mpirun", Word.YES, f"{host.mpi.version}, {host.mpi.path}")


def _interpreter(interpreter: Interpreter) -> tuple[Answer, ...]:
    python = interpreter.python
    why_not = "; ".join(interpreter.problems)
    return (
        Answer("Python", known(python is not None), f"{python}, {interpreter.path}" if python else why_not),
        *(
            Answer(name, known(name in interpreter.packages), interpreter.packages.get(name, "not installed"))
            for name in PACKAGES
        ),
        Answer(
            "torch's mpi backend",
            known(interpreter.torch_mpi),
            "torch.distributed.is_mpi_available()" if interpreter.torch_mpi is not None else why_not or "no torch",
        ),
    )


def _bytes(name: str, size: int | None) -> Answer:
    return Answer(name, Word.UNKNOWN, "can't be told") if size is None else Answer(name, Word.YES, _gib(size))


def _launcher(host: HostFacts) -> Answer:
    world = world_of(host.environ)
    if world.size is None:
        return Answer("launcher", Word.NO, "none of its variables are set")
    return Answer("launcher", Word.YES, f"{world.launcher.value}, a job of {world.size}")


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
