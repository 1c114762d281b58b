"""The answer of `megatrix bisect` as findings: each change, or the packages that break two stacks."""

from __future__ import annotations

from matrix.prove.bisection.result_summary import BisectionSummary
from matrix.show.findings.findings import Findings, FindingTopic, ReportedFinding, Severity


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
