"""The explanation of a cell in the terminal."""

from __future__ import annotations

from matrix.show.check_text import explained_cell
from tests.unit.prove.planning.test_cell_explanation import explained
from tests.unit.terminals import piped, shown

CELL = "torch-2.4.0/mcore-0.8.0/te-none/driver-none"


def test_pipe_has_a_line_per_fact() -> None:
    lines = piped(*explained_cell(explained(CELL))).splitlines()
    assert lines[:2] == [CELL, "  base: wheels, torch 2.4.0, Python 3.10; stands for ngc-24.07"]
    assert "    rule:     torch >=2.4 and mcore ==0.8.0" in lines
    assert "    masked:   break: it fails before; not planned in this cell" in lines
    assert "    night:    tp2 at level cpu (runs)" in lines
    assert "    night:    no case" in lines


def test_values_wrap_in_their_column() -> None:
    lines = shown(*explained_cell(explained(CELL)), width=48).splitlines()
    assert max(map(len, lines)) <= 48
    place = lines.index("    masked:   break: it fails before; not")
    assert lines[place + 1] == "              planned in this cell"
