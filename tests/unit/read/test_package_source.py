from __future__ import annotations

import importlib.metadata
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.read import package_source
from matrix.read.package_source import LARGEST_CONTENT, Source, SourceKind, inspect, parse, unpack
from matrix.read.trees import package_files
from tests.unit.prove.provision.makers import commit, git, make_clone, make_tree, make_wheel


def mcore(text: str, folder: Path) -> Source:
    return parse(text, "megatron-core", folder=folder)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return make_clone(tmp_path / "Megatron-LM")


def test_a_version_means_pypi(tmp_path: Path) -> None:
    (tmp_path / "0.9.0").mkdir()

    assert mcore("0.9.0", tmp_path) == Source("megatron-core", SourceKind.PYPI, revision="0.9.0")
    assert mcore("./0.9.0", tmp_path).kind is SourceKind.TREE


def test_wheels_folders_and_revisions_are_distinguished(tmp_path: Path, clone: Path) -> None:
    wheel = make_wheel(tmp_path, "0.9.0")

    assert mcore(wheel.name, tmp_path) == Source("megatron-core", SourceKind.WHEEL, str(wheel))
    assert mcore("./Megatron-LM", tmp_path) == Source("megatron-core", SourceKind.TREE, str(clone))
    assert mcore("Megatron-LM@abc", tmp_path) == Source("megatron-core", SourceKind.GIT, str(clone), "abc")
    assert mcore(f"{clone}/@abc", Path("/")) == Source("megatron-core", SourceKind.GIT, str(clone), "abc")


def test_folder_names_and_revisions_may_contain_at(tmp_path: Path) -> None:
    (tmp_path / "me@work").mkdir()

    assert mcore("me@work", tmp_path).kind is SourceKind.TREE
    assert mcore("me@work@feature/x@2", tmp_path).revision == "feature/x@2"


@pytest.mark.parametrize("text", ["0.9.0", "./Megatron-LM", "./Megatron-LM@core_v0.9.0", "./Megatron-LM@feature/x@2"])
def test_the_text_of_a_source_is_parsed_back(tmp_path: Path, clone: Path, text: str) -> None:
    source = mcore(text, tmp_path)

    assert mcore(str(source), Path("/")) == source


@pytest.mark.parametrize("text", ["./Megatron-LN", "./Megatron-LN@main"])
def test_a_missing_path_suggests_a_similar_name(tmp_path: Path, clone: Path, text: str) -> None:
    with pytest.raises(MatrixError, match=r"no such source(.|\n)*did you mean Megatron-LM\?"):
        mcore(text, tmp_path)


def test_name_of_a_package_is_to_be_fetched(clone: Path) -> None:
    with pytest.raises(MatrixError, match="of a package name a wheel: python -m pip download --no-deps areal"):
        package_source.existing(clone.parent / "areal", "areal")


@pytest.mark.parametrize("text", ["", "0.9.x", "nope/nope.whl", "@main", "https://host/Megatron-LM"])
def test_other_texts_are_refused_with_the_forms(tmp_path: Path, text: str) -> None:
    with pytest.raises(MatrixError, match=r"a release \(0.9.0\), a wheel"):
        mcore(text, tmp_path)


def test_an_unknown_package_is_refused() -> None:
    with pytest.raises(MatrixError, match="did you mean megatron-core"):
        parse("0.9.0", "megatron-cor")


def test_a_release_is_not_checked() -> None:
    contents = inspect(Source("megatron-core", SourceKind.PYPI, revision="0.9.0"))

    assert (contents.identity, contents.version) == ("pypi megatron-core==0.9.0", "0.9.0")


def test_a_wheel_is_identified_by_its_bytes(tmp_path: Path) -> None:
    first = inspect(mcore(str(make_wheel(tmp_path, "0.9.0")), tmp_path))
    second = inspect(mcore(str(make_wheel(tmp_path, "0.9.0", requires=["torch"])), tmp_path))

    assert first.version == second.version == "0.9.0"
    assert first.identity != second.identity


def test_a_wheel_of_another_package_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "1.0", name="other")

    with pytest.raises(MatrixError, match=r"not of megatron-core\n  got:      other"):
        inspect(mcore(str(wheel), tmp_path))


