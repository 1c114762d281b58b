"""The bases of wheels: what they are made of, when they are made, and what a failure leaves."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import platform
import shutil
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
from matrix.prove.planning.case_request import with_host
from matrix.prove.provision import bases
from matrix.prove.provision import bases as module
from matrix.prove.provision.bases import (
    CELL_REQUIRES,
    EXCLUDE,
    WITH_GPU_PACKAGES,
    Bases,
    Pythons,
    forbidden,
    has_driver,
    left_out,
    python_command,
)
from matrix.prove.provision.host import Configuration, InterpreterSettings
from matrix.prove.provision.project import ROOT
from matrix.read.commands import CommandResult
from matrix.read.machine import hardware
from tests.unit.catalogs import catalog, reader, wheels
from tests.unit.engines import make_environment

SMALL = catalog(
    wheels=tuple(wheels(torch, requires=("numpy<2",), gpu_only=("triton",)) for torch in ("2.3.1", "2.4.0")),
    readers=(reader(),),
)


WITH_TRITON = wheels("2.4.0", gpu_only=("triton",))


class Uv:
    """Makes environments as uv does, and keeps its commands; `fails` are words of a command that fails."""

    def __init__(self) -> None:
        self.fails, self.interrupts = "", ""
        self.commands: list[str] = []
        self.excluded: list[str] = []
        self.installs: dict[str, str] = {}  # files of torch 2.4.0

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        line = " ".join(command)
        self.commands.append(line)
        if self.interrupts and self.interrupts in line:
            raise KeyboardInterrupt
        if self.fails and self.fails in line:
            return CommandResult(1, err="error: no solution\n  cause: https://me:secret@index/simple fails")
        if "venv" in command:
            make_environment(Path(command[-1]), {})
            (Path(command[-1]) / "bin").mkdir()
            (Path(command[-1]) / "bin" / "python").touch()
            record = "".join(f"{name},,\n" for name in self.installs)
            wheel = {"torch-2.4.0.dist-info/WHEEL": "Tag: cp310\n", "torch-2.4.0.dist-info/RECORD": record}
            for name, text in {**self.installs, **(wheel if record else {})}.items():
                path = Path(command[-1], "lib/python3.10/site-packages", name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
        elif "--excludes" in command:
            self.excluded += Path(command[command.index("--excludes") + 1]).read_text().split()
        return CommandResult(0)


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> list[PythonEnvironment]:
    """The Python of this machine; a test may replace it."""
    found = [PythonEnvironment("3.10.13", path=Path("/usr/bin/python3.10"))]
    monkeypatch.setattr("matrix.prove.provision.bases.Pythons.find", lambda self, minors: found[0])
    monkeypatch.setattr(module, "has_driver", lambda: False)
    return found


@pytest.fixture
def uv(python: list[PythonEnvironment]) -> Uv:
    """A stand-in for uv, which needs an index."""
    return Uv()


def of(uv: Uv, root: Path, known: object = SMALL, **environ: str) -> Bases:
    """Return the bases that a new process has."""
    return Bases(known, root=root, environ={"UV": "/uv", **environ}, run=uv)  # type: ignore[arg-type]


def made_in(root: Path) -> list[Path]:
    """Return the environments there, complete or not."""
    return [path for path in (root / "bases").iterdir() if path.is_dir()]


def test_base_is_made_once_for_its_content(uv: Uv, tmp_path: Path) -> None:
    assert of(uv, tmp_path).installed("torch-2.4.0") is None
    made = of(uv, tmp_path).provide("torch-2.4.0")
    assert made.path
    folder = made.path.parents[1]
    venv, install = uv.commands
    root = tmp_path / "bases"
    assert venv == f"/uv --directory {root} --quiet venv --python /usr/bin/python3.10 {folder}"
    assert install.startswith(f"/uv --directory {root} --quiet pip install --python {made.path} ")
    assert f" {' '.join(['torch==2.4.0', 'numpy<2', *CELL_REQUIRES])} --excludes /" in install
    assert uv.excluded == ["triton"]
    again = of(uv, tmp_path)
    assert (again.installed("torch-2.4.0"), again.provide("torch-2.4.0").path) == (made, made.path)
    assert len(uv.commands) == 2


def test_a_reader_has_no_torch(uv: Uv, tmp_path: Path) -> None:
    of(uv, tmp_path).provide("no-torch")
    assert uv.commands[1].endswith(f"python {' '.join(CELL_REQUIRES)}")


def test_other_content_is_another_environment(
    uv: Uv, tmp_path: Path, python: list[PythonEnvironment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requirements, another Python, a driver, what the user or a bundle leaves out."""
    (tmp_path / "own.txt").write_text("nvidia-cusolver")
    folders = [of(uv, tmp_path).provide("torch-2.4.0").path]
    newer = catalog(wheels=(wheels("2.4.0", requires=("numpy<3",), gpu_only=("triton",)),), readers=(reader(),))
    folders.append(of(uv, tmp_path, newer).provide("torch-2.4.0").path)
    folders.append(of(uv, tmp_path, **{EXCLUDE: str(tmp_path / "own.txt")}).provide("torch-2.4.0").path)
    folders.append(of(uv, tmp_path, **WITH_GPU_PACKAGES).provide("torch-2.4.0").path)
    python[0] = PythonEnvironment("3.10.14", path=Path("/usr/bin/python3.10"))
    folders.append(of(uv, tmp_path).provide("torch-2.4.0").path)
    assert len({*folders}) == 5
    assert len(made_in(tmp_path)) == module.KEPT  # the older ones are gone


