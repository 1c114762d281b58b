"""Leave the packages that only a GPU uses out of the environments that tox makes on a machine without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from matrix.provision.nvidia import nvml

# What uv leaves out of every resolution: files of names, separated by spaces. tox-uv installs again when it changes.
EXCLUDE: Final = "UV_EXCLUDE"
# For environments that run on other machines than this one, such as the nodes of a cluster.
WITH_GPU_PACKAGES: Final[Mapping[str, str]] = {EXCLUDE: ""}


def left_out(packages: Sequence[str], file: Path, environ: Mapping[str, str], *, driver: bool) -> dict[str, str]:
    """Write the names to `file` and return the variable that makes uv leave them out.

    {} on a machine with a driver, where the variable is set, even to "", and where it can't express the path (a space):
    the packages are then installed.
    """
    if not packages or driver or EXCLUDE in environ or any(map(str.isspace, str(file))):
        return {}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(packages), encoding="utf-8")
    return {EXCLUDE: str(file)}


def has_driver(proc: Path = Path("/proc")) -> bool:
    """Return whether this machine has NVIDIA's driver: its kernel module, or its library (WSL, some containers)."""
    return (proc / "driver" / "nvidia").exists() or not nvml.there()
