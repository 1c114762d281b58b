from __future__ import annotations

import re
import string

from matrix.read.elf.load_facts import contains, link_table

FILLED = {"package", "version", "public", "torch", "cuda", "site"}


def test_every_row_has_a_source() -> None:
    table = link_table()
    tables = (table.importing, table.compiled, table.optional, table.same, table.provided, table.mend, table.interface)
    assert all(vars(row)["source"] for rows in tables for row in rows)


def test_mending_lines_name_values_that_are_filled() -> None:
    for row in link_table().mend:
        groups = set(re.compile(row.name or "").groupindex)
        names = {name for _, name, _, _ in string.Formatter().parse(row.install) if name}
        assert names <= FILLED | groups, row.install
    for compiled in link_table().compiled:
        names = {name for _, name, _, _ in string.Formatter().parse(compiled.install) if name}
        assert names <= FILLED, compiled.install


def test_one_row_for_each_release_of_transformer_engine() -> None:
    rows = [row for row in link_table().importing if row.package == "transformer-engine"]
    for version in ("1.8.0", "1.13.0", "2.3.0", "2.4.0", "2.10.0", "2.11.0", "2.18.0"):
        assert any(row.fits(version) for row in rows)
    assert next(row.releases for row in rows if row.fits("2.11.0")) == ">=2.11"


def test_range_without_text_has_all() -> None:
    assert contains("", "not a version")
    assert contains(">=2.9", "2.9.0")
    assert not contains(">=2.9", "2.8.0")
    assert not contains(">=2.9", "not a version")
