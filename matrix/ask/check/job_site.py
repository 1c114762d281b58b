"""Where a job starts: its machine, its Python and its variables; each capability as an answer with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from matrix.ground.catalog.failure import GIB, MIB
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, Nvml, PythonEnvironment
from matrix.ground.errors import counted
from matrix.kit.launch import world_of
from matrix.kit.preflight import Answer, Status, status_of

PACKAGES: Final = ("torch", "megatron-core", "transformer-engine")  # packages whose versions preflights need
SHM: Final = "/dev/shm"  # noqa: S108  (only its size is read)
# Bytes of /dev/shm; below it, the size is the default of podman and docker for a container: 64 MB.
LITTLE_SHM: Final = 128 * MIB
COMPAT: Final = {True: "a compat package's", False: "the kernel driver's own", None: "of unknown origin"}
# Fields of a GPU that each library reports.
BY_CUDA: Final = ("name", "sm", "memory", "multicast", "uuid", "exclusive")
BY_NVML: Final = ("name", "links", "up", "problem")


@dataclass(frozen=True)
class JobSite:
    """Where a job starts; `environ` holds the variables of launchers and of the preflights only."""

    python: PythonEnvironment
    machine: Machine = field(default_factory=Machine)
    environ: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, with the driver version and compat flag of the user-mode driver."""
        machine, python = self.machine, self.python
        cuda, nvml = machine.cuda or Cuda(), machine.nvml or Nvml()
        return {
            "interpreter": {
                "path": str(python.path),
                **{name: getattr(python, name) for name in ("python", "packages", "torch_mpi", "torch_cuda")},
                "built_with_mpi": python.te_mpi,
                "problems": list(python.problems),
            },
            "driver": machine.driver,
            "nvml": {**asdict(nvml), "gpus": _plain(nvml.gpus, BY_NVML)},
            "cuda": {
                **asdict(cuda),
                "gpus": _plain(cuda.gpus, BY_CUDA),
                "driver": cuda.driver,
                "compat": cuda.is_compat(machine.driver),
            },
            "mpi": machine.mpirun and dict(zip(("path", "version"), machine.mpirun, strict=True)),
            **{name: getattr(machine, name) for name in ("shm", "shm_free", "memory", "available", "limit")},
            "environ": dict(self.environ),
        }


def _plain(gpus: tuple[Gpu, ...], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{name: getattr(gpu, name) for name in names} for gpu in gpus]


def capabilities(site: JobSite) -> tuple[Answer, ...]:
    """Return each capability of the machine: yes, no or unknown, with the reason."""
    machine = site.machine
    cuda, nvml = machine.cuda or Cuda(), machine.nvml or Nvml()
    # Without any source a capability is absent where there is no driver at all, else unknown.
    any_driver = machine.driver or cuda.library or nvml.gpus or cuda.silent or nvml.silent
    unreported = Status.UNKNOWN if any_driver else Status.NO
    driver = machine.driver or "neither /proc/driver/nvidia/version nor NVML reports one"
    world = world_of(site.environ)
    launcher = f"{world.launcher.value}, a job of {world.size}"
    no_launcher = "no variable of torchrun, mpirun or srun is set"
    return (
        Answer("kernel driver", Status.YES if machine.driver else unreported, driver),
        _management(nvml),
        _user_mode_driver(cuda, machine.driver),
        _gpus(cuda, nvml),
        _nvlink(nvml, unreported),
        _multicast(cuda, unreported),
        Answer(
            "mpirun", status_of(machine.mpirun is not None), ", ".join(reversed(machine.mpirun or ("not on PATH",)))
        ),
        Answer("launcher", status_of(world.size is not None), no_launcher if world.size is None else launcher),
        *_python(site.python),
        _shm(machine),
        _memory(machine),
    )


def _management(nvml: Nvml) -> Answer:
    if nvml.problem:
        return Answer("NVML", status_of(None if nvml.silent else False), nvml.problem)
    lost = "; ".join(f"GPU {index}: {gpu.problem}" for index, gpu in enumerate(nvml.gpus) if gpu.problem)
    version = f", CUDA {nvml.cuda}" if nvml.cuda else ""
    warning = f"NVML reports an error: {lost}" if lost else ""
    return Answer("NVML", Status.YES, f"{counted(len(nvml.gpus), 'GPU')}{version}", warns=warning)


def _user_mode_driver(cuda: Cuda, kernel: str | None) -> Answer:
    if cuda.silent:
        return Answer("user-mode driver", Status.UNKNOWN, cuda.problem)
    if cuda.version is None:
        fix = "; a container gets it with its GPUs: podman --device nvidia.com/gpu=all, docker --gpus all"
        return Answer("user-mode driver", Status.NO, cuda.problem + (fix if kernel and not cuda.library else ""))
    version = f"{cuda.driver or 'no version in its name'}, CUDA {cuda.version}"
    return Answer("user-mode driver", Status.YES, f"{version}; {COMPAT[cuda.is_compat(kernel)]}: {cuda.library}")


