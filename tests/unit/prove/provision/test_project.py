"""The project's folder: the checkout, or the files of an installed package laid out in the cache."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import marshal
import os
import struct
import sys
import zipfile
from pathlib import Path

import pytest

from matrix import __version__
from matrix.ground.catalog.folders import default_root
from matrix.ground.errors import MatrixError
from matrix.prove.provision import host, project
from matrix.prove.provision.project import ROOT, files, folder, home, is_installed, locked, making, materialise
from matrix.read.commands import python_code, run

INSTALLED = {
    "ground/errors.py": "errors",
    "ground/catalog/facts/bases.toml": "bases",
    "failures/save_breaks/failure.toml": "failure",
    "project/conftest.py": "door",
    "project/containers/Containerfile": "containers",
    "project/tests/__init__.py": "",
}
LAID_OUT = {
    "matrix/ground/errors.py": "errors",
    "matrix/ground/catalog/facts/bases.toml": "bases",
    "tests/failures/save_breaks/failure.toml": "failure",
    "conftest.py": "door",
    "containers/Containerfile": "containers",
    "tests/__init__.py": "",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package as installed by pip, with compiled files."""
    made = tmp_path / "site-packages" / "matrix"
    for name, text in {
        **INSTALLED,
        "ground/catalog/__pycache__/model.pyc": "compiled",
        "__pycache__/a.pyc": "",
    }.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


@pytest.fixture
def from_a_wheel(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the project an installed package."""
    monkeypatch.setattr(project, "is_installed", lambda: True)
    monkeypatch.setattr(project, "PACKAGE", package)
    monkeypatch.setenv("MEGATRIX_CACHE", str(tmp_path / "cache"))
    folder.cache_clear()


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    """Clear the cached folder."""
    folder.cache_clear()


def content(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_the_project_folder_is_the_checkout() -> None:
    assert (is_installed(), folder(), home()) == (False, ROOT, ROOT)
    assert (ROOT / "tox.ini").is_file()


def test_a_package_with_its_data_is_installed(package: Path) -> None:
    assert is_installed(package)


def test_a_package_is_laid_out_as_a_checkout(package: Path, tmp_path: Path) -> None:
    made = materialise(package, tmp_path / "projects")
    assert content(made) == LAID_OUT
    assert (made.parent, made.name.rpartition("-")[0]) == (tmp_path / "projects", __version__)


def test_every_file_has_a_place(package: Path) -> None:
    assert sorted(map(str, files(package))) == sorted(LAID_OUT)


def test_the_same_content_is_laid_out_once(package: Path, tmp_path: Path) -> None:
    made = materialise(package, tmp_path)
    before = (made / "conftest.py").stat()
    assert materialise(package, tmp_path) == made
    after = (made / "conftest.py").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)  # its content is read: not st_atime


@pytest.mark.parametrize("name", INSTALLED)
def test_other_content_has_another_folder(package: Path, tmp_path: Path, name: str) -> None:
    before = materialise(package, tmp_path)
    (package / name).write_text("other")
    after = materialise(package, tmp_path)
    assert before != after
    assert content(before) == LAID_OUT


def test_other_users_can_read_the_folder(package: Path, tmp_path: Path) -> None:
    """A container runs as another user."""
    assert materialise(package, tmp_path).stat().st_mode & 0o055 == 0o055


def test_a_folder_is_created_atomically(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(project, "flush", full)
    with pytest.raises(MatrixError, match="No space left on device"):
        materialise(package, tmp_path / "projects")
    assert [path.name for path in (tmp_path / "projects").iterdir()] == ["lock"]


def test_files_of_a_killed_process_are_removed(package: Path, tmp_path: Path) -> None:
    (tmp_path / "projects" / "abc.making" / "matrix").mkdir(parents=True)
    materialise(package, tmp_path / "projects")
    assert not (tmp_path / "projects" / "abc.making").exists()


def test_the_versions_used_last_are_kept(package: Path, tmp_path: Path) -> None:
    """The first of four is used again, so that the second goes."""
    made = [laid_out(package, tmp_path, number) for number in range(3)]
    for used, one in enumerate((made[1], made[2], made[0])):
        os.utime(one, (used, used))
    new = laid_out(package, tmp_path, 3)
    assert {path for path in new.parent.iterdir() if path.is_dir()} == {made[0], made[2], new}


def laid_out(package: Path, root: Path, number: int) -> Path:
    (package / "ground" / "errors.py").write_text(str(number))
    return materialise(package, root / "projects")


def test_a_use_is_noted(package: Path, tmp_path: Path) -> None:
    made = materialise(package, tmp_path)
    os.utime(made, (0, 0))
    assert materialise(package, tmp_path).stat().st_mtime > 0


def test_an_unwritable_cache_has_a_fix(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MatrixError, match="the project's folder can't be created") as caught:
        materialise(package, tmp_path / "file" / "projects")
    assert caught.value.fix == "set MEGATRIX_CACHE to one"


@pytest.mark.usefixtures("from_a_wheel")
def test_an_installed_project_is_in_the_cache(tmp_path: Path) -> None:
    assert folder().parent == tmp_path / "cache" / "projects"


@pytest.mark.usefixtures("from_a_wheel")
def test_settings_without_checkout_use_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "megatrix.toml").write_text('[sources]\nmegatron-lm = "clones/Megatron-LM"\n')
    monkeypatch.chdir(tmp_path)
    assert home() == tmp_path
    assert host.load_configuration({}).sources == {"megatron-lm": str(tmp_path / "clones/Megatron-LM")}


def test_settings_are_passed_on_with_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = host.load_configuration({"MEGATRIX_MEGATRON_LM": "../Megatron-LM"}, tmp_path).environment
    assert given == {"MEGATRIX_MEGATRON_LM": str(tmp_path / "../Megatron-LM")}


def test_wheel_is_written_from_installed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts, byte code and what pip writes on installation are none of it; it is the same each time."""
    info = tmp_path / "megatrix-1.0.dist-info"
    files = {
        "matrix/__init__.py": "a = 1\n",
        "matrix/__pycache__/a.pyc": "",
        f"{info.name}/METADATA": "Name: megatrix\nVersion: 1.0\n",
        f"{info.name}/INSTALLER": "pip\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*files, "../bin/megatrix"]))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: importlib.metadata.PathDistribution(info))
    path = project.wheel(tmp_path)
    first = path.read_bytes()
    with zipfile.ZipFile(path) as wheel:
        assert wheel.namelist() == ["matrix/__init__.py", f"{info.name}/METADATA", f"{info.name}/RECORD"]
        assert "matrix/__init__.py,sha256=" in wheel.read(f"{info.name}/RECORD").decode()
    assert path.name == "megatrix-1.0-py3-none-any.whl"
    assert project.wheel(tmp_path).read_bytes() == first


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with making(tmp_path / "made") as temporary:
        (temporary / "file").write_text("content")
        assert not (tmp_path / "made").exists()
    assert (tmp_path / "made" / "file").read_text() == "content"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert (tmp_path / "made").stat().st_mode & 0o055 == 0o055


def test_an_interrupted_folder_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), making(tmp_path / "made"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_an_older_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").touch()
    (tmp_path / "made.abc.making").mkdir()  # of a killed process
    with making(tmp_path / "made") as temporary:
        (temporary / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "new"]


def test_a_failure_keeps_the_older_folder(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(OSError, match="full"), making(tmp_path / "made"):
        raise OSError("full")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_the_folder_of_a_lock_is_made(tmp_path: Path) -> None:
    with locked(tmp_path / "new" / "lock"):
        assert (tmp_path / "new" / "lock").is_file()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"MEGATRIX_CACHE": "/site/cache", "XDG_CACHE_HOME": "/home/cache"}, "/site/cache"),
        ({"XDG_CACHE_HOME": "/home/cache"}, "/home/cache/megatrix"),
        ({}, str(Path.home() / ".cache/megatrix")),
    ],
)
def test_the_site_chooses_the_cache(environ: dict[str, str], expected: str) -> None:
    assert str(default_root(environ)) == expected


