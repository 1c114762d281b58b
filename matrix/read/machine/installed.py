"""A Python environment from disk: interpreter, packages, compiler of CUDA. Nothing is started."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from matrix.ground.catalog.machine import COMPILED, Compiled, PythonEnvironment
from matrix.ground.catalog.regular_file import UnreadableError, read_regular_text
from matrix.ground.catalog.versions import NONE
from matrix.read.commands import run

NVCC: Final = "nvcc"  # also the name of a feature of a base (matrix.ground.cases.machine_requirements.BaseFeature)
CUDA: Final = "/usr/local/cuda"  # where CUDA is installed unless CUDA_HOME names another folder
VARIABLES: Final = re.compile(r"NVTE_\w+|CUDNN_\w+|CUDA_HOME|TORCH_CUDA_ARCH_LIST|MAX_JOBS")
PASSED: Final = "MEGATRIX_BUILD"


def build_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of a build of Transformer Engine; a cell has them in one, PASSED, as JSON."""
    variables = {name: value for name, value in environ.items() if VARIABLES.fullmatch(name)}
    return dict(sorted({**json.loads(environ.get(PASSED) or "{}"), **variables}.items()))


def nvcc(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of the CUDA compiler, None without one."""
    home = build_variables(environ).get("CUDA_HOME", CUDA)
    return shutil.which(NVCC, path=f"{environ.get('PATH', '')}{os.pathsep}{home}/bin")


def nvcc_version() -> str:
    """Return the CUDA version of this machine's compiler ("13.0"), "none" without one."""
    compiler = nvcc()
    match = re.search(r"release (\d+\.\d+)", version_text(compiler)) if compiler else None
    return match[1] if match else NONE


@cache
def version_text(compiler: str) -> str:
    """Return what the compiler prints of itself; asked once, not for each case of a plan."""
    return run([compiler, "--version"]).out.strip()


BUILT: Final = re.compile(r"te-([^-]+)-torch-([^-]+)-cuda-([^-]+)-.+")  # ReleaseBuild.name


def compiled(environ: Mapping[str, str] = os.environ) -> dict[Compiled, Path]:
    """Return the wheels of a bundle's extensions of Transformer Engine; {} without such a bundle."""
    wheels = sorted(Path(environ[COMPILED]).glob("te-*/*.whl")) if environ.get(COMPILED) else []
    built = ((BUILT.fullmatch(wheel.parent.name), wheel) for wheel in wheels)
    return {Compiled.of(*match.groups()): wheel for match, wheel in built if match}


def sources(environ: Mapping[str, str] = os.environ) -> frozenset[str] | None:
    """Return the releases of Transformer Engine whose extension a bundle has as source; None without a bundle."""
    wheels = Path(environ.get("UV_FIND_LINKS", "")) if environ.get("UV_OFFLINE") else None
    files = wheels.glob("transformer_engine_torch-*.tar.gz") if wheels else ()
    return frozenset(file.name.removesuffix(".tar.gz").rpartition("-")[2] for file in files) if wheels else None


# What versions do not show (machine_requirements.BaseFeature), by files in the folders of packages. The
# extension of Transformer Engine is beside its package, or in it: named differently up to 1.7, in wheel_lib in later
# wheels.
FEATURES: Final = {
    "cuda": ("torch/lib/libtorch_cuda.so",),
    "compiled-te": (
        "transformer_engine_extensions*.so",
        "transformer_engine_torch*.so",
        "transformer_engine/transformer_engine_torch*.so",
        "transformer_engine/wheel_lib/transformer_engine_torch*.so",
    ),
    "pkg_resources": ("pkg_resources/__init__.py",),
}


REPORTED: Final = ("python", "packages", "features")  # what the process inside an image reports


def current() -> PythonEnvironment:
    """Return the environment of this process: a virtual environment, an image's or the system's."""
    folders = tuple(dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path)))
    path = Path(sys.executable)
    features = features_in(*folders) + here()
    return PythonEnvironment(
        platform.python_version(), packages_in(*folders), features, path, torch_cuda=torch_cuda(*folders)
    )


def at(folder: Path) -> PythonEnvironment | None:
    """Return the virtual environment in `folder`, None when there is none."""
    try:
        lines = read_regular_text(folder / "pyvenv.cfg").splitlines()
    except UnreadableError:
        return None
    settings = dict(line.replace(" ", "").split("=", 1) for line in lines if "=" in line)
    # venv writes `version`, virtualenv and uv write `version_info`.
    version = ".".join(settings.get("version_info", settings.get("version", "")).split(".")[:3])
    sites = [str(site) for site in folder.glob("lib/python*/site-packages")]
    if not version or not sites:
        return None
    python, features = folder / "bin" / "python", features_in(*sites) + here()
    return PythonEnvironment(version, packages_in(*sites), features, python, torch_cuda=torch_cuda(*sites))


def here() -> list[str]:
    """Return the features that this machine or image gives to all its environments."""
    return [NVCC] if nvcc() else []


def features_in(*folders: str) -> list[str]:
    """Return the features that the packages in these folders have."""
    return [
        name
        for name, patterns in FEATURES.items()
        if any(any(Path(folder).glob(pattern)) for folder in folders for pattern in patterns)
    ]


def torch_cuda(*folders: str) -> str | None:
    """Return the CUDA that torch was built for ("12.4"), "none" for a build without; None without torch."""
    for folder in folders:
        with contextlib.suppress(UnreadableError):
            text = read_regular_text(Path(folder, "torch", "version.py"))
            match = re.search(r"^cuda\s*(?::[^=]+)?=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
            return match[1] if match else NONE
    return None


def packages_in(*folders: str) -> dict[str, str]:
    """Return name -> version of the packages in these folders; the first one found of a name wins."""
    packages: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(path=list(folders)):
        if distribution.metadata["Name"]:  # None where the metadata is gone: a purge, a removal that was killed
            packages.setdefault(canonicalize_name(distribution.metadata["Name"]), distribution.version)
    return packages


if __name__ == "__main__":  # run inside an image, to list its packages
    python = current()
    sys.stdout.write(json.dumps({name: getattr(python, name) for name in REPORTED}) + "\n")
