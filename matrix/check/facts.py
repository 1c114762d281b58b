"""The facts of a machine, and each capability as an answer: present, absent or unknown, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from matrix.kit.launch import world_of
from matrix.kit.preflight import Answer, Status, status_of
from matrix.provision.nvidia.cuda import Cuda
from matrix.provision.nvidia.nvml import Nvml

PACKAGES: Final = ("torch", "megatron-core", "transformer-engine")  # packages whose versions preflights need
GIB, MIB = 2**30, 2**20
SHM: Final = "/dev/shm"  # noqa: S108  (only its size is read)
# Bytes of /dev/shm; below it, the size is the default of podman and docker for a container: 64 MB.
LITTLE_SHM: Final = 128 * MIB


@dataclass(frozen=True)
class Mpi:
    """The mpirun on PATH, with the first line of its --version."""

    path: str
    version: str


@dataclass(frozen=True)
class InterpreterFacts:
    """A Python interpreter: its versions of PACKAGES, and how its torch and its Transformer Engine were built.

    `torch_cuda` is the CUDA that torch was built for, "none" for a build without; `problems` are the reasons why
    something is unknown.
    """

    path: str
    python: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    torch_mpi: bool | None = None
    torch_cuda: str | None = None
    built_with_mpi: bool | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostFacts:
    """A machine. `driver` is the kernel's NVIDIA driver.

    `shm` is the size of /dev/shm and `shm_free` its free part, `memory` the memory of the machine, `available` the part
    that can be allocated, `limit` the limit of this process's cgroup: bytes, None where unknown or absent. `environ`
    holds the variables of launchers and of the preflights only.
    """

    interpreter: InterpreterFacts
    driver: str | None = None
    nvml: Nvml = field(default_factory=Nvml)
    cuda: Cuda = field(default_factory=Cuda)
    mpi: Mpi | None = None
    shm: int | None = None
    shm_free: int | None = None
    memory: int | None = None
    available: int | None = None
    limit: int | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, with the driver version and compat flag of the user-mode driver."""
        cuda = {**asdict(self.cuda), "driver": self.cuda.driver, "compat": self.cuda.is_compat(self.driver)}
        return {**asdict(self), "cuda": cuda}


def capabilities(host: HostFacts) -> tuple[Answer, ...]:
    """Return each capability of the machine: yes, no or unknown, with the reason."""
    return (
        _kernel_driver(host),
        _management(host.nvml),
        _user_mode_driver(host),
        _gpu(host),
        _nvlink(host),
        _multicast(host),
        _mpi(host),
        _launcher(host),
        *_interpreter(host.interpreter),
        _shm(host),
        _memory(host),
    )


def _kernel_driver(host: HostFacts) -> Answer:
    if host.driver:
        return Answer("kernel driver", Status.YES, host.driver)
    status = _missing("kernel driver", host, "").status
    return Answer("kernel driver", status, "neither /proc/driver/nvidia/version nor NVML reports one")


def _management(nvml: Nvml) -> Answer:
    if nvml.problem:
        return Answer("NVML", status_of(None if nvml.silent else False), nvml.problem)
    lost = "; ".join(f"GPU {place}: {card.problem}" for place, card in enumerate(nvml.gpus) if card.problem)
    cuda = f", CUDA {nvml.cuda}" if nvml.cuda else ""
    return Answer(
        "NVML", Status.YES, f"{_count(len(nvml.gpus))}{cuda}", warns=f"NVML reports an error: {lost}" if lost else ""
    )


def _user_mode_driver(host: HostFacts) -> Answer:
    cuda = host.cuda
    if cuda.silent:
        return Answer("user-mode driver", Status.UNKNOWN, cuda.problem)
    if cuda.version is None:
        fix = "; a container gets it with its GPUs: podman --device nvidia.com/gpu=all, docker --gpus all"
        return Answer("user-mode driver", Status.NO, cuda.problem + (fix if host.driver and not cuda.library else ""))
    origin = {True: "a compat package's", False: "the kernel driver's own", None: "of unknown origin"}
    return Answer(
        "user-mode driver",
        Status.YES,
        f"{cuda.driver or 'no version in its name'}, CUDA {cuda.version}; {origin[cuda.is_compat(host.driver)]}: "
        f"{cuda.library}",
    )


def _gpu(host: HostFacts) -> Answer:
    gpus, seen = host.cuda.gpus, len(host.nvml.gpus)
    kinds = dict.fromkeys(f"{gpus.count(gpu)} x {gpu.name}, SM {gpu.sm}, {_size(gpu.memory)}" for gpu in gpus)
    names = ", ".join(dict.fromkeys(card.name for card in host.nvml.gpus if card.name))
    if not gpus:
        others = f"; NVML reports {_count(seen)}{f': {names}' if names else ''}" if seen else ""
        has_reason = host.cuda.library or host.cuda.silent
        problem = host.cuda.problem if has_reason else "no user-mode driver, so no GPU is visible"
        return Answer("GPU", status_of(None if host.cuda.silent else False), problem + others)
    hidden = f"; NVML reports {seen}, CUDA_VISIBLE_DEVICES hides the others" if seen > len(gpus) else ""
    return Answer("GPU", Status.YES, "; ".join(kinds) + hidden)


