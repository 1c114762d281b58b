"""`megatrix contract`."""

from __future__ import annotations

import argparse
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from matrix.ground.catalog import loading
from matrix.ground.catalog.versions import format_ranges
from matrix.ground.errors import ExitStatus, MatrixError, counted
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.signature_match import owner
from matrix.read.api import pairs, recording, sides
from matrix.read.api.finding import BREAKING, MEANING, Finding, FindingKind
from matrix.read.api.provider import PROVIDERS, TRANSFORMER_ENGINE, Provider
from matrix.read.api.recording import MCORE, SUFFIX, TE
from matrix.read.api.relevance import MOST_DAYS, days_between, is_yanked
from matrix.show.findings import FORMATS, of_contract
from matrix.show.known import statement
from matrix.show.terminal import json_object, paragraphs, show

SIDE = f"a recorded version, tag or commit, a *{SUFFIX} file, a wheel, a folder, or PATH@REV (default: all releases)"


HELP_WORDS: Final = {"SIDE": SIDE, "FORMS": sides.FORMS}


def contract_command(parsed: argparse.Namespace) -> int:
    """Print the findings; return 1 where releases are selected and a call surely raises or is misbound, else 0.

    Over all releases some call always breaks, so the exit status is 0 there.
    """
    if parsed.consumer:
        if parsed.mcore or parsed.te:
            raise MatrixError("--consumer replaces --mcore and --te", fix=f"--against {TE}=={parsed.te or 'VERSION'}")
        named = [sides.target_of(text) for text in parsed.against or ()]
        return _consumer(parsed, named or sides.declared_targets(parsed.consumer))
    if parsed.against:
        raise MatrixError("--against needs a consumer", fix="--consumer PROJECT")
    cores = [sides.calls_of(text) for text in _sides(parsed.mcore, MCORE, parsed.all)]
    engines = [sides.surface_of(text) for text in _sides(parsed.te, TE, parsed.all)]
    findings = pairs.findings(cores, TRANSFORMER_ENGINE, engines)
    versions = [calls.version for calls in cores], [surface.version for surface in engines]
    if not _printed(parsed, findings, versions[1], ""):
        is_whole = parsed.all or (parsed.mcore and parsed.te)
        show(*paragraphs((table if is_whole else folded)(findings, *versions, known=_known())))
    return ExitStatus.BAD if parsed.mcore and parsed.te and _is_broken(findings) else ExitStatus.GOOD


def _known() -> Known:
    """Return a function that returns what the catalog states about a break, as lines."""
    failures = loading.load().failures

    def lines(finding: Finding) -> list[str]:
        outcome = Outcome(OutcomeKind.RAISED, chain=(Raised(finding.error, finding.message),))
        failure = owner(failures, outcome) if finding.kind in BREAKING else None
        return statement(failure) if failure else []

    return lines


def _sides(named: str | None, package: str, whole: bool) -> list[str]:
    """Return the named side, or the releases of a package without the withdrawn ones."""
    return [named] if named else [v for v in recording.released(package) if whole or not is_yanked(package, v)]


def _consumer(parsed: argparse.Namespace, targets: Sequence[sides.Target]) -> int:
    status = ExitStatus.GOOD
    findings: list[Finding] = []
    versions: list[str] = []
    tables: list[str] = []
    for target in targets:
        consumers = sides.consumers_of(parsed.consumer, target.provider)
        surfaces = target.surfaces()
        breaks = pairs.findings(consumers, target.provider, surfaces)
        callers, offered = [calls.version for calls in consumers], [surface.version for surface in surfaces]
        tables.append(releases(breaks, callers, offered, target.provider, whole=parsed.all))
        findings, versions = findings + breaks, versions + offered
        status = ExitStatus.BAD if target.chosen and _is_broken(breaks) else status
    if not _printed(parsed, findings, versions, parsed.consumer):
        show(*(part for text in tables for part in paragraphs(text)))
    return status


def _printed(parsed: argparse.Namespace, findings: Sequence[Finding], versions: Sequence[str], root: str) -> bool:
    """Print the findings for a program and return True, if an option selects that."""
    if parsed.json:
        print(json_object("contract/1", (finding.to_json() for finding in findings)))
    elif parsed.format:
        print(FORMATS[parsed.format](of_contract(findings, versions, _folder(root))))
    return bool(parsed.json or parsed.format)


def _folder(project: str) -> str:
    """Return the path from the current folder to a project, "" where it is not inside: annotations need it."""
    path = Path(project.partition("@")[0] or ".")
    relative = os.path.relpath(path) if path.is_dir() else "."
    return "" if relative == "." or relative.startswith("..") else f"{Path(relative).as_posix()}/"


def _is_broken(findings: Sequence[Finding]) -> bool:
    return any(finding.kind in BREAKING and not finding.masked for finding in findings)


RARE = (FindingKind.OVERRIDE, FindingKind.IGNORED, FindingKind.CHANGED)  # not counted where there is none
TITLE = "Transformer Engine"  # of the provider
Known = Callable[[Finding], Iterable[str]]
Break = tuple[str, str, str]  # the same in several releases, at other lines: callee, function, message
MOST = 10**6  # days, of releases without a date


