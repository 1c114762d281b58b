"""Builds of `megatrix build`: an image from Debian packages, or releases over an image of the catalog."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from matrix.catalog.model import Catalog, Container, Image, Release
from matrix.catalog.stack import ABSENT, MCORE, TE
from matrix.errors import MatrixError, closest
from matrix.provision.commands import redacted
from matrix.provision.images import CUDA, PIP, Builder


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
        images = [str(one.id) for group in (known.images, known.containers) for one in group]
        raise MatrixError("no such image", got=name, expected="an image of the catalog", fix=closest(name, images))
    if isinstance(image, Container):
        if not (mcore or te):
            raise MatrixError(
                "nothing to build: this image comes from a registry",
                got=name,
                expected=f"--mcore or --te, or an image that is built: {' or '.join(one.id for one in known.images)}",
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
            expected="an image with `cuda` in matrix/catalog/facts/containers.toml",
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
