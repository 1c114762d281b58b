"""The training command of a user: its arguments, its launcher and its number of processes. Nothing is started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import basename
from typing import Any, Final

from matrix.ask.check.files.declared import UserCommand
from matrix.ground.catalog.reach import JobArguments
from matrix.ground.catalog.stack import Place
from matrix.kit.launch import UNKNOWN, Launcher, World, environment_of, world_of

ANY_SIZE: Final = 2  # processes of a job of unknown size: all sizes above 1 behave alike
# Options that training commands have, and others do not; one of them, or such a name, makes a command a training job.
TYPICAL: Final = frozenset(
    {"num-layers", "hidden-size", "seq-length", "micro-batch-size", "global-batch-size", "train-iters", "bf16"}
    | {"tensor-model-parallel-size", "pipeline-model-parallel-size", "tp-comm-overlap", "max-position-embeddings"}
)
NAMES: Final = ("train", "megatron", "finetune", "sft", "nemo", "gpt", "llama", "settings")
# Options of launchers: processes in total, processes of a host, hosts.
TOTAL: Final = {Launcher.MPIRUN: ("-np", "-n", "--np"), Launcher.SRUN: ("-n", "--ntasks")}
PER_HOST: Final = {
    Launcher.TORCHRUN: ("--nproc_per_node", "--nproc-per-node"),
    Launcher.MPIRUN: ("-npernode", "--npernode", "-ppn"),
    Launcher.SRUN: ("--ntasks-per-node",),
}
HOSTS: Final = {Launcher.TORCHRUN: ("--nnodes",), Launcher.SRUN: ("-N", "--nodes")}
# What sbatch sets for srun: processes in total, processes of a host, hosts.
SBATCH: Final = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES")
SWIFT: Final = ("swift", "megatron")  # of ms-swift: they start torchrun with these variables (swift/cli/main.py)
PROGRAMS: Final = {
    "torchrun": Launcher.TORCHRUN,
    "torch.distributed.run": Launcher.TORCHRUN,
    "torch.distributed.launch": Launcher.TORCHRUN,
    "mpirun": Launcher.MPIRUN,
    "mpiexec": Launcher.MPIRUN,
    "srun": Launcher.SRUN,
}


@dataclass(frozen=True)
class UserJob:
    """A training command. `arguments` None: nothing names a command.

    `size` is the number of processes that it states, `per_host` that of a host, `place` that of the command; None is
    unknown. Its `world` then has ANY_SIZE processes where a launcher starts it.
    """

    arguments: JobArguments | None = None
    world: World = UNKNOWN
    size: int | None = None
    per_host: int | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    place: Place | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "arguments": None if self.arguments is None else dict(self.arguments.given),
            "complete": self.arguments is not None and self.arguments.complete,
            "launcher": self.world.launcher.value,
            "processes": self.size,
            "processes_per_host": self.per_host,
            "source": str(self.place or ""),
        }


NO_JOB: Final = UserJob()  # of a stack without a command


def jobs_of(commands: Iterable[UserCommand]) -> tuple[UserJob, ...]:
    """Return the training jobs among the commands of files."""
    return tuple(job_of(one) for one in commands if is_training(one))


def is_training(command: UserCommand) -> bool:
    """Return whether a command looks like training, by an option or by a name."""
    names = {basename(word).lower() for word in command.words if word.endswith(".py") or word == command.words[0]}
    return bool(
        TYPICAL & JobArguments.parse(command.words).given.keys() or any(one in name for name in names for one in NAMES)
    )


def job_of(command: UserCommand) -> UserJob:
    """Return the job that a command starts, by the innermost launcher among its words."""
    launcher = Launcher.NONE
    for word in command.words:
        launcher = PROGRAMS.get(basename(word), launcher)
    per_host, hosts = _count(command.words, PER_HOST.get(launcher, ())), _count(command.words, HOSTS.get(launcher, ()))
    total = _count(command.words, TOTAL.get(launcher, ()))
    if launcher is Launcher.NONE and basename(command.words[0]) in SWIFT:
        launcher = Launcher.TORCHRUN
        per_host, hosts = (_number(command.environ.get(name, "")) for name in ("NPROC_PER_NODE", "NNODES"))
    if launcher is Launcher.SRUN:
        by_sbatch = [_number(command.environ.get(name, "")) for name in SBATCH]
        if not (total or per_host):
            total, per_host = by_sbatch[:2]
        hosts = hosts or by_sbatch[2]
    one_host = not _names(command.words, HOSTS.get(launcher, ()))
    size = total or (per_host * (hosts or 1) if per_host and (hosts or one_host) else None)
    started = environment_of(launcher, size or ANY_SIZE)
    if launcher is Launcher.SRUN and any(word.startswith("--mpi=pmi") for word in command.words):
        started |= {"PMIX_RANK": "0"}
    world = world_of(started) if launcher is not Launcher.NONE else world_of(command.environ)
    return UserJob(
        JobArguments.parse(command.words, command.perhaps),
        world,
        world.size if launcher is Launcher.NONE else size,
        per_host or (max(1, total // (hosts or 1)) if total else None),
        command.environ,
        command.place,
    )


def _count(words: Iterable[str], options: Iterable[str]) -> int | None:
    """Return the value of the first of these options that is a number, None without one."""
    before = ""
    for word in words:
        option, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        given = value if equals and option in options else word if before in options else ""
        if number := _number(given):
            return number
        before = word
    return None


def _names(words: Iterable[str], options: Sequence[str]) -> bool:
    """Return whether the words have one of these options, whatever its value."""
    return any(word.partition("=")[0] in options or (word[:2] in options and word[1:2] != "-") for word in words)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and 0 < len(text) < 7 and int(text) else None
