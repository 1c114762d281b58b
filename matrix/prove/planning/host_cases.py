"""The base `host`, the current environment, and its cases."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.model import HOST, Catalog, ReaderBase, Wheels
from matrix.ground.catalog.schema import Identifier, VersionText
from matrix.ground.catalog.versions import NONE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.night import of_base


def with_host(catalog: Catalog, packages: Mapping[str, str], python: str, label: str = "") -> Catalog:
    """Return the catalog with the base `host`: `packages` (name -> version) on a minor of Python ("3.10").

    With the torch of a container, it stands in that container; `label` is the value of LABEL, if any. Without torch,
    the base only reads sources (level contract).
    """
    host, pythons = Identifier(HOST), (python,)
    if torch := packages.get("torch"):
        image = catalog.container_of(torch, label)
        stands_in = image.id if image else NONE
        open_ = dict.fromkeys(name for failure in catalog.failures for name in failure.open)
        requires = tuple(f"{name}=={packages[name]}" for name in open_ if name in packages)
        base = Wheels(host, VersionText(torch), pythons, image=stands_in, requires=requires, variant=HOST)
        return replace(catalog, wheels=(*catalog.wheels, base))
    return replace(catalog, readers=(*catalog.readers, ReaderBase(host, pythons)))


def cases_here(catalog: Catalog, base: str, packages: Mapping[str, str], levels: Collection[Level]) -> list[Planned]:
    """Return the cases that an environment with these packages runs as `base`. Raises MatrixError without any."""
    core, engine = map(packages.get, ("megatron-core", "transformer-engine"))
    reader = base
    if base == HOST and isinstance(catalog.base(base), ReaderBase):
        reader = catalog.readers[0].id  # failures name the reader of the catalog
        levels = [level for level in levels if level is Level.CONTRACT]
    cases = of_base(catalog, reader, levels, core=core, engine=engine)
    cases = [replace(item, cell=replace(item.cell, base=Identifier(base))) for item in cases]
    if not cases:
        raise MatrixError(
            "the catalog has no case for this environment",
            got=f"base {base}, megatron-core {core or 'any'}",
            expected="a base and a release that a reproduction is written for",
        )
    return cases
