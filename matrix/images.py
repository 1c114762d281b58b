"""The engine of the image bases: one container of podman or docker per base, in which pytest works off its part."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

from containers.commands import TIMED_OUT, Runner, redacted, run
from containers.environments import Environment
from containers.overlays import Overlays, default_root
from containers.tools import NO_TOOL, Tool, find
from matrix import configuration, provision
from matrix.catalog import Catalog, Container, Image
from matrix.content import ROOT
from matrix.engine import STOP_S, Ending
from matrix.errors import MatrixError
from matrix.outcome import Level
from matrix.planned import Planned
from matrix.provision import Provision
from matrix.ranks.patience import OVERTIME_S
from matrix.session import deadline, provisions
from reports import journal, night

# What podman and docker end with when there was no container to speak of: their own failure, a command that can't be
# started, one that is not there. It says nothing of any case.
REFUSED: Final = (125, 126, 127)
KILL_S: Final = 10.0  # s for a container that is killed to be gone; 0.2 s on an idle machine
START_S: Final = 120.0  # s for a container to start and to collect its cases; 2 s on 2 cores
PYTHON: Final = "python3"
# As toxfile.py has it for what tox makes; and no bytecode, since the project is mounted read-only.
SETTINGS: Final = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "NO_VCS_VERSION": "1",
    "HOME": "/tmp",  # noqa: S108  (a tmpfs of its own; the image is read-only)
    "USER": "megatrix",  # torch asks for a name, and the image knows none for docker's --user
}
PASSED: Final = ("MEGATRIX_DEADLINE", "MEGATRIX_COMMAND", "MEGATRIX_TOX")  # nothing else of the environment goes in
GPUS: Final = {"podman": ("--device", "nvidia.com/gpu=all"), "docker": ("--gpus", "all")}


class Start(Protocol):
    """Starts a process whose output goes to a file (subprocess.Popen, with what it is given here)."""

    def __call__(self, command: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
        """Start it."""


class Images:
    """Runs the image bases, one after the other. Everything that it needs is a folder that both sides see alike.

    The project and the overlays are mounted read-only at the paths they have outside, the run's folder and the relay's
    socket writable; there is no network.
    """

    def __init__(
        self,
        catalog: Catalog,
        environ: Mapping[str, str] = os.environ,
        *,
        run: Runner = run,
        start: Start = subprocess.Popen,  # type: ignore[assignment]  # as it is called here
    ) -> None:
        self._catalog, self._environ, self._run, self._start = catalog, environ, run, start
        self._lacks: dict[str, str] = {}

    @cached_property
    def tool(self) -> Tool | None:
        """Return podman or docker, None where neither works."""
        return find(self._environ, self._run)

    def lacks(self, base: str) -> str:
        """Return what has to be installed, built or fetched before anything runs in this image, "" for nothing."""
        if base not in self._lacks:
            self._lacks[base] = self._lack(base)
        return self._lacks[base]

    def _lack(self, base: str) -> str:
        image = self._image(base)
        if self.tool is None:
            return f"{base} is an image: {NO_TOOL}"
        if self.tool.image(image.tag):
            return ""
        if isinstance(image, Image):
            return f"{base} is not built yet: megatrix build {base}"
        return f"{image.tag} is not here: {self.tool.name} pull {image.tag}"

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> Ending:
        """Run the container of each base; what it prints goes to `log`."""
        status, refused = 0, {}
        for base in bases:
            try:
                code = self._run_in(base, Path(environ["MEGATRIX_RUN"]), environ, log)
            except MatrixError as error:
                refused[base] = error.brief
                continue
            if code in REFUSED:
                refused[base] = f"{self._tool.name} could not run {base}: {last_line(log)}"
            status = status or code
        return Ending(status, refused)

    def _run_in(self, base: str, folder: Path, environ: Mapping[str, str], log: Path) -> int:
        image = self._image(base)
        digest = self._tool.image(image.tag)
        provided = folder / f"overlays-{base}.json"
        cases = pending(folder, base)
        provision.write(provided, self.provide(cases, self.ask(image.tag)))
        # With our pid: a run that is resumed may find the container of the one that was killed still ending.
        name = re.sub(r"[^\w.-]", "-", f"megatrix-{folder.name}-{base}-{os.getpid()}")
        settings = {
            **SETTINGS,
            **{key: self._environ[key] for key in PASSED if key in self._environ},
            **environ,
            "MEGATRIX_BASE": base,
            "MEGATRIX_IMAGE": digest,
            "MEGATRIX_OVERLAYS": str(provided),
        }
        writable = [folder, Path(environ["MEGATRIX_RELAY"]).parent]
        gpus = GPUS[self._tool.name] if any(case.level is Level.GPU for case in cases) else ()
        options = ["--name", name, *self.options(writable), *gpus]
        for key, value in settings.items():
            options += ["--env", f"{key}={value}"]
        command = [self._tool.path, "run", *options, image.tag, PYTHON, "-m", "pytest", "tests/failures"]
        with log.open("ab") as output:
            process = self._start(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # one SIGINT from us, not a second one from the terminal
            )
            try:
                return process.wait(self.limit_s(len(cases)))
            except subprocess.TimeoutExpired:
                self._stop(process, name)
                return TIMED_OUT
            except BaseException:
                self._stop(process, name)
                raise

    def limit_s(self, cases: int) -> float:
        """Return the seconds after which a container hangs, or its tool: each case takes its deadline at most twice."""
        return START_S + cases * 2 * (deadline(self._environ.get("MEGATRIX_DEADLINE", "")) + OVERTIME_S)

    def _stop(self, process: subprocess.Popen[bytes], name: str) -> None:
        """End a container: it is asked to stop its ranks and close its journal, and has STOP_S for it."""
        process.send_signal(signal.SIGINT)  # podman and docker pass it on
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._tool.ask("kill", name, seconds=KILL_S)
            self._tool.ask("rm", "--force", name, seconds=KILL_S)
            process.kill()
            process.wait()

    def ask(self, tag: str) -> Environment:
        """Return what is installed in an image. Raises MatrixError when it can't be started or has no Python."""
        answer = self._tool.ask("run", *self.options([]), tag, PYTHON, "-m", "containers.environments")
        try:
            return Environment(**json.loads(answer.out))
        except (TypeError, ValueError):
            raise MatrixError(
                f"{self._tool.name} could not run {tag}", got=answer.complaint, fix="see docs/images.md"
            ) from None

    def options(self, writable: Sequence[Path]) -> list[str]:
        """Return the options of every container: removed when it ends, no network, nothing writable but `writable`."""
        cache = default_root(self._environ)
        cache.mkdir(parents=True, exist_ok=True)
        options = ["--rm", "--pull=never", "--network=none", "--read-only", "--tmpfs=/tmp", f"--workdir={ROOT}"]
        options += ["--security-opt=label=disable"]  # SELinux would keep a container from folders that are not its own
        if self._tool.name == "docker":
            options += [f"--user={os.getuid()}:{os.getgid()}"]  # podman without root is this user already
        for folder in (ROOT, cache):
            options += ["--volume", f"{folder}:{folder}:ro"]
        for folder in writable:
            options += ["--volume", f"{folder}:{folder}"]
        return options

    def provide(self, cases: Sequence[Planned], environment: Environment) -> dict[str, Provision]:
        """Return the overlays of each case, made now if need be."""
        overlays = Overlays(default_root(self._environ), self._run)
        return provisions(cases, environment, configuration.load(self._environ), None, overlays)

    @property
    def _tool(self) -> Tool:
        if self.tool is None:
            raise MatrixError("no container tool works here", fix=NO_TOOL)
        return self.tool

    def _image(self, base: str) -> Image | Container:
        image = self._catalog.base(base)
        if not isinstance(image, (Image, Container)):
            raise MatrixError("not an image", got=base, expected="a base of the catalog that is one")
        return image


def pending(folder: Path, base: str) -> list[Planned]:
    """Return the cases of a base that a run has no result of yet."""
    done = journal.read(folder).results
    cases = map(Planned.from_json, night.plan(folder))
    return [case for case in cases if case.cell.base == base and case.key not in done]


def last_line(log: Path) -> str:
    """Return the last line of a log, without credentials."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return redacted(next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing"))
