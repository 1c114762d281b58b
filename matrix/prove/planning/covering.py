"""Pairwise covering arrays under constraints, by covertable (Apache-2.0, pure Python; 3.2.0 of August 2026)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matrix.ground.errors import MatrixError


def pairwise(
    factors: Mapping[str, Sequence[Any]], keys: Sequence[str], allowed: Callable[[Mapping[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Return allowed rows that cover every pair of values of any allowed row.

    `allowed` uses only the `keys` of a row. The order of the rows is fixed: the same input gives the same plan.
    Raises MatrixError without covertable: the Python of an image, on which a checkout plans, may lack it.
    """
    try:  # only the planner needs it; cells do not have it
        from covertable.main import Controller  # type: ignore[import-untyped]  # it has no stubs
    except ModuleNotFoundError:
        raise MatrixError(
            "covertable is needed to plan a night",
            got=f"no covertable in {sys.prefix}",
            fix="pip install covertable",
        ) from None
    rule = {"operator": "fn", "requires": list(keys), "evaluate": allowed}
    rows = Controller({name: list(values) for name, values in factors.items()}, constraints=[rule]).make()
    return sorted(
        (dict(row) for row in rows), key=lambda row: [list(factors[name]).index(row[name]) for name in factors]
    )
