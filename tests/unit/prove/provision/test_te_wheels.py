"""Wheels of Transformer Engine's torch extension: their names, and what is kept of builds, with a pip that is faked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog import distributions
from matrix.ground.catalog.machine import COMPILED, Compiled, PythonEnvironment
from matrix.ground.errors import MatrixError
from matrix.prove.provision import te_wheels
from matrix.prove.provision.overlays import Overlays, OverlaySpec
from matrix.prove.provision.project import script
from matrix.prove.provision.te_wheels import ReleaseBuild
from matrix.read.commands import CommandResult, run
from matrix.read.machine import installed
from matrix.read.machine.installed import NVCC, PASSED
from matrix.read.package_source import parse
from tests import compiled
from tests.unit.prove.provision.makers import git

BUILD = ReleaseBuild("2.18.0", "3.12", "2.11.0+cu130", "13.0", "13.0", "12.2.0")
PYTHON = Path("/base/bin/python")
REFUSED = "csrc/a.cpp:3:1: error: expected ;\nninja: build stopped"


class Pip:
    """A pip that writes a wheel, or fails with this output; it keeps commands and variables."""

    def __init__(self, output: str = "") -> None:
        self.output, self.commands, self.environment = output, list[Sequence[str]](), dict[str, str]()
        self.refused = ""  # the error of a download during the build

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        self.commands.append(command)
        self.environment = dict(environment or {})
        if self.output:
            return CommandResult(1, self.output)
        download = "import urllib.request; urllib.request.urlretrieve('http://127.0.0.1:9/te.whl', 'te.whl')"
        self.refused = run([sys.executable, "-c", download], environment=self.environment).err
        folder = Path(command[command.index("--wheel-dir") + 1])
        (folder / "transformer_engine_torch-2.18.0-cp312-cp312-linux_x86_64.whl").write_text("built")
        return CommandResult(0)


def install(wanted: Sequence[str], folder: Path, excluded: Collection[str] | None = None) -> None:
    (folder / "bin").mkdir()


def test_a_wheel_is_built_once(tmp_path: Path) -> None:
    pip = Pip()
    first = te_wheels.provide(BUILD, PYTHON, pip, install, tmp_path)
    second = te_wheels.provide(BUILD, PYTHON, pip, install, tmp_path)

    assert first == second
    assert first.parent == tmp_path / BUILD.name
    assert len(pip.commands) == 1
    assert "transformer-engine-torch==2.18.0" in pip.commands[0]
    assert "NVTE_PYTORCH_FORCE_BUILD" not in pip.environment  # 2.8 and 2.9 build twice with it, and fail
    assert "URLError: <urlopen error not downloaded, since it is built here: http://127.0.0.1:9/te.whl>" in pip.refused
    assert "--no-cache-dir" in pip.commands[0]


def test_a_given_wheel_is_used(tmp_path: Path) -> None:
    given = tmp_path / BUILD.name / "transformer_engine_torch-2.18.0-cp312-cp312-linux_x86_64.whl"
    given.parent.mkdir()
    given.write_text("of a colleague")

    assert te_wheels.provide(BUILD, PYTHON, Pip("error"), install, tmp_path) == given


@pytest.mark.parametrize(
    "other",
    [
        replace(BUILD, te="2.19.0"),
        replace(BUILD, torch="2.11.0+cu128"),
        replace(BUILD, cuda="12.8"),
        replace(BUILD, nvcc="13.1"),
        replace(BUILD, compiler="13.1.0"),
        replace(BUILD, python="3.11"),
        replace(BUILD, archs="90"),
        replace(BUILD, variables=("NVTE_UB_WITH_MPI=1",)),
    ],
)
def test_all_that_a_wheel_depends_on_counts(other: ReleaseBuild) -> None:
    assert other.name != BUILD.name
    assert re.fullmatch(r"[\w.+-]+", other.name)


def test_refused_sources_are_tried_once(tmp_path: Path) -> None:
    """Merged, then each by itself; a second case does not repeat either."""
    pip = Pip(REFUSED)
    for _ in range(2):
        with pytest.raises(MatrixError, match="does not build with torch") as caught:
            te_wheels.provide(BUILD, PYTHON, pip, install, tmp_path)

        assert caught.value.got == REFUSED.partition("\n")[0]
        assert f"rm -r {tmp_path / BUILD.name}" in str(caught.value)
    assert len(pip.commands) == 2


def test_sources_that_refuse_merging_are_compiled(tmp_path: Path) -> None:
    scripts: list[str] = []

    def pip(command: Sequence[str], *, environment: Mapping[str, str] | None = None, **_: object) -> CommandResult:
        assert environment
        scripts.append(Path(environment["PYTHONPATH"], "sitecustomize.py").read_text())
        return Pip("" if len(scripts) > 1 else REFUSED)(command, environment=environment)

    assert te_wheels.provide(BUILD, PYTHON, pip, install, tmp_path).read_text() == "built"
    assert ["Extension.__init__" in text for text in scripts] == [True, False]


@pytest.mark.parametrize(
    ("jobs", "merged"),
    [
        ("1", [["a.cpp", "b.cpp", "host.cu", "c.cpp"]]),
        ("2", [["a.cpp", "host.cu"], ["b.cpp", "c.cpp"]]),
        ("9", [["a.cpp"], ["b.cpp"], ["host.cu"], ["c.cpp"]]),
    ],
)
def test_compilers_read_merged_sources(jobs: str, merged: list[list[str]], tmp_path: Path) -> None:
    """Those for nvcc and in C stay as they are; each job has a source."""
    (tmp_path / "sitecustomize.py").write_text(script("merged_sources"))
    (tmp_path / "device.cu").write_text("__global__ void kernel() {}")
    (tmp_path / "launch.cu").write_text('#include "apply.cuh"')
    (tmp_path / "host.cu").write_text("")
    names = ["a.cpp", "device.cu", "b.cpp", "launch.cu", "host.cu", "c.cpp", "d.cc"]
    asked = f"import setuptools; print(*setuptools.Extension('te', sources={names}).sources, sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "MAX_JOBS": jobs}
    answer = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, env=environment, capture_output=True, check=True
    )
    sources = answer.stdout.decode().split()
    assert sources[:3] == ["device.cu", "launch.cu", "d.cc"]
    lines = [Path(source).read_text().splitlines() for source in sources[3:]]
    assert [line[0] for line in lines] == ["#include <cuda_runtime.h>"] * len(merged)
    assert [line[1:] for line in lines] == [[f'#include "{tmp_path / name}"' for name in names] for names in merged]


def test_interrupted_build_is_tried_again(tmp_path: Path) -> None:
    pip = Pip("g++: fatal error: Killed signal terminated program cc1plus")
    for _ in range(2):
        with pytest.raises(MatrixError):
            te_wheels.provide(BUILD, PYTHON, pip, install, tmp_path)
    assert len(pip.commands) == 2
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


@pytest.mark.parametrize(
    ("output", "final"),
    [
        (REFUSED, True),
        ("a.cpp:1:10: fatal error: cudnn.h: No such file or directory", True),
        ("kernel.cu(3): error: expected a ;", True),
        ("c++: fatal error: Killed signal terminated program cc1plus\na.cpp:1:1: error: x", False),
        ("a.cpp:9:9: fatal error: error writing to /tmp/a.s: No space left on device", False),
        ("ERROR: Could not find a version that satisfies the requirement", False),
        ("", False),
    ],
)
def test_only_the_compilers_refusal_is_final(output: str, final: bool) -> None:
    assert te_wheels.is_final(output) is final


def test_pips_own_lines_hide_no_reason() -> None:
    noise = "error: metadata-generation-failed\nerror: subprocess-exited-with-error\n" * 3
    output = f"  File a, line 1\n    ModuleNotFoundError: No module named 'wheel'\n{noise}"
    assert te_wheels.reason_of(CommandResult(1, output)) == "ModuleNotFoundError: No module named 'wheel'"
    assert te_wheels.reason_of(CommandResult(1, "error: of a kind\n")) == "error: of a kind"


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(te_wheels.VARIABLE, str(tmp_path / "kept"))
    for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(te_wheels, "nvcc_version", lambda: "13.0")
    monkeypatch.setattr(te_wheels, "compiler_version", lambda: "12.2.0")
    monkeypatch.setattr(te_wheels, "build_variables", lambda: {"MAX_JOBS": "2", "CUDA_HOME": "/cuda"})


def environment(**changes: object) -> PythonEnvironment:
    packages = {"torch": "2.11.0+cu130"}
    return replace(
        PythonEnvironment("3.12.1", packages, ["cuda", NVCC], PYTHON, torch_cuda="13.0"),
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.usefixtures("toolkit")
def test_build_of_an_environment() -> None:
    """The number of jobs and the place of the toolkit change no wheel."""
    assert te_wheels.release_build("2.18.0", environment(), {"9.0"}) == BUILD


@pytest.mark.usefixtures("toolkit")
@pytest.mark.parametrize(
    ("variable", "te", "counts"),
    [
        ("NVTE_FRAMEWORK=pytorch", "2.18.0", False),
        ("NVTE_FRAMEWORK=jax", "2.18.0", True),
        ("NVTE_BUILD_MAX_JOBS=4", "2.18.0", False),
        ("NVTE_BUILD_THREADS_PER_JOB=4", "2.18.0", False),
        ("NVTE_FLASH_ATTN=0", "2.18.0", False),
        ("TORCH_CUDA_ARCH_LIST=9.0", "2.18.0", False),
        ("NVTE_CUDA_ARCHS=90", "2.18.0", False),
        ("NVTE_CUDA_ARCHS=80", "2.3.0", True),
        ("NVTE_UB_WITH_MPI=1", "2.18.0", True),
        ("NVTE_WITH_NCCL_EP=1", "2.18.0", True),
        ("NVTE_BUILD_DEBUG=1", "2.18.0", True),
        ("CUDNN_PATH=/a", "2.18.0", True),
    ],
)
def test_variables_that_change_a_build_count(
    monkeypatch: pytest.MonkeyPatch, variable: str, te: str, counts: bool
) -> None:
    """Those of the number of jobs, and those that Transformer Engine reads when it runs, change no wheel."""
    here = environment(packages={"torch": "2.4.0"}, torch_cuda="13.0")
    monkeypatch.setattr(distributions, "build_lack", lambda *_: "")
    plain = te_wheels.release_build(te, here, {"9.0"})
    monkeypatch.setattr(te_wheels, "build_variables", lambda: dict([variable.split("=")]))
    assert (te_wheels.release_build(te, here, {"9.0"}).name != plain.name) is counts


@pytest.mark.usefixtures("toolkit")
def test_flags_of_the_compiler_make_another_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXXFLAGS", "-O0")
    build = te_wheels.release_build("2.18.0", environment(), ())
    assert build == replace(BUILD, variables=("CXXFLAGS=-O0",))
    assert build.name != BUILD.name


@pytest.mark.usefixtures("toolkit")
@pytest.mark.parametrize(
    ("te", "changes", "reason"),
    [
        ("1.9.0", {}, "torch.onnx._type_utils"),
        ("2.8.0", {}, "no library of it for CUDA 13"),
        ("2.18.0", {"path": None}, "an environment of another machine"),
        ("2.18.0", {"torch_cuda": "none"}, "built without CUDA"),
    ],
)
def test_what_can_not_be_built_is_an_error(te: str, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(MatrixError) as caught:
        te_wheels.release_build(te, environment(**changes), ())
    assert reason in str(caught.value)


CUDA_12 = {"packages": {"torch": "2.4.0"}, "torch_cuda": "12.1"}  # of PyPI's torch


@pytest.mark.usefixtures("toolkit")
def test_bundle_compiles_what_its_machine_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has no nvcc, another C++ compiler, and the torch of torch's own index; nothing is built again."""
    monkeypatch.setattr(te_wheels, "nvcc_version", lambda: "12.4")
    monkeypatch.setenv("CXXFLAGS", "-O1")
    here, lines, pip = environment(**CUDA_12), list[str](), Pip()
    found = te_wheels.compilation(("1.9.0", "1.10.0", "2.18.0"), here, ("3.12", "2.4.0", "9.0"), 2)
    assert ([*found.builds], *found.lacks) == (["1.9.0", "1.10.0"], "2.18.0")
    expected = found.size
    for _ in range(2):
        found.into(tmp_path / "bundle" / "compiled", pip, install, lines.append)
    assert (len(pip.commands), pip.environment["NVTE_CUDA_ARCHS"]) == (2, "90")
    assert (expected, found.size) == (2 * 2 * 2**20, 2 * len("built"))  # as measured, then as they are
    assert found.lines[:2] == [
        "Transformer Engine compiled here: none",
        "Transformer Engine built before: 1.9.0, 1.10.0",
    ]
    assert lines[0].startswith("compiles Transformer Engine 1.9.0: te-1.9.0-torch-2.4.0-cuda-12.1-nvcc-12.4-")

    monkeypatch.setattr(te_wheels, "nvcc_version", lambda: "none")
    monkeypatch.setenv(COMPILED, str(tmp_path / "bundle" / "compiled"))
    there = environment(**CUDA_12 | {"packages": {"torch": "2.4.0+cu121"}})
    build = te_wheels.release_build("1.9.0", there, ["9.0"])
    assert build.name == lines[0].rpartition(" ")[2]
    assert te_wheels.provide(build, PYTHON, Pip("error"), install) == Path(build.wheel)
    assert installed.compiled() == {
        Compiled(te, "2.4.0", "12.1"): wheel
        for te in ("1.9.0", "1.10.0")
        for wheel in (tmp_path / "bundle" / "compiled").glob(f"te-{te}-*/*.whl")
    }
    with pytest.raises(MatrixError, match="no nvcc builds it here"):
        te_wheels.release_build("1.9.0", environment(**CUDA_12 | {"torch_cuda": "12.4"}), ["9.0"])


