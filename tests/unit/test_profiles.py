"""The profiles of hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.profiles import FACTORS, PROFILE, chosen, tries


@pytest.mark.parametrize(("environ", "name"), [({}, "ci"), ({"MEGATRIX_TESTS": "thorough"}, "thorough")])
def test_variable_chooses_the_profile(environ: dict[str, str], name: str) -> None:
    assert chosen(environ) == name


def test_unknown_profile_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="no such profile; expected ci or thorough"):
        chosen({"MEGATRIX_TESTS": "quick"})


def test_profile_of_this_run_is_loaded() -> None:
    """In the ci profile, every run tries the same examples; nothing is judged by its time."""
    current = settings()
    assert (current.derandomize, current.deadline) == (PROFILE == "ci", None)
    assert (current.max_examples, tries(7).max_examples) == (100 * FACTORS[PROFILE], 7 * FACTORS[PROFILE])
    assert settings.get_profile("thorough").max_examples == 2000
