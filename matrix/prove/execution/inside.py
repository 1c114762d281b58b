"""pytest in an image: one podman or docker container per base that runs cases of a run on this machine.

The containers of the image bases run one after the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Protocol

from matrix.ground.cases.machine_requirements import Placement, offered, place
from matrix.ground.catalog.failure import CaseNeed, Level
from matrix.ground.catalog.folders import SITE, default_root, roots
from matrix.ground.catalog.machine import Machine, PythonEnvironment
from matrix.ground.catalog.model import Catalog, Container, Image
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution import gpus
from matrix.prove.execution.engine import STOP_S, EngineRequest, EngineResult, distribution
from matrix.prove.execution.ranks.rank_spec import OVERTIME_S
from matrix.prove.execution.reproduction import deadline
from matrix.prove.provision import case_overlays as provision
from matrix.prove.provision import host, project
from matrix.prove.provision.bases import PYTEST_SETTINGS
from matrix.prove.provision.host import ExecutionSite
from matrix.prove.provision.image_builds import Builder
from matrix.prove.provision.overlays import Overlays
from matrix.prove.provision.tools import ALL, NO_TOOL, ContainerSpec, Ref, Runtime, Tool, find
from matrix.read.commands import TIMED_OUT, CommandResult, Runner, python_module, run
from matrix.read.machine.installed import build_variables

COLLECT_S: Final = 120.0  # s for a session to collect its cases and to end; 2 s on 2 cores
LEFT_S: Final = 30.0  # s for a container to end after its session has disconnected; 1 s was measured
PYTHON: Final = "python3"
SETTINGS: Final = {
    **PYTEST_SETTINGS,
    "PYTHONDONTWRITEBYTECODE": "1",  # the project is mounted read-only
    "HOME": "/tmp",  # noqa: S108  (a private tmpfs; the image is read-only)
    "USER": "megatrix",  # torch requires a user name, and the image has none for docker's --user
}
# The only variables of the environment that are passed into the container.
PASSED: Final = (SITE, "MEGATRIX_DEADLINE", "MEGATRIX_COMMAND", "MEGATRIX_MPS")


class Start(Protocol):
    """Starts a process whose output goes to a file (subprocess.Popen with the parameters used in this module)."""

    def __call__(self, command: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
        """Start the process."""


@dataclass(frozen=True)
class ContainerJob:
    """The work of one container: `cases` of the run in `folder`; `settings` are further MEGATRIX_* variables.

    `overlays` is the file with the overlays of each case, `digest` that of the image, `workers` the number of cases
    that run at a time. `memory` is the limit in bytes of all its processes, None for no limit, `clones` are those that
    its cases read, by name, and `deadline` is the longest of its cases' own in seconds, 0 for the usual one.
    """

    image: Ref
    digest: str
    folder: Path
    overlays: Path
    cases: Sequence[Planned]
    settings: Mapping[str, str]
    workers: int = 1
    memory: int | None = None
    clones: Mapping[str, str] = field(default_factory=dict)
    deadline: int = 0

    @property
    def environ(self) -> dict[str, str]:
        """Return the MEGATRIX_* variables of its session."""
        return {
            **self.settings,
            **{host.variable(name): path for name, path in self.clones.items()},
            "MEGATRIX_RUN": str(self.folder),
            "MEGATRIX_BASE": self.image.id,
            "MEGATRIX_IMAGE": self.digest,
            "MEGATRIX_OVERLAYS": str(self.overlays),
        }


@dataclass(frozen=True)
class Ended:
    """The end of a container: its exit status, and why pytest did not start (a fault of the machine), else ""."""

    status: int
    refusal: str = ""


def ref(catalog: Catalog, base: str) -> Ref:
    """Return the image reference of a base. Raises MatrixError if the base is not an image."""
    image = catalog.base(base)
    if not isinstance(image, (Image, Container)):
        raise MatrixError("not an image", got=base, expected="an image base of the catalog")
    return Ref(image.id, image.tag, f"megatrix build {base}" if isinstance(image, Image) else "")


def lack(runtime: Runtime | None, image: Ref) -> str:
    """Return what must be installed, built or pulled before a container of an image can run, "" for nothing."""
    if runtime:
        return runtime.lack(image)
    return f"{image.id} is an image: {NO_TOOL}, then {image.build or f'podman pull {image.tag}'}"


def installed(runtime: Runtime, image: Ref, environ: Mapping[str, str]) -> PythonEnvironment:
    """Return the contents of an image. Raises MatrixError if it can't be started or has no Python."""
    spec = box(f"megatrix-asks-{image.id}-{os.getpid()}", environ)
    result = runtime.query(image, spec, *python_module(PYTHON, "matrix.read.machine.installed", folder=spec.folder))
    try:
        # The last line: NGC's entrypoint prints a banner first.
        report = json.loads(result.out.strip().splitlines()[-1])
        return PythonEnvironment(**report, image=runtime.digest(image))
    except (IndexError, TypeError, ValueError):
        got = runtime.refusal(result.code, result.err) or result.complaint
        raise MatrixError(f"{runtime.name} could not run {image.tag}", got=got, fix="see docs/images.md") from None


