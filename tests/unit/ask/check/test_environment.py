"""The stack of an environment, from its files."""

from __future__ import annotations

import importlib
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.ask.check import environment
from matrix.ask.check.files.declared import Statement
from matrix.ask.check.job_site import JobSite
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.stack import ABSENT, MCORE, PYTHON, TE, TORCH, Place
from tests.unit.catalogs import real


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on sys.path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(site: Path, name: str, version: str) -> None:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    importlib.invalidate_caches()


def test_installed_packages_are_read_without_import(site: Path) -> None:
    install(site, "torch", "2.9.1+cu128")
    install(site, "transformer_engine_cu12", "2.9.0")
    install(site, "numpy", "1.26.4")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (site / "torch" / "version.py").write_text("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n")

    found = environment.own_python(["numpy"])

    assert (found.packages["torch"], found.packages["transformer-engine"]) == ("2.9.1+cu128", "2.9.0")
    assert (found.packages["numpy"], found.python) == ("1.26.4", platform.python_version())
    assert found.torch_cuda == "12.8"


@pytest.mark.parametrize(("text", "cuda"), [("cuda = None", "none"), ("debug = False", None), (None, None)])
def test_torch_without_cuda_is_reported(site: Path, text: str | None, cuda: str | None) -> None:
    install(site, "torch", "2.9.1")
    if text:
        (site / "torch").mkdir()
        (site / "torch" / "version.py").write_text(f"{text}\n")
    assert environment.torch_cuda() == cuda


def test_package_that_is_not_installed_is_absent() -> None:
    found = environment.statements(PythonEnvironment("3.10.1", {"torch": "2.4.1"}, path=Path("/python")), ())
    assert found == [
        Statement(PYTHON, "3.10.1", Place("/python")),
        Statement(TORCH, "2.4.1", Place("installed")),
        Statement(MCORE, ABSENT, Place("not installed")),
        Statement(TE, ABSENT, Place("not installed")),
    ]


def test_clone_on_the_import_path_comes_first(tmp_path: Path) -> None:
    """As Python imports it: a clone has no metadata."""
    info = tmp_path / environment.PACKAGE_INFO
    info.parent.mkdir(parents=True)
    info.write_text("MAJOR = 0\nMINOR = 15\nPATCH = 0\nPRE_RELEASE = 'rc7'\n")
    interpreter = PythonEnvironment(packages={"megatron-core": "0.8.0"})
    folders = environment.import_path({"PYTHONPATH": f"/nowhere:{tmp_path}"}, Path("/"))
    found = {one.name: one for one in environment.statements(interpreter, folders)}
    assert found[MCORE] == Statement(MCORE, "0.15.0rc7", Place(str(info)))


@pytest.mark.parametrize("text", ["", "MAJOR = 0\n", "MAJOR = x\nMINOR = y\nPATCH = z\n"])
def test_damaged_clone_is_left_out(tmp_path: Path, text: str) -> None:
    info = tmp_path / environment.PACKAGE_INFO
    info.parent.mkdir(parents=True)
    info.write_text(text)
    interpreter = PythonEnvironment(packages={"megatron-core": "0.8.0"})
    assert [one.value for one in environment.statements(interpreter, [str(tmp_path)]) if one.name == MCORE] == ["0.8.0"]


def test_lock_is_checked_with_few_modules(tmp_path: Path) -> None:
    """They would cost more than the answer itself: a lock file is checked in 0.5 s. A history needs sqlite3."""
    costly = {"torch", "numpy", "yaml", "jinja2", "pytest", "sqlite3", "ctypes", "pickletools", "matrix.read.api"}
    code = (
        "import sys; from matrix.cli.main import main; "
        f"main(['check', 'mcore=0.8.0', '--out', {str(tmp_path)!r}]); "
        f"sys.exit(', '.join({costly} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_component_of_the_table_is_read(site: Path) -> None:
    """Also by another name; numpy and flash-attn counted as absent, so that no rule on them held."""
    install(site, "numpy", "2.3.0")
    install(site, "flash_attn", "2.8.3")
    install(site, "nvidia_cudnn_cu12", "9.10.2.21")
    packages = environment.own_python(()).packages
    assert (packages["flash-attn"], packages["cudnn"]) == ("2.8.3", "9.10.2.21")
    stated = {one.name: one.value for one in environment.statements(PythonEnvironment(packages=packages), ())}
    assert stated["numpy"] == "2.3.0"


def test_interpreter_without_a_report_is_unknown() -> None:
    """Nothing is absent there: its packages were not read."""
    python = PythonEnvironment(path=Path("/python"), problems=("/python did not finish in 180 s",))
    user = environment.here(real(), JobSite(python), {})
    assert [(item.text, str(item.place)) for item in user.unread] == [(python.problems[0], "/python")]
    assert user.notes == ()
