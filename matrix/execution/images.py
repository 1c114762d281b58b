"""The engine of the image bases on this machine: one podman or docker container per base, one after the other."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from matrix.catalog.model import Catalog
from matrix.errors import MatrixError
from matrix.execution import inside
from matrix.execution.engine import BaseContents, EngineResult, pending
from matrix.provision import case_overlays as provision
from matrix.provision import configuration
from matrix.provision.commands import Runner, run
from matrix.provision.overlays import Overlays, default_root
from matrix.provision.tools import NO_TOOL, Tool, find


class Images:
    """Runs the image bases in containers without a network.

    The project and the overlays are mounted read-only, the run's folder and the relay's socket writable, all at the
    same paths as on the host.
    """

    def __init__(
        self,
        catalog: Catalog,
        environ: Mapping[str, str] = os.environ,
        *,
        run: Runner = run,
        start: inside.Start = subprocess.Popen,  # type: ignore[assignment]  # only the parameters used in this module
    ) -> None:
        self._catalog, self._environ, self._run, self._start = catalog, environ, run, start
        self._lacks: dict[str, str] = {}
        self._installed: dict[str, BaseContents | MatrixError] = {}

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

    def installed(self, base: str) -> BaseContents | None:
        """Return the contents of a present image; None if it can't be started."""
        with contextlib.suppress(MatrixError):  # `run` reports the error for its cases
            return self._look(base)
        return None

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> EngineResult:
        """Run the container of each base with its output in `log`."""
        status, refused = 0, {}
        for base in bases:
            try:
                for ended in self._run_in(base, Path(environ["MEGATRIX_RUN"]), environ, log):
                    if ended.refusal:
                        refused[base] = ended.refusal
                    status = status or ended.status
            except MatrixError as error:
                refused[base] = error.brief
        return EngineResult(status, refused)

    def _run_in(self, base: str, folder: Path, environ: Mapping[str, str], log: Path) -> Iterator[inside.Ended]:
        image, found, cases = inside.ref(self._catalog, base), self._look(base), pending(folder, [base])
        provided = folder / f"overlays-{base}.json"
        overlays = Overlays(default_root(self._environ), self._run)
        settings = configuration.load(self._environ)
        provision.write(provided, provision.provide(cases, found.environment, settings, None, overlays))
        work = inside.ContainerJob(image, found.image, folder, provided, cases, environ)
        for one in inside.containers(self._catalog, work, settings.sources):
            yield inside.run(self._tool, one, self._environ, log, self._start)

    def _look(self, base: str) -> BaseContents:
        """Return the contents of an image, read once. Raises MatrixError if it can't be started."""
        if base not in self._installed:
            image = inside.ref(self._catalog, base)
            try:
                self._installed[base] = inside.installed(self._tool, image, self._environ)
            except MatrixError as error:
                self._installed[base] = error
        found = self._installed[base]
        if isinstance(found, MatrixError):
            raise found
        return found

    @property
    def _tool(self) -> Tool:
        if self.tool is None:
            raise MatrixError("no container tool works", fix=NO_TOOL)
        return self.tool
