"""A bundle's files: checked, split, joined, and the variables with which nothing else is used."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from matrix.ground.catalog.machine import COMPILED, Cuda, Gpu
from matrix.ground.catalog.regular_file import sha256
from matrix.ground.errors import MatrixError
from matrix.prove.provision import bundle_folder, host
from matrix.prove.provision.bundle_folder import Bundle, BundleFile
from matrix.read.machine import hardware
from matrix.read.machine.hardware import Devices

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SIZES = {"wheels/small.whl": 10, "wheels/exact.whl": 64, "wheels/large.whl": 150}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a complete bundle of three files."""
    home = tmp_path / "b"
    (home / "wheels").mkdir(parents=True)
    files = {}
    for name, size in SIZES.items():
        (home / name).write_bytes(bytes(range(size)))
        files[name] = BundleFile(size, sha256(home / name))
    bundle_folder.write(home, Bundle("1", "cpu", PYTHON, "torch-2.4.0", platform.machine(), files=files))
    return home


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "wheels").iterdir())


def error_of(folder: Path) -> MatrixError:
    with pytest.raises(MatrixError) as raised:
        bundle_folder.verified(folder)
    return raised.value


def test_size_is_the_sum_of_the_files(folder: Path) -> None:
    assert bundle_folder.verified(folder).size == 224


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda path: path.unlink(), "wheels/exact.whl: missing"),
        (lambda path: path.write_bytes(bytes(63)), "wheels/exact.whl: 63 bytes, not 64"),
        (lambda path: path.write_bytes(bytes(64)), "wheels/exact.whl: another content"),
    ],
)
def test_damaged_file_is_named(folder: Path, change: object, got: str) -> None:
    change(folder / "wheels/exact.whl")  # type: ignore[operator]
    error = error_of(folder)
    assert (error.what, error.got) == ("this bundle is damaged", got)
    assert "copy this file again" in str(error.fix)


def test_parts_join_to_the_same_files(folder: Path) -> None:
    bundle_folder.split(folder, bundle_folder.read(folder), 64)
    assert names(folder) == ["exact.whl", "large.whl.part-000", "large.whl.part-001", "large.whl.part-002", "small.whl"]
    assert [path.stat().st_size for path in sorted((folder / "wheels").glob("large*"))] == [64, 64, 22]
    assert bundle_folder.verified(folder).size == 224
    assert names(folder) == ["exact.whl", "large.whl", "small.whl"]
    assert bundle_folder.verified(folder).size == 224  # a second use


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda part: part.unlink(), "wheels/large.whl: large.whl.part-001 is missing"),
        (lambda part: part.write_bytes(bytes(64)), "wheels/large.whl: large.whl.part-001: another content"),
    ],
)
def test_damaged_part_is_named(folder: Path, change: object, got: str) -> None:
    bundle_folder.split(folder, bundle_folder.read(folder), 64)
    change(folder / "wheels/large.whl.part-001")  # type: ignore[operator]
    assert error_of(folder).got == got
    assert "large.whl.part-000" in names(folder)