def containers(catalog: Catalog, work: ContainerJob, clones: Mapping[str, str]) -> Iterator[ContainerJob]:
    """Yield the work of each container: one for the cases of each memory limit, since a container has one for all.

    `clones` are the site's, by name. Below level gpu a limit is smaller than what a session takes, so it is left out.
    """
    groups: dict[int | None, list[Planned]] = {}
    cases = {item.key: catalog.failure(item.failure).case_named(item.case) for item in work.cases if item.reproducible}
    for item in work.cases:
        limited = item.level is Level.GPU and item.key in cases
        groups.setdefault(cases[item.key].limits.memory if limited else None, []).append(item)
    for memory, items in groups.items():
        group = [cases[item.key] for item in items if item.key in cases]
        keys = {"MEGATRIX_KEYS": json.dumps([item.key for item in items])} if len(groups) > 1 else {}
        yield replace(
            work,
            cases=items,
            settings={**work.settings, **keys},
            memory=memory,
            clones=clones if any(CaseNeed.MEGATRON_LM in case.needs for case in group) else {},
            workers=1 if memory else work.workers,  # the limit is that of one case
            deadline=max((case.deadline for case in group), default=0),
        )


def run_container(
    runtime: Runtime,
    work: ContainerJob,
    environ: Mapping[str, str],
    log: Path,
    start: Start = subprocess.Popen,  # type: ignore[assignment]  # only the parameters used in this module
    left: threading.Event | None = None,
) -> Ended:
    """Run pytest in the image until its cases are done and return its end. Its output goes to `log`.

    A container that exceeds every deadline is stopped (TIMED_OUT). A tool that still waits LEFT_S after the session in
    the container disconnected (`left`) is killed. Ctrl-C is forwarded once and raised again.
    """
    # The name contains this pid: when a run is resumed, the container of its killed process may still be ending.
    name = re.sub(r"[^\w.-]", "-", f"megatrix-{work.folder.name}-{work.image.id}-{os.getpid()}")
    spec, waits_s = _container(work, name, environ)
    limit = runtime.start_s(work.image) + limit_s(len(work.cases), environ, work.deadline) + waits_s
    pytest = python_module(PYTHON, "pytest", "tests/failures", *distribution(work.workers), folder=spec.folder)
    command = runtime.command(work.image, spec, *pytest)
    with log.open("ab") as output:
        begins = output.tell()  # codespell:ignore
        process = start(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=work.folder,  # podman's conmon leaves an empty file `oom` in the folder that it was started in
            start_new_session=True,  # so that the terminal does not send a second SIGINT
        )
        if left:
            threading.Thread(target=end_when_left, args=(runtime, process, name, left), daemon=True).start()
        try:
            status = process.wait(limit)
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


