"""The cache key changes with everything a verdict depends on, and with nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.catalog.failure import Expectation, Level, Workaround
from matrix.catalog.folders import FAILURES
from matrix.catalog.machine import Machine, PythonEnvironment
from matrix.catalog.stack import MCORE, TE
from matrix.contract import recording
from matrix.errors import MatrixError
from matrix.execution import cache_key
from matrix.execution.cache_key import Evidence, case_key, closure, recorded_digests
from matrix.provision.host import LocalSite
from matrix.provision.project import PACKAGE
from matrix.verdicts.reason import Reason, ReasonKind
from tests.unit.catalogs import case, catalog, clause, failure, planned

CASE = planned(catalog(failure()))
BASE = PythonEnvironment("3.10.13", {"torch": "2.4.0", "numpy": "1.26.4"})
HOST = LocalSite(Machine("none", 0, architecture="x86_64"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a failure's folder with a module that imports one of the kit."""
    (tmp_path / "reproduction.py").write_text("from matrix.kit import open_mpi\nfrom . import sibling\n")
    (tmp_path / "sibling.py").write_text("")
    return tmp_path


def key(
    folder: Path, item: Any = CASE, base: PythonEnvironment = BASE, overlays: tuple[str, ...] = ("0a1b",), **of: Any
) -> str:
    for cached in (cache_key.code_digest, cache_key.file_digest, cache_key.imports):
        cached.cache_clear()
    entry = failure(folder=folder, **of)
    return case_key(item, entry, base, overlays, HOST)


def test_key_ignores_the_order_of_packages(folder: Path) -> None:
    turned = PythonEnvironment("3.10.13", {"numpy": "1.26.4", "torch": "2.4.0"})
    assert key(folder) == key(folder, base=turned)
    assert len(key(folder)) == 64


def test_key_ignores_reasons_and_notes(folder: Path) -> None:
    assert key(folder) == key(folder, replace(CASE, why=(Reason(ReasonKind.PICKED, "a reason"),), notes=("twin",)))


@pytest.mark.parametrize(
    "change",
    [
        {"case": "pp2"},
        {"failure": "another"},
        {"level": Level.GPU},
        {"expectation": Expectation.BROKEN},
        {"cell": CASE.cell.with_({MCORE: "0.9.0"})},
    ],
    ids=str,
)
def test_changed_case_changes_the_key(folder: Path, change: Any) -> None:
    assert key(folder) != key(folder, replace(CASE, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"base": replace(BASE, python="3.10.14")},
        {"base": replace(BASE, packages={"torch": "2.4.1", "numpy": "1.26.4"})},
        {"overlays": ("2c3d",)},
        {"overlays": ()},
    ],
    ids=str,
)
def test_changed_environment_changes_the_key(folder: Path, change: Any) -> None:
    assert key(folder) != key(folder, **change)


def test_changed_machine_changes_the_key(folder: Path) -> None:
    other = case_key(
        CASE,
        failure(folder=folder),
        BASE,
        ("0a1b",),
        replace(HOST, machine=replace(HOST.machine, architecture="aarch64")),
    )
    assert key(folder) != other


@pytest.mark.parametrize(
    "change",
    [
        {"affected": (clause(mcore="<0.9"),)},
        {"case": (replace(case(), arguments={"tensor_parallel": 2}),)},
        {"masked": ()},
    ],
    ids=str,
)
def test_changed_entry_changes_the_key(folder: Path, change: Any) -> None:
    same = change == {"masked": ()}
    assert (key(folder) == key(folder, **change)) is same


@pytest.mark.parametrize("change", [{"title": "Another title"}, {"workaround": (Workaround("Wait"),)}], ids=str)
def test_key_ignores_documentation_of_an_entry(folder: Path, change: Any) -> None:
    assert key(folder) == key(folder, **change)


@pytest.mark.parametrize("name", ["reproduction.py", "sibling.py", "facts.toml"])
def test_changed_file_changes_the_key(folder: Path, name: str) -> None:
    before = key(folder)
    with (folder / name).open("a") as file:
        file.write("# another line\n")
    assert before != key(folder)


