"""The cache key changes with everything a verdict depends on, and with nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix import PACKAGE
from matrix.ground.cases.machine_requirements import WITHOUT_GPU, Placement
from matrix.ground.catalog.distributions import SharedNccl
from matrix.ground.catalog.failure import PARITY, Expectation, Level, Workaround
from matrix.ground.catalog.folders import FAILURES
from matrix.ground.catalog.machine import Machine, PythonEnvironment
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Reason, ReasonKind
from matrix.prove.execution import cache_key
from matrix.prove.execution.cache_key import Evidence, case_key, closure, recorded_digests
from matrix.prove.provision.host import LocalSite
from matrix.read.api import recording
from tests.unit.catalogs import case, catalog, clause, failure, planned

CASE = planned(catalog(failure()))
BASE = PythonEnvironment("3.10.13", {"torch": "2.4.0", "numpy": "1.26.4"})
HOST = LocalSite(Machine("none", 0, architecture="x86_64"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a failure's folder with a module that imports one of the kit; small modules stand for those that run."""
    monkeypatch.setattr(cache_key, "RUNS", ("matrix.kit.child", "matrix.gone"))
    monkeypatch.setattr(cache_key, "READS", ("matrix.ground.errors",))
    (tmp_path / "reproduction.py").write_text("from matrix.kit import layer_norms\nfrom . import sibling\n")
    (tmp_path / "sibling.py").write_text("")
    return tmp_path


def key(
    folder: Path, item: Any = CASE, base: PythonEnvironment = BASE, overlays: tuple[str, ...] = ("0a1b",), **of: Any
) -> str:
    clear_caches()
    return case_key(item, failure(folder=folder, **of), base, overlays, HOST)


def clear_caches() -> None:
    for cached in (cache_key.code_digest, cache_key.file_digest, cache_key.imports):
        getattr(cached, "cache_clear", int)()  # the copies of tests/mutation.py have no caches


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
    assert used == {"kit/__init__.py", "kit/layer_norms.py"}
    late = {path.name for path in closure([PACKAGE / "kit" / "megatron.py"])}
    assert {"cpu_device.py", "absent_packages.py", "te_extension.py"} <= late


@pytest.mark.parametrize(
    ("level", "modules"),
    [
        (
            Level.CPU,
            {
                "ground/verdicts/judge.py",
                "ground/verdicts/signature_match.py",
                "ground/verdicts/crash.py",
                "prove/execution/ranks/rank_main.py",
            },
        ),
        (Level.CONTRACT, {"ground/verdicts/judge.py", "read/api/sides.py", "read/api/finding.py", "read/api/guard.py"}),
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
    with pytest.raises(MatrixError, match=r"sibling\.py: a file that verdicts depend on can't be read") as raised:
        key(folder)
    assert raised.value.fix == "restore it: cached verdicts depend on its content"


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


def test_key_of_a_case_covers_its_evidence(folder: Path) -> None:
    """Recorded APIs count at level contract alone."""
    for level, recorded in ((Level.CPU, ()), (Level.CONTRACT, recorded_digests(CASE.cell))):
        item, entry = replace(CASE, level=level, expectation=Expectation.BROKEN), failure(folder=folder)
        evidence = Evidence(
            item.key,
            "broken",
            "3.10.13",
            BASE.packages,
            "sha256:1",
            ("0a1b", "2c3d"),
            {"machine": "x86_64"},
            cache_key.entry_digest(entry),
            cache_key.code_digest(folder, level, ()),
            recorded,
        )
        assert case_key(item, entry, BASE, iter(["0a1b", "2c3d"]), HOST, "sha256:1") == evidence.key
    assert recorded_digests(CASE.cell)


def test_unknown_python_and_image_are_empty(folder: Path) -> None:
    entry = failure(folder=folder)
    evidence = Evidence(
        CASE.key,
        CASE.expectation.value,
        "",
        BASE.packages,
        host={"machine": "x86_64"},
        entry=cache_key.entry_digest(entry),
        code=cache_key.code_digest(folder, CASE.level, ()),
    )
    assert case_key(CASE, entry, replace(BASE, python=None), (), HOST) == evidence.key


def test_driver_changes_the_key_at_level_gpu_alone(folder: Path) -> None:
    entry, updated = failure(folder=folder), replace(HOST, machine=replace(HOST.machine, driver="550.54.14"))
    keys = {
        level: [case_key(replace(CASE, level=level), entry, BASE, (), site) for site in (HOST, updated)]
        for level in (Level.CPU, Level.GPU)
    }
    assert [len(set(pair)) for pair in keys.values()] == [1, 2]


def test_way_of_sharing_changes_the_key(folder: Path) -> None:
    """The NCCL that is loaded, whether it is preloaded, MPS; not what a note says."""
    own, wheel = SharedNccl("2.32.3"), SharedNccl("2.32.3", "nvidia-nccl-cu13==2.32.3")
    over = Placement(1, "nccl", nccl=own, each=2)
    ways = [WITHOUT_GPU, Placement(2, "nccl"), over, replace(over, note="through MPS")]
    ways += [Placement(1, each=2), replace(over, nccl=SharedNccl("2.30.7")), replace(over, nccl=wheel)]
    ways += [replace(over, mps=True)]
    keys = [case_key(CASE, failure(folder=folder), BASE, (), HOST, placement=way) for way in ways]
    assert (len(set(keys)), keys[0], keys[2]) == (6, keys[1], keys[3])


def test_key_is_the_same_in_later_versions() -> None:
    """Of the same evidence: otherwise all cached verdicts were lost."""
    assert EVIDENCE.key == "3110382e03b0da3ebc1811c9ddbb3821ade7dcd5a6f580802eb2b3584a76608e"


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("import matrix.kit.layer_norms", ["kit/layer_norms.py"]),
        ("import os, matrix.kit.layer_norms as mpi", ["kit/layer_norms.py"]),
        ("import matrix.kit", ["kit/__init__.py"]),
        ("from matrix.kit import layer_norms, gone", ["kit/__init__.py", "kit/layer_norms.py"]),
        ("from matrix.kit.layer_norms import run", ["kit/layer_norms.py"]),
        ("from . import layer_norms\nfrom .kit import layer_norms", []),  # hashed with the folder
        ("import matrix.gone\nimport matrixx.kit\nfrom torch import nn", []),
        ("if TYPE_CHECKING:\n    import matrix.prove.store\nimport matrix.kit", ["kit/__init__.py"]),
        ("if SOMETHING:\n    import matrix.kit", ["kit/__init__.py"]),
        ("if f(TYPE_CHECKING):\n    import matrix.kit", ["kit/__init__.py"]),
        (
            "def f():\n    try:\n        import matrix.kit\n    except E:\n        import matrix.prove.store",
            ["kit/__init__.py", "prove/store/__init__.py"],
        ),
        ("x = [1]\nimport matrix.kit", ["kit/__init__.py"]),
    ],
)
def test_imports_of_a_file(tmp_path: Path, text: str, files: list[str]) -> None:
    (tmp_path / "a.py").write_text(text)
    assert [str(path.relative_to(PACKAGE)) for path in cache_key.imports(tmp_path / "a.py")] == files


