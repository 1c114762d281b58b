"""The content of a case: what its verdict depends on, as one hash. The same content is not run twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from matrix.planning.planned import Planned
from matrix.provision.host import Place
from matrix.provision.installed import Environment
from matrix.provision.project import ROOT

# What runs in the ranks, and what turns an outcome into a verdict; the rest only plans and shows.
SOURCES: Final = (
    "tests/failures/*.py",
    "tests/failures/*/*.py",
    "tests/failures/*/*.toml",
    "matrix/kit/*.py",
    "matrix/execution/ranks/*.py",
    "matrix/execution/reproduction.py",
    "matrix/execution/preflights.py",
    "matrix/contract/*.py",
    "matrix/verdicts/*.py",
    "matrix/catalog/*.py",
    "matrix/catalog/facts/surfaces/*/*.gz",
)


def case_content(
    planned: Planned,
    environment: Environment,
    overlays: Iterable[str],
    here: Place,
    image: str = "",
) -> str:
    """Return the verdict-cache key of a case in this environment."""
    base = {"python": environment.python, "packages": dict(sorted(environment.packages.items())), "image": image}
    return content_key(planned, base=base, overlays=overlays, host=here.capabilities(planned.level))


def content_key(planned: Planned, *, base: Mapping[str, Any], overlays: Iterable[str], host: Mapping[str, Any]) -> str:
    """Return the cache key of a case.

    `base` is the environment (Python's version, packages), `overlays` the digests of what is laid over it, `host` the
    capabilities that the level depends on. The catalog entry and the sources are read from this tree.
    """
    return digest(
        {
            "case": [planned.key, planned.expectation.value],
            "base": dict(base),
            "overlays": list(overlays),
            "host": dict(host),
            "entry": file_hash(ROOT / "matrix" / "catalog" / "facts" / "failures" / f"{planned.failure}.toml"),
            "sources": sources_hash(),
        }
    )


@cache
def sources_hash() -> str:
    """Return the hash of the reproductions, the rank code and the judge."""
    paths = sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))
    return digest({str(path.relative_to(ROOT)): file_hash(path) for path in paths})


@cache
def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file; "" when there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
