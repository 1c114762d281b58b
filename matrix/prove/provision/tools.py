"""Run a command in an image with podman, docker, or Slurm's Pyxis plugin, behind one interface.

With Pyxis, srun runs it on a node, in the allocation of a batch script. The plugin's behaviour was observed with Pyxis
0.24.0, enroot 4.1.2 and Slurm 22.05.8 (docs/slurm.md).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from matrix.ground.catalog.regular_file import read_regular_text, sha256
from matrix.read.commands import TIMED_OUT, CommandResult, Runner, redacted, run

NAMES: Final = ("podman", "docker")  # in order of preference: podman needs no daemon and no root
ANSWER_S: Final = 60.0  # s for a query; 0.1 s with podman, longer with many images
KILL_S: Final = 10.0  # s for a killed container to end; 0.2 s on an idle machine
NO_TOOL: Final = "needs podman or docker (Debian, Ubuntu: apt-get install podman)"
SHM: Final = Path("/dev/shm")  # noqa: S108  (only its size is read)
ALL: Final = ("all",)  # all GPUs of the machine, for CDI and the NVIDIA toolkit
START_S: Final = 60.0  # s for a container of a local image to start; 0.3 s on an idle machine


@dataclass(frozen=True)
class Ref:
    """An image: its id in the catalog, its tag, and the command that builds it, "" for an image of a registry."""

    id: str
    tag: str
    build: str = ""


@dataclass(frozen=True)
class ContainerSpec:
    """The settings of a container. Folders have the same path inside and outside; all others are read-only.

    `name` is the name of the container, `environ` is added to the variables of the image, `gpus` are device names of
    the machine, or ALL. `memory` limits all its processes together, in bytes; Pyxis can't set it.
    """

    name: str
    folder: Path
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    memory: int | None = None


class Runtime(Protocol):
    """Runs commands in images."""

    @property
    def name(self) -> str:
        """Return its name: podman, docker, pyxis."""

    def lack(self, image: Ref) -> str:
        """Return how to get a missing image, "" for one that is available."""

    def digest(self, image: Ref) -> str:
        """Return the image's content digest, "sha256:...", or its tag where that is unknown; "" for a missing image."""

    def command(self, image: Ref, box: ContainerSpec, *inside: str) -> list[str]:
        """Return the command line that runs `inside` in the image."""

    def start_s(self, image: Ref) -> float:
        """Return the seconds that a container of the image may take to start."""

    def query(self, image: Ref, box: ContainerSpec, *inside: str) -> CommandResult:
        """Run a short query in the image."""

    def refusal(self, status: int, printed: str) -> str:
        """Return why the command line ended without running `inside`, a fault of the machine; "" if `inside` ran."""

    def kill(self, name: str) -> None:
        """Kill the container of that name."""


