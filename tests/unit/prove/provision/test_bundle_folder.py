"""A bundle's files: checked, split, joined, and the variables with which nothing else is used."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.provision import bundle_folder
from matrix.prove.provision.bundle_folder import Bundle, BundleFile

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
        files[name] = BundleFile(size, bundle_folder.digest(home / name))
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
        (lambda part: part.write_bytes(bytes(64)), "wheels/large.whl.part-001: another content"),
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


def test_damaged_bundle_is_not_started(folder: Path) -> None:
    (folder / "wheels/small.whl").unlink()
    with pytest.raises(SystemExit, match=r"wheels/small.whl: missing"):
        bundle_folder.start(folder, [])
    assert not (folder / bundle_folder.ENVIRONMENT).exists()
    shutil.rmtree(folder)
    with pytest.raises(SystemExit, match="not a bundle"):
        bundle_folder.start(folder, [])