@pytest.mark.parametrize("steps", range(5))
def test_interrupted_split_and_join_go_on(folder: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process leaves FILE as a beginning, and parts of the rest, some of which it may hold, too."""
    calls, copy, truncate = [0], bundle_folder._copy, os.truncate

    def limited(act: object) -> object:
        def call(*arguments: object) -> None:
            calls[0] += 1
            if calls[0] > steps:
                raise KeyboardInterrupt
            act(*arguments)  # type: ignore[operator]

        return call

    with monkeypatch.context() as patched:
        patched.setattr(bundle_folder, "_copy", limited(copy))
        patched.setattr(os, "truncate", limited(truncate))
        try:
            bundle_folder.split(folder, bundle_folder.read(folder), 64)
            calls[0] = 3
            bundle_folder.join(folder, bundle_folder.read(folder))
        except KeyboardInterrupt:
            pass
    bundle_folder.join(folder, bundle_folder.read(folder))
    assert bundle_folder.verified(folder).size == 224


@pytest.mark.parametrize("size", [*range(1, 12), 63, 64, 65, 149, 150, 151])
def test_parts_of_every_size_join(folder: Path, size: int) -> None:
    before = {name: (folder / name).read_bytes() for name in SIZES}
    bundle_folder.split(folder, bundle_folder.read(folder), size)
    assert bundle_folder.verified(folder).size == 224
    assert {name: (folder / name).read_bytes() for name in SIZES} == before
    assert names(folder) == ["exact.whl", "large.whl", "small.whl"]


def test_wheel_that_joins_is_never_split(folder: Path) -> None:
    bundle = bundle_folder.read(folder)
    name = "wheels/megatrix-1-py3-none-any.whl"
    for path in (name, "start.py"):
        (folder / path).write_bytes(bytes(range(150)))
    content = {path: BundleFile(150, sha256(folder / path)) for path in (name, "start.py")}
    bundle_folder.split(folder, replace(bundle, files={**bundle.files, **content}), 10)
    assert (folder / name).stat().st_size == (folder / "start.py").stat().st_size == 150
    bundle_folder.verified(folder)


def test_part_that_was_cut_off_joins(folder: Path) -> None:
    """A process killed while it copies the last part leaves FILE whole, and a short part."""
    bundle = bundle_folder.read(folder)
    large = replace(bundle.files["wheels/large.whl"], parts=("", "", ""))
    bundle_folder.write(folder, replace(bundle, split=64, files={**bundle.files, "wheels/large.whl": large}))
    (folder / "wheels/large.whl.part-002").write_bytes(b"x")
    assert bundle_folder.verified(folder).size == 224
    assert names(folder) == ["exact.whl", "large.whl", "small.whl"]


@pytest.mark.parametrize(
    "add",
    [
        lambda folder: (folder / "wheels/rich-99.0-py3-none-any.whl").touch(),
        lambda folder: (folder / "sources").mkdir() or (folder / "sources/config").touch(),
        lambda folder: (folder / "wheels/new.whl").symlink_to("/etc/passwd"),
        lambda folder: (folder / "sources").symlink_to("/etc"),
        lambda folder: (
            (folder / "wheels/exact.whl").rename(folder / "exact")
            and (folder / "wheels/exact.whl").symlink_to(folder / "exact")
        ),
        lambda folder: os.mkfifo(folder / "wheels/pipe.whl"),
        lambda folder: (folder / "wheels/rich-99.0-py3-none-any.whl").mkdir(),
        lambda folder: (folder / "wheels/rich").mkdir() or (folder / "wheels/rich/__pycache__").mkdir(),
        lambda folder: (folder / "wheels/rich-99.0.tar.gz.lock").write_text("x"),
        lambda folder: (folder / "start.py").symlink_to("/etc/passwd"),
    ],
)
def test_what_no_bundle_lists_is_refused(folder: Path, add: Callable[[Path], object]) -> None:
    add(folder)
    assert error_of(folder).what == "this folder has what is not of the bundle"


def test_files_beside_the_bundle_are_left_alone(folder: Path) -> None:
    (folder / "reports").mkdir()
    (folder / "reports" / "out").touch()
    assert bundle_folder.verified(folder)


FILE = {"size": 10, "sha256": "", "parts": ["", ""]}


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../victim": FILE}},
        {"files": {"wheels/../../victim": FILE}},
        {"files": {"/etc/passwd": FILE}},
        {"files": {"wheels//x": FILE}},
        {"files": {"wheels": FILE}},
        {"files": {"wheels/\n::error::x": FILE}},
        {"files": {"json.py": FILE}},
        {"clones": {"PYTHONPATH": "sources/x"}},
        {"clones": {"MEGATRIX_MEGATRON_LM": "../x"}},
        {"split": -5, "files": {"wheels/x": FILE}},
        {"split": 2**43, "files": {"wheels/x": {**FILE, "size": 2**43 + 1}}},
        {"split": 2**70, "files": {"wheels/x": FILE}},
        {"split": 1, "files": {"wheels/x": FILE}},
        {"python": "/bin/sh"},
        {"base": "a b"},
    ],
)
def test_manifest_that_leaves_its_folder_is_refused(folder: Path, change: dict[str, object]) -> None:
    victim = folder.parent / "victim"
    victim.write_text("mine")
    content = json.loads((folder / bundle_folder.MANIFEST).read_text())
    (folder / bundle_folder.MANIFEST).write_text(json.dumps(content | change))
    (folder.parent / "victim.part-000").write_text("theirs")
    assert error_of(folder).what == "this bundle can't be read"
    assert victim.read_text() == "mine"


def test_manifest_that_is_no_file_is_refused(folder: Path) -> None:
    path = folder / bundle_folder.MANIFEST
    path.unlink()
    os.mkfifo(path)
    assert error_of(folder).got == "a FIFO (named pipe)"
    path.unlink()
    path.symlink_to("/dev/zero")
    assert error_of(folder).got == "a device"


@pytest.mark.parametrize("held", [0, 1, 2], ids=["no part", "a part", "a part and a beginning"])
def test_other_name_of_a_part_never_grows(held: int, folder: Path) -> None:
    """A bundle that was copied by hard links (cp -al) shares its parts with the first, and with files elsewhere."""
    bundle_folder.split(folder, bundle_folder.read(folder), 64)
    if held:
        (folder / "wheels/large.whl.part-000").rename(folder / "wheels/large.whl")
    if held > 1:
        bundle_folder._copy(folder / "wheels/large.whl.part-001", 0, folder / "wheels/large.whl", 64)
    first = folder / ("wheels/large.whl" if held else "wheels/large.whl.part-000")
    os.link(first, folder.parent / "victim")
    before = first.read_bytes()
    assert error_of(folder).got == f"wheels/large.whl: {first.name} is a hard link"
    assert (folder.parent / "victim").read_bytes() == before


def test_whole_files_may_be_hard_links(folder: Path) -> None:
    for name in SIZES:
        os.link(folder / name, folder.parent / Path(name).name)
    bundle_folder.split(folder, bundle_folder.read(folder), 1000)
    assert bundle_folder.verified(folder).size == 224


@pytest.mark.parametrize("sizes", [(64, 10, 7), (7, 64, 1000), (10, 10, 9)])
def test_split_again_joins(sizes: tuple[int, ...], folder: Path) -> None:
    before = {name: (folder / name).read_bytes() for name in SIZES}
    for size in sizes:
        bundle_folder.split(folder, bundle_folder.read(folder), size)
        bundle_folder.verified(folder)
    assert {name: (folder / name).read_bytes() for name in SIZES} == before


def test_gap_between_parts_is_not_filled(folder: Path) -> None:
    bundle_folder.split(folder, bundle_folder.read(folder), 64)
    (folder / "wheels/large.whl.part-000").unlink()
    assert error_of(folder).got == "wheels/large.whl: large.whl.part-000 is missing"
    bundle_folder.join(folder, bundle_folder.read(folder))
    assert names(folder) == ["exact.whl", "large.whl.part-001", "large.whl.part-002", "small.whl"]


def test_clones_are_those_of_the_settings() -> None:
    assert {host.variable(name): f"sources/{name}" for name in host.CLONES} == bundle_folder.SOURCES


@pytest.mark.parametrize(
    ("text", "what"),
    [(None, "not a bundle"), ("{", "this bundle can't be read"), ("layout", "a bundle of another version")],
)
def test_other_folders_are_no_bundle(folder: Path, text: str | None, what: str) -> None:
    path = folder / bundle_folder.MANIFEST
    if text is None:
        path.unlink()
    elif text == "layout":
        bundle_folder.write(folder, replace(bundle_folder.read(folder), layout=99))
    else:
        path.write_text(text)
    error = error_of(folder)
    assert error.what == what
    assert error.fix


def test_bundle_without_files_is_not_complete(folder: Path) -> None:
    bundle_folder.write(folder, replace(bundle_folder.read(folder), files={}))
    assert error_of(folder).what == "this bundle is not complete"


def test_settings_of_the_machine_do_not_leak() -> None:
    content = Bundle(
        "1", "cpu", "3.12", "torch-2.4.0", "x86_64", clones={"MEGATRIX_MEGATRON_LM": "sources/megatron-lm"}
    )
    theirs = {
        "PIP_INDEX_URL": "https://pip.example",
        "PIP_NO_BINARY": ":all:",
        "PIP_CONFIG_FILE": "/etc/pip.conf",
        "UV": "/usr/bin/uv",
        "UV_INDEX": "https://uv.example",
        "UV_CONSTRAINT": "/etc/constraint.txt",
        "MEGATRIX_MEGATRON_LM": "/elsewhere",
    }
    kept = {"UV_CACHE_DIR": "/cache", "HOME": "/home/me"}
    variables = bundle_folder.variables(Path("/b"), content, {**theirs, **kept})
    assert kept.items() <= variables.items()
    assert not {"PIP_INDEX_URL", "PIP_NO_BINARY", "UV_INDEX", "UV_CONSTRAINT"} & variables.keys()
    assert variables["PIP_CONFIG_FILE"] == os.devnull
    assert variables["PIP_FIND_LINKS"] == variables["UV_FIND_LINKS"] == "/b/wheels"
    assert (variables["PIP_NO_INDEX"], variables["UV_OFFLINE"], variables["UV_NO_CONFIG"]) == ("1", "1", "1")
    assert variables["MEGATRIX_PYTHON"] == "3.12"
    assert variables["MEGATRIX_MEGATRON_LM"] == "/b/sources/megatron-lm"
    assert variables.get("UV") != "/usr/bin/uv"
    assert COMPILED not in variables


def test_extensions_of_a_bundle_are_named(folder: Path) -> None:
    """The folder of each is the bundle's; no other one is."""
    name = "compiled/te-1.9.0-torch-2.4.0-cuda-12.1-nvcc-12.4/a.whl"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).touch()
    content = bundle_folder.read(folder)
    files = {**content.files, name: BundleFile(0, sha256(folder / name))}
    bundle_folder.write(folder, replace(content, files=files))
    content = bundle_folder.verified(folder)
    assert bundle_folder.variables(folder, content, {})[COMPILED] == f"{folder}/compiled"
    (folder / "compiled/te-1.10.0-torch-2.4.0-cuda-12.1-nvcc-12.4").mkdir()
    assert error_of(folder).what == "this folder has what is not of the bundle"


