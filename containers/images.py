"""How an image of ours is built where no registry is reached.

The base of an image is made from Debian's packages (debootstrap as root, mmdebstrap as anybody), imported, and the
recipe's Containerfile is built on it. Its content digest is what podman or docker call its id.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from containers.commands import Runner, run
from containers.tools import NO_TOOL, Tool, find
from matrix.errors import MatrixError

RECIPES: Final = Path(__file__).parent
SUITE: Final = "trixie"  # the Debian whose python3-torch has the mpi backend
BASE_TAG: Final = f"localhost/megatrix/{SUITE}:latest"
# Seconds. Making the base took 31 s and the image 60 s (2 cores, a mirror nearby); 1 h is for a slow one.
BUILD_S: Final = 3600.0


def build(
    recipe: str,
    tag: str,
    say: Callable[[str], None],
    *,
    mirror: str = "",
    environ: Mapping[str, str] = os.environ,
    run: Runner = run,
    user: int | None = None,
) -> str:
    """Build the image of containers/RECIPE as `tag`; return its content digest. `say` hears of each step.

    `mirror` is where Debian's packages come from ("" = where the tool takes them from). Raises MatrixError when a tool
    is missing or a step fails, with what the step wrote last.
    """
    tool = find(environ, run)
    if tool is None:
        raise MatrixError("no container tool works here", expected="podman or docker", fix=NO_TOOL)
    maker = base_maker(environ, os.getuid() if user is None else user)
    with tempfile.TemporaryDirectory(prefix="megatrix-image-") as folder:
        archive = Path(folder) / "base.tar"
        for text, command in (
            *base_steps(maker, Path(folder), archive, mirror),
            ("importing it", [tool.path, "import", str(archive), BASE_TAG]),
            (f"building {tag}", build_command(tool, recipe, tag)),
        ):
            say(text)
            answer = run(command, environment=with_sbin(environ), seconds=BUILD_S)
            if answer.code:
                raise MatrixError(f"an image can't be built: {text}", where=" ".join(command), got=answer.complaint)
    return tool.image(tag)


def with_sbin(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that finds debootstrap and the chroot that it calls: they are off a user's PATH."""
    return {**environ, "PATH": os.pathsep.join([environ.get("PATH", os.defpath), "/usr/sbin"])}


def base_maker(environ: Mapping[str, str], user: int) -> str:
    """Return the path of the tool that makes the base. Raises MatrixError when none is here that this user can use."""
    names = ("debootstrap", "mmdebstrap") if user == 0 else ("mmdebstrap",)
    for name in names:
        if found := shutil.which(name, path=with_sbin(environ)["PATH"]):
            return found
    raise MatrixError(
        "an image is made from Debian's packages, and what does that is not here",
        got=f"no {' or '.join(names)} on PATH, user id {user}",
        expected="mmdebstrap, or debootstrap as root",
        fix=f"apt-get install {names[0]}; elsewhere build on debian:{SUITE}-slim, see docs/images.md",
    )


def base_steps(maker: str, folder: Path, archive: Path, mirror: str) -> list[tuple[str, list[str]]]:
    """Return the steps that make `archive`, a tar of Debian's smallest system: what to say, and the command."""
    made = f"making {SUITE} with {Path(maker).name}"
    given = [mirror] if mirror else []
    if Path(maker).name == "mmdebstrap":
        return [(made, [maker, "--variant=minbase", SUITE, str(archive), *given])]
    root = folder / "root"
    return [
        (made, [maker, "--variant=minbase", SUITE, str(root), *given]),
        ("packing it", ["tar", "-C", str(root), "--one-file-system", "-cf", str(archive), "."]),
    ]


def build_command(tool: Tool, recipe: str, tag: str) -> list[str]:
    """Return the command that builds a recipe on our base.

    podman runs the Containerfile's one step in a chroot: that needs no cgroup, no namespace and no network set up.
    """
    isolation = ["--isolation=chroot"] if tool.name == "podman" else []
    folder = RECIPES / recipe
    containerfile = ["-f", str(folder / "Containerfile")]
    return [tool.path, "build", *isolation, "--build-arg", f"BASE={BASE_TAG}", *containerfile, "-t", tag, str(folder)]