def test_file_that_is_no_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def")
    with pytest.raises(SyntaxError) as caught:
        cache_key.imports(tmp_path / "a.py")
    assert caught.value.filename == str(tmp_path / "a.py")


def test_digest_is_that_of_sorted_json(tmp_path: Path) -> None:
    """The same in every process and on every machine."""
    assert cache_key.digest({"b": 1, "a": ["x"]}) == hashlib.sha256(b'{"a": ["x"], "b": 1}').hexdigest()
    (tmp_path / "a").write_bytes(b"\x00x")
    assert cache_key.file_digest(tmp_path / "a") == hashlib.sha256(b"\x00x").hexdigest()


def test_entry_with_paths_has_a_digest() -> None:
    """Its folder, which differs between machines, does not count."""
    entry, elsewhere = (failure(folder=Path(name)) for name in ("a", "b"))
    assert cache_key.entry_digest(entry) == cache_key.entry_digest(elsewhere)
    assert cache_key.entry_digest(replace(entry, clones="no wheel")) != cache_key.entry_digest(entry)
    assert cache_key.entry_digest(replace(entry, contract=Path("x"))) != cache_key.entry_digest(entry)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [Level.CPU, Level.CONTRACT])
def test_code_of_a_failure_covers_its_files(folder: Path, level: Level) -> None:
    """Its own by name, those of this package by path; the entry and tests are left out."""
    (folder / "facts.toml").write_text("x = 1")
    for name in ("failure.toml", "test_it.py", "notes.txt"):
        (folder / name).write_text("")
    root = PACKAGE / ("ground/errors.py" if level is Level.CONTRACT else "kit/child.py")
    modules = closure([folder / "reproduction.py", root])
    used = {str(path.relative_to(PACKAGE)): path for path in modules if PACKAGE in path.parents}
    used |= {name: folder / name for name in ("reproduction.py", "sibling.py", "facts.toml")}
    assert cache_key.code_digest(folder, level, ()) == cache_key.digest(
        {name: cache_key.file_digest(path) for name, path in used.items()}
    )


def test_recorded_apis_are_hashed_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "folder", lambda: tmp_path)
    for package, content in ((recording.MCORE, b"core"), (recording.TE, b"te")):
        (tmp_path / package).mkdir()
        (tmp_path / package / f"1.0{recording.SUFFIX}").write_bytes(content)
    digests = [hashlib.sha256(content).hexdigest() for content in (b"core", b"te")]
    assert recorded_digests(CASE.cell.with_({MCORE: "1.0", TE: "1.0"})) == tuple(digests)
    assert recorded_digests(CASE.cell.with_({MCORE: "1.0", TE: "2.0"})) == (digests[0], "2.0")


def test_layout_of_parity_depends_on_the_kit() -> None:
    """Such an entry has no reproduction of its own: its cases run a function of the kit."""
    parity, own = failure(case=(replace(case(), run=PARITY),)), failure(case=(case(),))
    assert (cache_key.modules_of(own), cache_key.modules_of(parity)) == ((), ("matrix.kit.parity.campaign",))
    digests = {cache_key.code_digest(FAILURES, Level.CPU, cache_key.modules_of(one)) for one in (parity, own)}
    assert len(digests) == 2
