"""Fixtures of the project's own tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.prove.provision import clones
from matrix.prove.provision.host import VISIBLE


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the signal handlers after each test: a command sets them, and ignores signals once one has arrived."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# What changes printed text; readline, which a pytest-xdist worker imports, sets COLUMNS.
PRINTING = ("COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "LINES", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings of the user or tox for the project, GPUs and printing from every test."""
    for name in os.environ:
        if name.startswith("MEGATRIX_") or name in (VISIBLE, *PRINTING):
            monkeypatch.delenv(name)
    # Nor does a test find the clones of the user's cache.
    monkeypatch.setattr(clones, "default_root", lambda environ: Path(environ.get("MEGATRIX_CACHE", "/nonexistent")))
