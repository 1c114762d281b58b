"""How many examples hypothesis tries: the profile `ci`, the same ones on every run, or `thorough`, many new ones.

$MEGATRIX_TESTS chooses; `ci` is the default. Import this module only where hypothesis is installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import pytest
from hypothesis import settings

VARIABLE: Final = "MEGATRIX_TESTS"
FACTORS: Final = {"ci": 1, "thorough": 20}
EXAMPLES: Final = 100  # of a test that names no number


def chosen(environ: Mapping[str, str]) -> str:
    """Return the name of the profile. Raises pytest.UsageError for an unknown one."""
    name = environ.get(VARIABLE) or "ci"
    if name not in FACTORS:
        raise pytest.UsageError(f"{VARIABLE}={name}: no such profile; expected {' or '.join(FACTORS)}")
    return name


PROFILE: Final = chosen(os.environ)


def tries(count: int) -> settings:
    """Return the settings of a test that tries `count` examples, or more in a thorough run."""
    return settings(max_examples=count * FACTORS[PROFILE])


def load() -> None:
    """Register the profiles and load the chosen one. The machines are shared and noisy: no test has a deadline."""
    for name, factor in FACTORS.items():
        settings.register_profile(
            name, deadline=None, derandomize=name == "ci", max_examples=EXAMPLES * factor, print_blob=True
        )
    settings.load_profile(PROFILE)
