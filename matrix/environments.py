"""The tox environments of the catalog: one per `wheels` base, and the Transformer Engine lines that people type.

torch2.4.0        the base torch-2.4.0; the night runs these
te19              the twin of the image that shipped Transformer Engine 1.9
te19-torch23      Transformer Engine 1.9 on another torch minor
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from matrix.catalog import Catalog, Container, Reader, Wheels
from matrix.versions import minor, parse

# What the cell's own side needs: pytest and what matrix/ imports. tomli is for Python 3.10.
CELL_REQUIRES: Final = ("pytest>=8", "packaging>=24", "tomli>=2; python_version < '3.11'")


@dataclass(frozen=True)
class Environment:
    """A tox environment. `te` is a line ("1.9"), "" for a base of its own; `requirements` are pip's."""

    name: str
    base: Wheels | Reader
    te: str
    requirements: tuple[str, ...]
    description: str


def base_name(base: str) -> str:
    """Return the tox environment of a base: torch-2.4.0 -> torch2.4.0."""
    return base.replace("-", "", 1)


def environments(catalog: Catalog) -> dict[str, Environment]:
    """Return the environments by name."""
    made = {}
    for base in catalog.wheels:
        made[base_name(base.id)] = _environment(catalog, base_name(base.id), base, "", f"reproductions on {base.id}")
    for reader in catalog.readers:
        name = base_name(reader.id)
        made[name] = Environment(
            name, reader, "", CELL_REQUIRES, "reproductions that read both sides' API, and run nothing"
        )
    for line, image in te_lines(catalog).items():
        name = f"te{line.replace('.', '')}"
        twin = catalog.twin(image) if image else None
        if image and twin:
            text = f"Transformer Engine {line}: {twin.id} as the twin of {image.id} (TE {image.te_source})"
            made[name] = _environment(catalog, name, twin, line, text)
        for other in {minor(base.torch): base for base in reversed(catalog.wheels)}.values():
            long = f"{name}-torch{minor(other.torch).replace('.', '')}"
            made[long] = _environment(catalog, long, other, line, f"Transformer Engine {line} on {other.id}")
    return made


def left_out(catalog: Catalog) -> dict[str, str]:
    """Return why a Transformer Engine line has no environment of its own, by the name that it would have."""
    reasons = {}
    newest = minor(max((base.torch for base in catalog.wheels), key=parse)).replace(".", "")
    for line, image in te_lines(catalog).items():
        name = f"te{line.replace('.', '')}"
        hint = f"name the torch: {name}-torch{newest}"
        if image is None:
            reasons[name] = f"no image of the catalog is known to ship Transformer Engine {line}; {hint}"
        elif catalog.twin(image) is None:
            reasons[name] = f"no wheels base stands for {image.id} (torch {image.torch}); {hint}"
    return reasons


def te_lines(catalog: Catalog) -> Mapping[str, Container | None]:
    """Return each Transformer Engine minor with the newest image that shipped it, None where none is known."""
    shipped = {minor(image.te): image for image in sorted(catalog.containers, key=lambda one: one.id) if image.te}
    lines = sorted({minor(release.version) for release in catalog.transformer_engine}, key=parse)
    return {line: shipped.get(line) for line in lines}


def _environment(catalog: Catalog, name: str, base: Wheels, te: str, description: str) -> Environment:
    requirements = (f"torch=={base.torch}", *catalog.common_requires, *CELL_REQUIRES)
    return Environment(name, base, te, requirements, description)
