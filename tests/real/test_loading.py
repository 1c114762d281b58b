"""Environments as public threads describe them: `megatrix check --loadable` finds each, and nothing after its line.

Wheels are those of the index; small extensions of the names of real ones are compiled against the torch of the base.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.real import loading_truth
from tests.real.conftest import COMMAND_S, ROOT, made_base, uv
from tests.schemas import items_of

BASE = "torch-2.4.0"
BUILD = """
import sys, json
from pathlib import Path
from matrix.kit import small_extension
print(small_extension.build(Path(sys.argv[1]), sys.argv[2], sys.argv[3], **json.loads(sys.argv[4])))
"""
CHECK = """
#include <c10/util/Exception.h>
void check(int64_t size) { TORCH_CHECK(size > 0, std::string("size "), size); }
"""
SET_DEVICE = """
namespace c10 { namespace cuda { void SetDevice(%s); } }
void* address = (void*)(void (*)(%s))c10::cuda::SetDevice;
"""
OLD_ABI, NEW_ABI = ["_GLIBCXX_USE_CXX11_ABI=0"], ["_GLIBCXX_USE_CXX11_ABI=1"]


@dataclass
class Environment:
    """The base with a folder of packages before its own, and variables."""

    python: Path
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def wheel(self, *wanted: str) -> None:
        """Lay out releases of the index."""
        python = str(self.python)
        uv("pip", "install", "--target", str(self.folder), "--no-deps", "--no-build", "--python", python, *wanted)

    def extension(self, package: str, version: str, module: str, source: str = "", **options: Any) -> Path:
        """Compile a small extension, with the metadata of its package."""
        words = [str(self.folder), module, source, json.dumps(options)]
        done = subprocess.run(
            [str(self.python), "-c", BUILD, *words], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        path = Path(done.stdout.splitlines()[-1])
        self.package(package, version, path.name)
        return path

    def package(self, name: str, version: str, *files: str) -> None:
        """Write the metadata of a package."""
        folder = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))

    def check(self, *options: str) -> dict[str, Any]:
        """Return the answer of the command."""
        line = [sys.executable, "-m", "matrix", "check", "--loadable", "--json", "--python", str(self.python), *options]
        done = subprocess.run(
            line, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(self.folder), **self.variables},
            capture_output=True, text=True, timeout=COMMAND_S, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 1, 3), done.stderr
        (item,) = items_of(done.stdout, "check")
        return item

    def stub(self, name: str, soname: str, text: str = "", script: str = "") -> Path:
        """Compile a library of this soname beside the packages, for linking only."""
        folder = self.folder / "stubs"
        folder.mkdir(exist_ok=True)
        (folder / "stub.cpp").write_text(f'extern "C" {{ int {text or "stub"}() {{ return 1; }} }}')
        words = ["g++", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(folder / f"lib{name}.so")]
        if script:
            (folder / "versions").write_text(f"{script} {{ global: *; }};")
            words.append(f"-Wl,--version-script={folder / 'versions'}")
        subprocess.run([*words, str(folder / "stub.cpp")], check=True)
        return folder

    def linked(self, package: str, module: str, folder: Path, library: str, function: str = "stub") -> None:
        """Compile an extension that needs a stub, which is then removed."""
        path = self.extension(package, "1.0", module)
        code = self.folder / f"{module}.cpp"
        code.write_text(f'extern "C" {{ int {function}(); void* PyInit_{module}() {{ return (void*){function}; }} }}')
        words = ["g++", "-shared", "-fPIC", str(code), f"-L{folder}", f"-l{library}", "-o", str(path)]
        subprocess.run(words, check=True)
        shutil.rmtree(folder)


def whole(environment: Environment, version: str = "2.9.0") -> None:
    """Lay out Transformer Engine with its core, a small extension, and the library that the base lacks."""
    environment.wheel(f"transformer-engine=={version}", f"transformer-engine-cu12=={version}")
    environment.wheel("nvidia-cuda-nvrtc-cu12==12.1.105")
    environment.extension("transformer-engine-torch", version, "transformer_engine_torch", CHECK, macros=OLD_ABI,
                          libraries=["c10"])  # fmt: skip


def meta_package(environment: Environment) -> None:
    environment.wheel("transformer-engine==2.9.0")


def other_core(environment: Environment) -> None:
    whole(environment)
    remove(environment, "transformer_engine_cu12-2.9.0.dist-info")
    environment.wheel("transformer-engine-cu12==2.6.0.post1")


def wanted_core(environment: Environment) -> None:
    environment.wheel("transformer-engine-cu12==2.9.0")


def remove(environment: Environment, *names: str) -> None:
    for name in names:
        path = environment.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def other_abi(environment: Environment) -> None:
    whole(environment)
    environment.extension("transformer-engine-torch", "2.9.0", "transformer_engine_torch", CHECK, macros=NEW_ABI,
                          libraries=["c10"])  # fmt: skip


def flash_attn(environment: Environment, parameters: str) -> None:
    environment.extension("flash-attn", "2.8.3", "flash_attn_2_cuda", SET_DEVICE % (parameters, parameters),
                          libraries=["c10_cuda"])  # fmt: skip


def cuda_13(environment: Environment) -> None:
    whole(environment, "2.6.0")


def cuda_12(environment: Environment) -> None:
    remove(environment, "transformer_engine_torch-2.6.0.dist-info")
    whole(environment, "2.6.0.post1")


def cudnn_parts(environment: Environment) -> None:
    whole(environment, "2.3.0")
    nvrtc = environment.folder / "nvidia/cuda_nvrtc/lib"  # up to 2.3 that of a toolkit is loaded
    environment.variables["CUDA_HOME"] = str(nvrtc)
    (nvrtc / "more").mkdir()
    shutil.copy(nvrtc / "libnvrtc.so.12", nvrtc / "more/libnvrtc.so.12")


def cudnn_path(environment: Environment) -> None:
    (site,) = environment.python.parents[1].glob("lib/python3*/site-packages")
    environment.variables["LD_LIBRARY_PATH"] = f"{site}/nvidia/cudnn/lib"


def two_cudnns(environment: Environment) -> None:
    whole(environment)
    (site,) = environment.python.parents[1].glob("lib/python3*/site-packages")
    folder = environment.folder / "cudnn"
    folder.mkdir()
    shutil.copy(site / "nvidia/cudnn/lib/libcudnn.so.9", folder / "libcudnn.so.9")
    environment.variables["CUDNN_HOME"] = str(folder)


def apex_python(environment: Environment) -> None:
    environment.package("apex", "0.1")


def apex_compiled(environment: Environment) -> None:
    environment.extension("apex", "0.1", "fused_weight_gradient_mlp_cuda")


def other_python(environment: Environment) -> None:
    path = environment.extension("mamba-ssm", "2.2.4", "selective_scan_cuda")
    name = path.name.replace("cpython-310", "cpython-312")
    path.rename(path.with_name(name))
    environment.package("mamba-ssm", "2.2.4", name)


def this_python(environment: Environment) -> None:
    names = [path.name for path in environment.folder.glob("selective_scan_cuda.*")]
    remove(environment, "mamba_ssm-2.2.4.dist-info", *names)
    environment.extension("mamba-ssm", "2.2.4", "selective_scan_cuda")


def cuda_11(environment: Environment) -> None:
    folder = environment.stub("cudart", "libcudart.so.11.0")
    environment.linked("causal-conv1d", "causal_conv1d_cuda", folder, "cudart")


def compiled_here(package: str, module: str) -> Callable[[Environment], None]:
    def compile_again(environment: Environment) -> None:
        environment.extension(package, "1.0", module)

    return compile_again


def newer_glibc(environment: Environment) -> None:
    folder = environment.stub("m", "libm.so.6", "future", "GLIBC_2.99")
    environment.linked("deep-ep", "deep_ep_cpp", folder, "m", "future")


def other_machine(environment: Environment) -> None:
    path = environment.extension("grouped-gemm", "1.0", "grouped_gemm_backend")
    content = bytearray(path.read_bytes())
    content[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64
    path.write_bytes(content)


@dataclass(frozen=True)
class Story:
    """What a thread reports: how its environment is made, what is found, the line, and what the line does."""

    thread: str
    make: Callable[[Environment], None]
    package: str
    what: str
    line: str
    mended: Callable[[Environment], None]


STORIES: Mapping[str, Story] = {
    "meta-package": Story(
        "TransformerEngine#1541", meta_package, "transformer-engine", "libtransformer_engine* is missing",
        "--no-build-isolation 'transformer-engine[pytorch]==2.9.0'", whole,
    ),
    "core-of-another-release": Story(
        "TransformerEngine#1853", other_core, "transformer-engine-cu12",
        "of another release than transformer-engine 2.9.0", "--no-deps 'transformer-engine-cu12==2.9.0'", wanted_core,
    ),
    "other-abi": Story(
        "TransformerEngine#1684", other_abi, "transformer-engine-torch", "torchCheckFail",
        "pip uninstall -y transformer-engine-torch && python -m pip install --no-build-isolation", whole,
    ),
    "flash-attention-abi": Story(
        "TransformerEngine#2771", lambda made: flash_attn(made, "signed char, bool"), "flash-attn",
        "c10::cuda::SetDevice", "pip uninstall -y flash-attn && ", lambda made: flash_attn(made, "signed char"),
    ),
    "cuda-13": Story(
        "TransformerEngine#2040", cuda_13, "transformer-engine-cu12", "libcublas.so.13",
        "'transformer-engine-cu12==2.6.0.post1'", cuda_12,
    ),
    "cudnn-parts": Story(
        "TransformerEngine#1853", cudnn_parts, "transformer-engine-cu12", "libcudnn_",
        "export LD_LIBRARY_PATH=", cudnn_path,
    ),
    "two-cudnns": Story(
        "TransformerEngine#1407", two_cudnns, "nvidia-cudnn-cu12", "two copies of libcudnn.so.9", "unset CUDNN_HOME",
        lambda made: made.variables.clear(),
    ),
    "apex": Story(
        "Megatron-LM#1885", apex_python, "apex", "fused_weight_gradient_mlp_cuda is missing", "APEX_CUDA_EXT=1",
        apex_compiled,
    ),
    "other-python": Story(
        "Megatron-LM#1619", other_python, "mamba-ssm", "is for Python 3.12", "'mamba-ssm==2.2.4'", this_python,
    ),
    "cuda-11": Story(
        "flash-attention#723", cuda_11, "causal-conv1d", "libcudart.so.11.0", "'causal-conv1d==1.0'",
        compiled_here("causal-conv1d", "causal_conv1d_cuda"),
    ),
    "glibc": Story(
        "flash-attention#1708", newer_glibc, "deep-ep", "needs version GLIBC_2.99", "DeepEP",
        compiled_here("deep-ep", "deep_ep_cpp"),
    ),
    "other-machine": Story(
        "TransformerEngine#3310", other_machine, "grouped-gemm", "a file for aarch64", "grouped_gemm",
        compiled_here("grouped-gemm", "grouped_gemm_backend"),
    ),
}  # fmt: skip


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """The base with an empty folder of packages before it."""
    (tmp_path / "packages").mkdir()
    return Environment(made_base(BASE) / "bin/python", tmp_path / "packages")


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_story_is_found_and_mended(story: Story, environment: Environment) -> None:
    story.make(environment)
    answer = environment.check()
    assert answer["answer"] == "breaks"
    findings = [one for one in answer["loading"]["findings"] if one["package"] == story.package]
    (finding,) = [one for one in findings if story.what in one["what"]]
    assert story.line in finding["mend"]
    story.mended(environment)
    assert environment.check()["loading"]["findings"] == []


def test_flash_attn_outside_the_window(environment: Environment) -> None:
    whole(environment, "2.9.0")
    flash_attn(environment, "signed char")
    answer = environment.check()
    assert answer["loading"]["findings"] == []
    (failure,) = [one for one in answer["failures"] if "flash-attn outside its window" in one["title"]]
    assert failure["standing"] == "breaks with these options"
    assert "fused attention, which is left" in failure["needs"]
    assert "are 4 GiB for each layer" in failure["needs"]


def test_gpu_without_code(environment: Environment) -> None:
    whole(environment)
    from matrix.read.elf.load_check import load_report
    from matrix.read.elf.python_site import site_of

    site = site_of(environment.python, {"PYTHONPATH": str(environment.folder)})
    assert load_report(site, "9.0").findings == ()
    assert "no code for compute capability 6.1" in load_report(site, "6.1").findings[0].what


@pytest.mark.parametrize("base", ["torch-2.3.1", "torch-2.4.0", "torch-2.13.0"])
def test_linker_agrees_on_a_base(base: str) -> None:
    assert loading_truth.main([str(made_base(base) / "bin/python")]) == 0
