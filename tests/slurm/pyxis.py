"""NVIDIA's Pyxis and enroot, built from clones, for the containers of the test cluster.

    python -m tests.slurm.pyxis FOLDER     # builds both, starts a cluster with them, prints the variables to export

Neither is in a distribution. MEGATRIX_PYXIS and MEGATRIX_ENROOT name clones, which may be bare and are not modified.
Debian's packages: gcc, make, git, libslurm-dev (the version of slurmd), musl-tools and linux-libc-dev to build;
squashfs-tools, squashfuse, fuse-overlayfs, parallel and jq to run. Pyxis 0.24.0 and enroot 4.1.2 run on Slurm 22.05.8.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.slurm.cluster import Cluster

CLONES: Final = ("MEGATRIX_PYXIS", "MEGATRIX_ENROOT")
BUILD_S: Final = 600.0  # limit for hanging builds: both are built within 10 s, an image of 1.4 GB is imported in 60 s
# enroot links its programs against musl, which is a submodule of it like the Linux headers; Debian's packages replace
# both. DEPS is only makeself, which only `enroot bundle` needs; with `-o deps` make does not require the submodules.
MUSL: Final = ("FORCE_GLIBC=1", "CC=musl-gcc")
LINUX: Final = ("/usr/include/linux", "/usr/include/asm-generic", "/usr/include/{machine}/asm")


@dataclass(frozen=True)
class Pyxis:
    """A built Pyxis: the line of plugstack.conf that loads it, and the folder of enroot's programs."""

    plugin: str
    programs: Path

    def cluster(self, folder: Path) -> Cluster:
        """Return a cluster whose nodes have this Pyxis."""
        return Cluster(folder, self.plugin, self.programs)


def build(folder: Path) -> Pyxis:
    """Build both in `folder`, which also holds enroot's files. Raises RuntimeError without clones."""
    missing = [name for name in CLONES if not os.environ.get(name)]
    if missing:
        raise RuntimeError(f"needs clones of NVIDIA/pyxis and NVIDIA/enroot: set {' and '.join(missing)}")
    sources = [folder / name.rpartition("_")[2].lower() for name in CLONES]
    for name, source in zip(CLONES, sources, strict=True):
        call("git", "clone", "--quiet", os.environ[name], str(source))
    pyxis, enroot = sources
    call("make", cwd=pyxis)
    headers = enroot / "deps" / "dist" / "linux" / "include"
    headers.mkdir(parents=True)
    machine = call("gcc", "-dumpmachine")
    for path in LINUX:
        (headers / Path(path).name).symlink_to(path.format(machine=machine))
    call("make", "-C", "deps", *MUSL, "libbsd", cwd=enroot)
    prefix = folder / "installed"
    call("make", "-o", "deps", *MUSL, "DEPS=", f"prefix={prefix}", "install", cwd=enroot, LDFLAGS="-static -no-pie")
    settings = prefix / "etc" / "enroot" / "enroot.conf"
    folders = "".join(f"ENROOT_{name.upper()}_PATH {folder}/{name}\n" for name in ("runtime", "cache", "data", "temp"))
    settings.write_text(folders)
    (folder / "temp").mkdir()
    # Images are mounted instead of unpacked at each start: 0.6 s instead of 20 s for 1.4 GB on two busy cores.
    options = f"runtime_path={folder}/images use_squashfuse=true"
    return Pyxis(f"required {pyxis}/spank_pyxis.so {options}\n", prefix / "bin")


def import_image(tool: str, tag: str, file: Path, built: Pyxis) -> None:
    """Convert an image of podman or docker (`tool`, a path) to a file for enroot.

    enroot 4.1.2 removes podman's container by `docker rm` and fails without docker; a link replaces it, as in Debian's
    podman-docker.
    """
    daemon = {"podman": "podman", "docker": "dockerd"}[Path(tool).name]
    with tempfile.TemporaryDirectory() as links:
        Path(links, "docker").symlink_to(tool)
        path = f"{links}:{os.environ['PATH']}"
        call(str(built.programs / "enroot"), "import", "--output", str(file), f"{daemon}://{tag}", PATH=path)


def call(*command: str, cwd: Path | None = None, **environ: str) -> str:
    """Run a command and return its output. Raises RuntimeError with its error output."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environ, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    where = Path(sys.argv[1]).resolve()
    with build(where / "pyxis").cluster(where / "cluster") as cluster:
        sys.stdout.write("".join(f"export {name}={value}\n" for name, value in cluster.environ.items()))
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
