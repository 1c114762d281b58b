"""pytest in an image: one container that works off cases of a run, on the machine that this process is on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from matrix.catalog.failure import Level
from matrix.catalog.model import Catalog, Container, Image
from matrix.errors import MatrixError
from matrix.execution import gpus
from matrix.execution.engine import STOP_S, BaseContents
from matrix.execution.ranks.timeouts import OVERTIME_S
from matrix.execution.session import deadline
from matrix.planning.planned import Planned
from matrix.provision import project
from matrix.provision.commands import TIMED_OUT
from matrix.provision.installed import PythonEnvironment
from matrix.provision.overlays import default_root
from matrix.provision.tools import ALL, NO_TOOL, ContainerSpec, Ref, Runtime
from matrix.provision.tox_environments import CELL_SETTINGS

COLLECT_S: Final = 120.0  # s for a session to collect its cases and to end; 2 s on 2 cores
LEFT_S: Final = 30.0  # s for a container to be gone after its session has hung up; 1 s was seen
PYTHON: Final = "python3"
SETTINGS: Final = {
    **CELL_SETTINGS,
    "PYTHONDONTWRITEBYTECODE": "1",  # the project is mounted read-only
    "HOME": "/tmp",  # noqa: S108  (a tmpfs of its own; the image is read-only)
    "USER": "megatrix",  # torch asks for a name, and the image knows none for docker's --user
}
# Nothing else of the environment goes in.
PASSED: Final = ("MEGATRIX_DEADLINE", "MEGATRIX_COMMAND", "MEGATRIX_TOX")


class Start(Protocol):
    """Starts a process whose output goes to a file (subprocess.Popen, with what it is given here)."""

    def __call__(self, command: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
        """Start it."""


@dataclass(frozen=True)
class ContainerJob:
    """What one container works off: cases of the run in `folder`; `told` is what else its session is told (MEGATRIX_*).

    `overlays` is the file that says what is laid over the image for each case, `digest` the image's.
    """

    image: Ref
    digest: str
    folder: Path
    overlays: Path
    cases: Sequence[Planned]
    told: Mapping[str, str]

    @property
    def environ(self) -> dict[str, str]:
        """Return what its session is told of the run, the image and the overlays."""
        return {
            **self.told,
            "MEGATRIX_RUN": str(self.folder),
            "MEGATRIX_BASE": self.image.id,
            "MEGATRIX_IMAGE": self.digest,
            "MEGATRIX_OVERLAYS": str(self.overlays),
        }


@dataclass(frozen=True)
class Ended:
    """How a container ended, and why it never came to pytest, a fault of the machine; "" when it did."""

    status: int
    refusal: str = ""


def ref(catalog: Catalog, base: str) -> Ref:
    """Return a base that is an image as the tools name it. Raises MatrixError for one that is none."""
    image = catalog.base(base)
    if not isinstance(image, (Image, Container)):
        raise MatrixError("not an image", got=base, expected="a base of the catalog that is one")
    return Ref(image.id, image.tag, f"megatrix build {base}" if isinstance(image, Image) else "")


def lack(runtime: Runtime | None, image: Ref) -> str:
    """Return what has to be installed, built or fetched before anything runs in an image, "" for nothing."""
    return runtime.lack(image) if runtime else f"{image.id} is an image: {NO_TOOL}"


def installed(runtime: Runtime, image: Ref, environ: Mapping[str, str]) -> BaseContents:
    """Return what an image holds. Raises MatrixError when it can't be started or has no Python."""
    asking = box(f"megatrix-asks-{image.id}-{os.getpid()}", environ)
    answer = runtime.ask(image, asking, PYTHON, "-m", "matrix.provision.installed")
    try:
        # NGC's entrypoint greets before it.
        environment = PythonEnvironment(**json.loads(answer.out.strip().splitlines()[-1]))
    except (IndexError, TypeError, ValueError):
        what = f"{runtime.name} could not run {image.tag}"
        got = runtime.refusal(answer.code, answer.err) or answer.complaint
        raise MatrixError(what, got=got, fix="see docs/images.md") from None
    return BaseContents(environment, image=runtime.digest(image))


