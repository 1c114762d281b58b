"""Build images: Debian's from its packages, where no registry is reachable, and releases over a local image.

The base of a Debian image is created by debootstrap as root, or by mmdebstrap as any user, and imported. All images are
built by one Containerfile. Their content digest is the image id of podman or docker.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from matrix.ground.catalog.model import Catalog, Container, Image, Release
from matrix.ground.catalog.stack import ABSENT, MCORE, TE
from matrix.ground.errors import MatrixError, closest
from matrix.prove.provision import project
from matrix.prove.provision.indexes import PipInside, pip_inside, site_options
from matrix.prove.provision.tools import NO_TOOL, find
from matrix.read import scratch
from matrix.read.commands import Runner, redacted, run

SUITE: Final = "trixie"  # the Debian whose python3-torch has the mpi backend
BASE_TAG: Final = f"localhost/megatrix/{SUITE}:latest"
PIP: Final = "python3-pip"  # Debian's; NGC's images have pip
# The major version of CUDA of Transformer Engine's library for an image without CUDA: any works, and every release on
# PyPI has this one.
CUDA: Final = "12"
# Seconds. Creating the base took 31 s, torch and Open MPI 60 s, a release 10 s (2 cores, a mirror nearby); 1 h is for a
# slow one, for an image of 20 GB from a registry, and for Transformer Engine's extension, which compiles for minutes.
STEP_S: Final = 3600.0
LINE_CHARS: Final = 300  # characters of a line in an error message: pip lists every existing version


class Builder:
    """Builds images with the container tool of this machine; `progress` is called with a line for each step.

    Every method returns the content digest of its image, and raises MatrixError with the last output of a step that
    fails. `user` is the user id, by default that of this process.
    """

    def __init__(
        self,
        progress: Callable[[str], None],
        environ: Mapping[str, str] = os.environ,
        *,
        run: Runner = run,
        user: int | None = None,
    ) -> None:
        tool = find(environ, run)
        if tool is None:
            raise MatrixError("no container tool works on this machine", expected="podman or docker", fix=NO_TOOL)
        self.tool = tool
        self._progress, self._environ, self._run = progress, environ, run
        self._user = os.getuid() if user is None else user

    def debian(self, packages: Sequence[str], tag: str, *, mirror: str = "") -> str:
        """Build a Debian image with these packages from `mirror` ("": the default of the tool)."""
        maker = base_maker(self._environ, self._user)
        with scratch.temporary("image") as folder:
            archive = Path(folder) / "base.tar"
            for text, command in base_steps(maker, Path(folder), archive, mirror):
                self._step(text, command)
            self._step("importing it", [self.tool.path, "import", str(archive), BASE_TAG])
        return self._build(tag, {"BASE": BASE_TAG, "PACKAGES": " ".join(packages)}, ["--target=plain"])

    def fetch(self, tag: str) -> str:
        """Pull an image from its registry unless it is local."""
        if digest := self.tool.image(tag):
            return digest
        self._progress(f"fetching {tag}")
        pulled = self._run([self.tool.path, "pull", "--quiet", tag], seconds=STEP_S)
        if pulled.code:
            raise MatrixError(
                "the image is not local, and the pull from its registry failed",
                where=f"{self.tool.name} pull {tag}",
                got=brief(pulled.complaint),
                expected="a reachable registry, and a login if it requires one",
                fix=f"`{self.tool.name} pull` where it is reachable, then `save` there and `load` on this machine",
            )
        return self.tool.image(tag)

    def lay(
        self, base: str, tag: str, *, mcore: str = "", te: str = "", cuda: str = CUDA, packages: Sequence[str] = ()
    ) -> str:
        """Install releases of megatron-core and Transformer Engine ("" = none) over a local image.

        `cuda` is the CUDA major version of Transformer Engine's library, `packages` are Debian packages that pip needs.
        """
        arguments = {"BASE": base, "PACKAGES": " ".join(packages), "MCORE": mcore, "TE": te, "CUDA": cuda}
        with build_options(self.pip_settings()) as options:
            return self._build(tag, arguments, options, "a release that has a wheel for the image's Python")

    def pip_settings(self) -> PipInside:
        """Return this machine's pip configuration as a build gets it.

        Raises MatrixError where the tool can't pass it in; `lay` does so too, but only after its base was pulled.
        """
        inside = pip_inside(site_options(self._environ))
        if self.tool.name != "docker":
            return inside
        if (buildx := self._run([self.tool.path, "buildx", "version"])).code:
            raise MatrixError(
                "this docker can't pass secrets to a build, and pip's configuration is one",
                where="docker buildx version",
                got=brief(buildx.complaint),
                expected="docker with its buildx component, or podman",
                fix="apt-get install docker-buildx (from docker.com: docker-buildx-plugin), or apt-get install podman",
            )
        if inside.folders:
            raise MatrixError(
                "a docker build can't mount folders of this machine",
                got=f"pip is configured with {', '.join(map(str, inside.folders))}",
                expected="indexes with URLs, or podman",
                fix="apt-get install podman, or set PIP_CONFIG_FILE to a file with the index only",
            )
        return inside

    def _build(self, tag: str, arguments: Mapping[str, str], options: Sequence[str] = (), fix: str = "") -> str:
        """Build the Containerfile; podman in a chroot, which needs no cgroup, namespace or network."""
        isolation = ["--isolation=chroot"] if self.tool.name == "podman" else []
        build_arguments = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        command = [self.tool.path, "build", *isolation, *build_arguments, *options]
        command += ["-f", str(containerfile()), "-t", tag]
        with scratch.temporary("context") as empty:
            self._step(f"building {tag}", [*command, empty], fix)
        return self.tool.image(tag)

    def _step(self, text: str, command: Sequence[str], fix: str = "") -> None:
        self._progress(text)
        result = self._run(command, environment=with_sbin(self._environ), seconds=STEP_S)
        if result.code:
            where, got = " ".join(command[:2]), brief(result.complaint)
            raise MatrixError(f"an image can't be built: {text}", where=where, got=got, fix=fix or None)


def containerfile() -> Path:
    """Return the path of the Containerfile of all images."""
    return project.folder() / "containers" / "Containerfile"


@contextmanager
def build_options(inside: PipInside) -> Iterator[list[str]]:
    """Yield the options of a build that pass pip's configuration in; its file is deleted afterwards."""
    with scratch.temporary("pip") as folder:  # readable by this user only
        options = [
            f"--volume={folder_here}:{folder_inside}:ro" for folder_here, folder_inside in inside.folders.items()
        ]
        secrets = dict(inside.files)
        if inside.text:
            secrets["pip.conf"] = Path(folder) / "pip.conf"
            secrets["pip.conf"].write_text(inside.text, encoding="utf-8")
        yield [*options, *(f"--secret=id={name},src={file}" for name, file in secrets.items())]


