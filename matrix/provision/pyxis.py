"""Slurm's plugin Pyxis, by which srun runs a command in an image: on a node, in a batch script's allocation.

What is said here of its ways was seen with Pyxis 0.24.0, enroot 4.1.2 and Slurm 22.05.8 (docs/slurm.md).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matrix.provision.commands import CommandResult, Runner, redacted, run
from matrix.provision.tools import ANSWER_S, START_S, ContainerSpec, Ref, last_line

IMAGES: Final = "MEGATRIX_SQUASHFS"  # the folder with images as enroot imports them: debian-13.sqsh
GUARD: Final = "/.megatrix"  # a folder of containers alone
# A node whose slurmd has no Pyxis ignores srun's options and runs the command outside of any image.
GUARDED: Final = f'[ -d {GUARD} ] || {{ echo "the slurmd of this node has no Pyxis" >&2; exit 125; }}; exec "$@"'
# Of torch's image Pyxis makes a rank 0 (PYTORCH_VERSION is set in it); ours get theirs from their launcher.
UNSET: Final = ("RANK", "LOCAL_RANK")
# What is printed when there was no container: by slurmstepd, of any plugin that failed and of a program that is not
# there; by srun, which knows no such option; by our guard.
REFUSED: Final = re.compile(
    r"^slurmstepd[^ ]*: error: (Failed to invoke spank plugin stack|execve\(\): )"
    r"|^srun: unrecognized option '--container|^the slurmd of this node has no Pyxis$",
    re.MULTILINE,
)
# What says why, the plainest first: enroot's own words, those of its download, then the others'.
TELLING: Final = (
    r"\[ERROR\] .*",
    r"curl: .*",
    r"execve\(\): .*",
    r"unrecognized option .*",
    r"the slurmd of this node .*",
    r"pyxis: (?!child|printing).*",
)
BLOCK: Final = 1 << 20  # bytes
FETCH_S: Final = 3600.0  # s for an image of 20 GB to come from a registry


@dataclass(frozen=True)
class Pyxis:
    """srun with the plugin; `images` is the folder of the images that no registry has."""

    srun: str
    images: Path | None = None
    cpus: int = 1  # a step does not have those of its task by itself
    run: Runner = run

    @property
    def name(self) -> str:
        """Return "pyxis"."""
        return "pyxis"

    def lack(self, image: Ref) -> str:
        """Return how an image comes to where Pyxis finds it; what a registry has, Pyxis fetches itself."""
        if not image.build or self._file(image):
            return ""
        folder = self.images or f"${IMAGES}"
        return f"{image.id} is no file of {IMAGES}: enroot import -o {folder}/{image.id}.sqsh podman://{image.tag}"

    def digest(self, image: Ref) -> str:
        """Return the digest of the image's file; of one in a registry the tag, since Pyxis tells no digest.

        A file FILE.sha256 beside it, as sha256sum writes it and not older, saves reading the image.
        """
        file = self._file(image)
        if file is None:
            return image.tag
        told = file.with_name(f"{file.name}.sha256")
        if told.is_file() and told.stat().st_mtime >= file.stat().st_mtime:
            return f"sha256:{told.read_text('utf-8').split()[0]}"
        found = hashlib.sha256()
        with file.open("rb") as content:
            while block := content.read(BLOCK):
                found.update(block)
        return f"sha256:{found.hexdigest()}"

    def command(self, image: Ref, box: ContainerSpec, *inside: str) -> list[str]:
        """Return the command line of a step in this allocation: /tmp is the container's own, the network the node's."""
        mounts = [f"{folder}:{folder}:ro" for folder in box.readable]
        mounts += [f"{folder}:{folder}" for folder in box.writable]
        mounts += [f"{box.folder}:{GUARD}:ro"]
        unset = (word for name in UNSET for word in ("-u", name))
        return [
            *(self.srun, "--ntasks=1", f"--cpus-per-task={self.cpus}", f"--job-name={box.name}"),
            "--mpi=none",  # a site's default would make every rank a part of one MPI job of Slurm's
            "--disable-status",  # so that one SIGINT is passed on
            "--export=NONE",  # but SLURM_* and CUDA_VISIBLE_DEVICES: PYTHONPATH is the node's, a token a secret
            *(f"--container-image={self._named(image)}", "--container-readonly", "--no-container-mount-home"),
            *(f"--container-workdir={box.folder}", f"--container-mounts={','.join(mounts)}"),
            *("/bin/sh", "-c", GUARDED, "sh"),  # a node that sets up no container sets no PATH
            # Set in there: what is set around srun, the image's own variables and enroot override.
            *("env", *unset, *(f"{key}={value}" for key, value in box.environ.items())),
            *inside,
        ]

    def start_s(self, image: Ref) -> float:
        """Return FETCH_S for an image that its registry has."""
        return START_S if self._file(image) else FETCH_S

    def ask(self, image: Ref, box: ContainerSpec, *inside: str) -> CommandResult:
        """Run a command in the image that only answers; Slurm bounds it, for the image may have to be fetched first."""
        return self.run(self.command(image, box, *inside))

    def refusal(self, status: int, printed: str) -> str:
        """Return what Pyxis or enroot said when there was no container: srun then ends with 1, as pytest does."""
        if status == 0 or not REFUSED.search(printed):
            return ""
        said = next((found for found in (re.search(one, printed) for one in TELLING) if found), None)
        return redacted(said[0].strip()) if said else last_line(printed)

    def kill(self, name: str) -> None:
        """Do nothing: with srun, which is killed then, its step dies."""

    def _file(self, image: Ref) -> Path | None:
        file = self.images / f"{image.id}.sqsh" if self.images else None
        return file if file and file.is_file() else None

    def _named(self, image: Ref) -> str:
        """Return the image as Pyxis wants it: a path, or REGISTRY#NAME:TAG."""
        file = self._file(image)
        return str(file) if file else image.tag.replace("/", "#", 1)


def find(environ: Mapping[str, str] = os.environ, run: Runner = run) -> Pyxis | None:
    """Return Pyxis where this node's srun has it, None elsewhere."""
    srun = shutil.which("srun", path=environ.get("PATH", os.defpath))
    if srun is None or "--container-image" not in run([srun, "--help"], seconds=ANSWER_S).out:
        return None
    folder = environ.get(IMAGES)
    return Pyxis(srun, Path(folder) if folder else None, int(environ.get("SLURM_CPUS_PER_TASK", "1")), run)
