"""How many examples a test tries: all of them in the profile `night`, the same on every run; `thorough`, many new ones.

Those of the profiles `ci` and `mutation` (tests/mutation.py) are the first of the night's. In `mutation` a failing one
is not simplified, since nobody reads it. $MEGATRIX_TESTS chooses; `ci` is the default. Import this module only where
hypothesis is installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import pytest
from hypothesis import Phase, settings

VARIABLE: Final = "MEGATRIX_TESTS"
FACTORS: Final = {"ci": 0.3, "night": 1.0, "thorough": 20.0, "mutation": 0.2}
EXAMPLES: Final = 100  # of a test that names no number


def chosen(environ: Mapping[str, str]) -> str:
    """Return the name of the profile. Raises pytest.UsageError for an unknown one."""
    name = environ.get(VARIABLE) or "ci"
    if name not in FACTORS:
        raise pytest.UsageError(f"{VARIABLE}={name}: no such profile; expected {', '.join(FACTORS)}")
    return name


PROFILE: Final = chosen(os.environ)


def tries(count: int) -> settings:
    """Return the settings of a test that tries `count` examples, times the factor of this run's profile."""
    return settings(max_examples=examples(count, PROFILE))


def examples(count: int, profile: str) -> int:
    """Return how many examples a profile tries in place of `count`, at least one."""
    return max(1, round(count * FACTORS[profile]))


def load() -> None:
    """Register the profiles and load the chosen one. The machines are shared and noisy: no test has a deadline."""
    for name in FACTORS:
        settings.register_profile(
            name,
            deadline=None,
            derandomize=name != "thorough",
            max_examples=examples(EXAMPLES, name),
            phases=(Phase.explicit, Phase.generate) if name == "mutation" else tuple(Phase),
            print_blob=True,
        )
    settings.load_profile(PROFILE)
