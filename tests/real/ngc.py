"""A folder that imitates an NGC PyTorch image: versions, paths, variables and constraints, without a registry.

    usr/local/bin/python3          the interpreter, no virtual environment
    usr/local/lib/python3.10/...   its packages: those of a base of wheels, torch under NGC's version, TE
    opt/hpcx/ompi                  an Open MPI that was moved after its build, so it needs OPAL_PREFIX
    etc/pip/constraint.txt         the versions that pip must keep

torch is the released one: its version is NGC's, its code is not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matrix.prove.provision.overlays import Overlay
from matrix.read.machine.installed import packages_in

TORCH: Final = "2.4.0a0+3bcc3cddb5.nv24.07"
NORMAL: Final = "2.4.0a0+3bcc3cddb5.nv24.7"  # as pip writes it
LABEL: Final = "24.07"
ENGINE: Final = "1.8.0+37280ec"
ABSENT: Final = ("zarr",)  # of the base of wheels, not in NGC's images
CONSTRAINT: Final = "zarr==2.16.1"  # not the newest that a line would take


@dataclass(frozen=True)
class Imitation:
    """The folder of the imitated image."""

    root: Path

    @property
    def python(self) -> Path:
        """Return its interpreter."""
        return self.root / "usr/local/bin/python3"

    @property
    def site(self) -> Path:
        """Return the folder of its packages."""
        (found,) = self.root.glob("usr/local/lib/python3.*/site-packages")
        return found

    def environ(self, **more: str) -> dict[str, str]:
        """Return the variables of a process in it: the image's, and the few of this machine that any process needs."""
        ompi, local = self.root / "opt/hpcx/ompi", self.root / "usr/local"
        kept = {
            name: value for name, value in os.environ.items() if name.startswith(("MEGATRIX_", "PIP_", "UV_", "SSL"))
        }
        return {
            **kept,
            "HOME": str(self.root / "home"),
            "PATH": f"{local}/bin:{ompi}/bin:/usr/local/bin:/usr/bin:/bin",
            "NVIDIA_PYTORCH_VERSION": LABEL,
            "PYTORCH_VERSION": TORCH,
            "CUDA_HOME": "/usr/local/cuda",
            "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
            "NCCL_VERSION": "2.22.3",
            "OPAL_PREFIX": str(ompi),
            "OMPI_MCA_coll_hcoll_enable": "0",
            "UCX_MEMTYPE_CACHE": "n",
            "PIP_CONSTRAINT": str(self.root / "etc/pip/constraint.txt"),
            "PYTHONIOENCODING": "utf-8",
            **more,
        }


def imitate(root: Path, interpreter: Path, below: Path, open_mpi: Path, *overlays: Overlay) -> Imitation:
    """Make the folder from an interpreter, the packages in `below`, an Open MPI, and overlays."""
    local, lib = root / "usr/local", interpreter.parent.parent / "lib"
    (minor,) = (path.name for path in lib.glob("python3.*") if path.is_dir())
    stdlib = local / "lib" / minor
    (local / "bin").mkdir(parents=True)
    (root / "home").mkdir()
    shutil.copy2(interpreter, local / "bin" / "python3")
    linked(lib / minor, stdlib, {"site-packages"})
    made = Imitation(root)
    site = stdlib / "site-packages"
    linked(below, site, {path.name for name in (*ABSENT, "torch") for path in (below / name, *below.glob(f"{name}-*"))})
    linked(below / "torch", site / "torch", {"version.py", "__pycache__"})
    version = (below / "torch" / "version.py").read_text()
    released = next(line for line in version.splitlines() if line.startswith("__version__"))
    (site / "torch" / "version.py").write_text(version.replace(released, f"__version__ = '{TORCH}'"))
    described(site, "torch", NORMAL)
    for overlay in overlays:
        linked(overlay.path, site, {"overlay.json", "bin"})
    (site / f"transformer_engine_torch.cpython-{minor.removeprefix('python').replace('.', '')}.so").touch()
    shutil.copytree(open_mpi, root / "opt/hpcx/ompi", symlinks=True)
    (root / "etc/pip").mkdir(parents=True)
    kept = packages_in(str(site))
    pinned = (f"{name}=={version}" for name, version in sorted(kept.items()) if name in ("torch", "numpy"))
    (root / "etc/pip/constraint.txt").write_text("\n".join([*pinned, CONSTRAINT, ""]))
    return made


def linked(source: Path, target: Path, left_out: set[str]) -> None:
    """Make a folder of links to the entries of another one."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        if entry.name not in left_out and not (target / entry.name).exists():
            (target / entry.name).symlink_to(entry)


def described(site: Path, name: str, version: str, facts: Mapping[str, str] | None = None) -> None:
    """Write the metadata of a package."""
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    lines = {"Metadata-Version": "2.1", "Name": name, "Version": version, **(facts or {})}
    (folder / "METADATA").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    (folder / "RECORD").write_text("")
