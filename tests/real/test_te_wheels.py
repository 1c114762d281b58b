"""A small extension is built as Transformer Engine's is: by pip, from an sdist, in an environment with a real torch.

The sdist has the name of Transformer Engine's torch extension, and a source of one file that uses torch's headers.
Requires the package index; no nvcc, no GPU: one file of C++ alone.

Releases themselves take half an hour of one core each, an nvcc, and an environment with a torch of its CUDA:

    export MEGATRIX_TE_BASE=~/.cache/megatrix/bases/torch-2.11.0-... MEGATRIX_TE_BUILDS="2.9.0 2.18.0"
    tox run -e nightly-checks -- slow -- -k release
"""

from __future__ import annotations

import io
import os
import re
import sys
import tarfile
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.provision import te_wheels
from matrix.prove.provision.overlays import Overlays, OverlaySpec, install_wheels
from matrix.prove.provision.te_wheels import ReleaseBuild
from matrix.read.commands import python_code, run
from matrix.read.machine import installed
from matrix.read.package_source import Source, SourceKind

BASE, RELEASES = os.environ.get("MEGATRIX_TE_BASE", ""), os.environ.get("MEGATRIX_TE_BUILDS", "").split()
NOT_ASKED = pytest.mark.skip("not run: MEGATRIX_TE_BASE and MEGATRIX_TE_BUILDS name no environment and releases")
TE = "2.18.99"  # not in the index, whose own source would be taken
SETUP = """
import urllib.error, urllib.request
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
from wheel.bdist_wheel import bdist_wheel
class BuiltHere(bdist_wheel):  # as that of Transformer Engine 2.8 and later
    def run(self):
        try:
            urllib.request.urlretrieve("http://127.0.0.1:9/transformer_engine_torch.whl")
        except urllib.error.URLError as error:
            assert "built here" in str(error)
            super().run()
name = "transformer_engine_torch"
setup(name=name, version="2.18.99", ext_modules=[CppExtension(name, ["a.cpp"])],
      cmdclass={"build_ext": BuildExtension, "bdist_wheel": BuiltHere})
"""
SOURCE = """
#include <ATen/core/TensorBody.h>
#include <pybind11/pybind11.h>
PYBIND11_MODULE(transformer_engine_torch, module) { module.attr("bytes") = sizeof(at::Tensor); }
"""


def sdist(folder: Path, source: str) -> None:
    """Write the sdist into a folder."""
    files = {
        "setup.py": SETUP,
        "a.cpp": source,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: transformer_engine_torch\nVersion: {TE}\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "setuptools.build_meta:__legacy__"\n',
    }
    folder.mkdir()
    with tarfile.open(folder / f"transformer_engine_torch-{TE}.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"transformer_engine_torch-{TE}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


def install(wanted: Sequence[str], folder: Path, excluded: Collection[str] | None = None) -> None:
    result = install_wheels(wanted, folder, run, excluded=excluded)
    assert not result.code, result.complaint


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with torch, numpy and nothing else."""
    folder = tmp_path_factory.mktemp("base") / "venv"
    assert not run([sys.executable, "-m", "venv", "--without-pip", str(folder)]).code
    target = next(folder.glob("lib/python*")) / "site-packages"
    result = install_wheels(["torch==2.13.0", "numpy"], target, run, excluded=["triton"])
    assert not result.code, result.complaint
    return folder / "bin" / "python"


def build_of(python: Path) -> ReleaseBuild:
    torch = run(python_code(python, "import torch; print(torch.__version__)")).out.strip()
    return ReleaseBuild(TE, f"{sys.version_info[0]}.{sys.version_info[1]}", torch, "13.0", "13.0", "1")


def test_a_wheel_is_built_kept_and_imported(tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sdist(tmp_path / "links", SOURCE)
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)  # it would count in place of pip's
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    build = build_of(python)
    wheel = te_wheels.provide(build, python, run, install, tmp_path / "wheels")
    (tmp_path / "links" / f"transformer_engine_torch-{TE}.tar.gz").unlink()

    assert te_wheels.provide(build, python, run, install, tmp_path / "wheels") == wheel
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    install([str(wheel)], overlay)
    imported = f"import sys, torch; sys.path.insert(0, {str(overlay)!r}); import transformer_engine_torch as te"
    assert run(python_code(python, f"{imported}; print(te.bytes)")).out.strip() == "8"


def test_the_compilers_refusal_is_kept(tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sdist(tmp_path / "links", SOURCE.replace("sizeof", "size_of"))
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)  # it would count in place of pip's
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    build = build_of(python)
    for _ in range(2):
        with pytest.raises(MatrixError, match="size_of") as caught:
            te_wheels.provide(build, python, run, install, tmp_path / "wheels")
        monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert "refused.txt" in {path.name for path in (tmp_path / "wheels" / build.name).iterdir()}
    assert "to build it again" in str(caught.value)


USE = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import transformer_engine.pytorch as te
print("imported", te.__file__)
te.Linear(8, 8)
"""


@pytest.mark.parametrize("te", RELEASES or [pytest.param("", marks=NOT_ASKED)])
def test_a_release_works_up_to_the_driver(te: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of the driver is an empty stand-in; the wheel stays in the folder of wheels."""
    environment = installed.at(Path(BASE).absolute())
    assert environment
    assert environment.path
    build = te_wheels.release_build(te, environment, {"9.0"})
    base = {name: environment.packages[name] for name in ("torch", "numpy")}
    release = Source("transformer-engine", SourceKind.PYPI, revision=te)
    spec = OverlaySpec((release,), environment.minor, base, environment.path, build=build)
    overlay = Overlays(tmp_path, run).provide(spec)

    (tmp_path / "empty.c").touch()
    driver = tmp_path / "libcuda.so.1"
    assert not run(["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(driver), str(tmp_path / "empty.c")]).code
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    # Up to 2.11 it searches NVRTC here, and not in torch's wheels of CUDA 13; a toolkit of nvcc alone has none.
    wheels = [*environment.path.parents[1].glob("lib/python*/site-packages/nvidia/cu13")]
    monkeypatch.setenv("CUDA_HOME", str(wheels[0]) if wheels else os.environ.get("CUDA_HOME", ""))
    used = run(python_code(environment.path, USE, str(overlay.path)))
    assert "imported" in used.out, used.complaint
    assert re.search("driver|needs CUDA", used.err.splitlines()[-1]), used.complaint
