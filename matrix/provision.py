"""What is laid over a base for each case of an image: made outside of it, where there are clones and an index.

Inside there is no network, no git and no uv; the overlays are content-addressed folders, and are mounted read-only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.overlays import Overlay
from matrix.errors import MatrixError


@dataclass(frozen=True)
class Provision:
    """The overlays of one case; or why it can't have them, "" if it can."""

    overlays: tuple[Overlay, ...] = ()
    reason: str = ""


def write(path: Path, provisions: Mapping[str, Provision]) -> None:
    """Write the provisions of cases, by their keys."""
    told = {key: {"reason": one.reason, "overlays": list(map(_plain, one.overlays))} for key, one in provisions.items()}
    path.write_text(json.dumps(told) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Provision]:
    """Return what `write` wrote. Raises MatrixError when the file can't be read."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MatrixError("what was provided for this image can't be read", where=str(path), got=error) from None
    return {key: Provision(tuple(map(_overlay, one["overlays"])), one["reason"]) for key, one in told.items()}


def _plain(overlay: Overlay) -> dict[str, Any]:
    return {**vars(overlay), "path": str(overlay.path), "packages": dict(overlay.packages)}


def _overlay(told: Mapping[str, Any]) -> Overlay:
    return Overlay(Path(told["path"]), told["digest"], told["packages"], tuple(told["notes"]))