@pytest.mark.usefixtures("toolkit")
def test_reason_is_stated_once_for_all_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    releases = ("2.8.0", "2.9.0", "2.18.0")
    able = te_wheels.compilation(releases, environment(), ("3.12", "2.11.0", "9.0"), 2)
    assert able.lines[0] == (
        "Transformer Engine compiled here: 2.9.0, 2.18.0; about 3 minutes, 210 MB of disk during a build"
    )
    monkeypatch.setattr(te_wheels, "nvcc_version", lambda: "none")
    assert te_wheels.compilation(releases, environment(), ("3.12", "", "9.0"), 15).lines == [
        "Transformer Engine compiled here: none",
        "not compiled: Transformer Engine 2.8.0: the package index has no library of it for CUDA 13, "
        "that of this torch",
        "not compiled: Transformer Engine 2.9.0, 2.18.0: no nvcc builds it here; "
        "fix: install CUDA's toolkit 13 and set CUDA_HOME",
    ]


@pytest.mark.parametrize(
    ("changes", "machine", "what"),
    [
        ({}, ("3.11", "", "9.0"), "Python 3.12, torch 2.11.0+cu130"),
        ({}, ("3.12", "2.4.0", "9.0"), "torch 2.11.0+cu130"),
        ({"torch_cuda": "none"}, ("3.12", "", "9.0"), "expected: Python 3.12, torch of the host with CUDA"),
        ({"python": None, "packages": {}}, ("3.12", "2.4.0", "9.0"), "pip install torch==2.4.0 numpy"),
        ({}, ("3.12", "", ""), "--sm 90"),
    ],
)
def test_other_environments_compile_nothing(
    changes: dict[str, object], machine: tuple[str, str, str], what: str
) -> None:
    with pytest.raises(MatrixError) as caught:
        te_wheels.compilation(("2.18.0",), environment(**changes), machine, 2)
    assert what in str(caught.value)