@pytest.mark.parametrize("change", ["lost", "changed", "added", "link"])
def test_damaged_project_is_made_anew(tmp_path: Path, change: str) -> None:
    package = tmp_path / "package"
    (package / "project").mkdir(parents=True)
    (package / "project" / "conftest.py").write_text("mine")
    folder = materialise(package, tmp_path / "projects")
    file = folder / "conftest.py"
    if change == "changed":
        file.write_text("their")
    elif change == "added":
        (folder / "sitecustomize.py").touch()
    else:
        file.unlink()
    if change == "link":
        file.symlink_to(package / "project" / "conftest.py")
    assert materialise(package, tmp_path / "projects") == folder
    assert [path.name for path in folder.iterdir()] == ["conftest.py"]
    assert (file.read_text(), file.is_symlink()) == ("mine", False)


def test_compiled_code_of_others_never_runs(tmp_path: Path) -> None:
    """A compiled file that names the time and the size of its source runs in its place."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").write_text("print('mine')")
    source = materialise(tmp_path / "package", tmp_path / "projects") / "matrix" / "a.py"
    compiled, state = Path(importlib.util.cache_from_source(str(source))), source.stat()
    theirs = marshal.dumps(compile("print('theirs')", str(source), "exec"))
    words = python_code(sys.executable, "import sys; sys.path[:0] = sys.argv[1:]; import a", str(source.parent))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
    printed = []
    for _ in range(2):
        compiled.parent.mkdir(exist_ok=True)
        head = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(state.st_mtime), state.st_size)
        compiled.write_bytes(head + theirs)
        printed.append(run(words, environment=environ).out)
        materialise(tmp_path / "package", tmp_path / "projects")
        printed.append(run(words, environment=environ).out)
    assert printed == ["theirs\n", "mine\n"] * 2


def test_folder_of_compiled_files_is_no_link(tmp_path: Path) -> None:
    """What a link leads to is not removed."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").touch()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").touch()
    made = materialise(tmp_path / "package", tmp_path / "projects")
    (made / "matrix" / "__pycache__").symlink_to(tmp_path / "victim")
    materialise(tmp_path / "package", tmp_path / "projects")
    assert ([*(made / "matrix").iterdir()], (tmp_path / "victim" / "file").is_file()) == (
        [made / "matrix" / "a.py"],
        True,
    )


def test_pipe_in_the_project_blocks_nothing(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").write_text("")
    made = project.materialise(tmp_path / "package", tmp_path / "projects") / "matrix" / "a.py"
    made.unlink()
    os.mkfifo(made)

    code = "import sys; from pathlib import Path; from matrix.prove.provision.project import materialise\n"
    folders = (str(tmp_path / "package"), str(tmp_path / "projects"))
    words = python_code(sys.executable, f"{code}materialise(*map(Path, sys.argv[1:]))", *folders)
    ended = run(words, environment={**os.environ, "PYTHONPATH": str(ROOT)}, seconds=20)
    assert (ended.code, made.is_file()) == (0, True)


def test_lock_creates_nothing_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"), project.locked(tmp_path / "lock"):
        pass
    assert not (tmp_path / "elsewhere").exists()
