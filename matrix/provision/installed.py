"""Read a Python environment from disk: the version of its interpreter and its packages. Nothing is started."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from matrix.provision.cuda_compiler import NVCC, nvcc


@dataclass(frozen=True)
class PythonEnvironment:
    """`python` is the full version, `packages` maps canonical names to versions.

    `features` are those of FEATURES that it has, and nvcc, None where they were not read.
    """

    python: str
    packages: dict[str, str]
    features: list[str] | None = None

    @property
    def minor(self) -> str:
        """Return the minor version: "3.10"."""
        return ".".join(self.python.split(".")[:2])


# What versions do not show (matrix.planning.requirements.BaseFeature), by files in the folders of packages. The
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


def current() -> PythonEnvironment:
    """Return the environment of this process: a virtual environment, an image's or the system's."""
    folders = tuple(dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path)))
    return PythonEnvironment(platform.python_version(), packages_in(*folders), features_in(*folders) + here())


def at(folder: Path) -> PythonEnvironment | None:
    """Return the virtual environment in `folder`, None when there is none."""
    try:
        lines = (folder / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    settings = dict(line.replace(" ", "").split("=", 1) for line in lines if "=" in line)
    # venv writes `version`, virtualenv and uv write `version_info`.
    version = ".".join(settings.get("version_info", settings.get("version", "")).split(".")[:3])
    sites = [str(site) for site in folder.glob("lib/python*/site-packages")]
    if not version or not sites:
        return None
    return PythonEnvironment(version, packages_in(*sites), features_in(*sites) + here())


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


def packages_in(*folders: str) -> dict[str, str]:
    """Return name -> version of the packages in these folders; the first one found of a name wins."""
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions(path=list(folders)):
        found.setdefault(canonicalize_name(one.metadata["Name"]), one.version)
    return found


if __name__ == "__main__":  # run inside an image, to list its packages
    sys.stdout.write(json.dumps(vars(current())) + "\n")
