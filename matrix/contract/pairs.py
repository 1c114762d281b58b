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
from typing import Final

from packaging.version import Version

from matrix.catalog.versions import parse
from matrix.contract import recording
from matrix.contract.finding import Finding, FindingKind, find
from matrix.contract.recording import MCORE, SUFFIX, TE
from matrix.contract.relevance import relevance
from matrix.contract.uses import Site
from matrix.errors import MatrixError

KINDS: Final = (FindingKind.DEFINITE, FindingKind.MISBOUND)
FIELDS: Final = ("callee", "call_site", "guard", "kind", "message", "signature", "exception")  # of a recorded row


def path() -> Path:
    """Return the file of the recorded pairs."""
    return recording.folder() / f"pairs{SUFFIX}"


def breaking(mcore: str, te: str) -> tuple[Finding, ...]:
    """Return the calls that raise or are misbound, without those that another break of the pair masks.

    Raises MatrixError where the API of a side is not recorded.
    """
    findings = _recorded().get((parse(mcore), parse(te)))
    return read(mcore, te) if findings is None else findings


def read(mcore: str, te: str) -> tuple[Finding, ...]:
    """Return the breaking calls, from the records of both sides. Raises MatrixError where one is missing."""
    for package, version in ((MCORE, mcore), (TE, te)):
        if problem := _problem(package, version):
            raise problem
    findings = relevance().judged(find(_calls(mcore), recording.load_surface(te)))
    breaks = (finding for finding in findings if finding.kind in KINDS and not finding.masked)
    return tuple(replace(finding, consumer=mcore, provider=te, implausible="") for finding in breaks)


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
    rows = [
        (callee, Site(*site), guard, FindingKind(kind), *texts)
        for callee, site, guard, kind, *texts in record["findings"]
    ]
    return {
        (parse(mcore), parse(te)): tuple(Finding(mcore, te, *rows[number]) for number in numbers)
        for mcore, releases in record["pairs"].items()
        for te, numbers in releases.items()
    }


def encode(mcores: Iterable[str], tes: Iterable[str]) -> bytes:
    """Return the content of the record of all pairs of these versions, of which both sides are recorded."""
    rows: dict[tuple[object, ...], int] = {}

    def number(finding: Finding) -> int:
        callee, site, guard, kind, *texts = (getattr(finding, name) for name in FIELDS)
        return rows.setdefault((callee, site, guard, kind.value, *texts), len(rows))

    engines = [version for version in tes if _problem(TE, version) is None]
    cores = [version for version in mcores if _problem(MCORE, version) is None]
    pairs = {mcore: {te: [number(finding) for finding in read(mcore, te)] for te in engines} for mcore in cores}
    record = {"format": recording.FORMAT, "findings": list(rows), "pairs": pairs}
    return gzip.compress(json.dumps(record, separators=(",", ":")).encode(), compresslevel=9, mtime=0)