@pytest.mark.parametrize("name", ["test_it.py", "failure.toml", "notes.txt", "examples/shows/one.json"])
def test_key_ignores_unrelated_files(folder: Path, name: str) -> None:
    before = key(folder)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("x = 1\n")
    assert before == key(folder)


def test_closure_follows_late_imports(folder: Path) -> None:
    used = {str(path.relative_to(PACKAGE)) for path in closure([folder / "reproduction.py"]) if PACKAGE in path.parents}
    assert used == {"kit/__init__.py", "kit/open_mpi.py"}
    late = {path.name for path in closure([PACKAGE / "kit" / "megatron.py"])}
    assert {"cpu_device.py", "absent_packages.py", "te_extension.py"} <= late


@pytest.mark.parametrize(
    ("level", "modules"),
    [
        (
            Level.CPU,
            {"verdicts/judge.py", "verdicts/signature_match.py", "execution/ranks/rank_main.py", "verdicts/crash.py"},
        ),
        (Level.CONTRACT, {"verdicts/judge.py", "contract/calling.py", "contract/finding.py", "contract/guard.py"}),
    ],
)
def test_closure_includes_judge_and_runner(level: Level, modules: set[str]) -> None:
    roots = cache_key.READS if level is Level.CONTRACT else cache_key.RUNS
    found = closure(path for name in roots if (path := cache_key._file(name)))
    assert modules <= {str(path.relative_to(PACKAGE)) for path in found}


def test_closures_of_failures_are_disjoint() -> None:
    """A new failure does not invalidate the verdicts of others."""
    for folder in (path.parent for path in FAILURES.glob("*/failure.toml")):
        used = closure(path for path in folder.glob("*.py"))
        assert [path for path in used if FAILURES in path.parents and path.parent != folder] == []


def test_unreadable_file_raises(folder: Path) -> None:
    (folder / "sibling.py").unlink()
    (folder / "sibling.py").symlink_to(folder / "gone.py")
    with pytest.raises(MatrixError, match=r"sibling\.py: a file that verdicts depend on can't be read"):
        key(folder)


def test_unreadable_record_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version is no content: a damaged record must not have the key of another damaged one."""
    monkeypatch.setattr(recording, "folder", lambda: tmp_path)
    for package in (recording.MCORE, recording.TE):
        (tmp_path / package / f"1.0{recording.SUFFIX}").mkdir(parents=True)
    with pytest.raises(MatrixError, match="a file that verdicts depend on can't be read") as raised:
        recorded_digests(CASE.cell.with_({MCORE: "1.0", TE: "1.0"}))
    assert ("got" in str(raised.value), "expected" in str(raised.value), "fix" in str(raised.value)) == (True,) * 3


def test_release_without_a_record_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later record changes the key: the case, which was unavailable, runs."""
    monkeypatch.setattr(recording, "folder", lambda: tmp_path)
    assert recorded_digests(CASE.cell.with_({MCORE: "0.8.0", TE: "1.9"})) == ("0.8.0", "1.9")


EVIDENCE = Evidence("cell failure case cpu", "works", "3.10.13", {"torch": "2.4.0", "numpy": "1.26.4"})


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({}, False),
        ({"packages": {"numpy": "1.26.4", "torch": "2.4.0"}}, False),
        ({"case": "cell failure another cpu"}, True),
        ({"expectation": "broken"}, True),
        ({"python": "3.10.14"}, True),
        ({"packages": {"torch": "2.4.0"}}, True),
        ({"image": "sha256:1"}, True),
        ({"overlays": ("0a",)}, True),
        ({"host": {"machine": "aarch64"}}, True),
        ({"entry": "0a"}, True),
        ({"code": "0a"}, True),
        ({"recorded": ("0a",)}, True),
    ],
    ids=str,
)
def test_key_of_evidence(changes: dict[str, Any], differs: bool) -> None:
    assert (replace(EVIDENCE, **changes).key != EVIDENCE.key) is differs
    assert len(EVIDENCE.key) == 64


def test_key_depends_on_the_order_of_overlays() -> None:
    """The first overlay hides what later ones hold too."""
    assert replace(EVIDENCE, overlays=("0a", "1b")).key != replace(EVIDENCE, overlays=("1b", "0a")).key
