"""What `megatrix build` makes: an image of ours, or releases laid over one of the catalog's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from matrix.catalog.model import Catalog, Container, Image, Release
from matrix.catalog.versions import NONE
from matrix.errors import MatrixError, closest
from matrix.provision.commands import redacted
from matrix.provision.images import CUDA, PIP, Builder


@dataclass(frozen=True)
class BuildRequest:
    """What is to be built: an image as it is, or with releases laid over it ("" = none); `tag` names the result.

    `cuda` is the major version that Transformer Engine's library is for.
    """

    image: Image | Container
    mcore: str = ""
    te: str = ""
    cuda: str = CUDA

    @property
    def tag(self) -> str:
        """Return the name under which podman or docker keep it: localhost/megatrix/debian-13:mcore-0.15.2."""
        laid = [f"{name}-{version}" for name, version in (("mcore", self.mcore), ("te", self.te)) if version]
        return f"localhost/megatrix/{self.image.id}:{'-'.join(laid)}" if laid else self.image.tag


def build(wish: BuildRequest, builder: Builder, mirror: str = "") -> str:
    """Build it, and what it stands on where that is not here; return its content digest."""
    image = wish.image
    ours = isinstance(image, Image)
    if wish.tag != image.tag:
        builder.handed()  # before something large is fetched in vain
    if isinstance(image, Container):
        builder.fetch(image.tag)
    elif wish.tag == image.tag or not builder.tool.image(image.tag):
        digest = builder.debian(image.packages, image.tag, mirror=mirror)
        if wish.tag == image.tag:
            return digest
    return builder.lay(
        image.tag, wish.tag, mcore=wish.mcore, te=wish.te, cuda=wish.cuda, packages=(PIP,) if ours else ()
    )


def build_request(known: Catalog, name: str, mcore: str = "", te: str = "", mirror: str = "") -> BuildRequest:
    """Return what these words ask for. Raises MatrixError when there is no such thing."""
    image = known.bases.get(name)
    if not isinstance(image, (Image, Container)):
        images = [str(one.id) for group in (known.images, known.containers) for one in group]
        raise MatrixError("no such image", got=name, expected="an image of the catalog", fix=closest(name, images))
    if isinstance(image, Container):
        if not (mcore or te):
            raise MatrixError(
                "there is nothing to build: this image comes from a registry",
                got=name,
                expected=f"--mcore or --te with it, or an image of ours: {' or '.join(one.id for one in known.images)}",
                fix=f"podman or docker pull {image.tag}",
            )
        if mirror:
            raise MatrixError("--mirror is for Debian's packages", got=f"--mirror with {name}", fix="leave it out")
    if mirror:
        public(mirror)
    released("megatron-core", mcore, known.megatron_core)
    released("Transformer Engine", te, known.transformer_engine)
    if reason := known.excluded(known.cell(image.id, mcore=mcore or NONE, te=te or NONE)):
        raise MatrixError("these do not go together", got=f"{name} with {mcore or te}", expected=reason)
    cuda = library_cuda(image, te, known.transformer_engine) if te and isinstance(image, Container) else CUDA
    return BuildRequest(image, mcore, te, cuda)


def library_cuda(image: Container, te: str, releases: Iterable[Release]) -> str:
    """Return the major version of an image's CUDA. Raises MatrixError when this release has no library for it."""
    if image.cuda is None:
        raise MatrixError(
            "Transformer Engine's library is for one CUDA, and no source tells which this image has",
            got=str(image.id),
            expected="an image with `cuda` in matrix/catalog/facts/containers.toml",
            fix="podman or docker build by hand, with CUDA=12 or CUDA=13: docs/images.md",
        )
    major = image.cuda.split(".")[0]
    fitting = [str(release.version) for release in releases if major in release.cuda]
    if te not in fitting:
        raise MatrixError(
            f"this release has no library for CUDA {major} on PyPI",
            got=f"{image.id}, which has CUDA {image.cuda}, with Transformer Engine {te}",
            expected=f"one that has transformer-engine-cu{major}",
            fix=f"--te {fitting[0]} or later" if fitting else None,
        )
    return major


def public(mirror: str) -> None:
    """Raise MatrixError unless an image may say of itself that it has its packages from there."""
    try:
        parts = urlsplit(mirror)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise MatrixError(
            "not a mirror that an image can name",
            got=f"--mirror {redacted(mirror)}",
            expected="http:// or https:// without user and password: it stays in the image, in /etc/apt/sources.list",
            fix="a mirror that asks for none; a folder can be served by python3 -m http.server",
        )


def released(package: str, version: str, releases: Iterable[Release]) -> None:
    """Raise MatrixError unless pip can have this version ("" = none is asked for)."""
    here = [release.version for release in releases if release.on_pypi]
    if version and version not in here:
        raise MatrixError(
            f"no release of {package} that pip can have",
            got=version,
            expected="a release of the catalog that is on PyPI",
            fix=closest(version, map(str, here)),
        )
