"""The breaking calls of a pair of releases. Those of every listed pair are recorded: a map has 1,600, each takes 8 ms.

`megatrix surface pairs` writes the record, from the records of both sides.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from matrix.catalog.versions import parse
from matrix.contract import recording
from matrix.contract.finding import Finding, FindingKind, find
from matrix.contract.recording import MCORE, SUFFIX, TE
from matrix.contract.relevance import relevance
from matrix.contract.usage import Site
from matrix.errors import MatrixError

KINDS: Final = (FindingKind.DEFINITE, FindingKind.MISBOUND)


def path() -> Path:
    """Return the file of the recorded pairs."""
    return recording.folder() / f"pairs{SUFFIX}"


def breaking(mcore: str, te: str) -> tuple[Finding, ...]:
    """Return the calls that raise or are misbound, without those that another break of the pair masks.

    Raises MatrixError where the API of a side is not recorded.
    """
    known = _recorded().get((parse(mcore), parse(te)))
    return read(mcore, te) if known is None else known


def read(mcore: str, te: str) -> tuple[Finding, ...]:
    """Return the breaking calls, from the records of both sides. Raises MatrixError where one is missing."""
    for package, version in ((MCORE, mcore), (TE, te)):
        if problem := _problem(package, version):
            raise problem
    found = relevance().judged(find(_calls(mcore), recording.load_surface(te)))
    own = (one for one in found if one.kind in KINDS and not one.masked)
    return tuple(replace(one, consumer=mcore, provider=te, implausible="") for one in own)


_calls = lru_cache(1)(recording.load_calls)  # the pairs of a release follow one another


@cache
def _problem(package: str, version: str) -> MatrixError | None:
    try:
        recording.find_recorded(package, version)
    except MatrixError as error:
        return error
    return None


@cache
def _recorded() -> Mapping[tuple[Version, Version], tuple[Finding, ...]]:
    if not path().exists():
        return {}
    record = recording.read_file(path())
    findings = record["findings"]
    return {
        (parse(mcore), parse(te)): tuple(_finding(mcore, te, findings[place]) for place in places)
        for mcore, row in record["pairs"].items()
        for te, places in row.items()
    }


def _finding(mcore: str, te: str, row: list[Any]) -> Finding:
    callee, path, line, function, guard, kind, *texts = row
    return Finding(mcore, te, callee, Site(path, line, function), guard, FindingKind(kind), *texts)


def encode(mcores: Iterable[str], tes: Iterable[str]) -> bytes:
    """Return the content of the record of all pairs of these versions, of which both sides are recorded."""
    findings: dict[tuple[Any, ...], int] = {}

    def place(one: Finding) -> int:
        site = one.call_site.path, one.call_site.line, one.call_site.function
        row = (one.callee, *site, one.guard, one.kind.value, one.message, one.signature, one.exception)
        return findings.setdefault(row, len(findings))

    known = [version for version in tes if _problem(TE, version) is None]
    pairs = {
        mcore: {te: [place(one) for one in read(mcore, te)] for te in known}
        for mcore in mcores
        if _problem(MCORE, mcore) is None
    }
    record = {"format": recording.FORMAT, "findings": list(findings), "pairs": pairs}
    return gzip.compress(json.dumps(record, separators=(",", ":")).encode(), compresslevel=9, mtime=0)
