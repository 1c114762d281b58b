"""The engine of the image bases on this machine: one podman or docker container per base, one after the other."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from matrix.ground.cases.machine_requirements import offered
from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.model import Catalog, Container
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution import inside
from matrix.prove.execution.engine import EngineRequest, EngineResult
from matrix.prove.provision import case_overlays as provision
from matrix.prove.provision import host
from matrix.prove.provision.host import ExecutionSite
from matrix.prove.provision.image_builds import Builder
from matrix.prove.provision.overlays import Overlays
from matrix.prove.provision.tools import NO_TOOL, Ref, Tool, find
from matrix.read.commands import CommandResult, Runner, run
from matrix.read.machine.installed import build_variables

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
        start: inside.Start = subprocess.Popen,  # type: ignore[assignment]  # only the parameters used in this module
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
            image = inside.ref(self._catalog, base)
            self._lacks[base] = inside.lack(self.tool, image)
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

    def _run_in(self, base: str, request: EngineRequest) -> Iterator[inside.Ended]:
        folder = request.run.folder.resolve()
        image, contents, cases = inside.ref(self._catalog, base), self._look(base), request.pending(base)
        overlays = Overlays(default_root(self._environ), self._run, partial(self._build_in, image))
        settings, path = host.load_configuration(self._environ), folder / f"overlays-{base}.json"
        provisions = provision.provide(cases, contents, settings, overlays)
        provision.write(path, provisions)
        workers = self._workers if XDIST in contents.packages else 1
        work = inside.ContainerJob(image, contents.image, folder, path, cases, request.environ, workers)
        for job in inside.containers(self._catalog, work, settings.sources):
            yield inside.run(self._tool, job, self._environ, request.log, self._start)

    def _build_in(self, image: Ref, command: Sequence[str], folder: Path) -> CommandResult:
        """Run a build in an image, where `folder` is writable."""
        name = f"megatrix-builds-{image.id}-{os.getpid()}"
        spec = inside.box(name, self._environ, [folder], build_variables(self._environ))
        return self._run(self._tool.command(image, spec, *command))

    def _look(self, base: str) -> PythonEnvironment:
        """Return the contents of an image, read once. Raises MatrixError if it can't be started."""
        if base not in self._installed:
            image = inside.ref(self._catalog, base)
            try:
                self._installed[base] = inside.installed(self._tool, image, self._environ)
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
