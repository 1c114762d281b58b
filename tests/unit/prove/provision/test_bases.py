"""The bases of wheels: what they are made of, when they are made, and what a failure leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.errors import MatrixError
from matrix.prove.provision import bases as module
from matrix.prove.provision.bases import CELL_REQUIRES, EXCLUDE, WITH_GPU_PACKAGES, Bases, has_driver, left_out
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
        elif "--excludes" in command:
            self.excluded += Path(command[command.index("--excludes") + 1]).read_text().split()
        return CommandResult(0)


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> list[PythonEnvironment]:
    """The Python of this machine; a test may replace it."""
    found = [PythonEnvironment("3.10.13", path=Path("/usr/bin/python3.10"))]
    monkeypatch.setattr("matrix.prove.provision.interpreters.Pythons.find", lambda self, minors: found[0])
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
    assert venv == f"/uv --quiet --directory {root} venv --python /usr/bin/python3.10 {folder}"
    assert install.startswith(f"/uv --quiet --directory {root} pip install --python {made.path} --excludes ")
    assert install.endswith(" ".join(["torch==2.4.0", "numpy<2", *CELL_REQUIRES]))
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


@pytest.mark.parametrize("damage", ["record", "python"])
def test_unfinished_environment_is_made_anew(uv: Uv, tmp_path: Path, damage: str) -> None:
    """Of a killed process, or whose interpreter is gone."""
    made = of(uv, tmp_path).provide("torch-2.4.0").path
    assert made
    (made if damage == "python" else made.parents[1] / module.RECORD).unlink()
    (made.parent / "left").touch()
    assert of(uv, tmp_path).installed("torch-2.4.0") is None
    assert of(uv, tmp_path).provide("torch-2.4.0").path == made
    assert not (made.parent / "left").exists()
    assert json.loads((made.parents[1] / module.RECORD).read_text())[0] == "torch==2.4.0"


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

    monkeypatch.setattr("matrix.prove.provision.interpreters.Pythons.find", missing)
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
