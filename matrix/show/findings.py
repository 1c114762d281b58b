"""Findings: what a command found, with its place. The formats take them alike from check and contract.

Findings as workflow commands of GitHub Actions: annotations at their lines.

Findings as a SARIF 2.1.0 log, for code scanning.

Markdown: findings as a table.

A night as JUnit XML, as GitHub, GitLab and Jenkins read it: red is a failure, no result is skipped with its reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any, Final
from xml.etree.ElementTree import Element, indent, tostring

from matrix import __version__
from matrix.ask.check.answer import CheckAnswer, CheckResult
from matrix.ask.check.rulings import BREAKS, Standing
from matrix.ground.catalog.stack import BASE, MCORE, TE, TORCH, Place
from matrix.ground.catalog.versions import format_ranges
from matrix.ground.verdicts.record import MACHINE, SILENT, Record
from matrix.ground.verdicts.text import one_line, tail, visible
from matrix.prove.store.stored_run import Night
from matrix.read.api.finding import BREAKING, Finding, FindingKind
from matrix.read.api.finding import MEANING as KIND_MEANING
from matrix.read.api.provider import PROVIDERS
from matrix.show.check_text import WRONG, headed, summary
from matrix.show.terminal import github_text, json_text, markdown_text, xml_document
from matrix.show.words import MEANING, group_by, is_red, render_chain, verdict_reason


class Severity(str, Enum):
    """How certain it is that something breaks; NONE: nothing was checked."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    NONE = "none"


@dataclass(frozen=True)
class FindingTopic:
    """What several findings share: a failure, or a kind of break. `help` is where to read on, "" without such."""

    id: str
    title: str
    help: str = ""


@dataclass(frozen=True)
class ReportedFinding:
    """One thing that breaks. `headline` names it, `message` stands by itself; `place`: None where no file states it."""

    topic: FindingTopic
    headline: str
    message: str
    severity: Severity
    place: Place | None = None


@dataclass(frozen=True)
class Findings:
    """All findings of one call of `command`, such as "megatrix check", and `summary`, sentences about the whole."""

    command: str
    findings: tuple[ReportedFinding, ...] = ()
    summary: tuple[str, ...] = ()


COMMANDS: Final = dict(zip(Severity, ("error", "warning", "notice", "warning"), strict=True))


def github(findings: Findings) -> str:
    """Return a command for each finding, and a notice for each sentence of the summary."""
    lines = []
    for finding in findings.findings:
        place = finding.place
        file = f"file={github_text(place.path, value=True)},line={max(place.line, 1)}," if place else ""
        title = github_text(finding.headline, value=True)
        lines.append(f"::{COMMANDS[finding.severity]} {file}title={title}::{github_text(finding.message)}")
    title = github_text(findings.command, value=True)
    return "\n".join([*lines, *(f"::notice title={title}::{github_text(sentence)}" for sentence in findings.summary)])


def sarif(findings: Findings) -> str:
    """Return the log: a rule for each topic, a result for each finding."""
    topics = {finding.topic.id: finding.topic for finding in findings.findings}
    rules = [
        {"id": visible(id), "shortDescription": text_of(topic.title), "help": text_of(topic.help or topic.title)}
        for id, topic in topics.items()
    ]
    driver = {"name": visible(findings.command), "version": __version__, "rules": rules}
    runs = [{"tool": {"driver": driver}, "results": [_result(finding) for finding in findings.findings]}]
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json_text({"$schema": schema, "version": "2.1.0", "runs": runs}, indent=2)


def text_of(text: str) -> dict[str, str]:
    """Return a SARIF message with the control characters of a text written out."""
    return {"text": visible(text)}


def _result(finding: ReportedFinding) -> dict[str, Any]:
    result = {"ruleId": visible(finding.topic.id), "level": finding.severity.value, "message": text_of(finding.message)}
    if not finding.place:
        return result
    location = {
        "artifactLocation": {"uri": PurePath(visible(finding.place.path)).as_posix()},
        "region": {"startLine": max(finding.place.line, 1)},
    }
    return {**result, "locations": [{"physicalLocation": location}]}


ANSWERS: Final = dict(zip(Severity, ("**yes**", "maybe", "no", "not checked"), strict=True))


