from __future__ import annotations

import hashlib
import http.server
import json
import os
import platform
import sys
import sysconfig
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.errors import MatrixError
from matrix.prove.provision import interpreters
from matrix.prove.provision.host import Configuration, InterpreterSettings
from matrix.prove.provision.interpreters import Pythons, command, forbidden
from matrix.prove.provision.project import ROOT
from matrix.read.commands import CommandResult
from tests.unit.catalogs import wheels

BASE = wheels("2.4.0", pythons=("3.10", "3.11"), fallbacks=("3.12",))
MINOR = f"3.{sys.version_info.minor}"


class Machine:
    """A machine with some minors of Python; its uv adds one, which `breaks` or not, or fails with `refusal`."""

    def __init__(self, *minors: str, refusal: str = "", breaks: bool = False) -> None:
        self.minors, self.refusal, self.breaks = set(minors), refusal, breaks
        self.commands: list[list[str]] = []
        self.environment: Mapping[str, str] = {}
        self.said: list[str] = []

    def run(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        self.commands.append(list(command))
        self.environment = environment or {}
        if self.refusal:
            return CommandResult(1, err=f"error: not installed\n  cause: request failed\n  cause: {self.refusal}\n")
        self.minors |= set() if self.breaks else {command[-1]}
        return CommandResult(0)

    def find(self, minors: Sequence[str], *, environ: Mapping[str, str]) -> PythonEnvironment:
        for minor in minors:
            if minor in self.minors:
                return PythonEnvironment(f"{minor}.1", path=Path(f"/python{minor}"))
        raise MatrixError("no Python found", got="python3.10: does not run")

    def pythons(self, configuration: Configuration | None = None, **environ: str) -> Pythons:
        return Pythons(
            configuration or Configuration(),
            self.said.append,
            environ={"UV": "/tools/uv", "HOME": "/home/me", **environ},
            run=self.run,
            find=self.find,
        )


def test_downloaded_python_replaces_a_fallback() -> None:
    """Also where the fallback was found before the download, as a plan of what is installed does."""
    machine = Machine("3.12")
    pythons = machine.pythons()
    minors = (*BASE.pythons, *BASE.fallbacks)
    assert pythons.find(minors).minor == "3.12"
    pythons.provide(BASE)
    assert pythons.find(minors).minor == "3.10"


def test_a_missing_python_is_announced_and_downloaded() -> None:
    machine = Machine("3.12")
    pythons = machine.pythons(UV_PYTHON_INSTALL_MIRROR="file:///mirror")

    pythons.provide(BASE)

    assert machine.commands == [["/tools/uv", "--directory", str(ROOT), "python", "install", "--no-bin", "3.10"]]
    assert machine.environment["UV_PYTHON_INSTALL_MIRROR"] == "file:///mirror"
    assert machine.said == [
        "Python 3.10 or 3.11 is missing: uv downloads Python 3.10 (about 30 MB, 100 MB unpacked) to "
        "/home/me/.local/share/uv/python; UV_PYTHON_DOWNLOADS=never forbids it"
    ]
    assert pythons.lack(BASE) == ""


@pytest.mark.parametrize("minor", ["3.10", "3.11"])
def test_a_preferred_python_needs_no_download(minor: str) -> None:
    machine = Machine(minor)
    machine.pythons().provide(BASE)
    assert (machine.commands, machine.said) == ([], [])


def test_a_fallback_replaces_a_failed_download() -> None:
    machine = Machine("3.12", refusal="dns error")
    pythons = machine.pythons()

    pythons.provide(BASE)
    pythons.provide(BASE)

    assert len(machine.commands) == 1  # a site without network waits for uv's retries once
    assert machine.said[1:] == ["Python 3.10 is not available after the download: request failed; dns error"]
    assert pythons.lack(BASE) == ""


def test_a_downloaded_python_that_fails_is_reported() -> None:
    """For example one that does not find its libraries on this machine."""
    machine = Machine("3.12", breaks=True)

    machine.pythons().provide(BASE)

    assert machine.said[1:] == ["Python 3.10 is not available after the download: python3.10: does not run"]


def test_without_any_python_the_command_is_named() -> None:
    machine = Machine("3.13", refusal="dns error")
    pythons = machine.pythons()

    pythons.provide(BASE)

    assert pythons.lack(BASE) == (
        "needs Python 3.10 or 3.11 or 3.12 (request failed; dns error): pip install uv && uv python install 3.10"
    )


@pytest.mark.parametrize(
    ("environ", "download", "setting"),
    [
        ({}, True, ""),
        ({}, False, "interpreters.download = false in megatrix.toml"),
        ({"UV_PYTHON_DOWNLOADS": "never"}, True, "UV_PYTHON_DOWNLOADS=never"),
        ({"UV_PYTHON_DOWNLOADS": "automatic"}, True, ""),
        ({"UV_PYTHON_DOWNLOADS": "manual"}, True, "UV_PYTHON_DOWNLOADS=manual"),
    ],
)
def test_a_setting_forbids_downloads(environ: dict[str, str], download: bool, setting: str) -> None:
    configuration = Configuration(interpreters=InterpreterSettings(download=download))
    assert forbidden(configuration, environ) == setting

    machine = Machine()
    pythons = machine.pythons(configuration, **environ)
    pythons.provide(BASE)
    assert bool(machine.commands) is not bool(setting)
    assert not setting or f" ({setting}): {command('3.10')}" in pythons.lack(BASE)


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """Serve this interpreter's installation as uv's archive of MINOR; yield the address of the list of downloads."""
    served = tmp_path / "served"
    served.mkdir()
    archive = served / "python.tar.gz"
    home = Path(sys.base_prefix)
    skipped = ("test", "site-packages", "__pycache__", "idlelib", "ensurepip")

    def kept(one: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if any(part in skipped for part in Path(one.name).parts) or one.name.endswith(".a") else one

    stdlib = Path(sysconfig.get_path("stdlib"))
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        file.add(Path(sys._base_executable).resolve(), f"python/bin/python{MINOR}")  # type: ignore[attr-defined]
        file.add(stdlib, f"python/lib/python{MINOR}", filter=kept)
        for library in (home / "lib").glob("libpython*.so*"):
            file.add(library, f"python/lib/{library.name}")
    patch = sys.version_info.micro
    key = f"cpython-{MINOR}.{patch}-linux-{platform.machine()}-gnu"
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    )
    address = f"http://127.0.0.1:{server.server_port}"
    listed = {
        "name": "cpython", "arch": {"family": platform.machine(), "variant": None}, "os": "linux", "libc": "gnu",
        "major": 3, "minor": sys.version_info.minor, "patch": patch, "prerelease": "", "variant": None,
        "url": f"{address}/{archive.name}", "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
    }  # fmt: skip
    (served / "downloads.json").write_text(json.dumps({key: listed}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"{address}/downloads.json"
    server.shutdown()
    thread.join()
    server.server_close()


def test_uv_installs_a_python_from_a_mirror(tmp_path: Path, mirror: str) -> None:
    """A real uv and a server on this machine, with this Python in the layout of uv's archives."""
    environ = {
        "HOME": str(tmp_path),
        "PATH": os.defpath,
        "UV_PYTHON_INSTALL_DIR": str(tmp_path / "pythons"),
        "UV_PYTHON_DOWNLOADS_JSON_URL": mirror,
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }
    said: list[str] = []
    find = partial(interpreters.find, executable=Path("/nonexistent/python"))
    hidden = partial(find_in_uv, find)
    pythons = Pythons(Configuration(), said.append, environ=environ, find=hidden)
    base = wheels("2.4.0", pythons=(MINOR,))

    assert pythons.lack(base).endswith(command(MINOR))
    pythons.provide(base)

    assert len(said) == 1, said
    assert pythons.lack(base) == ""


def find_in_uv(
    find: partial[PythonEnvironment], minors: Sequence[str], *, environ: Mapping[str, str]
) -> PythonEnvironment:
    """Find without PATH: the machine's own Pythons do not count."""
    return find(minors, environ={**environ, "PATH": ""})
