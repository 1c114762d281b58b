"""What is found in small environments; those of real wheels are in tests/real/test_loading.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.prove.provision.project import ROOT
from matrix.read.elf.load_check import LoadFinding, LoadReport, load_report
from tests.unit.read.elf.environments import SmallEnvironment, by_package
from tests.unit.read.elf.objects import library, module, needs_compiler, package, shared

pytestmark = needs_compiler
AUDITED = """
import sys
sys.path.insert(0, sys.argv[1])
from matrix.ask.check import environment as of_check
from tests.unit.read.elf.environments import SmallEnvironment
from pathlib import Path
seen = []
def hook(event, arguments):
    if event in ("ctypes.dlopen", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "exec", "compile"):
        seen.append((event, str(arguments[0])[:200]))
    if event == "import" and arguments[0].partition(".")[0] in ("torch", "flash_attn_2_cuda", "numpy"):
        seen.append((event, arguments[0]))
environment = SmallEnvironment(Path(sys.argv[2]))
environment.findings()
sys.addaudithook(hook)
print(len(environment.findings()))
started = [item for item in seen if item[0] != "exec" and item[0] != "compile" or sys.argv[2] in item[1]]
print(started)
"""


@pytest.fixture
def environment(tmp_path: Path) -> SmallEnvironment:
    environment = SmallEnvironment(tmp_path / "packages")
    environment.torch()
    return environment


def test_healthy_environment_has_no_findings(environment: SmallEnvironment) -> None:
    environment.uses_torch("flash-attn", "flash_attn_2_cuda")
    module(environment.folder, "some", "_some")
    report = load_report(environment.site())
    assert (report.findings, report.extensions) == ((), 3)
    assert str(report) == "3 compiled modules of 3 packages read: each loads"


def test_extension_for_another_torch(environment: SmallEnvironment) -> None:
    environment.uses_torch("flash-attn", "flash_attn_2_cuda", "2.8.3", "_ZN3c105ErrorC2Ev")
    (finding,) = environment.findings()
    assert (finding.package, finding.version, finding.certain) == ("flash-attn", "2.8.3", True)
    assert "needs the symbol _ZN3c105ErrorC2Ev (c10::Error" in finding.what
    assert finding.consequence == "`import flash_attn_2_cuda` fails"
    assert finding.mend.endswith("--no-build-isolation --no-cache-dir 'flash-attn==2.8.3'")


def test_package_outside_the_stack_is_not_certain(environment: SmallEnvironment) -> None:
    environment.uses_torch("elsewhere", "_elsewhere", "1.0", "absent")
    (finding,) = environment.findings()
    assert (finding.package, finding.certain) == ("elsewhere", False)
    assert finding.mend == "python -m pip install --force-reinstall --no-cache-dir --no-deps 'elsewhere==1.0'"


def test_missing_libraries_are_one_finding(environment: SmallEnvironment) -> None:
    stubs = environment.folder.parent / "stubs"
    for name in ("libcudart.so.11", "libcufft.so.10"):
        library(stubs, name)
    shared(environment.folder / "apex_C.abi3.so", "void *PyInit_apex_C(void) { return 0; }", f"-L{stubs}",
           "-l:libcudart.so.11", "-l:libcufft.so.10")  # fmt: skip
    package(environment.folder, "apex-parts", "0.1", "apex_C.abi3.so")
    (finding,) = environment.findings()
    assert finding.what == "apex_C.abi3.so needs libcudart.so.11 and libcufft.so.10, which are not found"


def test_library_of_another_cuda_is_named(environment: SmallEnvironment) -> None:
    """torch has the runtime of CUDA 12: the extension has to be compiled again, no further runtime mends it."""
    runtime = environment.nvidia("cuda_runtime", "libcudart.so.12", "12.1.105")
    environment.torch("12.1", f"-L{runtime.parent}", "-l:libcudart.so.12",
                      "-Wl,-rpath,$ORIGIN/../../nvidia/cuda_runtime/lib")  # fmt: skip
    stubs = environment.folder.parent / "stubs"
    library(stubs, "libcudart.so.11.0")
    path = environment.uses_torch("causal-conv1d", "causal_conv1d_cuda", "1.4")
    code = "void *PyInit_causal_conv1d_cuda(void) { return 0; }"
    lib = environment.folder / "torch/lib"
    shared(path, code, f"-L{stubs}", "-l:libcudart.so.11.0", f"-L{lib}", "-l:libtorch_cpu.so")
    (finding,) = environment.findings()
    assert finding.what.endswith("needs libcudart.so.11.0, which is not found; the process has libcudart.so.12")
    assert finding.mend.endswith("'causal-conv1d==1.4'")


def test_two_majors_of_cuda_in_one_process(environment: SmallEnvironment) -> None:
    environment.nvidia("cuda_runtime", "libcudart.so.12", "12.1.105")
    other = library(environment.folder / "nvidia/cu13/lib", "libcudart.so.13")
    options = (f"-L{other.parent}", "-l:libcudart.so.13", "-Wl,-rpath,$ORIGIN/nvidia/cu13/lib")
    module(environment.folder, "deep-ep", "deep_ep_cpp", "", *options)
    (finding,) = environment.findings()
    assert finding.what == "deep_ep_cpp.abi3.so needs libcudart.so.13; torch is built for CUDA 12.1"


def test_cudnn_older_than_that_of_the_build(environment: SmallEnvironment) -> None:
    cudnn = environment.nvidia("cudnn", "libcudnn.so.9", "9.0.0.312")
    options = (f"-L{cudnn.parent}", "-l:libcudnn.so.9", "-Wl,-rpath,$ORIGIN/../../nvidia/cudnn/lib")
    environment.torch("12.1", *options)
    (finding,) = environment.findings()
    assert finding.package == "nvidia-cudnn-cu12"
    assert finding.what.startswith("libcudnn.so.9 is 9.0.0.312; torch 2.4.0 was built with 9.1.0.70")
    assert finding.mend == "python -m pip install --no-deps 'nvidia-cudnn-cu12==9.1.0.70'"
    shutil.rmtree(environment.folder / "nvidia_cudnn_cu12-9.0.0.312.dist-info")
    environment.nvidia("cudnn", "libcudnn.so.9", "9.2.0.82")
    assert environment.findings() == ()


def test_two_copies_of_a_library(environment: SmallEnvironment) -> None:
    """torch's library finds a cuDNN by LD_LIBRARY_PATH; Transformer Engine opens that of the wheel by its path."""
    environment.nvidia("cudnn", "libcudnn.so.9", "9.1.0.70")
    other = library(environment.folder.parent / "system", "libcudnn.so.9")
    environment.torch("12.1", f"-L{other.parent}", "-l:libcudnn.so.9")
    environment.variables["LD_LIBRARY_PATH"] = str(other.parent)
    for name in ("nvrtc", "curand"):
        environment.nvidia(name if name == "curand" else "cuda_nvrtc", f"lib{name}.so.12", "12.1")
    core = library(environment.folder / "transformer_engine", "libtransformer_engine.so")
    package(environment.folder, "transformer-engine", "2.9.0", str(core.relative_to(environment.folder)))
    environment.uses_torch("transformer-engine-torch", "transformer_engine_torch", "2.9.0")
    findings = {finding.what.partition(":")[0]: finding for finding in environment.findings()}
    assert list(findings) == ["two copies of libcudnn.so.9"]
    assert findings["two copies of libcudnn.so.9"].mend == "unset LD_LIBRARY_PATH"