def test_variables_of_the_site_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSED, '{"MAX_JOBS": "3", "CUDA_HOME": "/site/cuda"}')
    for name in ("MAX_JOBS", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    pip = Pip()
    te_wheels.provide(replace(BUILD, archs="90"), PYTHON, pip, install, tmp_path)

    assert pip.environment["MAX_JOBS"] == "3"
    assert pip.environment["CUDA_HOME"] == "/site/cuda"
    assert pip.environment["PATH"].endswith("/site/cuda/bin")
    assert pip.environment["NVTE_CUDA_ARCHS"] == "90"


def test_extension_is_compiled_for_its_gpus_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.9 and 1.10 name three compute capabilities in their setup.py, and read no variable."""
    nvcc, printed = tmp_path / "cuda" / "bin" / "nvcc", list[str]()
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(nvcc.parents[1]))
    words = ["-c", "a b.cu", "-gencode", "arch=compute_70,code=sm_70", "-gencode", "arch=compute_90,code=sm_90", "-O3"]

    def pip(command: Sequence[str], *, environment: Mapping[str, str] | None = None, **_: object) -> CommandResult:
        printed[:] = run([(environment or {})["PYTORCH_NVCC"], *words]).out.splitlines()
        return CommandResult(1, REFUSED)

    with pytest.raises(MatrixError):
        te_wheels.provide(replace(BUILD, archs="90;100"), PYTHON, pip, install, tmp_path)
    archs = ["-gencode", "arch=compute_90,code=sm_90", "-gencode", "arch=compute_100,code=sm_100"]
    assert printed == ["-c", "a b.cu", "-O3", *archs]


def test_script_of_nvcc_is_no_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder has no headers: the default toolkit has."""
    for folder in ("bin", "cuda/bin"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "nvcc").write_text("#!/bin/sh\n")
        (tmp_path / folder / "nvcc").chmod(0o755)
    (tmp_path / "cuda/include").mkdir()
    (tmp_path / "cuda/include/cuda.h").write_text("")
    monkeypatch.setattr(te_wheels, "CUDA", str(tmp_path / "cuda"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    pip = Pip()
    te_wheels.provide(BUILD, PYTHON, pip, install, tmp_path)
    assert pip.environment["CUDA_HOME"] == str(tmp_path / "cuda")


def test_wheels_are_kept_where_the_site_says(tmp_path: Path) -> None:
    assert te_wheels.wheels({te_wheels.VARIABLE: str(tmp_path)}) == tmp_path
    assert te_wheels.wheels({}).name == "wheels"


@pytest.mark.parametrize(
    ("text", "memory"), [("MemTotal:  9 kB\nMemAvailable:    4 kB\n", 4096), ("MemTotal: 9 kB\n", None)]
)
def test_available_memory_is_read(tmp_path: Path, text: str, memory: int | None) -> None:
    (tmp_path / "meminfo").write_text(text)
    assert te_wheels.machine_memory(tmp_path / "meminfo") == memory
    assert te_wheels.machine_memory(tmp_path / "none") is None


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
        te_wheels.toolkit(["cuda"], "torch-2.4.1")

    assert "leave --compile out" in str(caught.value)


def test_variables_of_a_build_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that select an architecture make another overlay; the number of jobs does not."""
    for name in installed.build_variables():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NVTE_CUDA_ARCHS", "90")
    monkeypatch.setenv("MAX_JOBS", "2")
    found = te_wheels.toolkit(["nvcc"], "image", "sha256:1")

    assert found == "sha256:1 {'NVTE_CUDA_ARCHS': '90'}"
