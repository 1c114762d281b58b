"""Builds of Transformer Engine's source trees, with a build in the base that is faked."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.provision import extension
from matrix.prove.provision.overlays import Overlays, OverlaySpec
from matrix.read.commands import CommandResult
from matrix.read.machine import installed
from matrix.read.package_source import parse
from tests import compiled
from tests.unit.prove.provision.makers import git

LIBRARY = "transformer_engine/transformer_engine_torch.so"


class InBase:
    """A build that packs the tree, or fails with these lines; it keeps what it saw."""

    def __init__(self, *errors: str) -> None:
        self.errors, self.seen = errors, list[set[str]]()

    def __call__(self, command: Sequence[str], folder: Path) -> CommandResult:
        self.seen.append({str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()})
        if self.errors:
            return CommandResult(1, "\n".join(self.errors))
        (folder / "dist").mkdir()
        with zipfile.ZipFile(folder / "dist" / "transformer_engine-2.7.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("transformer_engine/__init__.py", "")
            wheel.writestr(LIBRARY, "built")
            wheel.writestr("transformer_engine-2.7.0.dist-info/METADATA", "Name: transformer-engine\nVersion: 2.7.0\n")
        return CommandResult(0)


def spec(clone: Path, revision: str, toolkit: str = "13.0") -> OverlaySpec:
    source = parse(f"{clone}@{revision}", "transformer-engine")
    return OverlaySpec((source,), "3.10", {"torch": "2.4.0"}, toolkit=toolkit)


def test_overlay_has_the_extension_of_the_commit(tmp_path: Path) -> None:
    """It is built once, from what the build takes; another toolkit or torch makes another overlay."""
    clone, build = compiled.clone(tmp_path / "clone"), InBase()
    overlays = Overlays(tmp_path / "cache", in_base=build)
    made = overlays.provide(spec(clone, "more-docs"))
    again = overlays.provide(spec(clone, "more-docs"))
    others = spec(clone, "more-docs", "12.9"), replace(spec(clone, "more-docs"), base={"torch": "2.5.0"})

    assert (made.path / LIBRARY).read_text() == "built"
    assert again == made
    assert len({made.digest, *(overlays.provide(one).digest for one in others)}) == len(build.seen) == 3
    assert {path.partition("/")[0] for path in build.seen[0]} == {"setup.py", "build_tools", "transformer_engine"}
    assert made.packages["transformer-engine"].startswith("2.7.0+")
    assert list(overlays.root.glob("*.making")) == []


def test_failed_build_reports_the_compiler(tmp_path: Path) -> None:
    """Of the lines of a build those with an error, without the traceback of Python."""
    shown = ["kernel.cu(3): error: expected a ;", '1 error detected in the compilation of "kernel.cu".']
    build = InBase("[1/9] nvcc a.cu", *shown, "Traceback (most recent call last):", "RuntimeError: ninja failed")
    overlays = Overlays(tmp_path / "cache", in_base=build)
    with pytest.raises(MatrixError) as caught:
        overlays.provide(spec(compiled.clone(tmp_path / "clone"), "breaks"))

    assert caught.value.got == "\n".join(shown)
    assert [path for path in overlays.root.iterdir() if path.suffix != ".lock"] == []


def test_working_tree_is_built_from_the_same_files(tmp_path: Path) -> None:
    clone, build = compiled.clone(tmp_path / "clone"), InBase()
    subprocess.run(["git", "clone", "-q", str(clone), str(tmp_path / "tree")], check=True, capture_output=True)
    git(tmp_path / "tree", "checkout", "-q", "more-docs")
    overlays = Overlays(tmp_path / "cache", in_base=build)
    overlays.provide(spec(clone, "more-docs"))
    tree = parse(str(tmp_path / "tree"), "transformer-engine")
    overlays.provide(replace(spec(clone, "more-docs"), sources=(tree,)))

    assert build.seen[0] == build.seen[1]


def test_submodules_come_from_the_clone(tmp_path: Path) -> None:
    """From its own git folder; one that is missing there is named when the build fails."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(compiled.clone(tmp_path / "c.git")), str(clone)], check=True)
    git(clone, "checkout", "-q", "first")
    inner = clone / ".git" / "modules" / "3rdparty" / "cudnn-frontend"
    subprocess.run(["git", "clone", "-q", "--bare", str(tmp_path / "c.git"), str(inner)], check=True)
    head = subprocess.check_output(["git", "-C", str(inner), "rev-parse", "docs"], text=True).strip()
    for name in ("cudnn-frontend", "googletest"):
        git(clone, "update-index", "--add", "--cacheinfo", f"160000,{head},3rdparty/{name}")
    git(clone, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "submodules")
    build = InBase("a.h: No such file or directory")
    with pytest.raises(MatrixError, match="which the clone lacks: 3rdparty/googletest"):
        Overlays(tmp_path / "cache", in_base=build).provide(spec(clone, "HEAD"))

    assert "3rdparty/cudnn-frontend/docs/a.rst" in build.seen[0]


def test_base_without_nvcc_can_not_build() -> None:
    with pytest.raises(MatrixError, match="no CUDA compiler in this base") as caught:
        extension.toolkit(["cuda"], "torch-2.4.1")

    assert "leave --compile out" in str(caught.value)


def test_variables_of_a_build_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that select an architecture make another overlay; the number of jobs does not."""
    for name in installed.build_variables():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NVTE_CUDA_ARCHS", "90")
    monkeypatch.setenv("MAX_JOBS", "2")
    found = extension.toolkit(["nvcc"], "image", "sha256:1")

    assert found == "sha256:1 {'NVTE_CUDA_ARCHS': '90'}"
