"""Download missing interpreters with uv (`uv python install`), unless the site forbids it.

uv honours its own variables: UV_PYTHON_INSTALL_MIRROR, UV_PYTHON_DOWNLOADS_JSON_URL, UV_PYTHON_INSTALL_DIR, UV_OFFLINE,
UV_PYTHON_DOWNLOADS, a proxy, certificates.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.model import ReaderBase, Wheels
from matrix.ground.errors import MatrixError
from matrix.prove.provision import interpreters, project
from matrix.prove.provision.configuration import FILE, Configuration
from matrix.prove.provision.indexes import site_environment
from matrix.prove.provision.overlays import uv
from matrix.read.commands import Runner, run

SIZE: Final = "about 30 MB, 100 MB unpacked"  # of uv's builds of CPython 3.10 to 3.13 for Linux


def command(minor: str) -> str:
    """Return the command that installs a minor of Python for this project, "3.10"."""
    return f"pip install uv && uv python install {minor}"


def forbidden(configuration: Configuration, environ: Mapping[str, str] = os.environ) -> str:
    """Return the setting that forbids downloads, "" if they are allowed."""
    setting = environ.get("UV_PYTHON_DOWNLOADS", "")
    if setting.lower() in ("never", "manual", "false"):
        return f"UV_PYTHON_DOWNLOADS={setting}"
    return "" if configuration.interpreters.download else f"interpreters.download = false in {FILE}"


class Pythons:
    """The interpreters of the bases of a run: those of this machine, and downloaded ones. `say` receives notices."""

    def __init__(
        self,
        configuration: Configuration,
        say: Callable[[str], None],
        *,
        environ: Mapping[str, str] = os.environ,
        run: Runner = run,
        find: Callable[..., PythonEnvironment] = interpreters.find,
    ) -> None:
        self._forbidden = forbidden(configuration, environ)
        self._say, self._environ, self._run, self._find = say, environ, run, find
        self._found: dict[tuple[str, ...], PythonEnvironment] = {}
        self._failed: dict[str, str] = {}  # minor -> why it can't be downloaded

    def provide(self, base: Wheels | ReaderBase) -> None:
        """Download the preferred Python of a base for which this machine has none, once; report a failure."""
        minor = base.pythons[0]
        if self._lacks(base.pythons) and not self._forbidden and minor not in self._failed:
            folder = interpreters.uv_pythons(self._environ)
            self._say(
                f"Python {' or '.join(base.pythons)} is missing: uv downloads Python {minor} ({SIZE}) to {folder}; "
                f"UV_PYTHON_DOWNLOADS=never forbids it"
            )
            if why := self._download(minor) or self._lacks(base.pythons):
                self._failed[minor] = why
                self._say(f"Python {minor} is not available after the download: {why}")

    def lack(self, base: Wheels | ReaderBase) -> str:
        """Return that this machine has no Python for a base and the command that installs one; "" if it has one."""
        if not self._lacks((*base.pythons, *base.fallbacks)):
            return ""
        minor = base.pythons[0]
        why = self._failed.get(minor) or self._forbidden
        tried = f" ({why})" if why else ""
        return f"needs Python {' or '.join((*base.pythons, *base.fallbacks))}{tried}: {command(minor)}"

    def find(self, minors: tuple[str, ...]) -> PythonEnvironment:
        """Return the interpreter of the first of these minors that this machine has. Raises MatrixError without one."""
        if minors not in self._found:
            self._found[minors] = self._find(minors, environ=self._environ)
        return self._found[minors]

    def _lacks(self, minors: tuple[str, ...]) -> str:
        """Return "" if this machine has one of these minors, else what it has, and which of its Pythons do not run."""
        try:
            self.find(minors)
        except MatrixError as error:
            return str(error.got)
        return ""

    def _download(self, minor: str) -> str:
        """Return "" after a download, else why it failed."""
        # `manual`: downloads only by a command, such as this one; `never` refuses it too.
        environment = {**self._environ, **site_environment(self._environ), "UV_PYTHON_DOWNLOADS": "manual"}
        try:
            # The current folder may hold uv settings of another project.
            command = [*uv(environment), "--directory", str(project.folder()), "python", "install", "--no-bin", minor]
            result = self._run(command, environment=environment)
        except MatrixError as error:
            return error.brief
        # uv's first cause and its last: "Request failed after 3 retries", "failed to lookup address information".
        lines = [line.strip().removeprefix("cause: ") for line in result.complaint.splitlines()]
        return "; ".join(dict.fromkeys([*lines[1:2], lines[-1]])) if result.code else ""
