"""The breaking calls of a release of one package into a release of another: of the pairs of packages of CALL_PAIRS.

Those of every listed pair of releases are recorded: a map has some thousand, and each takes 8 ms or more.

`megatrix surface pairs` writes the record, from the records of both sides.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

from matrix.ground.catalog.regular_file import within_limits
from matrix.ground.catalog.stack import CALL_PAIRS, CallPair
from matrix.ground.catalog.versions import parse
from matrix.ground.errors import MatrixError
from matrix.read.api import recording
from matrix.read.api.api import Absent, ResolvedPath, Surface
from matrix.read.api.comparison import changed, find
from matrix.read.api.finding import BREAKING, CaughtEnd, Finding, FindingKind, fits, places
from matrix.read.api.provider import Calls, Provider, Site, Use, provider_of
from matrix.read.api.recording import SUFFIX
from matrix.read.api.relevance import days_between, relevance

T = TypeVar("T")
FIELDS: Final = ("callee", "call_site", "guard", "kind", "message", "signature", "exception", "end")


recorded = cache(recording.recorded_surface)


class RecordedReleases:
    """The recorded releases of a provider, newest first, as matrix.read.api.finding.OtherReleases."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._versions = recording.recorded_surfaces(provider)[::-1]
        self._known: dict[str, bool] = {}

    def offered(self, path: str) -> bool:
        """Return whether any release has a path."""
        return self._any(path, lambda surface: isinstance(surface.lookup(path, via_instance=True), ResolvedPath))

    def lacked(self, path: str) -> bool:
        """Return whether every release lacks a path."""
        return not self._any(f"{path}!", lambda surface: not isinstance(surface.lookup(path), Absent))

    def fitted(self, use: Use) -> bool:
        """Return whether an override or a patch fits any release."""
        return any(fits(use, surface) for surface in self._surfaces())

    def taken(self, path: str, parameter: str) -> bool:
        """Return whether the callable at `path` has that parameter in any release."""
        return self._any(f"{path}({parameter})", lambda surface: surface.takes(path, parameter))

    def placed(self, path: str, position: int, parameter: str) -> bool:
        """Return whether a positional argument of the callable at `path` lands on that parameter in any release."""
        return any(places(surface, path, position, parameter) for surface in self._surfaces())

    def had_before(self, path: str, version: str) -> bool:
        """Return whether a release older than `version` has a path."""
        last = parse(version)
        return self._any(f"{path} {version}", lambda surface: parse(surface.version) < last and surface.offers(path))

    def _any(self, key: str, test: Callable[[Surface], bool | None]) -> bool:
        """Return whether any release passes a test, which has a key of its own."""
        if key not in self._known:
            self._known[key] = any(map(test, self._surfaces()))
        return self._known[key]

    def _surfaces(self) -> Iterator[Surface]:
        return (recorded(self._provider, version) for version in self._versions)


released = cache(RecordedReleases)


def path() -> Path:
    """Return the file of the recorded pairs."""
    return recording.folder() / f"pairs{SUFFIX}"


def breaking(pair: CallPair, consumer: str, provider: str) -> tuple[Finding, ...]:
    """Return the calls that raise, are misbound or end in an error, without those that another break masks.

    Raises MatrixError where the API or the calls of a side are not recorded: of TE also those of some commits are.
    """
    rows = _rows(pair)
    releases = _of_version(rows, consumer) or rows.get(_recorded_name(pair.consumer, consumer))
    numbers = _of_version(releases or {}, provider)
    if numbers is not None:
        return tuple(_finding(pair, consumer, provider, number) for number in numbers)
    if pair.between and rows:
        raise MatrixError(
            f"the calls of {pair.consumer} {consumer} into it are not recorded"
            if releases is None
            else "its API is not recorded",
            got=f"{pair.provider} {provider}",
            expected=f"a release of {next(iter(releases))} .. {next(reversed(releases))}" if releases else None,
        )
    return read(pair, consumer, provider)