def _nvlink(host: HostFacts) -> Answer:
    """Answer yes where every link of every GPU is up."""
    cards = host.nvml.gpus
    if not cards:
        return _missing("NVLink", host, host.nvml.problem or "NVML reports no GPU")
    if not any(card.links for card in cards):
        return Answer("NVLink", Status.NO, f"{_count(len(cards))} without links")
    kinds: dict[str, list[int]] = {}
    for place, card in enumerate(cards):
        state = card.problem or (f"{card.up} of {card.links} links up" if card.links else "no links")
        kinds.setdefault(state, []).append(place)
    reason = "; ".join(f"{state} on GPU {', '.join(map(str, places))}" for state, places in kinds.items())
    down = [place for place, card in enumerate(cards) if card.up < card.links]
    whole = all(card.up == card.links > 0 for card in cards)
    warns = (
        f"NVLinks are down on GPU {', '.join(map(str, down))}; nvidia-smi nvlink --status lists them" if down else ""
    )
    return Answer("NVLink", status_of(whole), reason, warns=warns)


def _multicast(host: HostFacts) -> Answer:
    gpus = host.cuda.gpus
    having = sum(gpu.multicast for gpu in gpus)
    if gpus:
        reason = f"the driver reports it for {having} of {_count(len(gpus))}"
        return Answer("CUDA Multicast", status_of(having == len(gpus)), reason)
    return _missing("CUDA Multicast", host, "the user-mode driver, which reports it, shows no GPU")


def _mpi(host: HostFacts) -> Answer:
    if host.mpi is None:
        return Answer("mpirun", Status.NO, "not on PATH")
    return Answer("mpirun", Status.YES, f"{host.mpi.version}, {host.mpi.path}")


def _launcher(host: HostFacts) -> Answer:
    world = world_of(host.environ)
    if world.size is None:
        return Answer("launcher", Status.NO, "no variable of torchrun, mpirun or srun is set")
    return Answer("launcher", Status.YES, f"{world.launcher.value}, a job of {world.size}")


def _interpreter(interpreter: InterpreterFacts) -> tuple[Answer, ...]:
    python = interpreter.python
    why_not = "; ".join(interpreter.problems)
    built = {None: "", "none": ", built without CUDA"}.get(
        interpreter.torch_cuda, f", built for CUDA {interpreter.torch_cuda}"
    )
    about = {"torch": built}
    return (
        Answer("Python", status_of(python is not None), f"{python}, {interpreter.path}" if python else why_not),
        *(
            Answer(
                name,
                status_of(name in interpreter.packages),
                interpreter.packages.get(name, "not installed") + about.get(name, ""),
            )
            for name in PACKAGES
        ),
        Answer(
            "torch's mpi backend",
            status_of(interpreter.torch_mpi),
            why_not or ("not checked: --python imports torch" if "torch" in interpreter.packages else "no torch")
            if interpreter.torch_mpi is None
            else f"torch.distributed.is_mpi_available() is {interpreter.torch_mpi}",
        ),
    )


def _shm(host: HostFacts) -> Answer:
    if host.shm is None:
        return Answer(SHM, Status.UNKNOWN, "missing, or of unknown size")
    free = "" if host.shm_free is None else f", {_size(host.shm_free)} free"
    little = f"{SHM} has a container's default size; enlarge it by --ipc=host or --shm-size (docs/memory.md)"
    return Answer(SHM, Status.YES, _size(host.shm) + free, warns=little if host.shm < LITTLE_SHM else "")


def _memory(host: HostFacts) -> Answer:
    if host.memory is None:
        return Answer("host memory", Status.UNKNOWN, "of unknown size")
    available = "" if host.available is None else f", {_size(host.available)} available"
    limit = f"; the cgroup allows {_size(host.limit)}" if host.limit is not None else ""
    return Answer("host memory", Status.YES, _size(host.memory) + available + limit)


def _missing(question: str, host: HostFacts, why: str) -> Answer:
    """Return the answer without any source: no where there is no driver at all, else unknown."""
    maybe = host.driver or host.cuda.library or host.nvml.gpus or host.cuda.silent or host.nvml.silent
    return Answer(question, Status.UNKNOWN if maybe else Status.NO, why if maybe else "no driver, no GPU")


def _count(gpus: int) -> str:
    return f"{gpus} GPU{'s' * (gpus != 1)}"


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"