def releases(
    judged: Sequence[Finding], consumers: Sequence[str], versions: Sequence[str], provider: Provider, *, whole: bool
) -> str:
    """Return what breaks in each release of a provider, newest first, then each break with its releases.

    `whole`: with the pairs that nobody runs.
    """
    findings = [finding for finding in judged if whole or not (finding.implausible or finding.masked)]
    by_version: dict[str, list[Finding]] = {version: [] for version in versions}
    for finding in findings:
        by_version[finding.provider].append(finding)
    rows: list[tuple[str, str]] = []
    # Neighbours that break alike are one row.
    for _, run in groupby(reversed(versions), lambda version: {*map(_break, by_version[version])}):
        neighbours = list(run)
        rows.append((format_ranges(neighbours, versions), _counted(by_version[neighbours[0]], MEANING) or "nothing"))
    width = max(len(provider.title), *(len(name) for name, _ in rows))
    lines = [f"{name:{width}}  {counts}" for name, counts in [(provider.title, "breaks"), *rows]]
    kinds = (*BREAKING, FindingKind.OVERRIDE)
    clean = [version for version in versions if not any(defect.kind in kinds for defect in by_version[version])]
    lines += ["", f"no break found: {format_ranges(clean, versions)}" if clean else "each release has a break", ""]
    newest = {_break(finding): number for number, version in enumerate(versions) for finding in by_version[version]}
    ordered = sorted(findings, key=lambda finding: -newest[_break(finding)])
    text = "\n".join([*lines, table(ordered, consumers, versions, provider.title)])
    left_out = f"a {provider.title} that the core does not declare, or one more than {MOST_DAYS} days older"
    return text if len(findings) == len(judged) else text + _left_out(judged, left_out)


def folded(findings: Sequence[Finding], mcore: Sequence[str], te: Sequence[str], known: Known) -> str:
    """Return the table without what matters least: pairs that nobody runs, and breaks that come after another one.

    The breaks of releases that are near to one another come first.
    """
    plausible = [finding for finding in findings if not (finding.implausible or finding.masked)]
    nearest: dict[Break, int] = {}
    for finding in plausible:
        days = days_between(finding.consumer, finding.provider)
        nearest[_break(finding)] = min(nearest.get(_break(finding), MOST), MOST if days is None else abs(days))
    text = table(sorted(plausible, key=lambda finding: nearest[_break(finding)]), mcore, te, known=known)
    return text + _left_out(findings, f"a Transformer Engine more than {MOST_DAYS} days older than the core")


def _left_out(findings: Sequence[Finding], which: str) -> str:
    rare = [(finding.consumer, finding.provider) for finding in findings if finding.implausible]
    masked = sum(bool(finding.masked) and not finding.implausible for finding in findings)
    return (
        f"\nfolded (--all shows them): {len(rare)} findings in {counted(len(set(rare)), 'pair')} with {which}; "
        f"{masked} that come after another break of the same pair, or name what no recorded release has\n"
    )


def _break(finding: Finding) -> Break:
    return finding.callee, finding.call_site.function, finding.message


def _counted(findings: Sequence[Finding], kinds: Iterable[FindingKind], always: Collection[FindingKind] = ()) -> str:
    counts = Counter(finding.kind for finding in findings)
    return ", ".join(f"{counts[kind]} {kind.value}" for kind in kinds if counts[kind] or kind in always)


def table(
    findings: Sequence[Finding],
    mcore: Sequence[str],
    te: Sequence[str],
    title: str = TITLE,
    known: Known = lambda finding: (),
) -> str:
    """Return the findings between releases `mcore` and `te` (oldest first) as text, worst kind first.

    `known` returns what the catalog states about a finding, as lines.
    """
    lines: list[str] = []
    for kind, meaning in MEANING.items():
        breaks: dict[Break, list[Finding]] = defaultdict(list)
        for finding in findings:
            if finding.kind is kind:
                breaks[_break(finding)].append(finding)
        lines += [f"{kind.value}: {meaning}", ""] if breaks else []
        groups = list(breaks.values())
        if kind is FindingKind.SILENTLY_OFF:  # nothing stops the job: what the most pairs lose comes first
            groups.sort(key=len, reverse=True)
        for group in groups:
            lines += [*_entry(group, mcore, te, title), *(f"    {line}" for line in known(group[-1])), ""]
    total = _counted(findings, MEANING, always=MEANING.keys() - RARE)
    return "\n".join([f"{counted(len(mcore) * len(te), 'pair')}: {total}", "", *lines]).rstrip("\n") + "\n"


def _entry(findings: Sequence[Finding], mcore: Sequence[str], te: Sequence[str], title: str) -> Iterator[str]:
    """Yield the lines of a break, with the releases that have it."""
    newest = findings[-1]
    yield f"  {newest.callee}"
    yield f"    {newest.message}"
    yield f"    at {newest.call_site}" + (f", where {newest.guard}" if newest.guard else "")
    end = str(newest.end or "")
    facts = (("ends in ", end), ("signature ", newest.signature), ("lost: ", newest.lost), ("masked: ", newest.masked))
    for label, text in facts:
        if text:
            yield f"    {label}{text}"
    partners: dict[str, set[str]] = defaultdict(set)
    for finding in findings:
        partners[finding.consumer].add(finding.provider)
    by_partners: dict[frozenset[str], list[str]] = defaultdict(list)
    for version, providers in partners.items():
        by_partners[frozenset(providers)].append(version)
    for te_versions, mcore_versions in by_partners.items():
        # A project has one version.
        package = PROVIDERS.get(newest.packages[0])
        consumer = f"{package.title} {format_ranges(mcore_versions, mcore)}  x  " if package else ""
        yield f"    {consumer}{title} {format_ranges(te_versions, te)}"
