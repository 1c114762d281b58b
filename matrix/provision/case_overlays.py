"""What is laid over a base for each case. For an image and for nodes it is made and written down before the case runs.

There is no network, no git and no uv there; the overlays are content-addressed folders, and are mounted read-only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matrix.catalog.failure import Level
from matrix.catalog.versions import NONE
from matrix.errors import MatrixError
from matrix.planning.planned import Planned
from matrix.provision import sources
from matrix.provision.configuration import Configuration
from matrix.provision.installed import PythonEnvironment
from matrix.provision.overlays import Overlay, Overlays, OverlaySpec, identify

PRELOADED: Final = ("torch", "numpy")  # what the fork-server has imported belongs to the base


@dataclass(frozen=True)
class Provision:
    """The overlays of one case; or why it can't have them, "" if it can."""

    overlays: tuple[Overlay, ...] = ()
    reason: str = ""


def overlay_specs(
    planned: Planned, environment: PythonEnvironment, configuration: Configuration, interpreter: Path | None
) -> tuple[OverlaySpec, ...]:
    """Return what is laid over the base for a case: megatron-core, Transformer Engine where it plays a part, packages.

    What the environment has itself, at the wanted version, stays where it is; level contract reads recorded surfaces
    and needs neither. Raises MatrixError when a clone that a source names is not configured.
    """
    if planned.level is Level.CONTRACT:
        return ()
    base = frozenset((name, environment.packages[name]) for name in PRELOADED if name in environment.packages)
    wanted = (
        ("megatron-core", planned.source, planned.cell.mcore),
        ("transformer-engine", planned.te_source, planned.cell.te),
    )
    # A source of megatron-core is more than that (megatron.training); Transformer Engine is whole wherever it is.
    found = [
        sources.parse(configuration.resolve(source) or version, package)
        for package, source, version in wanted
        if version != NONE and (version != environment.packages.get(package) or (source and package == "megatron-core"))
    ]
    found += [sources.pinned(package) for package in planned.packages]
    return tuple(OverlaySpec((source,), environment.minor, dict(base), interpreter) for source in found)


def provide(
    cases: Iterable[Planned],
    environment: PythonEnvironment,
    configuration: Configuration,
    interpreter: Path | None,
    overlays: Overlays,
) -> dict[str, Provision]:
    """Return by key what is laid over the base for each case, made now if need be, or why it can't have it."""
    provided = {}
    for case in cases:
        try:
            specs = overlay_specs(case, environment, configuration, interpreter)
            provided[case.key] = Provision(tuple(map(overlays.provide, specs)))
        except MatrixError as error:
            provided[case.key] = Provision(reason=error.brief)
    return provided


def overlay_digest(spec: OverlaySpec) -> str:
    """Return the digest that the overlay has or would have."""
    return identify([sources.inspect(source) for source in spec.sources], spec)[0]


def write(path: Path, provided: Mapping[str, Provision]) -> None:
    """Write the provisions of cases, by their keys."""
    told = {key: {"reason": one.reason, "overlays": list(map(_plain, one.overlays))} for key, one in provided.items()}
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
