"""Findings as text: one entry for each break, with all the pairs of releases that have it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from matrix.catalog.versions import spans
from matrix.contract.finding import BREAKING, Finding, FindingKind
from matrix.contract.provider import PROVIDERS, Provider
from matrix.contract.relevance import MOST_DAYS, days_between

RARE = (FindingKind.OVERRIDE, FindingKind.IGNORED)  # not counted where there is none
TITLES = ("megatron-core", "Transformer Engine")  # of consumer and provider
Known = Callable[[Finding], Iterable[str]]
MOST = 10**6  # days, of releases without a date
MEANING = {
    FindingKind.DEFINITE: "the line raises the exception whenever it is reached",
    FindingKind.MISBOUND: "no exception: an argument binds to another parameter than its caller means",
    FindingKind.OVERRIDE: "the provider calls what this code replaces with arguments that the replacement refuses",
    FindingKind.IGNORED: "no exception: a dataclass drops a keyword argument that other releases take",
    FindingKind.POSSIBLE: "it depends on a guard or a definition that was not understood",
    FindingKind.SILENTLY_OFF: "the exception is caught, and a feature is silently off or replaced",
}


def releases(
    judged: Sequence[Finding], consumers: Sequence[str], versions: Sequence[str], provider: Provider, *, whole: bool
) -> str:
    """Return what breaks in each release of a provider, newest first, then each break with its releases.

    `whole`: with the pairs that nobody runs.
    """
    found = [one for one in judged if whole or not (one.implausible or one.masked)]
    runs: list[tuple[set[tuple[str, str, str]], Counter[FindingKind], list[str]]] = []  # neighbours that break alike
    for version in reversed(versions):
        here = [one for one in found if one.provider == version]
        same = {_key(one) for one in here}
        if not runs or runs[-1][0] != same:
            runs.append((same, Counter(one.kind for one in here), []))
        runs[-1][2].append(version)
    rows = [
        (spans(run, versions), ", ".join(f"{counts[kind]} {kind.value}" for kind in MEANING if counts[kind]))
        for _, counts, run in runs
    ]
    width = max(len(provider.title), *(len(name) for name, _ in rows))
    lines = [f"{provider.title:{width}}  breaks", *(f"{name:{width}}  {what or 'nothing'}" for name, what in rows)]
    clean = [version for version in versions if not any(one.provider == version and _is_break(one) for one in found)]
    lines += ["", f"no break found: {spans(clean, versions) or 'in no release'}", ""]
    place = {version: number for number, version in enumerate(versions)}
    latest: dict[tuple[str, str, str], int] = defaultdict(int)  # breaks of the newest releases first
    for one in found:
        latest[_key(one)] = max(latest[_key(one)], place[one.provider])
    ordered = sorted(found, key=lambda one: -latest[_key(one)])
    text = "\n".join([*lines, table(ordered, consumers, versions, (TITLES[0], provider.title))])
    which = f"a {provider.title} that the core does not declare, or one more than {MOST_DAYS} days older"
    return text if len(found) == len(judged) else text + _left_out(judged, which)


def folded(found: Sequence[Finding], mcore: Sequence[str], te: Sequence[str], known: Known) -> str:
    """Return the table without what matters least: pairs that nobody runs, and breaks that come after another one.

    The breaks of releases that are near to one another come first.
    """
    shown = [one for one in found if not (one.implausible or one.masked)]
    nearest: dict[tuple[str, str, str], int] = {}
    for one in shown:
        days = days_between(one.consumer, one.provider)
        nearest[_key(one)] = min(nearest.get(_key(one), MOST), MOST if days is None else abs(days))
    text = table(sorted(shown, key=lambda one: nearest[_key(one)]), mcore, te, known=known)
    return text + _left_out(found, f"a Transformer Engine more than {MOST_DAYS} days older than the core")


def _left_out(found: Sequence[Finding], which: str) -> str:
    rare = [one for one in found if one.implausible]
    pairs = {(one.consumer, one.provider) for one in rare}
    masked = sum(bool(one.masked) and not one.implausible for one in found)
    return (
        f"folded (--all shows them): {len(rare)} findings in {_pairs(len(pairs))} with {which}; "
        f"{masked} that come after another break of the same pair\n"
    )


def _is_break(one: Finding) -> bool:
    return one.kind in BREAKING


def _key(one: Finding) -> tuple[str, str, str]:
    return one.callee, one.call_site.function, one.message


def table(
    findings: Sequence[Finding],
    mcore: Sequence[str],
    te: Sequence[str],
    titles: tuple[str, str] = TITLES,
    known: Known = lambda finding: (),
) -> str:
    """Return the findings between releases `mcore` and `te` (oldest first) as text, worst kind first.

    `known` returns what the catalog states about a finding, as lines.
    """
    counts = Counter(finding.kind for finding in findings)
    lines: list[str] = []
    for kind, meaning in MEANING.items():
        entries = _grouped(finding for finding in findings if finding.kind is kind)
        if entries:
            lines += [f"{kind.value}: {meaning}", ""]
        for same in entries.values():
            lines += [*_entry(same, mcore, te, titles), *(f"    {line}" for line in known(same[-1])), ""]
    always = [kind for kind in MEANING if counts[kind] or kind not in RARE]
    total = ", ".join(f"{counts[kind]} {kind.value}" for kind in always)
    return "\n".join([*lines, f"{_pairs(len(mcore) * len(te))}: {total}"]) + "\n"


def _grouped(findings: Iterable[Finding]) -> Mapping[tuple[str, str, str], list[Finding]]:
    """Group the findings of one break across releases: lines differ, callee, function and message are the same."""
    groups: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[_key(finding)].append(finding)
    return groups


def _entry(same: Sequence[Finding], mcore: Sequence[str], te: Sequence[str], titles: tuple[str, str]) -> Iterator[str]:
    newest = same[-1]
    yield f"  {newest.callee}"
    yield f"    {newest.message}"
    yield f"    at {newest.call_site}" + (f", where {newest.guard}" if newest.guard else "")
    if newest.signature:
        yield f"    signature {newest.signature}"
    if newest.lost:
        yield f"    lost: {newest.lost}"
    if newest.masked:
        yield f"    masked: {newest.masked}"
    partners: dict[str, set[str]] = defaultdict(set)
    for finding in same:
        partners[finding.consumer].add(finding.provider)
    by_partners: dict[frozenset[str], list[str]] = defaultdict(list)
    for version, others in partners.items():
        by_partners[frozenset(others)].append(version)
    for te_versions, mcore_versions in by_partners.items():
        # A project has one version.
        consumer = f"{titles[0]} {spans(mcore_versions, mcore)}  x  " if newest.packages[0] in PROVIDERS else ""
        yield f"    {consumer}{titles[1]} {spans(te_versions, te)}"


def _pairs(count: int) -> str:
    return f"{count} pair{'s' * (count != 1)}"
