"""What differs between two environments."""

from __future__ import annotations

from matrix.prove.bisection.joint import differences

GOOD = {"torch": "2.13.0", "python": "3.11", "numpy": "1.26.4", "nvidia-nvtx": "13.1", "zarr": "2.18.7", "einops": "1"}
BAD = {"torch": "2.15.0", "python": "3.12", "numpy": "2.5.5", "nvidia-nvtx": "13.2", "triton": "3.9.0", "einops": "1"}


def test_what_both_sides_have_can_change_alone() -> None:
    """What follows torch, and what one side lacks, changes with the environment."""
    result = differences(GOOD, BAD, separable=True)

    assert result.alone == {"numpy": ("1.26.4", "2.5.5"), "python": ("3.11", "3.12")}
    assert result.together == {
        "nvidia-nvtx": ("13.1", "13.2"),
        "triton": ("none", "3.9.0"),
        "zarr": ("2.18.7", "none"),
    }


def test_nothing_of_a_container_changes_alone() -> None:
    """What the catalog does not know of it is no difference."""
    result = differences({"python": "3.10"}, {"python": "3.12", "numpy": "1.26.4"}, separable=False)
    assert (result.alone, result.together) == ({}, {"python": ("3.10", "3.12")})