def test_parts_of_other_releases_and_missing_extensions(environment: SmallEnvironment) -> None:
    package(environment.folder, "transformer-engine", "2.9.0")
    package(environment.folder, "transformer-engine-torch", "2.8.0")
    package(environment.folder, "apex", "0.1")
    findings = environment.findings()
    assert "of another release than transformer-engine 2.9.0" in [each.what for each in findings]
    lines = {each.package: each.mend for each in findings if "is missing" in each.what}
    assert "'transformer-engine[pytorch]==2.9.0'" in lines["transformer-engine"]
    assert "APEX_CUDA_EXT=1" in lines["apex"]


def test_extension_for_another_python(environment: SmallEnvironment) -> None:
    names = ["_x.cpython-310-x86_64-linux-gnu.so", "_y.cpython-310-x86_64-linux-gnu.so", "_y.abi3.so"]
    for name in names:
        shared(environment.folder / name, f"void *PyInit_{name[:2]}(void) {{ return 0; }}")
    package(environment.folder, "some", "1.0", *names)
    assert by_package(environment.findings()) == {"some": f"{names[0]} is for Python 3.10; this environment has 3.11"}


def test_damaged_extensions_are_findings(environment: SmallEnvironment) -> None:
    path = environment.uses_torch("flash-attn", "flash_attn_2_cuda")
    content = path.read_bytes()
    path.write_bytes(content[:3000])
    assert "can't be loaded" in by_package(environment.findings())["flash-attn"]
    path.write_bytes(content[:18] + (183).to_bytes(2, "little") + content[20:])
    assert by_package(environment.findings())["flash-attn"].endswith("can't be loaded: a file for aarch64")
    path.unlink()
    path.symlink_to(path.name)
    assert "symbolic links" in by_package(environment.findings())["flash-attn"]


def test_driver_library_is_no_fault_of_a_package(environment: SmallEnvironment) -> None:
    """A machine without a driver has no libcuda.so.1: its symbols count as defined."""
    stubs = environment.folder.parent / "stubs"
    library(stubs, "libcuda.so.1", "int cuInit(int x) { return x; }")
    code = "int cuInit(int); void *PyInit_deep_ep_cpp(void) { return (void *)cuInit; }"
    shared(environment.folder / "deep_ep_cpp.abi3.so", code, f"-L{stubs}", "-l:libcuda.so.1")
    package(environment.folder, "deep-ep", "1.0", "deep_ep_cpp.abi3.so")
    assert environment.findings() == ()


def test_nothing_of_the_environment_is_started(environment: SmallEnvironment) -> None:
    environment.uses_torch("flash-attn", "flash_attn_2_cuda", source="absent")
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, str(ROOT), str(environment.folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n[]\n"


FINDING = LoadFinding("flash-attn", "2.8.3", "what", Path("/x.so"), "then", "pip")


def test_findings_of_the_stack_break() -> None:
    other = LoadFinding("", "", "what", Path("/y.so"), "then", "pip", certain=False)
    report = LoadReport((FINDING, other), 7, 3)
    assert report.breaks == (FINDING,)
    assert str(report) == "7 compiled modules of 3 packages read: 2 problems"
    assert (FINDING.title, other.title) == ("flash-attn 2.8.3", "y.so")


def test_report_as_json() -> None:
    assert LoadReport((FINDING,), 7, 3).to_json() == {
        "extensions": 7,
        "packages": 3,
        "findings": [
            {
                "package": "flash-attn",
                "version": "2.8.3",
                "what": "what",
                "path": "/x.so",
                "consequence": "then",
                "mend": "pip",
                "certain": True,
            }
        ],
    }