def test_the_least_recently_used_are_removed(uv: Uv, tmp_path: Path, python: list[PythonEnvironment]) -> None:
    versions = [PythonEnvironment(f"3.10.{patch}", path=Path("/python")) for patch in (1, 2, 3)]
    made = []
    for version in (versions[0], versions[1], versions[0], versions[2]):
        python[0] = version
        made.append(of(uv, tmp_path).provide("torch-2.4.0").path)
        os.utime(made[-1].parents[1], (len(made), len(made)))  # type: ignore[union-attr]
    assert [bool(path and path.exists()) for path in made] == [True, False, True, True]
    assert of(uv, tmp_path).provide("torch-2.3.1").path != made[-1]
    assert made[-1]
    assert made[-1].exists()


def test_half_removed_environment_is_removed(uv: Uv, tmp_path: Path) -> None:
    """Of a process that was killed while it removed one that was not used any more."""
    dead = tmp_path / "bases" / "torch-2.3.1-0123456789abcdef.making"
    dead.mkdir(parents=True)
    of(uv, tmp_path).provide("torch-2.4.0")
    assert not dead.exists()


def test_settings_are_those_of_the_run(uv: Uv, tmp_path: Path) -> None:
    """A bundle names its folders in the variables of its run, not in those of this process."""
    of_run = Bases(SMALL, environ={"UV": "/uv", "MEGATRIX_CACHE": str(tmp_path)}, run=uv)
    assert of_run.root == tmp_path / "bases"


@pytest.mark.parametrize("damaged", [module.RECORD, "bin/python", "pyvenv.cfg"])
def test_unfinished_environment_is_made_anew(uv: Uv, tmp_path: Path, damaged: str) -> None:
    """Of a killed process, or of which a purge has removed a file, such as its interpreter."""
    made = of(uv, tmp_path).provide("torch-2.4.0").path
    assert made
    (made.parents[1] / damaged).unlink()
    (made.parent / "left").touch()
    assert of(uv, tmp_path).installed("torch-2.4.0") is None
    assert of(uv, tmp_path).provide("torch-2.4.0").path == made
    assert not (made.parent / "left").exists()
    record = json.loads((made.parents[1] / module.RECORD).read_text())
    assert record == {
        "requirements": ["torch==2.4.0", "numpy<2", *CELL_REQUIRES],
        "files": ["bin/python", "pyvenv.cfg"],
    }


