"""The chart that a failure's folder draws for its page: picture(values) in chart.py."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from markupsafe import Markup

from matrix.catalog.folders import load_module
from matrix.verdicts.record import Record


def chart(folder: Path, records: Iterable[Record]) -> Markup:
    """Return the HTML of a failure's chart, "" without chart.py or if the chart is empty.

    picture() receives (case, value) for each rank. Values come from journals and are untrusted: picture() has to skip
    values that it can't read and to escape those that it shows (matrix.kit.svg).
    """
    if not (folder / "chart.py").is_file():
        return Markup()
    values = [
        (f"{record.case}, mcore {record.cell.mcore} on {record.cell.base}", rank.value)
        for record in records
        for rank in record.outcome.ranks
    ]
    return Markup(load_module(folder, "chart").picture(values))  # noqa: S704
