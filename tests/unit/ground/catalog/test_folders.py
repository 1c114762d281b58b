"""A failure is a folder: no other file names it, and its code imports only the kit."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.ground.catalog import folders
from matrix.ground.catalog.folders import ENTRY, FAILURES, SITE, entries, folder_name, load_module, roots
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.schema import read_toml
from matrix.ground.errors import MatrixError
from matrix.prove.authoring.examples import LOOK_ALIKES, SHOWS
from matrix.prove.provision.project import ROOT
from tests import founding
from tests.unit.catalogs import real

FOLDERS = [path.parent for path in entries()]
IDS = {folder_name(entry.id): entry.id for entry in real().failures}
# Files for readers, the ids that end-to-end tests need, and the findings of people's files.
READERS = ("docs/", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "reports/")
MAY_NAME = (
    *READERS,
    "tests/founding.py",
    "tests/unit/ask/check/inputs/expected.toml",
    "tests/threads/threads.toml",
    "tests/threads/public.toml",
    # Claims of certain entries, each a defect that was mended.
    "tests/unit/ground/catalog/test_case_requirements.py",
    "tests/unit/ask/check/test_calls.py",
    # A small catalog of real entries, whose night has each kind of cell.
    "tests/unit/show/test_counts.py",
)
# Packages that a cell has, or stand-ins for them.
INSIDE = {"matrix", "mpi4py", "megatron", "numpy", "torch", "transformer_engine", "transformer_engine_torch"}
INSIDE |= {
    pin.partition("==")[0].replace("-", "_")
    for entry in real().failures
    for one in entry.package
    for pin in (one.name, *one.requires)
}
INSIDE |= {pin.partition("==")[0] for entry in real().failures for case in entry.case for pin in case.packages}


def mentions(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield (path, line) for each line of the tracked text files that matches a POSIX pattern."""
    command = ["git", "grep", "-I", "--no-color", "-E", "-e", pattern]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for line in found.splitlines():
        path, _, text = line.partition(":")
        if not path.startswith(MAY_NAME) and not path.endswith("/README.md"):
            yield path, text


def test_unreported_failures_have_a_text_to_file() -> None:
    texts = {path.stem for path in (ROOT / "docs" / "upstream").glob("*.md")}
    assert {entry.id for entry in real().failures if entry.upstream} <= texts <= set(IDS.values())


def test_each_failure_has_a_topic() -> None:
    """A gate, of which nothing is known to break, has none."""
    failures = [entry for entry in real().failures if entry.affected and entry.folder.parent == FAILURES]
    assert [entry.id for entry in failures if not entry.topic] == []


def test_no_file_names_a_failure_of_another_folder() -> None:
    """Only `by` of `masked` may name another failure. Outside of the folders, their names count too.

    Examples contain the paths of their run, of files that had other names at the time.
    """
    names = "|".join(IDS)
    masked = {str(path.relative_to(ROOT)): read_toml(path).get("masked", []) for path in entries()}
    named = [
        (path, name, text)
        for path, text in mentions(rf"\<({names}|{names.replace('_', '-')})\>")
        for name in re.findall(rf"(?<![\w-])({names}|{names.replace('_', '-')})(?![\w-])", text)
        if not path.startswith(f"tests/failures/{folder_name(name)}/")
        and not (path.startswith("tests/failures/") and name in IDS)
        and not (text == f'by = "{name}"' and name in [one["by"] for one in masked.get(path, [])])
    ]
    assert [f"{path}: {name}: {text.strip()[:80]}" for path, name, text in named] == []


def test_the_founding_failures_are_in_the_catalog() -> None:
    named = {value for name, value in vars(founding).items() if name.isupper()}
    assert named <= set(IDS.values())


def imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, relative ones with their dots."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
            if node.module == "matrix":
                yield from (f"matrix.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def is_allowed(name: str) -> bool:
    first, _, rest = name.partition(".")
    if first == "matrix":
        return rest == "kit" or rest.startswith("kit.")
    return name.startswith(".") or first in INSIDE | sys.stdlib_module_names


CODE = [path for path in sorted(FAILURES.rglob("*.py")) if not path.name.startswith("test_")]


def test_a_folder_s_code_imports_only_the_kit() -> None:
    """Also allowed: the standard library, upstream's packages, and modules of the same folder."""
    assert [(str(path), name) for path in CODE for name in imports(path) if not is_allowed(name)] == []


def test_nothing_imports_the_failures() -> None:
    """The catalog loads a folder's modules by path."""
    own = [path for folder in ("matrix", "tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    found = [(str(path.relative_to(ROOT)), name) for path in own for name in imports(path)]
    assert [(path, name) for path, name in found if re.match(r"(tests|matrix)\.failures\b", name)] == []


def test_a_folder_has_only_code_tables_and_examples() -> None:
    """And a page for readers. No cache key includes other files. `catalog check` requires examples of both kinds."""
    for folder in FOLDERS:
        files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        examples = [folder / "examples" / kind for kind in (SHOWS, LOOK_ALIKES)]
        kept = [path for path in files if path.parent in examples and path.suffix == ".json"]
        beside = [
            path
            for path in files
            if path.parent == folder and (path.suffix in (".py", ".toml") or path.name == "README.md")
        ]
        assert sorted(files) == sorted(kept + beside)


def test_every_folder_of_the_failures_has_an_entry() -> None:
    found = [path for path in FAILURES.iterdir() if path.name not in ("__pycache__", ".pytest_cache")]
    assert sorted(found) == FOLDERS


def test_tests_of_two_folders_have_different_names() -> None:
    """pytest imports them by name."""
    names = Counter(path.name for path in FAILURES.rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


def test_modules_of_a_folder_import_each_other(tmp_path: Path) -> None:
    (tmp_path / "reproduction.py").write_text("from .law import FACTOR\n")
    (tmp_path / "law.py").write_text("FACTOR = 8\n")
    assert load_module(tmp_path, "reproduction").FACTOR == 8


def test_folders_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    """The second one is loaded afresh: a copy of the project has the same names."""
    for place, factor in (("one", 1), ("other", 2)):
        folder = tmp_path / place / "save_breaks"
        folder.mkdir(parents=True)
        (folder / "law.py").write_text(f"FACTOR = {factor}\n")
        assert factor == load_module(folder, "law").FACTOR


def test_a_missing_module_raises_import_error(tmp_path: Path) -> None:
    with pytest.raises(ImportError):
        load_module(tmp_path, "preflight")


def test_an_entry_is_the_file_of_a_folder() -> None:
    assert {path.name for path in entries()} == {ENTRY}


def test_a_site_adds_its_own_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog has them beside the project's; an id that the project has is refused."""
    copied = tmp_path / FOLDERS[0].name
    shutil.copytree(FOLDERS[0], copied, ignore=shutil.ignore_patterns("examples"))
    monkeypatch.setenv(SITE, str(tmp_path))
    with pytest.raises(MatrixError, match="an id is used twice"):
        load()
    entry = (copied / ENTRY).read_text()
    (copied / ENTRY).write_text(entry.replace(f'id = "{IDS[copied.name]}"', 'id = "own-failure"', 1))
    copied.rename(tmp_path / "own_failure")

    assert {one.id for one in load().failures} == {one.id for one in real().failures} | {"own-failure"}


def test_relative_folders_of_failures_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the variable in the current folder, of megatrix.toml in its own; the variable overrides the file."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "PACKAGE", tmp_path / "matrix")  # as in a checkout
    (tmp_path / "megatrix.toml").write_text('failures = ["b"]\n')

    assert roots({}) == (FAILURES, tmp_path / "b")
    assert roots({SITE: "a"}) == (FAILURES, tmp_path / "a")
    assert folders.with_site({})[SITE] == str(tmp_path / "b")
    assert (folders.new_root(None, {}), folders.new_root(Path("c"), {})) == (tmp_path / "b", tmp_path / "c")


def test_current_folder_chooses_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed `check` in a clone of anyone's repository would run the preflights that its megatrix.toml names."""
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "PACKAGE", FAILURES.parent)  # as installed
    (tmp_path / "megatrix.toml").write_text('failures = ["b"]\n')

    with pytest.raises(MatrixError, match=f"if you trust their code: export {SITE}={tmp_path / 'b'}"):
        roots({})
    assert roots({SITE: "b"}) == (FAILURES, tmp_path / "b")


def test_installed_package_holds_no_new_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next upgrade would delete it."""
    monkeypatch.chdir(tmp_path)
    assert folders.new_root(None, {}) == FAILURES
    monkeypatch.setattr(folders, "PACKAGE", FAILURES.parent)
    assert folders.new_root(None, {}) == tmp_path / "failures"


@pytest.mark.parametrize("named", ["relative", "/no/such/folder"])
def test_a_missing_folder_of_failures_is_refused(named: str) -> None:
    with pytest.raises(MatrixError, match="no such folder of failures"):
        roots({SITE: named})
