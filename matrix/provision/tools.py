"""What runs a command in an image: podman, docker, or Slurm with the Pyxis plugin, behind one interface."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from matrix.provision.commands import TIMED_OUT, CommandResult, Runner, redacted, run

NAMES: Final = ("podman", "docker")  # in order of preference: podman needs no daemon and no root
ANSWER_S: Final = 60.0  # s for a question; podman answers in 0.1 s, and takes longer with many images
KILL_S: Final = 10.0  # s for a container that is killed to be gone; 0.2 s on an idle machine
NO_TOOL: Final = "needs podman or docker (Debian, Ubuntu: apt-get install podman)"
SHM: Final = Path("/dev/shm")  # noqa: S108  (it is asked for its size)
ALL: Final = ("all",)  # the GPUs of the machine, for CDI and the NVIDIA toolkit
START_S: Final = 60.0  # s for a container of an image that is here to start; 0.3 s on an idle machine


@dataclass(frozen=True)
class Ref:
    """An image: its id in the catalog, its tag, and the command that builds it, "" for one that a registry has."""

    id: str
    tag: str
    build: str = ""


@dataclass(frozen=True)
class ContainerSpec:
    """What a command in an image gets. Folders have the same path inside and outside; nothing else can be written.

    `name` is what the container is called, `environ` is set in it on top of the image's own, `gpus` are named as the
    machine names them, or ALL.
    """

    name: str
    folder: Path
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()


class Runtime(Protocol):
    """Runs commands in images."""

    @property
    def name(self) -> str:
        """Return what it is called: podman, docker, pyxis."""

    def lack(self, image: Ref) -> str:
        """Return how an image that is not here is got, "" for one that is here."""

    def digest(self, image: Ref) -> str:
        """Return the image's content digest, "sha256:...", or its tag where no digest can be told; "" for none here."""

    def command(self, image: Ref, box: ContainerSpec, *inside: str) -> list[str]:
        """Return the command line that runs `inside` in the image."""

    def start_s(self, image: Ref) -> float:
        """Return the seconds that a container of the image may take to start."""

    def ask(self, image: Ref, box: ContainerSpec, *inside: str) -> CommandResult:
        """Run a command in the image that only answers."""

    def refusal(self, status: int, printed: str) -> str:
        """Return why a command line that ended so never came to its `inside`, a fault of the machine; "" if it did."""

    def kill(self, name: str) -> None:
        """End the container of that name, whatever it does."""


@dataclass(frozen=True)
class Tool:
    """podman or docker, whose command lines are alike: its path, and how it is asked."""

    path: str
    run: Runner = run

    @property
    def name(self) -> str:
        """Return "podman" or "docker"."""
        return Path(self.path).name

    def lack(self, image: Ref) -> str:
        """Return the line that builds or fetches an image that is not here."""
        if self.digest(image):
            return ""
        if image.build:
            return f"{image.id} is not built yet: {image.build}"
        return f"{image.tag} is not here: {self.name} pull {image.tag}"

    def digest(self, image: Ref) -> str:
        """Return the image's id, which is the digest of its configuration and so of all that it holds."""
        return self.image(image.tag)

    def image(self, tag: str) -> str:
        """Return the content digest of what the tag names ("sha256:..."), "" when it is not here."""
        answer = self._ask("image", "inspect", "--format", "{{.Id}}", tag)
        digest = answer.out.strip().removeprefix("sha256:")
        return f"sha256:{digest}" if answer.code == 0 and digest else ""

    def command(self, image: Ref, box: ContainerSpec, *inside: str) -> list[str]:
        """Return the command line of a container that is removed when it ends, without network, read-only."""
        options = ["--rm", "--pull=never", "--network=none", "--read-only", "--tmpfs=/tmp", f"--workdir={box.folder}"]
        options += ["--security-opt=label=disable"]  # SELinux would keep a container from folders that are not its own
        if self.name == "docker":
            options += [f"--user={os.getuid()}:{os.getgid()}"]  # podman without root is this user already
        # Theirs is 64 MB, on which NCCL and a DataLoader's workers fail that do not fail on this machine.
        options += [f"--shm-size={shutil.disk_usage(SHM).total}"] if SHM.is_dir() else []
        for folder in box.readable:
            options += ["--volume", f"{folder}:{folder}:ro"]
        for folder in box.writable:
            options += ["--volume", f"{folder}:{folder}"]
        for key, value in box.environ.items():
            options += ["--env", f"{key}={value}"]
        options += self._gpus(box.gpus) if box.gpus else []
        return [self.path, "run", "--name", box.name, *options, image.tag, *inside]

    def _gpus(self, names: tuple[str, ...]) -> list[str]:
        if self.name == "podman":
            return [word for name in names for word in ("--device", f"nvidia.com/gpu={name}")]
        return ["--gpus", "all" if names == ALL else f'"device={",".join(names)}"']  # a list in CSV, hence the quotes

    def start_s(self, image: Ref) -> float:
        """Return START_S: what is not here is not fetched (--pull=never)."""
        return START_S

    def ask(self, image: Ref, box: ContainerSpec, *inside: str) -> CommandResult:
        """Run a command in the image that only answers; a container that does not is not left behind."""
        answer = self.run(self.command(image, box, *inside), seconds=ANSWER_S)
        if answer.code == TIMED_OUT:
            self.kill(box.name)
        return answer

    def refusal(self, status: int, printed: str) -> str:
        """Return its last words at 125 (podman's or docker's own failure), 126 and 127 (no such command in there)."""
        return last_line(printed) if status in (125, 126, 127) else ""

    def kill(self, name: str) -> None:
        """Kill a container and remove it."""
        self._ask("kill", name, seconds=KILL_S)
        self._ask("rm", "--force", name, seconds=KILL_S)

    def _ask(self, *arguments: str, seconds: float = ANSWER_S) -> CommandResult:
        return self.run([self.path, *arguments], seconds=seconds)


def last_line(printed: str) -> str:
    """Return the last line of what was printed, without credentials."""
    return redacted(next((line.strip() for line in reversed(printed.split("\n")) if line.strip()), "it wrote nothing"))


def find(environ: Mapping[str, str] = os.environ, run: Runner = run) -> Tool | None:
    """Return the first of podman and docker that works here; docker's client without its daemon does not."""
    for name in NAMES:
        path = shutil.which(name, path=environ.get("PATH", os.defpath))
        if path and run([path, "info"], seconds=ANSWER_S).code == 0:
            return Tool(path, run)
    return None