def _gpus(cuda: Cuda, nvml: Nvml) -> Answer:
    gpus = cuda.gpus
    if not gpus:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in nvml.gpus if gpu.name))
        listed = f"; NVML reports {counted(len(nvml.gpus), 'GPU')}{f': {names}' if names else ''}" if nvml.gpus else ""
        problem = cuda.problem if cuda.library or cuda.silent else "no user-mode driver, so no GPU is visible"
        return Answer("GPU", status_of(None if cuda.silent else False), problem + listed)
    kinds = dict.fromkeys(f"{gpus.count(gpu)} x {gpu.name}, SM {gpu.sm}, {_size(gpu.memory or 0)}" for gpu in gpus)
    hidden = f"; NVML reports {len(nvml.gpus)}, CUDA_VISIBLE_DEVICES hides the others"
    hidden = hidden if len(nvml.gpus) > len(gpus) else ""
    return Answer("GPU", Status.YES, "; ".join(kinds) + hidden)


def _nvlink(nvml: Nvml, unreported: Status) -> Answer:
    """Answer yes where every link of every GPU is up."""
    gpus = nvml.gpus
    if not gpus:
        return _unreported("NVLink", unreported, nvml.problem or "NVML reports no GPU")
    if not any(gpu.links for gpu in gpus):
        return Answer("NVLink", Status.NO, f"{counted(len(gpus), 'GPU')} without links")
    states: dict[str, list[str]] = {}
    for index, gpu in enumerate(gpus):
        state = gpu.problem or (f"{gpu.up} of {gpu.links} links up" if gpu.links else "no links")
        states.setdefault(state, []).append(str(index))
    reason = "; ".join(f"{state} on GPU {', '.join(indices)}" for state, indices in states.items())
    down = ", ".join(str(index) for index, gpu in enumerate(gpus) if gpu.up < gpu.links)
    warning = f"NVLinks are down on GPU {down}; nvidia-smi nvlink --status lists them" if down else ""
    return Answer("NVLink", status_of(all(gpu.up == gpu.links > 0 for gpu in gpus)), reason, warns=warning)


def _multicast(cuda: Cuda, unreported: Status) -> Answer:
    if not cuda.gpus:
        return _unreported("CUDA Multicast", unreported, "the user-mode driver, which reports it, shows no GPU")
    having = sum(bool(gpu.multicast) for gpu in cuda.gpus)
    reason = f"the driver reports it for {having} of {counted(len(cuda.gpus), 'GPU')}"
    return Answer("CUDA Multicast", status_of(having == len(cuda.gpus)), reason)


def _python(python: PythonEnvironment) -> tuple[Answer, ...]:
    problems = "; ".join(python.problems)
    built = {None: "", "none": ", built without CUDA"}.get(python.torch_cuda, f", built for CUDA {python.torch_cuda}")
    installed = {name: version + (built if name == "torch" else "") for name, version in python.packages.items()}
    unchecked = "not checked: --python imports torch" if "torch" in python.packages else "no torch"
    reported = f"torch.distributed.is_mpi_available() is {python.torch_mpi}"
    return (
        Answer(
            "Python", status_of(bool(python.python)), f"{python.python}, {python.path}" if python.python else problems
        ),
        *(Answer(name, status_of(name in installed), installed.get(name, "not installed")) for name in PACKAGES),
        Answer(
            "torch's mpi backend",
            status_of(python.torch_mpi),
            reported if python.torch_mpi is not None else problems or unchecked,
        ),
    )


def _shm(machine: Machine) -> Answer:
    if machine.shm is None:
        return Answer(SHM, Status.UNKNOWN, "missing, or of unknown size")
    free = "" if machine.shm_free is None else f", {_size(machine.shm_free)} free"
    little = f"{SHM} has a container's default size; enlarge it by --ipc=host or --shm-size"
    return Answer(SHM, Status.YES, _size(machine.shm) + free, warns=little if machine.shm < LITTLE_SHM else "")


def _memory(machine: Machine) -> Answer:
    if machine.memory is None:
        return Answer("host memory", Status.UNKNOWN, "of unknown size")
    available = "" if machine.available is None else f", {_size(machine.available)} available"
    limit = f"; the cgroup allows {_size(machine.limit)}" if machine.limit is not None else ""
    return Answer("host memory", Status.YES, _size(machine.memory) + available + limit)


def _unreported(question: str, status: Status, reason: str) -> Answer:
    return Answer(question, status, "no driver, no GPU" if status is Status.NO else reason)


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"
