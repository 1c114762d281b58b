"""How images are made: Debian's from its packages, where no registry is reached, and others laid over one that is here.

The base of an image of ours is made by debootstrap as root or mmdebstrap as anybody, and imported. All are built by one
Containerfile. Their content digest is what podman or docker call their id.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from matrix.errors import MatrixError
from matrix.provision import project
from matrix.provision.commands import Runner, run
from matrix.provision.indexes import site_options
from matrix.provision.pip_inside import PipInside, pip_inside
from matrix.provision.tools import NO_TOOL, find

SUITE: Final = "trixie"  # the Debian whose python3-torch has the mpi backend
BASE_TAG: Final = f"localhost/megatrix/{SUITE}:latest"
PIP: Final = "python3-pip"  # Debian's; NGC's images have pip
# The major version of CUDA for which Transformer Engine's library is taken where an image has no CUDA: any will do, and
# every release on PyPI has this one.
CUDA: Final = "12"
# Seconds. Making the base took 31 s, torch and Open MPI 60 s, a release 10 s (2 cores, a mirror nearby); 1 h is for a
# slow one, for an image of 20 GB from a registry, and for Transformer Engine's extension, which compiles for minutes.
STEP_S: Final = 3600.0
WORDS: Final = 300  # characters of a line that an error shows: pip lists every version that there is


class Builder:
    """Makes images with the tool that is here; `say` hears of each step.

    Every method returns the content digest of what it made, and raises MatrixError when a step fails, with what the
    step wrote last. `user` is the user id, ours unless told.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        environ: Mapping[str, str] = os.environ,
        *,
        run: Runner = run,
        user: int | None = None,
    ) -> None:
        tool = find(environ, run)
        if tool is None:
            raise MatrixError("no container tool works here", expected="podman or docker", fix=NO_TOOL)
        self.tool = tool
        self._say, self._environ, self._run = say, environ, run
        self._user = os.getuid() if user is None else user

    def debian(self, packages: Sequence[str], tag: str, *, mirror: str = "") -> str:
        """Make Debian with these packages; `mirror` is where they come from ("" = where the tool takes them from)."""
        maker = base_maker(self._environ, self._user)
        with tempfile.TemporaryDirectory(prefix="megatrix-image-") as folder:
            archive = Path(folder) / "base.tar"
            for text, command in base_steps(maker, Path(folder), archive, mirror):
                self._step(text, command)
            self._step("importing it", [self.tool.path, "import", str(archive), BASE_TAG])
        return self._build(tag, {"BASE": BASE_TAG, "PACKAGES": " ".join(packages)}, ["--target=plain"])

    def fetch(self, tag: str) -> str:
        """Get a registry's image, if it is not here."""
        if digest := self.tool.image(tag):
            return digest
        self._say(f"fetching {tag}")
        answer = self._run([self.tool.path, "pull", "--quiet", tag], seconds=STEP_S)
        if answer.code:
            raise MatrixError(
                "the image is not here, and its registry did not give it",
                where=f"{self.tool.name} pull {tag}",
                got=brief(answer.complaint),
                expected="a registry that is reached from here, and a login if it wants one",
                fix=f"`{self.tool.name} pull` where it is reached, then `save` there and `load` here",
            )
        return self.tool.image(tag)

    def lay(
        self, base: str, tag: str, *, mcore: str = "", te: str = "", cuda: str = CUDA, packages: Sequence[str] = ()
    ) -> str:
        """Lay releases of megatron-core and Transformer Engine over an image that is here ("" = none).

        `cuda` is the major version that Transformer Engine's library is for, `packages` are Debian's that pip needs.
        """
        arguments = {"BASE": base, "PACKAGES": " ".join(packages), "MCORE": mcore, "TE": te, "CUDA": cuda}
        with handed_in(self.handed()) as options:
            return self._build(tag, arguments, options, "a release that has a wheel for the image's Python")

    def handed(self) -> PipInside:
        """Return what tells pip in a build where it takes packages from on this machine.

        Raises MatrixError where the tool can't hand it in; `lay` does so too, but by then its base has been fetched.
        """
        inside = pip_inside(site_options(self._environ))
        if self.tool.name != "docker":
            return inside
        if (answer := self._run([self.tool.path, "buildx", "version"])).code:
            raise MatrixError(
                "docker can't be handed secrets here while it builds, and pip's configuration is one",
                where="docker buildx version",
                got=brief(answer.complaint),
                expected="docker with its buildx component, or podman",
                fix="apt-get install docker-buildx (from docker.com: docker-buildx-plugin), or apt-get install podman",
            )
        if inside.folders:
            raise MatrixError(
                "docker can't see folders of this machine while it builds",
                got=f"pip is configured with {', '.join(map(str, inside.folders))}",
                expected="indexes with a URL, or podman",
                fix="apt-get install podman, or set PIP_CONFIG_FILE to a file that names the index alone",
            )
        return inside

    def _build(self, tag: str, arguments: Mapping[str, str], options: Sequence[str] = (), fix: str = "") -> str:
        """Run the Containerfile; podman does it in a chroot: no cgroup, no namespace, no network to set up."""
        isolation = ["--isolation=chroot"] if self.tool.name == "podman" else []
        told = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        command = [self.tool.path, "build", *isolation, *told, *options, "-f", str(containerfile()), "-t", tag]
        with tempfile.TemporaryDirectory(prefix="megatrix-context-") as nothing:
            self._step(f"building {tag}", [*command, nothing], fix)
        return self.tool.image(tag)

    def _step(self, text: str, command: Sequence[str], fix: str = "") -> None:
        self._say(text)
        answer = self._run(command, environment=with_sbin(self._environ), seconds=STEP_S)
        if answer.code:
            what = f"an image can't be built: {text}"
            raise MatrixError(what, where=" ".join(command[:2]), got=brief(answer.complaint), fix=fix or None)


def containerfile() -> Path:
    """Return the file by which all images are built."""
    return project.folder() / "containers" / "Containerfile"


@contextmanager
def handed_in(inside: PipInside) -> Iterator[list[str]]:
    """Give the options of a build that hand pip's configuration in; the file of it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="megatrix-pip-") as folder:  # only we can read it
        options = [f"--volume={here}:{there}:ro" for here, there in inside.folders.items()]
        secrets = dict(inside.files)
        if inside.text:
            secrets["pip.conf"] = Path(folder) / "pip.conf"
            secrets["pip.conf"].write_text(inside.text, encoding="utf-8")
        yield [*options, *(f"--secret=id={name},src={file}" for name, file in secrets.items())]


def brief(complaint: str) -> str:
    """Return what pip says of an error, or all lines of a complaint; each cut to WORDS characters in its middle."""
    lines, half = complaint.split("\n"), WORDS // 2
    lines = [line for line in lines if line.startswith("ERROR: ")] or lines  # the rest is the Containerfile once more
    return "\n".join(line if len(line) <= WORDS else f"{line[:half]} ... {line[-half:]}" for line in lines)


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