def test_environment_of_an_earlier_version_is_used(uv: Uv, tmp_path: Path) -> None:
    """Its record names no files."""
    made = of(uv, tmp_path).provide("torch-2.4.0").path
    assert made
    (made.parents[1] / module.RECORD).write_text('["torch==2.4.0"]')
    assert of(uv, tmp_path).installed("torch-2.4.0")


def test_other_content_of_a_release_is_refused(uv: Uv, tmp_path: Path) -> None:
    made = of(uv, tmp_path).provide("torch-2.4.0").path
    assert made
    shutil.rmtree(made.parents[1])
    uv.installs = {"torch/__init__.py": "good"}
    of(uv, tmp_path).provide("torch-2.4.0")
    shutil.rmtree(made.parents[1])
    uv.installs = {"torch/__init__.py": "evil"}
    with pytest.raises(MatrixError, match="another content under the same version"):
        of(uv, tmp_path).provide("torch-2.4.0")
    assert not made_in(tmp_path)


@pytest.mark.parametrize("step", ["venv", "pip install"])
def test_failure_of_uv_is_the_reason(uv: Uv, tmp_path: Path, step: str) -> None:
    uv.fails = step
    with pytest.raises(MatrixError, match="uv can't make this base") as caught:
        of(uv, tmp_path).provide("torch-2.4.0")
    assert caught.value.got == "error: no solution cause: https://***@index/simple fails"
    assert not made_in(tmp_path)
    uv.fails = ""
    assert of(uv, tmp_path).provide("torch-2.4.0").path


def test_ctrl_c_leaves_no_half_environment(uv: Uv, tmp_path: Path) -> None:
    uv.interrupts = "pip install"
    with pytest.raises(KeyboardInterrupt):
        of(uv, tmp_path).provide("torch-2.4.0")
    assert not made_in(tmp_path)


def test_base_without_python_is_not_made(uv: Uv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: object, minors: object) -> PythonEnvironment:
        raise MatrixError("no Python 3.10 found", got="3.12")

    monkeypatch.setattr("matrix.prove.provision.bases.Pythons.find", missing)
    known = of(uv, tmp_path)
    assert known.lack("torch-2.4.0").startswith("needs Python 3.10")
    assert known.installed("torch-2.4.0") is None
    with pytest.raises(MatrixError, match=r"no Python 3\.10 found"):
        known.provide("torch-2.4.0")


def test_image_is_no_base_of_wheels(uv: Uv, tmp_path: Path) -> None:
    known = of(uv, tmp_path)
    assert (known.lack("ngc-24.07"), known.installed("ngc-24.07")) == ("", None)
    with pytest.raises(MatrixError, match="no such base of wheels"):
        known.provide("ngc-24.07")


