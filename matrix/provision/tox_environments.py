"""The tox environments of the catalog: one per `wheels` base, and the Transformer Engine lines that people type.

torch2.4.0        the base torch-2.4.0; the night runs these
te19              the twin of the image that shipped Transformer Engine 1.9
te19-torch23      Transformer Engine 1.9 on another torch minor

In an image that has a line's torch the line runs in place: on that torch, which is not installed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from matrix.catalog.model import Catalog, Container, ReaderBase, Wheels
from matrix.catalog.versions import minor, parse
from matrix.provision.current_image import CurrentImage

# What the cell's own side needs: pytest and what matrix/ imports. tomli is for Python 3.10.
CELL_REQUIRES: Final = ("pytest>=8", "packaging>=24", "tomli>=2; python_version < '3.11'")
# What a cell's interpreter is started with, whoever starts it. PYTHONHASHSEED: a reproduce line is to run what ran.
# NO_VCS_VERSION: megatron-core >= 0.17 would ask git for the commit of whatever repository holds the overlay.
CELL_SETTINGS: Final = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "NO_VCS_VERSION": "1"}


@dataclass(frozen=True)
class ToxEnvironment:
    """A tox environment. `te` is a line ("1.9"), "" for a base of its own; `requirements` are pip's.

    For a line that runs in place `interpreter` is the image's own Python, whose packages it sees, and `place` says so.
    """

    name: str
    base: Wheels | ReaderBase
    te: str
    requirements: tuple[str, ...]
    description: str
    interpreter: Path | None = None
    place: str = ""


def base_name(base: str) -> str:
    """Return the tox environment of a base: torch-2.4.0 -> torch2.4.0."""
    return base.replace("-", "", 1)


def environments(catalog: Catalog) -> dict[str, ToxEnvironment]:
    """Return the environments by name."""
    return {made.name: made for made in (*_bases(catalog), *_lines(catalog))}


def in_place(line: ToxEnvironment, standing: CurrentImage) -> ToxEnvironment:
    """Return a line as it runs in the image that one stands in: in place if that has its torch and no other TE.

    What the image holds stays as it is; pip adds what it lacks. Anything else than a line stays what it was.
    """
    have = standing.environment.packages
    torch, te = have["torch"], have.get("transformer-engine", "")
    if not line.te or not isinstance(line.base, Wheels):
        return line
    if minor(torch) != minor(line.base.torch) or (te and minor(te) != line.te):
        has = f"torch {torch}" + (f" and Transformer Engine {te}" if te else "")
        return replace(line, description=f"{line.description}; not in place: this image has {has}")
    lacks = [one for one in line.requirements if one in CELL_REQUIRES or _name(one) not in have]
    # numpy, on which what is added depends, must stay the image's. torch is not named to pip: an image's torch may have
    # been built for other packages than it declares (Debian's for another sympy), and pip would bring those.
    kept = [f"numpy=={have['numpy']}"] if "numpy" in have else []
    place = f"this image's own torch {torch}, in place of {line.base.id}"
    return replace(
        line,
        requirements=(*kept, *lacks),
        description=f"Transformer Engine {line.te} on {place}",
        interpreter=standing.interpreter,
        place=place,
    )


def te_lines(catalog: Catalog) -> Mapping[str, Container | None]:
    """Return each Transformer Engine minor with the newest image that shipped it, None where none is known."""
    # By id NeMo's images come before NGC's PyTorch: one counts where PyTorch's is unknown.
    shipped = {minor(image.te): image for image in sorted(catalog.containers, key=lambda one: one.id) if image.te}
    lines = sorted({minor(release.version) for release in catalog.transformer_engine}, key=parse)
    return {line: shipped.get(line) for line in lines}


def newest_of_its_day(catalog: Catalog, line: str) -> Wheels:
    """Return the base of the newest torch that was out when a Transformer Engine line came out, else of the oldest.

    For a line that no image is known to have shipped: it stands for no image, and on its day pip gave this torch.
    """
    day = min(release.day for release in catalog.transformer_engine if minor(release.version) == line)
    out = {release.version for release in catalog.torch if "" < release.day <= day}
    bases = sorted(catalog.wheels, key=lambda base: parse(base.torch))
    return next((base for base in reversed(bases) if base.torch in out), bases[0])


def _bases(catalog: Catalog) -> Iterator[ToxEnvironment]:
    for base in catalog.wheels:
        yield _environment(catalog, base_name(base.id), base, "", f"reproductions on {base.id}")
    for reader in catalog.readers:
        text = "reproductions that read both sides' API, and run nothing"
        yield ToxEnvironment(base_name(reader.id), reader, "", CELL_REQUIRES, text)


def _lines(catalog: Catalog) -> Iterator[ToxEnvironment]:
    for line, image in te_lines(catalog).items():
        name = f"te{line.replace('.', '')}"
        twin = catalog.twin(image) if image else None
        base = twin or newest_of_its_day(catalog, line)
        if image and twin:
            text = f"{base.id}, twin of {image.id} (which shipped it: {image.te_source})"
        else:
            text = f"{base.id}, the newest of its day ({image.id if image else 'no image'} is known to have shipped it)"
        yield _environment(catalog, name, base, line, f"Transformer Engine {line}: {text}")
        for other in {minor(base.torch): base for base in reversed(catalog.wheels)}.values():
            long = f"{name}-torch{minor(other.torch).replace('.', '')}"
            yield _environment(catalog, long, other, line, f"Transformer Engine {line} on {other.id}")


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _environment(catalog: Catalog, name: str, base: Wheels, te: str, description: str) -> ToxEnvironment:
    requirements = (f"torch=={base.torch}", *catalog.common_requires, *CELL_REQUIRES)
    return ToxEnvironment(name, base, te, requirements, description)
