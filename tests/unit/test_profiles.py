"""The profiles of hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

from tests.profiles import PROFILE, chosen, examples, tries


@pytest.mark.parametrize(("environ", "name"), [({}, "ci"), ({"MEGATRIX_TESTS": "thorough"}, "thorough")])
def test_variable_chooses_the_profile(environ: dict[str, str], name: str) -> None:
    assert chosen(environ) == name


def test_unknown_profile_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="no such profile; expected ci, night, thorough, mutation"):
        chosen({"MEGATRIX_TESTS": "quick"})


def test_profile_of_this_run_is_loaded() -> None:
    """In the profiles but `thorough`, every run tries the same examples; nothing is judged by its time."""
    current = settings()
    assert (current.derandomize, current.deadline) == (PROFILE != "thorough", None)
    assert (current.max_examples, tries(7).max_examples) == (examples(100, PROFILE), examples(7, PROFILE))


@pytest.mark.parametrize(
    ("profile", "count", "simplifies"),
    [("ci", 30, True), ("night", 100, True), ("thorough", 2000, True), ("mutation", 20, False)],
)
def test_profiles_differ_in_examples(profile: str, count: int, simplifies: bool) -> None:
    assert settings.get_profile(profile).max_examples == examples(100, profile) == count
    assert (Phase.shrink in settings.get_profile(profile).phases) is simplifies


def test_profile_tries_at_least_one_example() -> None:
    assert examples(1, "mutation") == 1
