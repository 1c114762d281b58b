"""Findings as text: one entry for each break, with all the pairs of releases that have it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby

from matrix.ground.catalog.versions import spans
from matrix.read.api.finding import BREAKING, Finding, FindingKind
from matrix.read.api.provider import PROVIDERS, Provider
from matrix.read.api.relevance import MOST_DAYS, days_between

RARE = (FindingKind.OVERRIDE, FindingKind.IGNORED, FindingKind.CHANGED)  # not counted where there is none
TITLE = "Transformer Engine"  # of the provider
Known = Callable[[Finding], Iterable[str]]
Break = tuple[str, str, str]  # the same in several releases, at other lines: callee, function, message
MOST = 10**6  # days, of releases without a date
MEANING = {
    FindingKind.DEFINITE: "the line raises the exception whenever it is reached",
    FindingKind.MISBOUND: "no exception: an argument binds to another parameter than its caller means",
    FindingKind.OVERRIDE: "the provider calls what this code replaces with arguments that the replacement refuses",
    FindingKind.IGNORED: "no exception: a dataclass drops a keyword argument that other releases take",
    FindingKind.CHANGED: "no exception: an argument that is left out has another default than in the tested release",
    FindingKind.POSSIBLE: "it depends on a guard or a definition that was not understood",
    FindingKind.SILENTLY_OFF: "the exception is caught, and a feature is silently off or replaced",
}


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
        rows.append((spans(neighbours, versions), _counted(by_version[neighbours[0]], MEANING) or "nothing"))
    width = max(len(provider.title), *(len(name) for name, _ in rows))
    lines = [f"{name:{width}}  {counts}" for name, counts in [(provider.title, "breaks"), *rows]]
    kinds = (*BREAKING, FindingKind.OVERRIDE)
    clean = [version for version in versions if not any(defect.kind in kinds for defect in by_version[version])]
    lines += ["", f"no break found: {spans(clean, versions) or 'in no release'}", ""]
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
        f"\nfolded (--all shows them): {len(rare)} findings in {_pairs(len(set(rare)))} with {which}; "
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
    return "\n".join([f"{_pairs(len(mcore) * len(te))}: {total}", "", *lines]).rstrip("\n") + "\n"


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
        consumer = f"{package.title} {spans(mcore_versions, mcore)}  x  " if package else ""
        yield f"    {consumer}{title} {spans(te_versions, te)}"


def _pairs(count: int) -> str:
    return f"{count} pair{'s' * (count != 1)}"