def brief(complaint: str) -> str:
    """Return pip's error lines, or all lines of the output; a line beyond LINE_CHARS is cut in its middle."""
    lines, half = complaint.split("\n"), LINE_CHARS // 2
    lines = [line for line in lines if line.startswith("ERROR: ")] or lines  # the rest repeats the Containerfile
    return "\n".join(line if len(line) <= LINE_CHARS else f"{line[:half]} ... {line[-half:]}" for line in lines)


def with_sbin(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with /usr/sbin on PATH: it has debootstrap and chroot, and is not on a user's PATH."""
    return {**environ, "PATH": os.pathsep.join([environ.get("PATH", os.defpath), "/usr/sbin"])}


def base_maker(environ: Mapping[str, str], user: int) -> str:
    """Return the path of the tool that creates the base. Raises MatrixError without one that this user can run."""
    names = ("debootstrap", "mmdebstrap") if user == 0 else ("mmdebstrap",)
    for name in names:
        if path := shutil.which(name, path=with_sbin(environ)["PATH"]):
            return path
    raise MatrixError(
        "no tool creates an image from Debian packages on this machine",
        got=f"no {' or '.join(names)} on PATH, user id {user}",
        expected="mmdebstrap, or debootstrap as root",
        fix=f"apt-get install {names[0]}; without Debian packages, build on debian:{SUITE}-slim, see docs/images.md",
    )


def base_steps(maker: str, folder: Path, archive: Path, mirror: str) -> list[tuple[str, list[str]]]:
    """Return the steps that create `archive`, a tar of a minimal Debian: the progress text and the command of each."""
    step = f"making {SUITE} with {Path(maker).name}"
    sources = [mirror] if mirror else []
    if Path(maker).name == "mmdebstrap":
        return [(step, [maker, "--variant=minbase", SUITE, str(archive), *sources])]
    root = folder / "root"
    return [
        (step, [maker, "--variant=minbase", SUITE, str(root), *sources]),
        ("packing it", ["tar", "-C", str(root), "--one-file-system", "-cf", str(archive), "."]),
    ]


@dataclass(frozen=True)
class BuildRequest:
    """An image to build, unchanged or with releases laid over it ("" = none); `tag` names the result.

    `cuda` is the CUDA major version of Transformer Engine's library.
    """

    image: Image | Container
    mcore: str = ""
    te: str = ""
    cuda: str = CUDA

    @property
    def tag(self) -> str:
        """Return its tag in podman or docker: localhost/megatrix/debian-13:mcore-0.15.2."""
        laid = [f"{name}-{version}" for name, version in (("mcore", self.mcore), ("te", self.te)) if version]
        return f"localhost/megatrix/{self.image.id}:{'-'.join(laid)}" if laid else self.image.tag


def build(request: BuildRequest, builder: Builder, mirror: str = "") -> str:
    """Build the image, after the image below it if that is missing; return its content digest."""
    image = request.image
    ours = isinstance(image, Image)
    if request.tag != image.tag:
        builder.pip_settings()  # raises before a large image is pulled in vain
    if isinstance(image, Container):
        builder.fetch(image.tag)
    elif request.tag == image.tag or not builder.tool.image(image.tag):
        digest = builder.debian(image.packages, image.tag, mirror=mirror)
        if request.tag == image.tag:
            return digest
    return builder.lay(
        image.tag, request.tag, mcore=request.mcore, te=request.te, cuda=request.cuda, packages=(PIP,) if ours else ()
    )


def build_request(known: Catalog, name: str, mcore: str = "", te: str = "", mirror: str = "") -> BuildRequest:
    """Return the request that the texts give. Raises MatrixError for an unknown or impossible one."""
    image = known.bases.get(name)
    if not isinstance(image, (Image, Container)):
        images = [*(image.id for image in known.images), *(container.id for container in known.containers)]
        raise MatrixError("no such image", got=name, expected="an image of the catalog", fix=closest(name, images))
    if isinstance(image, Container):
        if not (mcore or te):
            raise MatrixError(
                "nothing to build: this image comes from a registry",
                got=name,
                expected=f"--mcore or --te, or an image that is built: {' or '.join(item.id for item in known.images)}",
                fix=f"podman or docker pull {image.tag}",
            )
        if mirror:
            raise MatrixError("--mirror is for Debian packages only", got=f"--mirror with {name}", fix="leave it out")
    if mirror:
        public(mirror)
    released("megatron-core", mcore, known.megatron_core)
    released("Transformer Engine", te, known.transformer_engine)
    if reason := known.excluded(known.cell(image.id, {MCORE: mcore or ABSENT, TE: te or ABSENT}).stack):
        raise MatrixError("these versions are incompatible", got=f"{name} with {mcore or te}", expected=reason)
    cuda = library_cuda(image, te, known.transformer_engine) if te and isinstance(image, Container) else CUDA
    return BuildRequest(image, mcore, te, cuda)


def library_cuda(image: Container, te: str, releases: Iterable[Release]) -> str:
    """Return the major version of an image's CUDA. Raises MatrixError when this release has no library for it."""
    if image.cuda is None:
        raise MatrixError(
            "the CUDA version of this image, which Transformer Engine's library requires, is unknown",
            got=str(image.id),
            expected="an image with `cuda` in matrix/ground/catalog/facts/containers.toml",
            fix="run podman or docker build directly, with CUDA=12 or CUDA=13: docs/images.md",
        )
    major = image.cuda.split(".")[0]
    fitting = [str(release.version) for release in releases if major in release.cuda]
    if te not in fitting:
        raise MatrixError(
            f"this release has no library for CUDA {major} on PyPI",
            got=f"{image.id}, which has CUDA {image.cuda}, with Transformer Engine {te}",
            expected=f"a release with transformer-engine-cu{major}",
            fix=f"--te {fitting[0]} or later" if fitting else None,
        )
    return major


def public(mirror: str) -> None:
    """Raise MatrixError unless the mirror may be recorded in the image: no password, no folder of this machine."""
    try:
        parts = urlsplit(mirror)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise MatrixError(
            "not a mirror that can be recorded in an image",
            got=f"--mirror {redacted(mirror)}",
            expected="http:// or https:// without user and password; it stays in the image, in /etc/apt/sources.list",
            fix="use a mirror without authentication; serve a folder with python3 -m http.server",
        )


def released(package: str, version: str, releases: Iterable[Release]) -> None:
    """Raise MatrixError unless this version is on PyPI ("" = no version)."""
    on_pypi = [release.version for release in releases if release.on_pypi]
    if version and version not in on_pypi:
        raise MatrixError(
            f"no release of {package} on PyPI",
            got=version,
            expected="a release of the catalog that is on PyPI",
            fix=closest(version, map(str, on_pypi)),
        )
