"""Fixtures of the project's own tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from matrix.provision.host import VISIBLE


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore the signal handlers after a test whose command sets them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the project's settings of the user or tox, and the user's choice of GPUs, from every test."""
    for name in os.environ:
        if name.startswith("MEGATRIX_") or name == VISIBLE:
            monkeypatch.delenv(name)
