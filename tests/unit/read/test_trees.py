from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from matrix.ground.catalog.versions import is_version
from matrix.ground.errors import MatrixError
from matrix.read.trees import LAYOUTS, declared, metadata, package_files, python_version, tree_hash
from tests.unit.prove.provision.makers import PACKAGE_INFO, make_tree

MCORE, TE = LAYOUTS["megatron-core"], LAYOUTS["transformer-engine"]


@given(
    st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
    st.sampled_from(["", "rc0", "a1", "b12", ".dev0", ".post1"]),
)
def test_the_stated_version_is_the_computed_one(numbers: tuple[int, int, int], end: str) -> None:
    text = PACKAGE_INFO.format(*numbers, end)
    computed: dict[str, str] = {}
    exec(text, computed)

    assert python_version(text) == computed["__version__"]
    assert Version(python_version(text)).release == numbers


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("__version__ = '1.2.3'\n", "1.2.3"),
        ("MAJOR = 0\nMINOR = 20\nPATCH = 0\n", "0.20.0"),
        ("MAJOR = 0\nMINOR = 20\n", ""),
        ("def broken(:\n", ""),
        ("", ""),
    ],
)
def test_other_ways_to_state_a_version(text: str, version: str) -> None:
    assert python_version(text) == version


def test_stating_a_version_runs_nothing() -> None:
    assert python_version("MAJOR, MINOR = 1, 2\nraise SystemExit('ran')\n") == ""


def test_the_version_of_te_has_two_places() -> None:
    assert declared(TE, "TE", {"VERSION": "1.5.0\n"}.get) == "1.5.0"
    assert declared(TE, "TE", {"build_tools/VERSION.txt": "1.8.0\n", "VERSION": "old"}.get) == "1.8.0"


def test_a_tree_of_another_project_is_refused() -> None:
    with pytest.raises(MatrixError, match=r"this is no TransformerEngine(.|\n)*no build_tools/VERSION.txt or VERSION"):
        declared(TE, "here", lambda path: None)


def test_a_file_that_states_no_version_is_refused() -> None:
    with pytest.raises(MatrixError, match=r"here: megatron/core/package_info.py: no version is stated"):
        declared(MCORE, "here", {"megatron/core/package_info.py": "MAJOR = None\n"}.get)


def test_requirements_come_from_pyproject() -> None:
    pyproject = '[project]\nrequires-python = ">=3.12"\ndependencies = ["torch>=2.6.0", "numpy<2"]\n'

    text = metadata("megatron-core", "0.20.0", "here", {"pyproject.toml": pyproject}.get)

    assert text.splitlines() == [
        "Metadata-Version: 2.1",
        "Name: megatron-core",
        "Version: 0.20.0",
        "Requires-Python: >=3.12",
        "Requires-Dist: torch>=2.6.0",
        "Requires-Dist: numpy<2",
    ]


@pytest.mark.parametrize("pyproject", [None, "", "[build-system]\n", '[project]\ndynamic = ["dependencies"]\n'])
def test_a_tree_that_states_no_requirements_has_none(pyproject: str | None) -> None:
    assert "Requires" not in metadata("megatron-core", "1", "here", lambda path: pyproject)


def test_a_broken_pyproject_is_named() -> None:
    with pytest.raises(MatrixError, match=r"here: pyproject.toml: the file is not TOML"):
        metadata("megatron-core", "1", "here", lambda path: "[project")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("project = 5", "project: not a table"),
        ("x = " + "[" * 5_000, "the file is not TOML"),
        ("[project]\ndependencies = 5", "dependencies: not a list"),
        ("[project]\nrequires-python = []", "requires-python: a value of the wrong type"),
    ],
)
def test_hostile_pyproject_is_named(text: str, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        metadata("megatron-core", "1", "here", lambda path: text)


@pytest.mark.parametrize(
    "text", ["x = " + "-" * 5_000 + "1", "x = 1\0", f"MAJOR = 0x{'f' * 5_000}\nMINOR = 1\nPATCH = 1"], ids=len
)
def test_hostile_package_info_has_no_version(text: str) -> None:
    assert python_version(text) == ""


def test_name_that_is_no_utf_8_is_hashed(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.py")).touch()
    assert tree_hash(tmp_path) != tree_hash(tmp_path / "none")


def test_a_hash_changes_with_content_and_with_names(tmp_path: Path) -> None:
    core = make_tree(tmp_path) / "megatron"
    before = tree_hash(core)

    (core / "core/model.py").write_text("LAYERS = 3\n")
    changed = tree_hash(core)
    (core / "core/model.py").rename(core / "core/other.py")
    renamed = tree_hash(core)

    assert len({before, changed, renamed}) == 3


def test_caches_and_dot_files_are_ignored(tmp_path: Path) -> None:
    core = make_tree(tmp_path) / "megatron"
    before = tree_hash(core)

    (core / "__pycache__").mkdir()
    (core / "__pycache__/model.pyc").write_text("compiled")
    (core / "core/.model.py.swp").write_text("an editor's")

    assert tree_hash(core) == before


@pytest.mark.parametrize(
    ("text", "is_one"), [("0.9.0", True), ("1.9.0.dev0+f9dd37f", True), ("main", False), ("", False)]
)
def test_versions_are_those_of_pep_440(text: str, is_one: bool) -> None:
    assert is_version(text) is is_one


@pytest.mark.parametrize("target", [".", "..", "../core", "link"])
def test_a_link_to_its_own_folder_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core/link").symlink_to(target)
    with pytest.raises(MatrixError, match=r"core/link: (a link to a folder that contains it|not a file of a package)"):
        tree_hash(tmp_path)


def test_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.py").symlink_to("gone.py")
    with pytest.raises(MatrixError, match=r"model.py: not a file of a package\n  got:      a link to gone.py"):
        tree_hash(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_never_ends_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "model.py")
    else:
        (tmp_path / "model.py").symlink_to("/dev/zero")
    with pytest.raises(MatrixError, match="not a file of a package"):
        tree_hash(tmp_path)


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/a.py").write_text("1")
    package = tmp_path / "package"
    (package / "core").mkdir(parents=True)
    (package / "core/a.py").symlink_to(tmp_path / "shared/a.py")
    for name in ("one", "two"):
        (package / name).symlink_to(tmp_path / "shared")
    names = [path.relative_to(package).as_posix() for path in package_files(package)]
    assert names == ["core/a.py", "one/a.py", "two/a.py"]


@pytest.mark.parametrize("text", ["x = a" + ".b" * 300_000, "x = " + "+".join("1" * 300_000), "x = a" + "()" * 300_000])
def test_long_chain_is_no_crash(text: str) -> None:
    """Python 3.10 overflows its stack where it converts such a tree: the process ended with SIGSEGV."""
    assert python_version(text) == ""
