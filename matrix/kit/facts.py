"""Facts of a failure in a TOML file next to its code, read into dataclasses with version ranges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from matrix.catalog.codec import decode
from matrix.catalog.schema import read_toml
from matrix.catalog.versions import Range, is_version, parse

__all__ = ["Range", "newer", "read_facts"]
T = TypeVar("T")


def read_facts(kind: type[T], path: Path) -> T:
    """Return the file as the dataclass `kind`. Raises MatrixError."""
    return decode(kind, read_toml(path), str(path))


def newer(version: str, releases: Sequence[str]) -> list[str]:
    """Return the releases after `version`; [] where it is not a version (a folder)."""
    return [release for release in releases if parse(release) > parse(version)] if is_version(version) else []