def run(
    runtime: Runtime,
    work: ContainerJob,
    environ: Mapping[str, str],
    log: Path,
    start: Start = subprocess.Popen,  # type: ignore[assignment]  # as it is called here
    left: threading.Event | None = None,
) -> Ended:
    """Run pytest in the image until its cases are done; say how that ended. What it prints goes to `log`.

    One that outlasts every deadline is ended (TIMED_OUT), and so is the tool that still waits LEFT_S after the session
    in the container was heard to be gone (`left`). Ctrl-C is passed on once and raised again.
    """
    # With our pid: a run that is resumed may find the container of the one that was killed still ending.
    name = re.sub(r"[^\w.-]", "-", f"megatrix-{work.folder.name}-{work.image.id}-{os.getpid()}")
    writable, told = [work.folder, Path(work.told["MEGATRIX_RELAY"]).parent], work.environ
    given: tuple[str, ...] = ()
    if any(case.level is Level.GPU for case in work.cases):  # other runs of this machine hold GPUs by the same locks
        locks = gpus.locks(environ)
        locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable, told = [*writable, locks], {**told, gpus.LOCKS: str(locks)}
        given = gpus.of_job(environ) or ALL
    inside = box(name, environ, writable, told, given)
    command = runtime.command(work.image, inside, PYTHON, "-m", "pytest", "tests/failures")
    with log.open("ab") as output:
        begins = output.tell()
        process = start(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # one SIGINT from us, not a second one from the terminal
        )
        if left:
            threading.Thread(target=end_when_left, args=(runtime, process, name, left), daemon=True).start()
        try:
            status = process.wait(runtime.start_s(work.image) + limit_s(len(work.cases), environ))
        except subprocess.TimeoutExpired:
            stop(runtime, process, name)
            status = TIMED_OUT
        except BaseException:
            stop(runtime, process, name)
            raise
    with log.open("rb") as printed:
        printed.seek(begins)
        refusal = runtime.refusal(status, printed.read().decode(errors="replace"))
    return Ended(status, refusal and f"{runtime.name} could not run {work.image.id}: {refusal}")


def box(
    name: str,
    environ: Mapping[str, str],
    writable: Sequence[Path] = (),
    told: Mapping[str, str] | None = None,
    given: Sequence[str] = (),
) -> ContainerSpec:
    """Return what every container of ours gets: project and overlays to read, `writable`, and what it is told."""
    cache = default_root(environ)
    cache.mkdir(parents=True, exist_ok=True)
    passed = {key: environ[key] for key in PASSED if key in environ}
    if tuple(given) == ALL and gpus.VISIBLE in environ:
        passed[gpus.VISIBLE] = environ[gpus.VISIBLE]  # those of a job are given alone, and counted anew inside
    root = project.folder()
    return ContainerSpec(
        name, root, (root, cache), tuple(writable), {**SETTINGS, **passed, **(told or {})}, tuple(given)
    )


def limit_s(cases: int, environ: Mapping[str, str]) -> float:
    """Return the seconds after which a container that started hangs: each case takes its deadline at most twice."""
    return COLLECT_S + cases * 2 * (deadline(environ.get("MEGATRIX_DEADLINE", "")) + OVERTIME_S)


def end_when_left(runtime: Runtime, process: subprocess.Popen[bytes], name: str, left: threading.Event) -> None:
    """End a tool that goes on waiting for a container whose session has gone: srun does, when its step daemon died."""
    left.wait()
    try:
        process.wait(LEFT_S)
    except subprocess.TimeoutExpired:
        runtime.kill(name)
        process.kill()


def stop(runtime: Runtime, process: subprocess.Popen[bytes], name: str) -> None:
    """End a container: it is asked to stop its ranks and close its journal, and has STOP_S for it."""
    process.send_signal(signal.SIGINT)  # podman and docker pass it on
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        runtime.kill(name)
        process.kill()
        process.wait()