def _container(work: ContainerJob, name: str, environ: Mapping[str, str]) -> tuple[ContainerSpec, float]:
    """Return the container of a job, and how long in s a case in it may wait for GPUs."""
    writable, settings = [work.folder, Path(work.settings["MEGATRIX_RELAY"]).parent], dict[str, str]()
    gpu_names, waits_s = tuple[str, ...](), 0.0
    if any(case.level is Level.GPU for case in work.cases):  # all runs of this machine share these locks
        writable.append(gpus.made(gpus.locks(environ)))
        gpu_names, waits_s = gpus.of_job(environ) or ALL, gpus.wait_s(environ) or gpus.WAIT_S
        settings = {gpus.LOCKS: str(writable[-1]), gpus.WAIT: str(waits_s)}
    spec = box(name, environ, writable, {**work.environ, **settings}, gpu_names)
    return replace(spec, readable=(*spec.readable, *map(Path, work.clones.values())), memory=work.memory), waits_s


def box(
    name: str,
    environ: Mapping[str, str],
    writable: Sequence[Path] = (),
    settings: Mapping[str, str] | None = None,
    gpu_names: Sequence[str] = (),
) -> ContainerSpec:
    """Return the spec of a container with `writable` folders, variables and GPUs.

    The project, the site's failures and the cache are read-only.
    """
    cache = default_root(environ)
    cache.mkdir(parents=True, exist_ok=True)
    # The GPUs of a Slurm job are passed by name and renumbered in the container.
    names = (*PASSED, host.VISIBLE) if tuple(gpu_names) == ALL else PASSED
    variables = {**SETTINGS, **{name: environ[name] for name in names if name in environ}, **(settings or {})}
    root = project.folder()
    return ContainerSpec(name, root, (root, cache, *roots(environ)[1:]), tuple(writable), variables, tuple(gpu_names))


def limit_s(cases: int, environ: Mapping[str, str], own: int = 0) -> float:
    """Return the time limit of a started container in seconds: each case takes its deadline at most twice.

    `own` is the longest deadline of its cases' own.
    """
    return COLLECT_S + cases * 2 * (max(deadline(environ.get("MEGATRIX_DEADLINE", "")), own) + OVERTIME_S)


def end_when_left(runtime: Runtime, process: subprocess.Popen[bytes], name: str, left: threading.Event) -> None:
    """Kill a tool that waits for a container whose session has ended, as srun does when its step daemon died."""
    left.wait()
    try:
        process.wait(LEFT_S)
    except subprocess.TimeoutExpired:
        runtime.kill(name)
        process.kill()


def stop(runtime: Runtime, process: subprocess.Popen[bytes], name: str) -> None:
    """Interrupt a container, which then stops its ranks and closes its journal; kill it after STOP_S."""
    process.send_signal(signal.SIGINT)  # podman and docker forward it
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        runtime.kill(name)
        process.kill()
        process.wait()


XDIST: Final = "pytest-xdist"  # NGC's PyTorch images have it; without it, an image runs one case at a time


