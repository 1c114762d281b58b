"""Logs of pip, uv, CMake and nvcc: their kinds, and the same logs about packages of others.

The files are what pip 23.0 and 26.3, uv 0.5 and 0.13, CMake 3.25 and nvcc 13.0 printed, without frames of setuptools.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from matrix.ask.check.kind_answer import answer
from matrix.ground.catalog.kinds import kind_table
from matrix.ground.verdicts.log_match import Reading, match

FOLDER: Final = Path(__file__).parent / "install_logs"
# Packages of others in the place of those of the stack.
OTHERS: Final = (("transformer-engine", "image-engine"), ("transformer_engine", "image_engine"), ("megatron", "django"))


def read(log: str) -> Reading:
    return match([log], (), kind_table())


def answers(reading: Reading) -> str:
    facts = [answer(sighting, kind_table(), reading.versions).facts for sighting in reading.kinds]
    return "\n".join(fact for part in facts for fact in part)


CUDNN: Final = "dependency-missing"
CONFLICT: Final = "requirements-conflict"
LOGS: Final = [
    (
        "pip23_cmake.log",
        [CUDNN],
        28,
        ("the package that was built: transformer-engine", "the C++ compiler: GNU 12.2.0"),
    ),
    ("pip_cmake.log", [CUDNN], 20, ("what is missing: CUDNN", "pip's package has it in site-packages/nvidia/cudnn")),
    ("uv05_cmake.log", [CUDNN], 22, ("the package that was built: transformer-engine",)),
    ("uv_cmake.log", [CUDNN], 21, ("the package that was built: transformer-engine",)),
    ("pip23_conflict.log", [CONFLICT], 21, ("megatron-core 2.1 depends on packaging==23.2",)),
    ("pip_conflict.log", [CONFLICT], 17, ("transformer-engine-torch 2.1 depends on packaging==24.0",)),
    ("uv05_conflict.log", [CONFLICT], 1, ("megatron-core==2.1 depends on packaging==23.2",)),
    ("uv_conflict.log", [CONFLICT], 1, ("you require transformer-engine-torch and megatron-core",)),
    ("pip_broken.log", ["requirements-broken"], 9, ("requires packaging==24.0; installed: packaging 23.2",)),
    ("pip_python.log", ["python-unsupported", "no-wheel"], 1, ("0.17.1 Requires-Python >=3.12",)),
    ("pip_network.log", ["index-unreachable", "no-wheel"], 1, ("Connection refused",)),
    ("uv_network.log", ["index-unreachable"], 2, ("Failed to fetch",)),
]


@pytest.mark.parametrize(("name", "kinds", "line", "parts"), LOGS)
def test_first_error_and_package_are_named(name: str, kinds: list[str], line: int, parts: tuple[str, ...]) -> None:
    reading = read((FOLDER / name).read_text(encoding="utf-8"))
    assert list(dict.fromkeys(sighting.kind.id for sighting in reading.kinds)) == kinds
    assert reading.kinds[0].line == line
    assert not [fault for fault in reading.unknown if "CMake" in fault.what]
    assert [part for part in parts if part not in answers(reading)] == []


@pytest.mark.parametrize("name", [row[0] for row in LOGS])
def test_packages_of_others_show_no_kind(name: str) -> None:
    log = (FOLDER / name).read_text(encoding="utf-8")
    for package, other in OTHERS:
        log = log.replace(package, other)
    assert read(log).kinds == ()


BUILT: Final = "  ERROR: Failed building wheel for {}\n"


@pytest.mark.parametrize(
    ("error", "kind", "part"),
    [
        ("nvcc fatal   : Unsupported gpu architecture 'sm_60'", "unsupported-arch", "nvcc of CUDA 13"),
        ("nvcc fatal   : Value 'c++25' is not defined for option 'std'", "compiler-unfit", "does not know c++25"),
        ("g++: error: unrecognized command-line option \u2018-std=c++30\u2019", "compiler-unfit", "-std=c++30"),
        ("/x.h:132:2: error: #error -- unsupported GNU version! gcc versions later than 13 are not supported!",
         "compiler-unfit", "takes GCC up to 13"),
        ("RuntimeError: The current installed version of g++ (14.2.0) is greater than the maximum required version by "
         "CUDA 12.1. Please", "compiler-unfit", "g++ 14.2.0: greater than the maximum"),
        ("c.cu(2): error: identifier \"concept\" is undefined\n\nc.cu(3): error: identifier \"nosuch\" is undefined",
         "build-error", "in c.cu, line 2: identifier"),
        ("/usr/bin/ld: cannot find -lnccl: No such file or directory\ncollect2: error: ld returned 1 exit status",
         "link-library-missing", "the library: nccl"),
        ("CMake Error at CMakeLists.txt:1 (cmake_minimum_required):\n  CMake 3.30 or higher is required.  You are "
         "running version 3.25.1\n", "cmake-unfit", "needed: CMake 3.30 or later; found: 3.25.1"),
        ("CMake Error at CMakeLists.txt:3 (add_subdirectory):\n  The source directory\n\n    /src/3rdparty/cutlass\n\n"
         "  does not contain a CMakeLists.txt file.\n", "submodule-missing", "/src/3rdparty/cutlass"),
        ("CMake Error at /m/FindPackageHandleStandardArgs.cmake:230 (message):\n  Could NOT find MPI (missing: "
         "MPI_CXX_FOUND)\n", "dependency-missing", "NVTE_UB_WITH_MPI"),
        ("CMake Error at /m/CUDAFindToolkit.cmake:104 (message):\n  Failed to find nvcc.\n", "cuda-home-missing", ""),
        ("RuntimeError:\nThe detected CUDA version (11.8) mismatches the version that was used to compile\nPyTorch "
         "(12.1). Please make sure", "cuda-mismatch", "nvcc is of CUDA 11.8; PyTorch was built with CUDA 12.1"),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "compiler-killed", ""),
        ("hint: `flash-attn` depends on `torch`, but doesn't declare it as a build dependency.", "build-isolation",
         "the missing module: torch"),
    ],
)  # fmt: skip
def test_build_error_beside_its_package(error: str, kind: str, part: str) -> None:
    """Without a package of the stack, the same error is of any program."""
    reading = read(f"{error}\n{BUILT.format('flash-attn')}")
    assert [sighting.kind.id for sighting in reading.kinds] == [kind]
    assert "the package that was built: flash-attn" in answers(reading)
    assert part in answers(reading)
    other = read(f"{error.replace('flash-attn', 'scipy')}\n{BUILT.format('scipy')}")
    assert [sighting.kind.id for sighting in other.kinds] == [kind] * (kind == "cuda-mismatch")  # PyTorch's own words


@pytest.mark.parametrize(
    ("log", "kind", "built"),
    [
        ("> Failed to build flash-attn\n>\n> The detected CUDA version (12.9) mismatches the version that was used to "
         "compile\n> PyTorch (11.8). Please\n", "cuda-mismatch", "flash-attn"),
        ("nvlink error   : Undefined reference to 'nvshmem_x' in '/src/DeepEP/build/temp.linux/a.o'\n",
         "link-library-missing", "DeepEP"),
        ("building 'amp_C' extension\nerror: command '/usr/bin/gcc' failed: No such file or directory\n",
         "build-error", "amp_C"),
        ("/tmp/pip-install-x1/flash-attn_0288baf0920f489196e54af9bf29d5b7/a.cu(3): error: expected a ;\n",
         "build-error", "flash-attn"),
        ("x.cu(3): error: expected a ;\nERROR: Could not build wheels for apex, which is required\n",
         "build-error", "apex"),
    ],
)  # fmt: skip
def test_package_is_known_in_each_form(log: str, kind: str, built: str) -> None:
    """Forms of public reports: flash-attention#1759, DeepEP#55, VGen#29."""
    reading = read(log)
    assert [(sighting.kind.id, sighting.groups.get("built")) for sighting in reading.kinds] == [(kind, built)]