def markdown(findings: Findings) -> str:
    """Return the summary, then a table of the findings."""
    rows = [
        (ANSWERS[finding.severity], *map(markdown_text, (finding.topic.id, finding.message, str(finding.place or ""))))
        for finding in findings.findings
    ]
    sentences = [
        f"**{markdown_text(text)}**" if not number else markdown_text(text)
        for number, text in enumerate(findings.summary)
    ]
    return "\n\n".join(filter(None, [*sentences, markdown_table(("breaks", "failure", "what", "where"), rows)])) + "\n"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown, "" without rows."""
    lines = [head, ["---"] * len(head), *rows] if rows else []
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def night_junit(night: Night) -> str:
    """Return a night: a suite per failure and level, a test case per planned case, its axes as properties."""
    timestamp = {"timestamp": night.began[:19]} if night.began else {}
    groups = group_by(lambda record: (record.failure, record.level), night.records)
    suites = []
    for (failure, level), records in sorted(groups.items()):
        name = f"{failure}.{level.value}"
        cases = [_case(record, name) for record in records]
        suites.append(_element("testsuite", {"name": name, **_totals(records), **timestamp}, cases))
    return _document(_element("testsuites", {"name": night.run, **_totals(night.records)}, suites))


def _element(tag: str, attributes: dict[str, str], children: Sequence[Element] = (), text: str = "") -> Element:
    element = Element(tag, {name: visible(value) for name, value in attributes.items()})
    element.extend(children)
    element.text = visible(text) or None
    return element


def _document(root: Element) -> str:
    indent(root, "")
    return xml_document(f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, "unicode")}\n')


def _totals(records: Sequence[Record]) -> dict[str, str]:
    return {
        "tests": str(len(records)),
        "failures": str(sum(map(is_red, records))),
        "errors": "0",
        "skipped": str(sum(record.verdict in SILENT for record in records)),
        "time": f"{sum(record.outcome.seconds for record in records):.3f}",
    }


def _case(record: Record, classname: str) -> Element:
    facts = {
        "cell": record.cell.id,
        "base": record.cell.base,
        "torch": str(record.cell.stack[TORCH]),
        **record.cell.named,
        "level": record.level.value,
        "expectation": record.expectation.value,
        "verdict": record.verdict.value,
        "cached_from": record.cached_from,
        MACHINE: record.resolved.get(MACHINE, ""),
    }
    properties = [_element("property", {"name": fact, "value": value}) for fact, value in facts.items() if value]
    seconds = f"{record.outcome.seconds:.3f}"
    attributes = {"classname": classname, "name": f"{record.case} {record.cell.id}", "time": seconds}
    return _element("testcase", attributes, [_element("properties", {}, properties), _end(record)])


def _end(record: Record) -> Element:
    """Return how a case ended: skipped, failure, or for a green one its output."""
    reason = verdict_reason(record)
    if record.verdict in SILENT:
        return _element("skipped", {"message": f"{record.verdict.value}: {reason}"})
    texts = [f"reproduce: {record.reproduce}", *(f"note: {one_line(note)}" for note in record.notes)]
    if not is_red(record):
        return _element("system-out", {}, text="\n".join([reason, *texts]))
    if record.outcome.chain:
        texts.append(render_chain(record.outcome.chain))
    if record.outcome.evidence:
        texts += ["end of the log:", tail(record.outcome.evidence)]
    message = f"{record.verdict.value} ({MEANING[record.verdict]}): {reason}"
    return _element("failure", {"type": record.verdict.value, "message": message}, text="\n".join(texts))


FORMATS: Final = {"sarif": sarif, "github": github, "markdown": markdown}  # by their names on the command line


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
        provider = PROVIDERS[finding.packages[1]].title
        releases = f"with {provider} {format_ranges((release.provider for release in alike), versions)}"
        exception = f"{finding.exception}: " if finding.exception else ""
        guard = f" (where {finding.guard})" if finding.guard else ""
        signature = f"; signature {finding.signature}" if finding.signature else ""
        yield ReportedFinding(
            FindingTopic(finding.kind.value, KIND_MEANING[finding.kind]),
            f"{finding.kind.value} {releases}",
            f"{finding.callee} {releases}: {exception}{finding.message}{guard}{signature}",
            SEVERITIES[finding.kind],
            Place(f"{folder}{finding.call_site.path}", finding.call_site.line),
        )