@dataclass(frozen=True)
class Tool:
    """podman or docker, which have the same command lines: its path, and the runner of its commands."""

    path: str
    run: Runner = run

    @property
    def name(self) -> str:
        """Return "podman" or "docker"."""
        return Path(self.path).name

    def lack(self, image: Ref) -> str:
        """Return the command that builds or pulls a missing image."""
        if self.digest(image):
            return ""
        if image.build:
            return f"{image.id} is not built yet: {image.build}"
        return f"{image.tag} is not local: {self.name} pull {image.tag}"

    def digest(self, image: Ref) -> str:
        """Return the image's id, which is the digest of its configuration and therefore of its content."""
        return self.image(image.tag)

    def image(self, tag: str) -> str:
        """Return the content digest of the image with this tag ("sha256:..."), "" when it is missing."""
        result = self._command("image", "inspect", "--format", "{{.Id}}", tag)
        digest = result.out.strip().removeprefix("sha256:")
        return f"sha256:{digest}" if result.code == 0 and digest else ""

    def command(self, image: Ref, box: ContainerSpec, *inside: str) -> list[str]:
        """Return the command line of a container that is removed when it ends, without network, read-only."""
        # exec: Triton, inductor and torch's extensions load the libraries that they compile there.
        options = [
            "--rm",
            "--pull=never",
            "--network=none",
            "--read-only",
            "--tmpfs=/tmp:exec",
            f"--workdir={box.folder}",
        ]
        options += ["--security-opt=label=disable"]  # otherwise SELinux denies a container folders that are not its own
        if self.name == "docker":
            options += [f"--user={os.getuid()}:{os.getgid()}"]  # rootless podman already runs as this user
        # The default is 64 MB, with which NCCL and DataLoader workers fail that do not fail on this machine.
        options += [f"--shm-size={shutil.disk_usage(SHM).total}"] if SHM.is_dir() else []
        for folder in box.readable:
            options += ["--volume", f"{folder}:{folder}:ro"]
        for folder in box.writable:
            options += ["--volume", f"{folder}:{folder}"]
        for key, value in box.environ.items():
            options += ["--env", f"{key}={value}"]
        options += self._gpus(box.gpus) if box.gpus else []
        # The same with swap: a case above its limit must be killed, not slowed down.
        options += [f"--memory={box.memory}", f"--memory-swap={box.memory}"] if box.memory else []
        return [self.path, "run", "--name", box.name, *options, image.tag, *inside]

    def _gpus(self, names: tuple[str, ...]) -> list[str]:
        if self.name == "podman":
            return [word for name in names for word in ("--device", f"nvidia.com/gpu={name}")]
        return ["--gpus", "all" if names == ALL else f'"device={",".join(names)}"']  # a list in CSV, hence the quotes

    def start_s(self, image: Ref) -> float:
        """Return START_S: a missing image is not pulled (--pull=never)."""
        return START_S

    def query(self, image: Ref, box: ContainerSpec, *inside: str) -> CommandResult:
        """Run a short query in the image; a container that exceeds ANSWER_S is removed."""
        result = self.run(self.command(image, box, *inside), seconds=ANSWER_S)
        if result.code == TIMED_OUT:
            self.kill(box.name)
        return result

    def refusal(self, status: int, printed: str) -> str:
        """Return the last line at 125 (failure of podman or docker), 126 and 127 (no such command in the image)."""
        return last_line(printed) if status in (125, 126, 127) else ""

    def kill(self, name: str) -> None:
        """Kill a container and remove it."""
        self._command("kill", name, seconds=KILL_S)
        self._command("rm", "--force", name, seconds=KILL_S)

    def _command(self, *arguments: str, seconds: float = ANSWER_S) -> CommandResult:
        return self.run([self.path, *arguments], seconds=seconds)


def last_line(printed: str) -> str:
    """Return the last line of the output, without credentials."""
    return redacted(next((line.strip() for line in reversed(printed.split("\n")) if line.strip()), "no output"))


def find(environ: Mapping[str, str] = os.environ, run: Runner = run) -> Tool | None:
    """Return the first of podman and docker that works on this machine; docker requires its daemon."""
    for name in NAMES:
        path = shutil.which(name, path=environ.get("PATH", os.defpath))
        if path and run([path, "info"], seconds=ANSWER_S).code == 0:
            return Tool(path, run)
    return None


IMAGES: Final = "MEGATRIX_SQUASHFS"  # variable: the folder of images imported by enroot, such as debian-13.sqsh
GUARD: Final = "/.megatrix"  # a folder that exists in containers only
# A node whose slurmd has no Pyxis ignores srun's options and would run the command outside of any image.
GUARDED: Final = f'[ -d {GUARD} ] || {{ echo "the slurmd of this node has no Pyxis" >&2; exit 125; }}; exec "$@"'
# Pyxis sets these in a PyTorch image (one with PYTORCH_VERSION); the launcher of a case sets its own.
UNSET: Final = ("RANK", "LOCAL_RANK")
# Output that shows that no container started: slurmstepd on a failed plugin or a missing program; srun without the
# option; the guard.
REFUSED: Final = re.compile(
    r"^slurmstepd[^ ]{0,99}: error: (Failed to invoke spank plugin stack|execve\(\): )"
    r"|^srun: unrecognized option '--container|^the slurmd of this node has no Pyxis$",
    re.MULTILINE,
)
# Lines with the reason, most specific first: errors of enroot, of its download, then others.
REASONS: Final = (
    r"\[ERROR\] .*",
    r"curl: .*",
    r"execve\(\): .*",
    r"unrecognized option .*",
    r"the slurmd of this node .*",
    r"pyxis: (?!child|printing).*",
)
FETCH_S: Final = 3600.0  # s to pull an image of 20 GB from a registry