def test_missing_uv_is_reported_before_a_run(uv: Uv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of(uv, tmp_path).provide("torch-2.4.0")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    without = Bases(SMALL, root=tmp_path, environ={"PATH": ""}, run=uv)
    without.ready(["torch-2.4.0", "ngc-24.07"])
    with pytest.raises(MatrixError, match="uv is required"):
        without.ready(["torch-2.3.1"])


def test_environment_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named by its folder or its Python; uv makes nothing."""
    program = tmp_path / "venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    assert [bases.program_of(str(path)) for path in (tmp_path / "venv", program)] == [str(program)] * 2
    assert [bases.program_of(word) for word in (str(tmp_path), "torch=2.4.1", "no/python3.12")] == [""] * 3
    report = {"python": "3.12.1", "packages": {"torch": "2.4.1", "pytest": "8", "packaging": "24"}, "features": []}
    monkeypatch.setattr(bases, "run", lambda command, **_: CommandResult(0, json.dumps(report)))
    bases.environment_at.cache_clear()
    environment = bases.environment_at(str(program))
    assert (environment.minor, environment.path) == ("3.12", program)
    known = with_host(SMALL, environment.packages, "3.12", id="host-1", program=str(program))
    made = Bases(known, root=tmp_path / "cache")
    made.ready(["host-1"])
    assert (made.lack("host-1"), made.installed("host-1"), made.provide("host-1")) == ("", environment, environment)
    assert known.base_on("host-1", "3.10") is None


@pytest.mark.parametrize(
    ("out", "code", "got"),
    [
        ('{"python": "3.12.1", "packages": {"torch": "2.4.1"}, "features": []}', 0, "no pytest, no packaging"),
        ("", 1, "ModuleNotFoundError: No module named 'packaging'"),
    ],
)
def test_environment_without_pytest_is_refused(out: str, code: int, got: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CommandResult(code, out, f"Traceback ...\n{got}" * code)
    monkeypatch.setattr(bases, "run", lambda command, **_: result)
    bases.environment_at.cache_clear()
    with pytest.raises(MatrixError, match="tests can't run in this environment") as caught:
        bases.environment_at("/venv/bin/python")
    assert (caught.value.got, "/venv/bin/python -m pip install" in str(caught.value.fix)) == (got, True)


def test_packages_for_gpus_need_a_driver() -> None:
    assert left_out(WITH_TRITON, {}, driver=True) == ()
    assert left_out(WITH_TRITON, {}, driver=False) == ("triton",)
    assert left_out(reader(), {}, driver=False) == ()


@pytest.mark.parametrize("environ", [{EXCLUDE: ""}, {EXCLUDE: "/my/own.txt"}, {**WITH_GPU_PACKAGES}])
def test_an_earlier_choice_stays(environ: dict[str, str]) -> None:
    """The user's, or that of a run on a cluster."""
    assert left_out(WITH_TRITON, environ, driver=False) == ()


def test_driver_is_a_module_or_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WSL and some containers have the library alone."""
    monkeypatch.setattr(hardware, "there", lambda: "libnvidia-ml.so.1: no such file")
    assert not has_driver(tmp_path)
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    assert has_driver(tmp_path)
    monkeypatch.setattr(hardware, "there", lambda: "")
    assert has_driver(tmp_path / "empty")


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
    assert not setting or f" ({setting}): {python_command('3.10')}" in pythons.lack(BASE)


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """Serve this interpreter's installation as uv's archive of MINOR; yield the address of the list of downloads."""
    served = tmp_path / "served"
    served.mkdir()
    archive = served / "python.tar.gz"
    home = Path(sys.base_prefix)
    skipped = ("test", "site-packages", "__pycache__", "idlelib", "ensurepip")

    def kept(one: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = Path(one.name).parts
        outside = one.issym() and one.linkname.startswith("/")  # Debian's sitecustomize.py; uv refuses such a link
        return None if outside or any(part in skipped for part in parts) or one.name.endswith(".a") else one

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
    find = partial(bases.find_python, executable=Path("/nonexistent/python"))
    hidden = partial(find_in_uv, find)
    pythons = Pythons(Configuration(), said.append, environ=environ, find=hidden)
    base = wheels("2.4.0", pythons=(MINOR,))

    assert pythons.lack(base).endswith(python_command(MINOR))
    pythons.provide(base)

    assert len(said) == 1, said
    assert pythons.lack(base) == ""


def find_in_uv(
    find: partial[PythonEnvironment], minors: Sequence[str], *, environ: Mapping[str, str]
) -> PythonEnvironment:
    """Find without PATH: the machine's own Pythons do not count."""
    return find(minors, environ={**environ, "PATH": ""})


def test_unreadable_pythons_are_left_out(tmp_path: Path) -> None:
    environ = {"PYENV_ROOT": "/" + "x" * 300, "PATH": "/" + "y" * 300, "HOME": str(tmp_path)}
    assert [*bases.candidates("3.10", environ, Path(sys.executable))] == [Path(sys.executable)]
