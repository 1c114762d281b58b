"""Settings of all tests of the project; loaded for the cases in tests/failures too, in cells without hypothesis."""

from __future__ import annotations

import signal

import pytest

from matrix.prove.execution.plugin import has_cases

# nohup, `&` in a script and some CI runners start processes with SIGINT ignored, and children inherit that, also the
# workers of pytest-xdist.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Choose hypothesis's profile, before the tests are imported."""
    if not has_cases(config):
        from tests import profiles

        profiles.load()