def test_a_truncated_wheel_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "0.9.0")
    wheel.write_bytes(wheel.read_bytes()[:-100])

    with pytest.raises(MatrixError, match="the wheel can't be read"):
        inspect(mcore(str(wheel), tmp_path))


def encrypt(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for start, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        place = content.find(start)
        while place >= 0:
            content[place + flags] |= 1
            place = content.find(start, place + 4)
    path.write_bytes(content)


def compress_by_99(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for start, method in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        place = content.find(start)
        while place >= 0:
            content[place + method] = 99
            place = content.find(start, place + 4)
    path.write_bytes(content)


def damage(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a-1.dist-info/METADATA", "Name: megatron-core\n" * 500)
    content = path.read_bytes()
    path.write_bytes(content.replace(content[60:90], b"\xff" * 30))


def add_headers(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a-1.dist-info/METADATA", "Name: megatron-core\n" * 100_000)


def claim_much(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a-1.dist-info/METADATA", bytes(LARGEST_CONTENT + 1))


@pytest.mark.parametrize("make", [encrypt, compress_by_99, damage, add_headers, claim_much])
def test_hostile_wheel_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    wheel = make_wheel(tmp_path, "0.9.0")
    make(wheel)

    with pytest.raises(MatrixError, match=r"the wheel can't be read|is too large"):
        inspect(mcore(str(wheel), tmp_path))


def test_a_zip_without_metadata_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "0.9.0").rename(tmp_path / "x.whl")
    wheel.write_bytes(b"PK\x05\x06" + bytes(18))

    with pytest.raises(MatrixError, match="a file without package metadata"):
        inspect(mcore(str(wheel), tmp_path))


def test_a_revision_is_identified_by_commit_and_tree(clone: Path) -> None:
    contents = inspect(mcore(f"{clone}@core_v0.9.0", clone))

    head, tree = git(clone, "rev-parse", "main"), git(clone, "rev-parse", "main:megatron")
    assert contents.identity == f"git {head} {tree}"
    assert contents.version == f"0.9.0rc0+{head[:7]}"


def test_a_revision_may_be_any_name_of_git(clone: Path) -> None:
    git(clone, "-c", "user.name=A", "-c", "user.email=a@b", "tag", "-a", "annotated", "-m", "x")
    head = git(clone, "rev-parse", "main")

    identities = {inspect(mcore(f"{clone}@{name}", clone)).identity for name in ("main", "annotated", head[:9], "HEAD")}

    assert len(identities) == 1
    assert inspect(mcore(f"{clone}@feature/x@2", clone)).identity not in identities


def test_a_bare_clone_is_read(tmp_path: Path, clone: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(clone), "bare.git")

    assert inspect(mcore("bare.git@main", tmp_path)).identity == inspect(mcore(f"{clone}@main", clone)).identity
    with pytest.raises(MatrixError, match=r"this is no Megatron-LM(.|\n)*CLONE@HEAD"):
        inspect(mcore("bare.git", tmp_path))


def test_git_variables_of_the_environment_are_ignored(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A git hook runs with GIT_DIR set."""
    monkeypatch.setenv("GIT_DIR", "/nonexistent")

    assert inspect(mcore(f"{clone}@main", clone)).version.startswith("0.9.0rc0+")


def test_a_missing_revision_suggests_one(clone: Path) -> None:
    with pytest.raises(MatrixError, match=r"no such revision(.|\n)*got:      core_v0.9(.|\n)*did you mean core_v0.9.0"):
        inspect(mcore(f"{clone}@core_v0.9", clone))


@pytest.mark.parametrize("revision", ["", "--help", "-x"])
def test_an_option_is_not_taken_as_a_revision(clone: Path, revision: str) -> None:
    with pytest.raises(MatrixError, match="no such revision"):
        inspect(mcore(f"{clone}@{revision}", clone))


def test_a_folder_that_is_no_clone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"git cannot read this clone(.|\n)*not a git repository"):
        inspect(mcore(f"{make_tree(tmp_path / 'tree')}@main", tmp_path))


def test_a_revision_of_another_project_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "README").touch()
    commit(tmp_path, "Start")

    with pytest.raises(MatrixError, match=r"@HEAD: this is no Megatron-LM"):
        inspect(mcore(f"{tmp_path}@HEAD", tmp_path))


def test_a_working_tree_is_identified_by_its_files(clone: Path) -> None:
    before = inspect(mcore(str(clone), clone))

    (clone / "megatron/core/model.py").write_text("LAYERS = 4\n")
    after = inspect(mcore(str(clone), clone))
    (clone / "pretrain_gpt.py").write_text("# outside the package\n")

    assert before.identity != after.identity
    assert before.version != after.version
    assert after.version.startswith("0.9.0rc0+tree.")
    assert inspect(mcore(str(clone), clone)) == after


def test_a_revision_is_unpacked_as_committed(tmp_path: Path, clone: Path) -> None:
    (clone / "megatron/core/model.py").write_text("uncommitted")
    out = tmp_path / "out"
    out.mkdir()

    unpack(inspect(mcore(f"{clone}@feature/x@2", clone)), out)

    assert (out / "megatron/core/model.py").read_text() == "LAYERS = 3\n"
    assert sorted(path.name for path in out.iterdir() if path.suffix != ".dist-info") == ["megatron"]


def test_the_clone_is_unchanged(tmp_path: Path, clone: Path) -> None:
    (clone / "megatron/core/model.py").write_text("uncommitted")
    (clone / "staged").touch()
    git(clone, "add", "staged")
    git(clone, "status")
    before = {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()}

    unpack(inspect(mcore(f"{clone}@core_v0.9.0", clone)), tmp_path)

    assert {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()} == before


def test_a_working_tree_is_copied_with_its_changes(tmp_path: Path, clone: Path) -> None:
    (clone / "megatron/core/model.py").write_text("LAYERS = 4\n")
    (clone / "megatron/core/new.py").write_text("untracked = True\n")
    out = tmp_path / "out"
    out.mkdir()

    unpack(inspect(mcore(str(clone), clone)), out)

    names = [file.relative_to(out / "megatron").as_posix() for file in package_files(out / "megatron")]
    assert names == ["core/__init__.py", "core/model.py", "core/new.py", "core/package_info.py"]
    assert (out / "megatron/core/model.py").read_text() == "LAYERS = 4\n"


def test_a_working_tree_that_changes_meanwhile_is_refused(tmp_path: Path, clone: Path) -> None:
    contents = inspect(mcore(str(clone), clone))
    (clone / "megatron/core/model.py").write_text("LAYERS = 9\n")
    out = tmp_path / "out"
    out.mkdir()

    with pytest.raises(MatrixError, match="changed while it was copied"):
        unpack(contents, out)


def test_what_is_unpacked_counts_as_installed(tmp_path: Path, clone: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    contents = inspect(mcore(f"{clone}@main", clone))

    unpack(contents, out)

    (found,) = importlib.metadata.distributions(path=[str(out)])
    assert (found.metadata["Name"], found.version) == ("megatron-core", contents.version)
    assert "megatron/core/model.py" in map(str, found.files or ())


def test_an_export_that_fails_is_an_error(tmp_path: Path, clone: Path) -> None:
    gone = replace(inspect(mcore(f"{clone}@main", clone)), identity=f"git {'0' * 40} x")

    with pytest.raises(MatrixError, match="git cannot read this object"):
        unpack(gone, tmp_path)


@pytest.mark.parametrize("name", ["x.whl", "x"])
def test_a_pipe_is_no_source(tmp_path: Path, name: str) -> None:
    """Opened, it would block for ever."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(MatrixError, match=r"a (file|folder), pipe or device"):
        inspect(mcore(f"./{name}", tmp_path))


@pytest.mark.parametrize("kind", ["links", "sparse"])
def test_endless_tree_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Two links in each of 25 folders make 33 million paths; a sparse file has no blocks."""
    monkeypatch.setattr(package_source, "TREE_S", 0.2)
    package = tmp_path / "megatron"
    for number in range(26):
        (package / f"d{number}").mkdir(parents=True)
        for name in ("x", "y") if kind == "links" and number < 25 else ():
            (package / f"d{number}" / name).symlink_to(f"../d{number + 1}")
    if kind == "sparse":
        with (package / "data").open("wb") as file:
            file.truncate(2**39)

    with pytest.raises(MatrixError, match="takes too long to read"):
        inspect(parse(str(tmp_path), "megatron-core"))
