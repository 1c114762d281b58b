"""Where the recorded APIs decide that what a failure names appears or disappears: a module, a name, a parameter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from matrix.catalog.failure import Signature
from matrix.catalog.kinds import kind_table
from matrix.contract.provider import PROVIDERS
from matrix.contract.recording import releases_with
from matrix.verdicts.kind_match import KindIndex
from matrix.verdicts.outcome import Raised

_ESCAPED = re.compile(r"\\(\W)")


def suspected_releases(signatures: Iterable[Signature], package: str, versions: Sequence[str]) -> set[int]:
    """Return the places of the releases, oldest first, that first have what a signature names, or first lack it.

    They order a search, and decide nothing: a run confirms both sides.
    """
    provider = PROVIDERS.get(package)
    if provider is None:
        return set()
    index, places = KindIndex(kind_table()), set[int]()
    for signature in signatures:
        message = _ESCAPED.sub(r"\1", signature.message or "")
        if sighting := index.shown_by(Raised(signature.exception or "", message)):
            recorded = dict(releases_with(provider, sighting.groups))
            states = [recorded.get(version) for version in versions]
            pairs = enumerate(pairwise(states), start=1)
            places |= {place for place, (before, after) in pairs if None not in (before, after) and before != after}
    return places
