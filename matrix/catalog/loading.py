"""Reading the catalog: the tables of matrix/catalog/facts, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matrix.catalog.checks import check
from matrix.catalog.failure import Failure
from matrix.catalog.model import (
    Catalog,
    Container,
    Driver,
    Exclusion,
    Feature,
    Gpu,
    Image,
    Reader,
    Release,
    Stack,
    Wheels,
)
from matrix.catalog.schema import build, convert, read_toml
from matrix.catalog.versions import parse
from matrix.errors import MatrixError, closest

FACTS: Final = Path(__file__).parent / "facts"


@dataclass(frozen=True)
class Common:
    """What every wheels base holds beside torch, as pip's requirements."""

    requires: tuple[str, ...]


def load(folder: Path = FACTS) -> Catalog:
    """Read and check the catalog. Raises MatrixError that says file, key, got, expected and fix."""
    if not (folder / "failures").is_dir():
        raise MatrixError("no catalog here", got=folder, expected="a folder with bases.toml, ..., failures/")
    containers = _tables(folder / "containers.toml", {"container": Container})["container"]
    bases = read_toml(folder / "bases.toml")
    common = build(Common, bases.pop("common", {}), f"{folder / 'bases.toml'}: common")
    made = _built(folder / "bases.toml", bases, {"wheels": Wheels, "reader": Reader, "image": Image})
    drivers = _tables(folder / "drivers.toml", {"driver": Driver, "feature": Feature, "gpu": Gpu})
    releases = _tables(
        folder / "releases.toml", {"megatron_core": Release, "transformer_engine": Release, "torch": Release}
    )
    paths = sorted((folder / "failures").glob("*.toml"))
    failures = [build(Failure, read_toml(path), f"{path}") for path in paths]
    for path, failure in zip(paths, failures, strict=True):
        if failure.id != path.stem:
            raise MatrixError(
                "a failure's file has its id as name", where=f"{path}.id", got=failure.id, expected=path.stem
            )
    catalog = Catalog(
        containers=containers,
        wheels=made["wheels"],
        readers=made["reader"],
        common_requires=common.requires,
        drivers=drivers["driver"],
        features=drivers["feature"],
        gpus=drivers["gpu"],
        images=made["image"],
        **{name: tuple(sorted(group, key=lambda item: parse(item.version))) for name, group in releases.items()},
        exclusions=_tables(folder / "constraints.toml", {"exclude": Exclusion})["exclude"],
        stacks=_tables(folder / "stacks.toml", {"stack": Stack})["stack"],
        failures=tuple(failures),
    )
    check(catalog, folder)
    return catalog


def _tables(path: Path, kinds: Mapping[str, type]) -> dict[str, Any]:
    return _built(path, read_toml(path), kinds)


def _built(path: Path, content: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    for key in content:
        if key not in kinds:
            raise MatrixError(
                "unknown table",
                where=f"{path}: {key}",
                got=key,
                expected="a table of this file",
                fix=closest(key, kinds),
            )
    return {
        name: tuple(
            build(kind, item, f"{path}: {name}[{place}]")
            for place, item in enumerate(convert(tuple[Any, ...], content.get(name, []), f"{path}: {name}"))
        )
        for name, kind in kinds.items()
    }
