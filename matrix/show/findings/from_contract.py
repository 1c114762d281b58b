"""The findings of `megatrix contract`, at their call sites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from matrix.ground.catalog.place import Place
from matrix.ground.catalog.versions import spans
from matrix.read.api.finding import BREAKING, Finding, FindingKind
from matrix.read.api.provider import PROVIDERS
from matrix.show.contract_table import MEANING
from matrix.show.findings.findings import Findings, FindingTopic, ReportedFinding, Severity

SEVERITIES: Final[Mapping[FindingKind, Severity]] = {
    **dict.fromkeys(BREAKING, Severity.ERROR),
    FindingKind.OVERRIDE: Severity.WARNING,
    FindingKind.POSSIBLE: Severity.WARNING,
    FindingKind.IGNORED: Severity.WARNING,
    FindingKind.CHANGED: Severity.NOTE,
    FindingKind.SILENTLY_OFF: Severity.NOTE,
}


def of_contract(breaks: Sequence[Finding], versions: Sequence[str], folder: str = "") -> Findings:
    """Return the breaks in the order of their call sites; `folder` is put before each path."""
    return Findings("megatrix contract", tuple(_findings(breaks, versions, folder)))


def _findings(breaks: Sequence[Finding], versions: Sequence[str], folder: str) -> Iterator[ReportedFinding]:
    """Yield each break once, with the releases of the provider that have it."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = defaultdict(list)
    for finding in breaks:
        groups[str(finding.call_site), finding.packages[1], finding.kind.value, finding.message].append(finding)
    for alike in sorted(groups.values(), key=lambda group: (group[0].call_site.path, group[0].call_site.line)):
        finding = alike[-1]
        releases = (
            f"with {PROVIDERS[finding.packages[1]].title} {spans((release.provider for release in alike), versions)}"
        )
        exception = f"{finding.exception}: " if finding.exception else ""
        guard = f" (where {finding.guard})" if finding.guard else ""
        signature = f"; signature {finding.signature}" if finding.signature else ""
        yield ReportedFinding(
            FindingTopic(finding.kind.value, MEANING[finding.kind]),
            f"{finding.kind.value} {releases}",
            f"{finding.callee} {releases}: {exception}{finding.message}{guard}{signature}",
            SEVERITIES[finding.kind],
            Place(f"{folder}{finding.call_site.path}", finding.call_site.line),
        )
