"""Pairwise covering arrays under constraints, by covertable (Apache-2.0, pure Python; 3.2.0 of August 2026)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matrix.errors import MatrixError


def pairwise(
    factors: Mapping[str, Sequence[Any]], keys: Sequence[str], allowed: Callable[[Mapping[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Return rows in which every pair of values appears that some allowed row has.

    `allowed` judges a row by its `keys` alone. Rows come in a fixed order: the same input gives the same plan.
    Raises MatrixError without covertable: an image's own Python, on which a checkout plans, may lack it.
    """
    try:  # needed by the planner alone, not inside cells
        from covertable.main import Controller  # type: ignore[import-untyped]  # it has no stubs
    except ModuleNotFoundError:
        raise MatrixError(
            "covertable is needed to plan a night", got=f"no covertable in {sys.prefix}",
            fix="pip install covertable",
        ) from None  # fmt: skip
    rule = {"operator": "fn", "requires": list(keys), "evaluate": allowed}
    rows = Controller({name: list(values) for name, values in factors.items()}, constraints=[rule]).make()
    return sorted(
        (dict(row) for row in rows), key=lambda row: [list(factors[name]).index(row[name]) for name in factors]
    )
