"""The picture that a failure's folder makes for its page: picture(values) in chart.py."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from matrix.catalog.folders import load_module
from matrix.verdicts.record import Record


def chart(folder: Path, records: Iterable[Record]) -> str:
    """Return the HTML of a failure's picture, "" without chart.py or where it shows nothing.

    chart.py is given (case, value) for each value that a rank returned. Values come from journals, and are untrusted:
    it leaves out what it can't read, and escapes what it shows (matrix.kit.svg).
    """
    if not (folder / "chart.py").is_file():
        return ""
    values = [
        (f"{record.case}, mcore {record.cell.mcore} on {record.cell.base}", rank.value)
        for record in records
        for rank in record.outcome.ranks
    ]
    picture: str = load_module(folder, "chart").picture(values)
    return picture
