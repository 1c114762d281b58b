"""The known failures of a stack in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from matrix.catalog.failure import Level
from matrix.check.compat import compat, parse_stack
from matrix.report.compat import render
from tests.founding import HARDWARE, SAVE
from tests.unit.catalogs import real
from tests.unit.terminals import piped, shown, words


def printed(stack: str, levels: Mapping[str, frozenset[Level]] | None = None) -> str:
    return piped(*render(compat(real(), parse_stack(real(), stack), levels or {})))


def test_levels_that_ran_and_workarounds_are_listed() -> None:
    text = printed("mcore=0.8.0 torch=2.4.0", {SAVE: frozenset({Level.CPU})})
    assert "; run on this machine at level cpu\n" in text
    assert "workaround: Stay on torch < 2.4" in text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_text_wraps_at_the_width(width: int) -> None:
    stack = "mcore=0.8.0 torch=2.4.0"
    text = shown(*render(compat(real(), parse_stack(real(), stack), {})), width=width)
    assert words(text) == words(printed(stack))
    assert [line for line in text.splitlines() if len(line) > max(width, 80)] == []


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ("te=1.9.0 driver=470 sm=8.0", f"{HARDWARE}: on SM80 userbuffers go by CUDA IPC, whatever the driver"),
        ("te=2.17.1 driver=535 sm=9.0", f"  {HARDWARE}: multicast, where the GPUs are on an NVSwitch"),
        ("te=2.17.1 driver=580 sm=8.0", f"BREAKS {HARDWARE}"),
        ("te=1.12.0 driver=525 sm=9.0", f"BREAKS {HARDWARE}"),
        ("te=1.13.0 driver=470", f"BREAKS {HARDWARE}"),
    ],
)  # fmt: skip
def test_hardware_rules_are_explained(stack: str, message: str) -> None:
    assert message in printed(stack)
