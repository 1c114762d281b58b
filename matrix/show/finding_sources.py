"""The findings of `megatrix check`.

The answer of `megatrix bisect` as findings: each change, or the packages that break two stacks.

The findings of `megatrix contract`, at their call sites.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from matrix.ask.check.answer import CheckAnswer, CheckResult
from matrix.ask.check.rulings import BREAKS, Standing
from matrix.ground.catalog.stack import BASE, MCORE, TE, TORCH, Place
from matrix.ground.catalog.versions import spans
from matrix.prove.bisection.result_summary import BisectionSummary
from matrix.read.api.finding import BREAKING, Finding, FindingKind
from matrix.read.api.provider import PROVIDERS
from matrix.show.check_text import WRONG, headed, summary
from matrix.show.contract_table import MEANING
from matrix.show.findings import Findings, FindingTopic, ReportedFinding, Severity

CLASH: Final = FindingTopic("stack", "parts of the stack exclude each other")
UNREAD: Final = FindingTopic("unknown", "something that the input names was not read or is not known")
LOADING: Final = FindingTopic("loading", "a compiled package does not load, or does not fit the others")
CALL: Final = FindingTopic("call", "a call into Transformer Engine breaks")
NOTHING: Final = FindingTopic("nothing-checked", "nothing of Megatron's stack is stated: no all-clear")


def of_check(results: Sequence[CheckResult], files: Collection[str]) -> Findings:
    """Return what breaks, may break or differs silently, the most certain first; `files` are those that were read."""
    listed = (finding for result in results for finding in _findings(result, files))
    sums = (line for result in results for line in (headed(result, results), *map(str, result.upgrades)))
    return Findings("megatrix check", tuple(listed), tuple(sums))


def _findings(result: CheckResult, files: Collection[str]) -> Iterator[ReportedFinding]:
    def first(components: Sequence[str], command: Place | None) -> Place | None:
        places = (line_of(place, files) for place in (*map(result.stack.place, components), command))
        return next(filter(None, places), None)

    if result.answer is CheckAnswer.NOTHING_CHECKED:
        place = next((line_of(Place(file), files) for file in result.files), None)
        yield ReportedFinding(NOTHING, f"{NOTHING.id}: {NOTHING.title}", summary(result), Severity.NONE, place)
        return
    for clash in result.clashes:
        yield _finding(CLASH, clash.text, True, line_of(clash.place, files))
    for load in result.loading.findings if result.loading else ():
        message = f"{load.title}: {load.what}. {load.consequence}. Mend it: {load.mend}"
        yield _finding(LOADING, message, load.certain, None)
    for item in result.unknown:
        message = f"{item.text}. To do: {item.remedy}"
        yield _finding(UNREAD, message, False, line_of(item.place, files))
    for failure in result.failures:
        if failure.standing in BREAKS and not failure.missing:
            # The version that decides, else the command, else any version.
            entry = failure.failure
            components = [name for rule in entry.affected for name in rule.bounds]
            place = first((*components, MCORE, TE, TORCH, BASE), failure.place)
            topic = FindingTopic(str(entry.id), entry.title, ", ".join(entry.references))
            workarounds = (f"workaround: {change.text}" for change in failure.workarounds[:2])
            silent = f"{failure.standing.value}: {WRONG}" if failure.standing is Standing.SILENT else ""
            texts = filter(None, (silent, entry.title, failure.needs, failure.reason, *workarounds))
            yield _finding(topic, ". ".join(text.rstrip(".") for text in texts), failure.certain, place)
    for call in result.calls:
        if not call.missing:
            raised = (f"{part.error}: {part.message}; at {part.call_site}" for part in call.findings)
            place = first((TE, MCORE, BASE), call.place)
            yield _finding(CALL, ". ".join([call.needs, *raised]), call.certain, place)


def _finding(topic: FindingTopic, message: str, certain: bool, place: Place | None) -> ReportedFinding:
    severity = Severity.ERROR if certain else Severity.WARNING
    return ReportedFinding(topic, f"{topic.id}: {topic.title}", message, severity, place)


def line_of(place: Place | None, files: Collection[str]) -> Place | None:
    """Return the line of a file that a place names, the first of a whole file; None for what is no file."""
    if place is None or place.line:
        return place
    return Place(place.path, 1) if place.path in files else None


def of_bisection(summary: BisectionSummary) -> Findings:
    """Return a finding for each line of the answer; what is ambiguous is a warning."""
    topic = FindingTopic(summary.failure, summary.title)
    findings = []
    if summary.attribution:
        differ = (f"{name} {good} -> {bad}" for name, (good, bad) in summary.attribution.differ.items())
        severity = Severity.WARNING if summary.attribution.doubtful else Severity.ERROR
        message = f"{summary.attribution.headline}; the stacks differ in {', '.join(differ)}"
        findings.append(ReportedFinding(topic, summary.attribution.headline, message, severity))
    for change in summary.changes.values():
        last_good = f"before it: {change.before}" if change.before else ""
        candidates = f"may be: {', '.join(change.candidates)}" if change.candidates else ""
        repeat = (f"{probe.seen.value}: {probe.reproduce}" for probe in change.ends)
        message = "; ".join(filter(None, (change.headline, last_good, candidates, *repeat)))
        severity = Severity.WARNING if change.ambiguous else Severity.ERROR
        findings.append(ReportedFinding(topic, change.headline, message, severity))
    return Findings("megatrix bisect", tuple(findings))


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
    return Findings("megatrix contract", tuple(_contract_findings(breaks, versions, folder)))


def _contract_findings(breaks: Sequence[Finding], versions: Sequence[str], folder: str) -> Iterator[ReportedFinding]:
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
