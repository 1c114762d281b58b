"""SIGINT and SIGTERM at random moments of README's night."""

from __future__ import annotations

from pathlib import Path

from tests.real.interrupts import INTERRUPTS, interrupt_at_random_moments


def test_night_interrupted_at_random_moments(tmp_path: Path, temporary: Path) -> None:
    assert len(interrupt_at_random_moments(INTERRUPTS, tmp_path, temporary)) == 2 * INTERRUPTS
