"""Settings of all tests of the project; loaded for the cases in tests/failures too, in cells without hypothesis."""

from __future__ import annotations

import gc
import signal

import pytest

from matrix.prove.execution.plugin import has_cases

# nohup, `&` in a script and some CI runners start processes with SIGINT ignored, and children inherit that, also the
# workers of pytest-xdist.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Choose hypothesis's profile, before the tests are imported, and collect no garbage of what stays to the end."""
    if not has_cases(config):
        from tests import profiles

        profiles.load()
        gc.disable()


def pytest_collection_finish() -> None:
    """Collect the garbage of the tests as `megatrix` does, and none of the modules and the collected tests."""
    if not gc.isenabled():
        from matrix.cli.main import LASTING

        gc.freeze()
        gc.set_threshold(LASTING)
        gc.enable()