@dataclass(frozen=True)
class Pyxis:
    """srun with the plugin; `images` is the folder of images that are in no registry."""

    srun: str
    images: Path | None = None
    cpus: int = 1  # srun does not give a step those of its task
    run: Runner = run

    @property
    def name(self) -> str:
        """Return "pyxis"."""
        return "pyxis"

    def lack(self, image: Ref) -> str:
        """Return how to import a missing image; Pyxis itself pulls one that a registry has."""
        if not image.build or self._file(image):
            return ""
        folder = self.images or f"${IMAGES}"
        return f"{image.id} is not a file in {IMAGES}: enroot import -o {folder}/{image.id}.sqsh podman://{image.tag}"

    def digest(self, image: Ref) -> str:
        """Return the digest of the image's file; for a registry the tag, since Pyxis reports no digest.

        A file FILE.sha256 in the format of sha256sum, not older than the image, replaces reading the image.
        """
        file = self._file(image)
        if file is None:
            return image.tag
        recorded = file.with_name(f"{file.name}.sha256")
        if recorded.is_file() and recorded.stat().st_mtime >= file.stat().st_mtime:
            return f"sha256:{read_regular_text(recorded).split()[0]}"
        return f"sha256:{sha256(file)}"

    def command(self, image: Ref, box: ContainerSpec, *inside: str) -> list[str]:
        """Return the command line of a step in this allocation: /tmp is private, the network that of the node."""
        mounts = [f"{folder}:{folder}:ro" for folder in box.readable]
        mounts += [f"{folder}:{folder}" for folder in box.writable]
        mounts += [f"{box.folder}:{GUARD}:ro"]
        unset = (word for name in UNSET for word in ("-u", name))
        return [
            *(self.srun, "--ntasks=1", f"--cpus-per-task={self.cpus}", f"--job-name={box.name}"),
            "--mpi=none",  # otherwise a site's default makes every rank part of one MPI job of Slurm
            "--disable-status",  # so that one SIGINT is passed on
            "--export=NONE",  # passes SLURM_* and CUDA_VISIBLE_DEVICES only: no PYTHONPATH, no secret tokens
            *(f"--container-image={self._named(image)}", "--container-readonly", "--no-container-mount-home"),
            *(f"--container-workdir={box.folder}", f"--container-mounts={','.join(mounts)}"),
            *("/bin/sh", "-c", GUARDED, "sh"),  # a node that sets up no container sets no PATH
            # Set inside: the image's variables and enroot would override those set around srun.
            *("env", *unset, *(f"{key}={value}" for key, value in box.environ.items())),
            *inside,
        ]

    def start_s(self, image: Ref) -> float:
        """Return FETCH_S for an image that its registry has."""
        return START_S if self._file(image) else FETCH_S

    def query(self, image: Ref, box: ContainerSpec, *inside: str) -> CommandResult:
        """Run a short query in the image; only Slurm limits its time, since the image may be pulled first."""
        return self.run(self.command(image, box, *inside))

    def refusal(self, status: int, printed: str) -> str:
        """Return the error of Pyxis or enroot when no container started; srun then exits with 1, as pytest may."""
        if status == 0 or not REFUSED.search(printed):
            return ""
        reason = next(filter(None, (re.search(pattern, printed) for pattern in REASONS)), None)
        return redacted(reason[0].strip()) if reason else last_line(printed)

    def kill(self, name: str) -> None:
        """Do nothing: the caller kills srun, and the step ends with it."""

    def _file(self, image: Ref) -> Path | None:
        file = self.images / f"{image.id}.sqsh" if self.images else None
        return file if file and file.is_file() else None

    def _named(self, image: Ref) -> str:
        """Return the image in the form of Pyxis: a path, or REGISTRY#NAME:TAG."""
        file = self._file(image)
        return str(file) if file else image.tag.replace("/", "#", 1)


def find_pyxis(environ: Mapping[str, str] = os.environ, run: Runner = run) -> Pyxis | None:
    """Return Pyxis if srun on this node has it, else None."""
    srun = shutil.which("srun", path=environ.get("PATH", os.defpath))
    if srun is None or "--container-image" not in run([srun, "--help"], seconds=ANSWER_S).out:
        return None
    folder = environ.get(IMAGES)
    return Pyxis(srun, Path(folder) if folder else None, int(environ.get("SLURM_CPUS_PER_TASK", "1")), run)