@pytest.mark.parametrize(
    ("log", "kind", "part"),
    [
        ("OSError: [Errno 28] No space left on device: '/ckpt/a.distcp'", "disk-full", "the file: /ckpt/a.distcp"),
        ("fatal: unable to access 'https://x/TransformerEngine/': Could not resolve host: x\nerror: clone failed",
         "index-unreachable",
         "Could not resolve host"),
    ],
)  # fmt: skip
def test_full_disk_and_missing_network_are_named(log: str, kind: str, part: str) -> None:
    reading = read(f"Cloning into 'TransformerEngine'...\n{log}\n")
    assert [sighting.kind.id for sighting in reading.kinds] == [kind]
    assert part in answers(reading)
    assert read(log.replace("TransformerEngine", "x")).kinds == ()


def test_broken_requirement_gives_way_to_an_error() -> None:
    """pip prints it when a container starts; the job then fails for another reason."""
    broken = (FOLDER / "pip_broken.log").read_text(encoding="utf-8")
    assert [kind.kind.id for kind in read(f"{broken}ImportError: No module named apex\n").kinds] == ["module-missing"]


def test_versions_of_the_log_are_in_the_answer() -> None:
    log = "Collecting torch==2.4.0\n-I/usr/local/cuda-12.4/include x.cu\nx.cu(3): error: expected a ;\n"
    found = answers(read(f"{log}{BUILT.format('transformer-engine')}"))
    assert "versions in the log: torch 2.4.0" in found
    assert "nvcc is of CUDA 12.4" in found
