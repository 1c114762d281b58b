"""Leave the packages that only a GPU uses out of the environments that tox makes on a machine without one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from matrix.provision.nvidia import nvml

PACKAGES: Final = Path(__file__).resolve().parents[1] / "catalog" / "facts" / "gpu_only.txt"
# What uv leaves out of every resolution: files of names, separated by spaces. tox-uv installs again when it changes.
EXCLUDE: Final = "UV_EXCLUDE"
# For environments that run on other machines than this one, such as the nodes of a cluster.
WITH_GPU_PACKAGES: Final[Mapping[str, str]] = {EXCLUDE: ""}


def left_out(environ: Mapping[str, str], *, driver: bool) -> dict[str, str]:
    """Return the variable that makes uv leave them out; {} on a machine with a driver, or where it is set, even to "".

    {} also below a folder with a space in its name, which the variable can't express: the packages are then installed.
    """
    if driver or EXCLUDE in environ or any(map(str.isspace, str(PACKAGES))):
        return {}
    return {EXCLUDE: str(PACKAGES)}


def has_driver(proc: Path = Path("/proc")) -> bool:
    """Return whether this machine has NVIDIA's driver: its kernel module, or its library (WSL, some containers)."""
    return (proc / "driver" / "nvidia").exists() or not nvml.there()