@pytest.mark.parametrize("name", ["a b", "a,b"])
def test_path_that_uv_cannot_read_is_refused(name: str) -> None:
    with pytest.raises(MatrixError, match="uv can't read a bundle here"):
        bundle_folder.variables(Path("/") / name, Bundle("1", "cpu", "3.12", "host", "x86_64"), {})


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (Bundle("1", "cpu", "3.1", "host", platform.machine()), "a bundle for another Python"),
        (Bundle("1", "cpu", PYTHON, "host", "vax"), "a bundle for another machine"),
    ],
)
def test_other_python_or_machine_is_refused(content: Bundle, what: str) -> None:
    with pytest.raises(MatrixError, match=what):
        bundle_folder.check_machine(content)


@pytest.mark.parametrize(("sms", "refused"), [(["8.0"], True), (["9.0"], False), (["8.0", "9.0"], False), ([], False)])
def test_thin_bundle_refuses_another_gpu(sms: list[str], refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU may plan from it."""
    devices = Devices(cuda=Cuda(gpus=tuple(Gpu("H100", sm) for sm in sms)))
    monkeypatch.setattr(hardware, "query", lambda libraries: devices)
    thin = Bundle("1", "gpu", PYTHON, "host", platform.machine(), sm="9.0")
    bundle_folder.check_machine(replace(thin, sm=""))
    if not refused:
        bundle_folder.check_machine(thin)
        return
    with pytest.raises(MatrixError, match="a bundle for another GPU") as raised:
        bundle_folder.check_machine(thin)
    assert (raised.value.got, raised.value.expected) == ("compute capability 8.0", "9.0")
    assert "--sm 80" in str(raised.value.fix)


def test_damaged_bundle_is_not_started(folder: Path) -> None:
    (folder / "wheels/small.whl").unlink()
    with pytest.raises(SystemExit, match=r"wheels/small.whl: missing"):
        bundle_folder.start(folder, [])
    shutil.rmtree(folder)
    with pytest.raises(SystemExit, match="not a bundle"):
        bundle_folder.start(folder, [])


def test_started_process_is_named_by_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines that repeat or resume a run are commands of this machine."""
    monkeypatch.setenv("MEGATRIX_COMMAND", "tox run -e megatrix --")
    monkeypatch.setattr(bundle_folder, "_installed", lambda *_: "megatrix")
    monkeypatch.setattr(os, "execve", execve := Mock())
    bundle_folder.start(folder, ["run", "--here"])
    (_, words, environ) = execve.call_args.args
    assert words == ["megatrix", "run", "--here", "--bundle", str(folder)]
    assert environ["MEGATRIX_COMMAND"] == f"python{PYTHON} {folder}/start.py"


def test_environment_of_a_bundle_is_kept_whole(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge of some of its files makes it anew; those of the bundles that were used longest ago are removed."""
    made: list[Path] = []

    def install(command: list[str], environ: object) -> None:
        if "venv" in command[2]:
            made.append(Path(command[-1]))
            (made[-1] / "bin").mkdir(parents=True)
            (made[-1] / "bin/python").touch()
        else:
            (made[-1] / "bin/megatrix").touch()

    monkeypatch.setattr(bundle_folder, "_run", install)
    (folder / "wheels/pip-25.whl").touch()
    environ, bundle = {"MEGATRIX_CACHE": str(tmp_path / "cache")}, bundle_folder.read(folder)
    megatrix = bundle_folder._installed(folder, bundle, environ)
    assert bundle_folder._installed(folder, bundle, environ) == megatrix
    megatrix.unlink()
    assert bundle_folder._installed(folder, bundle, environ).is_file()
    assert len(made) == 2
    for number in range(4):
        os.utime(made[-1], (number, number))
        other = replace(bundle, files={"start.py": BundleFile(number, str(number))})
        bundle_folder._installed(folder, other, environ)
    assert [path.exists() for path in made] == [False, False, False, True, True, True]
