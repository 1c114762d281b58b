"""Slurm's plugin Pyxis, with which srun runs a command in an image: on a node, in the allocation of a batch script.

Its behaviour was observed with Pyxis 0.24.0, enroot 4.1.2 and Slurm 22.05.8 (docs/slurm.md).
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

from matrix.ground.catalog.regular_file import open_regular, read_regular_text
from matrix.prove.provision.tools import ANSWER_S, START_S, ContainerSpec, Ref, last_line
from matrix.read.commands import CommandResult, Runner, redacted, run

IMAGES: Final = "MEGATRIX_SQUASHFS"  # variable: the folder of images imported by enroot, such as debian-13.sqsh
GUARD: Final = "/.megatrix"  # a folder that exists in containers only
# A node whose slurmd has no Pyxis ignores srun's options and would run the command outside of any image.
GUARDED: Final = f'[ -d {GUARD} ] || {{ echo "the slurmd of this node has no Pyxis" >&2; exit 125; }}; exec "$@"'
# Pyxis sets these in a PyTorch image (one with PYTORCH_VERSION); the launcher of a case sets its own.
UNSET: Final = ("RANK", "LOCAL_RANK")
# Output that shows that no container started: slurmstepd on a failed plugin or a missing program; srun without the
# option; the guard.
REFUSED: Final = re.compile(
    r"^slurmstepd[^ ]*: error: (Failed to invoke spank plugin stack|execve\(\): )"
    r"|^srun: unrecognized option '--container|^the slurmd of this node has no Pyxis$",
    re.MULTILINE,
)
# Lines with the reason, most specific first: errors of enroot, of its download, then others.
REASONS: Final = (
    r"\[ERROR\] .*",
    r"curl: .*",
    r"execve\(\): .*",
    r"unrecognized option .*",
    r"the slurmd of this node .*",
    r"pyxis: (?!child|printing).*",
)
BLOCK: Final = 1 << 20  # bytes
FETCH_S: Final = 3600.0  # s to pull an image of 20 GB from a registry


@dataclass(frozen=True)
class Pyxis:
    """srun with the plugin; `images` is the folder of images that are in no registry."""

    srun: str
    images: Path | None = None
    cpus: int = 1  # srun does not give a step those of its task
    run: Runner = run

    @property
    def name(self) -> str:
        """Return "pyxis"."""
        return "pyxis"

    def lack(self, image: Ref) -> str:
        """Return how to import a missing image; Pyxis itself pulls one that a registry has."""
        if not image.build or self._file(image):
            return ""
        folder = self.images or f"${IMAGES}"
        return f"{image.id} is not a file in {IMAGES}: enroot import -o {folder}/{image.id}.sqsh podman://{image.tag}"

    def digest(self, image: Ref) -> str:
        """Return the digest of the image's file; for a registry the tag, since Pyxis reports no digest.

        A file FILE.sha256 in the format of sha256sum, not older than the image, replaces reading the image.
        """
        file = self._file(image)
        if file is None:
            return image.tag
        recorded = file.with_name(f"{file.name}.sha256")
        if recorded.is_file() and recorded.stat().st_mtime >= file.stat().st_mtime:
            return f"sha256:{read_regular_text(recorded).split()[0]}"
        digest = hashlib.sha256()
        with open_regular(file) as content:
            while block := content.read(BLOCK):
                digest.update(block)
        return f"sha256:{digest.hexdigest()}"

    def command(self, image: Ref, box: ContainerSpec, *inside: str) -> list[str]:
        """Return the command line of a step in this allocation: /tmp is private, the network that of the node."""
        mounts = [f"{folder}:{folder}:ro" for folder in box.readable]
        mounts += [f"{folder}:{folder}" for folder in box.writable]
        mounts += [f"{box.folder}:{GUARD}:ro"]
        unset = (word for name in UNSET for word in ("-u", name))
        return [
            *(self.srun, "--ntasks=1", f"--cpus-per-task={self.cpus}", f"--job-name={box.name}"),
            "--mpi=none",  # otherwise a site's default makes every rank part of one MPI job of Slurm
            "--disable-status",  # so that one SIGINT is passed on
            "--export=NONE",  # passes SLURM_* and CUDA_VISIBLE_DEVICES only: no PYTHONPATH, no secret tokens
            *(f"--container-image={self._named(image)}", "--container-readonly", "--no-container-mount-home"),
            *(f"--container-workdir={box.folder}", f"--container-mounts={','.join(mounts)}"),
            *("/bin/sh", "-c", GUARDED, "sh"),  # a node that sets up no container sets no PATH
            # Set inside: the image's variables and enroot would override those set around srun.
            *("env", *unset, *(f"{key}={value}" for key, value in box.environ.items())),
            *inside,
        ]

    def start_s(self, image: Ref) -> float:
        """Return FETCH_S for an image that its registry has."""
        return START_S if self._file(image) else FETCH_S

    def query(self, image: Ref, box: ContainerSpec, *inside: str) -> CommandResult:
        """Run a short query in the image; only Slurm limits its time, since the image may be pulled first."""
        return self.run(self.command(image, box, *inside))

    def refusal(self, status: int, printed: str) -> str:
        """Return the error of Pyxis or enroot when no container started; srun then exits with 1, as pytest may."""
        if status == 0 or not REFUSED.search(printed):
            return ""
        reason = next(filter(None, (re.search(pattern, printed) for pattern in REASONS)), None)
        return redacted(reason[0].strip()) if reason else last_line(printed)

    def kill(self, name: str) -> None:
        """Do nothing: the caller kills srun, and the step ends with it."""

    def _file(self, image: Ref) -> Path | None:
        file = self.images / f"{image.id}.sqsh" if self.images else None
        return file if file and file.is_file() else None

    def _named(self, image: Ref) -> str:
        """Return the image in the form of Pyxis: a path, or REGISTRY#NAME:TAG."""
        file = self._file(image)
        return str(file) if file else image.tag.replace("/", "#", 1)


def find(environ: Mapping[str, str] = os.environ, run: Runner = run) -> Pyxis | None:
    """Return Pyxis if srun on this node has it, else None."""
    srun = shutil.which("srun", path=environ.get("PATH", os.defpath))
    if srun is None or "--container-image" not in run([srun, "--help"], seconds=ANSWER_S).out:
        return None
    folder = environ.get(IMAGES)
    return Pyxis(srun, Path(folder) if folder else None, int(environ.get("SLURM_CPUS_PER_TASK", "1")), run)
