"""The breaking calls of a megatron-core into a release of TE or torch.

Those of every listed pair are recorded: a map has 1,600 pairs with TE and 270 with torch, and each takes 8 ms or more.

`megatrix surface pairs` writes the record, from the records of both sides.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

from matrix.catalog.versions import parse
from matrix.contract import recording
from matrix.contract.api import Surface
from matrix.contract.finding import Finding, FindingKind, find
from matrix.contract.provider import TORCH, TRANSFORMER_ENGINE, Provider
from matrix.contract.recording import MCORE, SUFFIX, TE
from matrix.contract.relevance import relevance
from matrix.contract.uses import Calls, Site
from matrix.errors import MatrixError

PROVIDED: Final = {provider.package: provider for provider in (TRANSFORMER_ENGINE, TORCH)}
KINDS: Final = (FindingKind.DEFINITE, FindingKind.MISBOUND)
T = TypeVar("T")
FIELDS: Final = ("callee", "call_site", "guard", "kind", "message", "signature", "exception")  # of a recorded row


def path() -> Path:
    """Return the file of the recorded pairs."""
    return recording.folder() / f"pairs{SUFFIX}"


def breaking(mcore: str, version: str, package: str = TE) -> tuple[Finding, ...]:
    """Return the calls that raise or are misbound, without those that another break of the pair masks.

    `version` is that of `package`, TE or torch. Raises MatrixError where the API of a side is not recorded: of TE also
    builds of some commits are, of torch only releases, and all pairs of them.
    """
    cores = _record()["pairs"].get(package, {})
    releases = _of_version(cores, mcore)
    numbers = _of_version(releases or {}, version)
    if numbers is not None:
        return tuple(_finding(mcore, version, package, number) for number in numbers)
    if package != TE and cores:
        raise MatrixError(
            f"the calls of megatron-core {mcore} into it are not recorded"
            if releases is None
            else "its API is not recorded",
            got=f"{package} {version}",
            expected=f"a release of {next(iter(releases))} .. {next(reversed(releases))}" if releases else None,
        )
    return read(mcore, version, package)


def breaking_or_near(mcore: str, version: str, package: str) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the breaking calls; of a build between two recorded releases of torch those of both, and those of one.

    A release of torch has the API of its minor: 2.4.0 that of 2.4.1. NVIDIA's containers have builds between releases:
    2.4.0a0 comes after 2.3 and before 2.4. Raises MatrixError as `breaking`.
    """
    try:
        return breaking(mcore, version, package), ()
    except MatrixError:
        releases = _of_version(_record()["pairs"].get(package, {}), mcore) or {} if package != TE else {}
        build, minors = parse(version), {parse(text).release[:2]: text for text in releases}
        if not build.is_prerelease and build.release[:2] in minors:
            return breaking(mcore, minors[build.release[:2]], package), ()
        after = next((place for place, text in enumerate(releases) if parse(text) > build), 0)
        if not after:
            raise
    sides = (breaking(mcore, text, package) for text in [*releases][after - 1 : after + 1])
    older, newer = ({(finding.callee, finding.call_site): finding for finding in side} for side in sides)
    differing = (finding for line, finding in (older | newer).items() if line not in older or line not in newer)
    return tuple(finding for line, finding in newer.items() if line in older), tuple(differing)


def read(mcore: str, version: str, package: str = TE) -> tuple[Finding, ...]:
    """Return the breaking calls, from the records of both sides. Raises MatrixError where one is missing."""
    provider = PROVIDED[package]
    findings = relevance().judged(find(_calls(provider, mcore), _surface(provider, version)))
    breaks = (finding for finding in findings if finding.kind in KINDS and not finding.masked)
    return tuple(replace(finding, consumer=mcore, provider=version, implausible="") for finding in breaks)


@lru_cache(2)  # the pairs of a core follow one another
def _calls(provider: Provider, mcore: str) -> Calls:
    """Return the recorded calls of a core. Raises MatrixError."""
    if problem := _problem(provider, mcore, is_core=True):
        raise problem
    return recording.recorded_calls(provider, mcore)


@lru_cache(64)  # of TE 42 releases, of torch 16, each a few MB
def _surface(provider: Provider, version: str) -> Surface:
    """Return the recorded API of a release. Raises MatrixError."""
    if problem := _problem(provider, version, is_core=False):
        raise problem
    return recording.recorded_surface(provider, version)


@cache
def _problem(provider: Provider, version: str, *, is_core: bool) -> MatrixError | None:
    """Return why one side of a pair is not recorded, None if it is."""
    try:
        if provider is TRANSFORMER_ENGINE:
            recording.find_recorded(MCORE if is_core else TE, version)
        elif is_core:
            recording.recorded_calls(provider, version)
        else:
            recording.recorded_surface(provider, version)
    except MatrixError as error:
        return error
    return None


@cache
def _record() -> dict[str, Any]:
    return recording.read_file(path()) if path().exists() else {"pairs": {}}


def _of_version(table: Mapping[str, T], version: str) -> T | None:
    """Return the item of a version in any spelling (1.10 and 1.10.0), None without one."""
    if version in table:
        return table[version]
    return next((item for text, item in table.items() if parse(text) == parse(version)), None)


def _finding(mcore: str, version: str, package: str, number: int) -> Finding:
    """Return the finding of a recorded row in a pair."""
    callee, site, guard, kind, *texts = _record()["findings"][number]
    finding = Finding(mcore, version, callee, Site(*site), guard, FindingKind(kind), *texts)
    return replace(finding, packages=(MCORE, package))


def encode(mcores: Iterable[str], provided: Mapping[str, Iterable[str]]) -> bytes:
    """Return the content of the record of all pairs of which both sides are recorded; `provided`: versions."""
    rows: dict[tuple[object, ...], int] = {}

    def number(finding: Finding) -> int:
        callee, site, guard, kind, *texts = (getattr(finding, name) for name in FIELDS)
        return rows.setdefault((callee, site, guard, kind.value, *texts), len(rows))

    cores = list(mcores)
    pairs: dict[str, dict[str, dict[str, list[int]]]] = {}
    for package, versions in provided.items():
        provider = PROVIDED[package]
        releases = [version for version in versions if _problem(provider, version, is_core=False) is None]
        pairs[package] = {
            mcore: {version: [number(finding) for finding in read(mcore, version, package)] for version in releases}
            for mcore in cores
            if _problem(provider, mcore, is_core=True) is None
        }
    record = {"format": recording.FORMAT, "findings": list(rows), "pairs": pairs}
    return gzip.compress(json.dumps(record, separators=(",", ":")).encode(), compresslevel=9, mtime=0)
