"""Export entries in the form of OSV (https://ossf.github.io/osv-schema), for tools that read advisories."""

from __future__ import annotations

from typing import Any, Final

from matrix.authoring.export import failure_to_json
from matrix.catalog.failure import Failure
from matrix.catalog.model import Catalog, Release
from matrix.catalog.versions import parse

SCHEMA: Final = "1.6.7"
# Axes whose packages are on PyPI, by their names there.
PACKAGES: Final = {"mcore": "megatron-core", "te": "transformer-engine", "torch": "torch"}
WARNING: Final = (
    "A failure needs several packages at once. `affected` has, for each package alone, the versions that break with "
    "some versions of the others: a tool that reads only `affected` reports too much. database_specific.predicate is "
    "exact."
)


def failure_to_osv(catalog: Catalog, failure: Failure) -> dict[str, Any]:
    """Return one entry; `affected` is the projection of its rules on each package, with the exact rules beside it."""
    entry = failure_to_json(failure)
    return {
        "schema_version": SCHEMA,
        "id": f"MEGATRIX-{failure.id}",
        "modified": max(_days(catalog, failure), default="1970-01-01") + "T00:00:00Z",
        "summary": failure.title,
        "details": f"{_line(failure.symptom)}\n\n{_line(failure.cause)}\n\nFix: {_line(failure.fix)}\n\n{WARNING}",
        "references": [{"type": "REPORT", "url": _url(one)} for one in failure.references],
        "affected": [_affected(catalog, failure, axis) for axis in PACKAGES if _bounded(failure, axis)],
        "database_specific": {
            "warning": WARNING,
            "predicate": {name: entry.get(name, []) for name in ("affected", "works", "reached_by")},
            "workarounds": entry.get("workaround", []),
        },
    }


def _affected(catalog: Catalog, failure: Failure, axis: str) -> dict[str, Any]:
    """Return the releases of a package that some rule affects, as events and as a list."""
    releases = _releases(catalog, axis)
    broken = [
        one.version
        for one in releases
        if any(
            all(one.version in bound for at, bound in rule.bounds() if at == axis)
            for rule in failure.affected
            if not rule.cases and not rule.base
        )
    ]
    events: list[dict[str, str]] = []
    inside = False
    for one in releases:
        if (one.version in broken) is not inside:
            inside = not inside
            events.append({"introduced" if inside else "fixed": str(one.version)})
    return {
        "package": {"ecosystem": "PyPI", "name": PACKAGES[axis]},
        "ranges": [{"type": "ECOSYSTEM", "events": events}] if events else [],
        "versions": [str(version) for version in broken],
    }


def _releases(catalog: Catalog, axis: str) -> list[Release]:
    found = {"mcore": catalog.megatron_core, "te": catalog.transformer_engine, "torch": catalog.torch}[axis]
    return sorted(found, key=lambda one: parse(one.version))


def _bounded(failure: Failure, axis: str) -> bool:
    return any(at == axis for rule in failure.affected if not rule.cases for at, _ in rule.bounds())


def _days(catalog: Catalog, failure: Failure) -> list[str]:
    """Return the days of the releases that the entry bounds: an entry has no date of its own."""
    return [one.day for axis in PACKAGES if _bounded(failure, axis) for one in _releases(catalog, axis) if one.day]


def _url(reference: str) -> str:
    repository, _, number = reference.partition("#")
    return f"https://github.com/{repository}/issues/{number}" if number else reference


def _line(text: str) -> str:
    return " ".join(text.split())
