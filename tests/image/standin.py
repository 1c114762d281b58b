"""Stand-ins for a host's NVIDIA driver, and for an image with a compat package.

Four things are replaced: tests/image/driver.c, built as libcuda.so.VERSION and libnvidia-ml.so.VERSION, a device node,
a file with the version of a kernel driver, and torch's CUDA library, an empty file. podman passes the first three into
a container by CDI, like NVIDIA's specification; everything else is real.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("driver.c")
CDI: Final = Path("/var/run/cdi")  # the folder of podman's specifications that is empty after a boot
KIND: Final = "nvidia.com/gpu"
INSIDE: Final = "/usr/local/nvidia/lib64"  # the folder of the host's driver in a container, where NGC's images look
COMPAT: Final = "/usr/local/cuda/compat/lib.real"  # the folder of the compat package in NGC's images

# As in /etc/shinit_v2 of NGC's images: use the compat package if its cuInit succeeds on this host.
ENTRYPOINT: Final = f"""#!/bin/sh
if LD_LIBRARY_PATH={COMPAT} python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL("libcuda.so.1").cuInit(0) != 0)'
then export LD_LIBRARY_PATH="{COMPAT}:$LD_LIBRARY_PATH"
fi
exec "$@"
"""
CONTAINERFILE: Final = f"""FROM {{base}}
RUN cd / && touch "$(python3 -c 'import torch; print(torch.__path__[0])')/lib/libtorch_cuda.so"
COPY compat {COMPAT}
COPY --chmod=755 entrypoint /entrypoint
ENV LD_LIBRARY_PATH={INSIDE}
ENTRYPOINT ["/entrypoint"]
"""


def library(folder: Path, kind: str, version: str, offers: int, kernel: str, *flags: str) -> None:
    """Build a stand-in of a library: `kind` is CUDA or NVML, `kernel` the file of the kernel driver's version."""
    folder.mkdir(parents=True, exist_ok=True)
    name = {"CUDA": "libcuda.so", "NVML": "libnvidia-ml.so"}[kind]
    defines = (f"-D{kind}", f'-DVERSION="{version}"', f"-DOFFERS={offers}", f'-DKERNEL="{kernel}"', *flags)
    command = [
        "gcc",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        *defines,
        "-o",
        str(folder / f"{name}.{version}"),
    ]
    subprocess.run([*command, str(SOURCE)], check=True)
    (folder / f"{name}.1").symlink_to(f"{name}.{version}")


def driver(folder: Path, version: str, offers: int, *flags: str, gpu: str = "", at: str = "") -> Path:
    """Build the driver of a host, both libraries and the file of the kernel driver's version; return its folder.

    `at` is the folder's path for its users, by default the folder itself; `gpu` is "geforce" for a workstation GPU.
    """
    kernel = f"{at or folder}/kernel"
    library(folder, "CUDA", version, offers, kernel, *flags)
    library(folder, "NVML", version, offers, kernel, *flags)
    (folder / "kernel").write_text(f"{version} {gpu}\n")
    return folder


def recipe(folder: Path, base: str, version: str, offers: int) -> Path:
    """Write the build context of an image with a compat package on the image `base`; return the folder."""
    library(folder / "compat", "CUDA", version, offers, f"{INSIDE}/kernel")
    (folder / "entrypoint").write_text(ENTRYPOINT)
    (folder / "Containerfile").write_text(CONTAINERFILE.format(base=base))
    return folder


@contextmanager
def passed_in(driver: Path) -> Iterator[None]:
    """Make `podman run --device nvidia.com/gpu=all` pass this driver and a device node into containers."""
    node = driver / "nvidiactl"
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(195, 255))
    edits = {
        "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": str(node), "type": "c", "major": 195, "minor": 255}],
        "mounts": [{"hostPath": str(driver), "containerPath": INSIDE, "options": ["ro", "nosuid", "nodev", "bind"]}],
    }
    specification = {"cdiVersion": "0.5.0", "kind": KIND, "devices": [{"name": "all", "containerEdits": edits}]}
    CDI.mkdir(exist_ok=True)
    file = CDI / "megatrix-stand-in.json"
    file.write_text(json.dumps(specification))
    try:
        yield
    finally:
        file.unlink()
        node.unlink()


def specifications() -> list[str]:
    """Return the CDI specifications of this machine's real GPUs."""
    files = (file for folder in (Path("/etc/cdi"), CDI) if folder.is_dir() for file in folder.iterdir())
    return [str(file) for file in files if KIND in file.read_text(errors="replace")]