class Images:
    """Runs the image bases in containers without a network, `workers` cases at a time.

    The project and the overlays are mounted read-only, the run's folder and the relay's socket writable, all at the
    same paths as on the host.
    """

    def __init__(
        self,
        catalog: Catalog,
        environ: Mapping[str, str] = os.environ,
        *,
        workers: int = 1,
        run: Runner = run,
        start: Start = subprocess.Popen,  # type: ignore[assignment]  # only the parameters used in this module
    ) -> None:
        self._catalog, self._workers, self._environ, self._run, self._start = catalog, workers, environ, run, start
        self._lacks: dict[str, str] = {}
        self._installed: dict[str, PythonEnvironment | MatrixError] = {}

    @cached_property
    def tool(self) -> Tool | None:
        """Return podman or docker, None if neither works."""
        return find(self._environ, self._run)

    def ready(self, bases: Collection[str]) -> None:
        """Do nothing: `lacks` reports per image what is missing."""

    def lacks(self, base: str) -> str:
        """Return what must be installed, built or pulled before a container of the image can run, "" for nothing."""
        if base not in self._lacks:
            self._lacks[base] = lack(self.tool, ref(self._catalog, base))
        return self._lacks[base]

    def installed(self, base: str) -> PythonEnvironment | None:
        """Return the contents of a present image; None if it can't be started."""
        with contextlib.suppress(MatrixError):  # `run` reports the error for its cases
            return self._look(base)
        return None

    def run(self, request: EngineRequest) -> EngineResult:
        """Run the container of each base with its output in `log`."""
        status, refused = 0, {}
        for base in request.bases:
            try:
                for ended in self._run_in(base, request):
                    if ended.refusal:
                        refused[base] = ended.refusal
                    status = status or ended.status
            except MatrixError as error:
                refused[base] = error.brief
        return EngineResult(status, refused)

    def _run_in(self, base: str, request: EngineRequest) -> Iterator[Ended]:
        folder = request.run.folder.resolve()
        image, contents, cases = ref(self._catalog, base), self._look(base), request.pending(base)
        overlays = Overlays(default_root(self._environ), self._run, partial(self._build_in, image))
        settings, path = host.load_configuration(self._environ), folder / f"overlays-{base}.json"
        provisions = provision.provide(cases, contents, settings, overlays, self._preloaded(base, contents, cases))
        provision.write(path, provisions)
        workers = self._workers if XDIST in contents.packages else 1
        work = ContainerJob(image, contents.image, folder, path, cases, request.environ, workers)
        for job in containers(self._catalog, work, settings.sources):
            yield run_container(self._tool, job, self._environ, request.log, self._start)

    def _preloaded(self, base: str, contents: PythonEnvironment, cases: Sequence[Planned]) -> list[str]:
        """Return the wheel of NCCL where some ranks share a GPU over it."""
        offer = offered(self._catalog, base, contents)
        on_gpu = [item for item in cases if item.level is Level.GPU and item.reproducible]
        machine = host.look().offers(Level.GPU) if on_gpu else Machine()
        case_of = {item.key: self._catalog.failure(item.failure).case_named(item.case) for item in on_gpu}
        placements = (place(case_of[item.key], item, machine, offer) for item in on_gpu)
        return list({one.nccl.wheel for one in placements if isinstance(one, Placement) and one.nccl} - {""})

    def _build_in(self, image: Ref, command: Sequence[str], folder: Path) -> CommandResult:
        """Run a build in an image, where `folder` is writable."""
        name = f"megatrix-builds-{image.id}-{os.getpid()}"
        spec = box(name, self._environ, [folder], build_variables(self._environ))
        return self._run(self._tool.command(image, spec, *command))

    def _look(self, base: str) -> PythonEnvironment:
        """Return the contents of an image, read once. Raises MatrixError if it can't be started."""
        if base not in self._installed:
            image = ref(self._catalog, base)
            try:
                self._installed[base] = installed(self._tool, image, self._environ)
            except MatrixError as error:
                self._installed[base] = error
        contents = self._installed[base]
        if isinstance(contents, MatrixError):
            raise contents
        return contents

    @property
    def _tool(self) -> Tool:
        if self.tool is None:
            raise MatrixError("no container tool works", fix=NO_TOOL)
        return self.tool


def to_pull(catalog: Catalog, items: Iterable[Planned], site: ExecutionSite, tool: Tool | None) -> list[Container]:
    """Return the images of registries that are not local, and without which a case lacks nothing else here."""
    clones, images = host.load_configuration().sources, dict[str, Container]()
    for item in items:
        image = catalog.bases.get(item.cell.base)
        if tool is None or not isinstance(image, Container) or image.id in images:
            continue
        if not site.lack(catalog, item, offered(catalog, image.id, clones=clones)):
            images[image.id] = image
    return [image for image in images.values() if tool and not tool.image(image.tag)]


def pull(images: Iterable[Container], builder: Builder, say: Callable[[str], None]) -> None:
    """Pull images, each once; one that can't be pulled stays missing, and its cases report that."""
    for image in images:
        try:
            builder.fetch(image.tag)
        except MatrixError as error:
            say(error.brief)
