from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.folders import SITE, entries
from matrix.ground.catalog.loading import KEPT, SIZE, read_snapshot, write_snapshot
from matrix.ground.catalog.model import Catalog, GpuModel
from matrix.ground.catalog.schema import VersionText
from matrix.ground.errors import MatrixError

DIGEST = bytes(SIZE)


class Executed:
    """A value whose pickle names a function, and a class of another module."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __reduce__(self) -> Any:
        return self.function, ("true",)


def note(text: str) -> GpuModel:
    return GpuModel(text, VersionText("9.0"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEGATRIX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "catalogs"


def refuse(*_: object) -> None:
    pytest.fail("the catalog was decoded again")


def test_every_value_of_the_catalog_returns(cache: Path) -> None:
    catalog = loading.load(read=loading.read_failures())
    write_snapshot(cache / "a.catalog", catalog, DIGEST)
    copy = read_snapshot(cache / "a.catalog", Catalog, DIGEST)
    assert copy
    assert copy == catalog
    assert repr(copy) == repr(catalog)
    assert {type(case.card) for failure in copy.failures for case in failure.case} == {
        type(case.card) for failure in catalog.failures for case in failure.case
    }


def test_enums_return_on_every_python(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.2, which is Debian's, reduces a member of an Enum to `getattr` of its class."""
    monkeypatch.setattr(Level, "__reduce_ex__", lambda level, protocol: (getattr, (Level, level.name)))
    write_snapshot(cache / "a.catalog", catalog := loading.load(read=loading.read_failures()), DIGEST)
    assert read_snapshot(cache / "a.catalog", Catalog, DIGEST) == catalog


def test_unchanged_files_are_not_decoded_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = loading.load()
    monkeypatch.setattr(loading, "_read", refuse)
    assert loading.load() == catalog
    assert loading.load().failures[0].folder == catalog.failures[0].folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site's folder with one entry: a copy of the project's first."""
    folder, first = tmp_path / "site" / "own_entry", entries()[0]
    folder.mkdir(parents=True)
    id = first.parent.name.replace("_", "-")
    (folder / first.name).write_text(first.read_text().replace(f'id = "{id}"', 'id = "own-entry"'))
    monkeypatch.setenv(SITE, str(folder.parent))
    return folder


def test_changed_or_removed_entry_is_read_again(cache: Path, site: Path) -> None:
    title = loading.load().failure("own-entry").title
    entry = site / "failure.toml"
    before = entry.stat()
    entry.write_text(entry.read_text().replace(title, title[:-1] + "!"))
    os.utime(entry, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert loading.load().failure("own-entry").title == title[:-1] + "!"
    entry.unlink()
    assert "own-entry" not in {failure.id for failure in loading.load().failures}


def test_wrong_entry_is_reported_each_time(cache: Path, site: Path) -> None:
    entry = site / "failure.toml"
    entry.write_text(entry.read_text().replace("title =", "titel =", 1))
    for _ in range(2):
        with pytest.raises(MatrixError, match="titel"):
            loading.load()


def test_damaged_snapshot_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "a.catalog"
    write_snapshot(path, note("a"), DIGEST)
    whole = path.read_bytes()
    assert read_snapshot(path, GpuModel, DIGEST) == note("a")
    assert read_snapshot(path, GpuModel, b"1" * SIZE) is None
    for place in range(len(whole)):
        path.write_bytes(whole[:place])
        assert read_snapshot(path, GpuModel, DIGEST) is None
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert read_snapshot(path, GpuModel, DIGEST) is None


def test_snapshot_of_another_user_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_snapshot(tmp_path / "a.catalog", note("a"), DIGEST)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert read_snapshot(tmp_path / "a.catalog", GpuModel, DIGEST) is None


def test_other_fields_of_a_class_are_none(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "a.catalog", ("a",), DIGEST)
    assert read_snapshot(tmp_path / "a.catalog", GpuModel, DIGEST) is None


@pytest.mark.parametrize("function", [os.system, eval, subprocess.Popen, loading.write_snapshot, int])
def test_names_outside_the_catalog_are_refused(tmp_path: Path, function: Any) -> None:
    path = tmp_path / "a.catalog"
    write_snapshot(path, Executed(function), DIGEST)
    assert path.is_file()
    assert read_snapshot(path, object, DIGEST) is None


@pytest.mark.parametrize("name", ["matrix.ground.catalog.gone\nGone", "matrix.ground.catalog.failure\nGone"])
def test_class_that_is_not_there_is_none(tmp_path: Path, name: str) -> None:
    state = f"c{name}\n.".encode()
    (tmp_path / "a.catalog").write_bytes(DIGEST + loading.DIGEST(state).digest() + state)
    assert read_snapshot(tmp_path / "a.catalog", object, DIGEST) is None


def test_cache_that_is_a_file_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("MEGATRIX_CACHE", str(tmp_path / "cache"))
    assert loading.load().failures


def test_no_home_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(loading, "default_root", no_home)
    assert loading.load().failures


def test_writers_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    path, values = tmp_path / "a.catalog", [note(str(number) * 50_000) for number in range(8)]

    def write_and_read(value: GpuModel) -> bool:
        write_snapshot(path, value, DIGEST)
        return read_snapshot(path, GpuModel, DIGEST) in values

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write_and_read, values * 5))
    assert [path.name for path in tmp_path.iterdir()] == ["a.catalog"]


def test_newest_snapshots_stay(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        path = tmp_path / f"{number}.catalog"
        write_snapshot(path, note("a"), DIGEST)
        os.utime(path, (number, number))
    write_snapshot(tmp_path / "last.catalog", note("a"), DIGEST)
    names = {path.stem for path in tmp_path.iterdir()}
    assert names == {"last", *(str(number) for number in range(KEPT + 3)[-KEPT + 1 :])}


def test_changed_code_counts_as_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code.py").write_text("a = 1")
    monkeypatch.setattr(loading, "_CODE", tmp_path)
    before = loading.digest_of([])
    (tmp_path / "code.py").write_text("a = 2")
    assert loading.digest_of([]) != before