@cache  # a table asks for a pair of releases several times
def breaking_or_near(pair: CallPair, consumer: str, provider: str) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the breaking calls; of a build between two recorded releases those of both, and those of one.

    A release of torch has the API of its minor: 2.4.0 that of 2.4.1. NVIDIA's containers have builds between releases:
    2.4.0a0 comes after 2.3 and before 2.4. Raises MatrixError as `breaking`.
    """
    try:
        return breaking(pair, consumer, provider), ()
    except MatrixError:
        rows = _rows(pair) if pair.between else {}
        releases = _of_version(rows, consumer) or rows.get(_recorded_name(pair.consumer, consumer), {})
        build, minors = parse(provider), {parse(text).release[:2]: text for text in releases}
        if not build.is_prerelease and build.release[:2] in minors:
            return breaking(pair, consumer, minors[build.release[:2]]), ()
        following = next((index for index, text in enumerate(releases) if parse(text) > build), 0)
        if not following:
            raise
    sides = (breaking(pair, consumer, text) for text in [*releases][following - 1 : following + 1])
    older, newer = ({(finding.callee, finding.call_site): finding for finding in side} for side in sides)
    differing = (finding for line, finding in (older | newer).items() if line not in older or line not in newer)
    return tuple(finding for line, finding in newer.items() if line in older), tuple(differing)


def read(pair: CallPair, consumer: str, provider: str) -> tuple[Finding, ...]:
    """Return the breaking calls, from the records of both sides. Raises MatrixError where one is missing."""
    calls, surface = _calls(pair, consumer), _surface(pair.provider, provider)
    if isinstance(calls, MatrixError):
        raise calls
    if isinstance(surface, MatrixError):
        raise surface
    findings = relevance().judged(find(calls, surface, history=released(provider_of(pair.provider))))
    breaks = (finding for finding in findings if (finding.kind in BREAKING or finding.end) and not finding.masked)
    return tuple(replace(finding, consumer=consumer, provider=provider, implausible="") for finding in breaks)


def findings(consumers: Sequence[Calls], provider: Provider, surfaces: Sequence[Surface]) -> list[Finding]:
    """Return the findings of consumers in releases of a provider, by consumer, then by release."""
    results: list[Finding] = []
    for calls, surface in product(consumers, surfaces):
        is_recorded = calls.consumer in provider.consumers
        tested = _tested_with(calls.consumer, calls.version, provider) if is_recorded else surfaces[0]
        with within_limits(calls.consumer):
            breaks = find(calls, surface, history=released(provider))
            breaks += changed(calls, surface, tested) if tested else []
        results += relevance().judged(breaks) if is_recorded else breaks
    return results


@cache
def _tested_with(consumer: str, version: str, provider: Provider) -> Surface | None:
    """Return the newest release of a provider that is not newer than a recorded release that calls it.

    None where the days of its releases are not known.
    """
    releases = recording.recorded_surfaces(provider)
    ages = ((days_between(version, release, provider.package, consumer), release) for release in releases)
    older = [(age, release) for age, release in ages if age is not None and age >= 0]
    return recorded(provider, min(older)[1]) if older else None


def trimmed(calls: Calls, provider: Provider) -> Calls:
    """Return calls without the uses of sparse modules that no recorded release of the provider can break.

    Their paths are kept: `encode` refuses a later release that lacks one.
    """
    sides = [_surface(provider.package, version) for version in recording.recorded_surfaces(provider)]
    surfaces = [surface for surface in sides if isinstance(surface, Surface)]
    kept_uses, fitting = [], set(calls.fitting)
    for use in calls.uses:
        targets = [surface.lookup(use.path, via_instance=bool(use.bound)) for surface in surfaces]
        signatures = [target for target in targets if isinstance(target, ResolvedPath) and target.callables]
        may_break = any(isinstance(target, Absent) for target in targets) or (use.arguments and signatures)
        if may_break or use.kind == "patch" or not provider.is_sparse(use.path):
            kept_uses.append(use)
        else:
            fitting.add(use.path)
    return replace(calls, uses=tuple(kept_uses), fitting=sorted(fitting - {use.path for use in kept_uses}))


@lru_cache(2)  # the pairs of a consumer follow one another
def _calls(pair: CallPair, version: str) -> Calls | MatrixError:
    """Return the recorded calls of a release, or why there are none."""
    try:
        return recording.recorded_calls(provider_of(pair.provider), version, pair.consumer)
    except MatrixError as error:
        return error


@lru_cache(128)  # of TE 51 releases and commits, of torch 16, each a few MB
def _surface(package: str, version: str) -> Surface | MatrixError:
    """Return the recorded API of a release, or why there is none."""
    try:
        return recording.recorded_surface(provider_of(package), version)
    except MatrixError as error:
        return error


@cache
def _record() -> dict[str, Any]:
    return recording.read_file(path()) if path().exists() else {"pairs": {}}


def _rows(pair: CallPair) -> dict[str, dict[str, list[int]]]:
    """Return the recorded rows of two packages: the consumer's version -> the provider's -> numbers of findings."""
    rows: dict[str, dict[str, list[int]]] = _record()["pairs"].get(pair.consumer, {}).get(pair.provider, {})
    return rows


@cache
def _recorded_name(package: str, version: str) -> str:
    """Return the version under which a build of a recorded commit is recorded, "" without one."""
    file = recording.recorded_file(package, version)
    return file.name.removesuffix(SUFFIX) if file else ""


def _of_version(table: Mapping[str, T], version: str) -> T | None:
    """Return the item of a version in any spelling (1.10 and 1.10.0), None without one."""
    if version in table:
        return table[version]
    return next((item for text, item in table.items() if parse(text) == parse(version)), None)


def _finding(pair: CallPair, consumer: str, provider: str, number: int) -> Finding:
    """Return the finding of a recorded row in a pair."""
    callee, site, guard, kind, *texts, end = _record()["findings"][number]
    finding = Finding(consumer, provider, callee, Site(*site), guard, FindingKind(kind), *texts)
    return replace(finding, end=end and CaughtEnd(end[0], Site(*end[1])), packages=(pair.consumer, pair.provider))


def encode(versions: Mapping[str, Iterable[str]]) -> bytes:
    """Return the content of the record of all pairs of which both sides are recorded; `versions` by package.

    Raises MatrixError where a release lacks what recorded calls were taken to find in every one.
    """
    rows: dict[tuple[object, ...], int] = {}

    def number(finding: Finding) -> int:
        callee, site, guard, kind, *texts = (getattr(finding, name) for name in FIELDS)
        return rows.setdefault((callee, site, guard, kind.value, *texts), len(rows))

    pairs: dict[str, dict[str, dict[str, dict[str, list[int]]]]] = {}
    for pair in CALL_PAIRS:
        sides = [(version, _surface(pair.provider, version)) for version in versions.get(pair.provider, ())]
        surfaces = {version: surface for version, surface in sides if isinstance(surface, Surface)}
        table = pairs.setdefault(pair.consumer, {}).setdefault(pair.provider, {})
        for consumer in versions.get(pair.consumer, ()):
            calls = _calls(pair, consumer)
            if isinstance(calls, Calls):
                _check_fitting(pair, calls, surfaces.values())
                table[consumer] = {version: [*map(number, read(pair, consumer, version))] for version in surfaces}
    record = {"format": recording.FORMAT, "findings": list(rows), "pairs": pairs}
    return gzip.compress(json.dumps(record, separators=(",", ":")).encode(), compresslevel=9, mtime=0)


def _check_fitting(pair: CallPair, calls: Calls, surfaces: Iterable[Surface]) -> None:
    for surface, used in product(surfaces, calls.fitting):
        if isinstance(surface.lookup(used), Absent):
            raise MatrixError(
                f"the calls of {pair.consumer} {calls.version} are recorded without a use that breaks",
                got=f"{used} is not in {pair.provider} {surface.version}",
                fix=f"record them again: megatrix surface record SOURCE --into {pair.provider}",
            )
