"""Findings at their call sites, for CI: SARIF 2.1.0 and the annotations of GitHub Actions."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matrix.catalog.versions import spans
from matrix.contract.finding import BREAKING, Finding, FindingKind
from matrix.contract.provider import PROVIDERS
from matrix.contract.table import MEANING

LEVELS: Final[Mapping[FindingKind, tuple[str, str]]] = {  # SARIF, GitHub
    **dict.fromkeys(BREAKING, ("error", "error")),
    FindingKind.POSSIBLE: ("warning", "warning"),
    FindingKind.IGNORED: ("warning", "warning"),
    FindingKind.SILENTLY_OFF: ("note", "notice"),
}
SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
Same = tuple[Finding, str]  # one finding, and the releases that have it


def prefix(project: str) -> str:
    """Return the path from the current folder to a project, "" where it is not inside: annotations need it."""
    path = Path(project.partition("@")[0] or ".")
    relative = os.path.relpath(path) if path.is_dir() else "."
    return "" if relative == "." or relative.startswith("..") else f"{Path(relative).as_posix()}/"


def sarif(found: Sequence[Finding], versions: Sequence[str], before: str = "") -> str:
    """Return a SARIF log with one result for each break; `before` is put before each path."""
    results = [_result(one, releases, before) for one, releases in _together(found, versions)]
    rules = [{"id": kind.value, "shortDescription": {"text": text}} for kind, text in MEANING.items()]
    driver = {"name": "megatrix contract", "rules": rules}
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(log, indent=1)


def github(found: Sequence[Finding], versions: Sequence[str], before: str = "") -> str:
    """Return one workflow command for each break."""
    return "\n".join(
        f"::{LEVELS[one.kind][1]} file={_property(before + one.call_site.path)},line={one.call_site.line},"
        f"title={_property(_title(one, releases))}::{_escaped(_message(one))}"
        for one, releases in _together(found, versions)
    )


def _together(found: Sequence[Finding], versions: Sequence[str]) -> Iterator[Same]:
    """Yield each break once, with the releases of the provider that have it, in the order of the call sites."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = defaultdict(list)
    for one in found:
        groups[str(one.call_site), one.packages[1], one.kind.value, one.message].append(one)
    for same in sorted(groups.values(), key=lambda each: (each[0].call_site.path, each[0].call_site.line)):
        yield same[-1], spans((one.provider for one in same), versions)


def _title(one: Finding, releases: str) -> str:
    return f"{one.kind.value} with {PROVIDERS[one.packages[1]].title} {releases}"


def _message(one: Finding) -> str:
    exception = f"{one.exception}: " if one.exception else ""
    where = f" (where {one.guard})" if one.guard else ""
    signature = f"; signature {one.signature}" if one.signature else ""
    return f"{one.callee}: {exception}{one.message}{where}{signature}"


def _result(one: Finding, releases: str, before: str) -> dict[str, Any]:
    place = {
        "artifactLocation": {"uri": before + one.call_site.path},
        "region": {"startLine": max(one.call_site.line, 1)},
    }
    return {
        "ruleId": one.kind.value,
        "level": LEVELS[one.kind][0],
        "message": {"text": f"{_title(one, releases)}: {_message(one)}"},
        "locations": [{"physicalLocation": place}],
    }


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
