"""What the recorded APIs show of a fault in a log: the releases around it, and Python that needs what some lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from matrix.ground.catalog.versions import ReleaseBoundary
from matrix.read.api.provider import MEGATRON_CORE
from matrix.read.api.recording import defining_module, releases_with, spans


@dataclass(frozen=True)
class ApiChange:
    """A name or an argument that some releases lack: its boundary, the fact in words, and lines that need it.

    `title` is the name, `parts` are the words of the rules with evidence. `script` is "" where the log does not show
    how it is reached.
    """

    boundary: ReleaseBoundary
    parts: tuple[str, ...]
    title: str
    fact: str
    script: str


def api_change(groups: Mapping[str, str]) -> ApiChange | None:
    """Return the change for what a kind's pattern captured; None where the recorded APIs show none, or several."""
    releases = releases_with(MEGATRON_CORE, groups)
    runs = [(has, next(run)[0]) for has, run in groupby(releases, lambda release: release[1]) if has is not None]
    values = [has for has, _ in runs]
    if values not in ([False, True], [True, False], [True, False, True]):
        return None
    first = "" if runs[0][1] == releases[0][0] else runs[0][1]
    releases_of_runs = [""] * (not values[0]) + [first, *(version for _, version in runs[1:])]
    boundary = ReleaseBoundary(**dict(zip(("works", "breaks", "fixed"), releases_of_runs, strict=False)))
    parts = ("before",) * values[0] + ("broken",) + ("fixed",) * values[-1]
    title, script = _need(groups)
    fact = f"{title} is in megatron-core {spans(releases, True)}; missing in {spans(releases, False)} (recorded APIs)."
    return ApiChange(boundary, parts, title, fact, script)


def _need(groups: Mapping[str, str]) -> tuple[str, str]:
    """Return what is needed, and lines of Python that need it."""
    module, name = groups.get("module", ""), groups.get("name", "")
    if module:
        line = f"from {module} import {name}" if name else f"import {module}"
        return ".".join(filter(None, (module, name))), f"{line}  # noqa: F401"
    if "keyword" in groups:
        return f"{groups['callable']}({groups['keyword']}=)", ""
    owner, attribute = groups["owner"], groups["attribute"]
    place = defining_module(MEGATRON_CORE, owner)
    script = f'from {place} import {owner}\n\nreturn {{"{attribute}": str({owner}.{attribute})}}' if place else ""
    return f"{owner}.{attribute}", script
