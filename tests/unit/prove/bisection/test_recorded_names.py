"""The releases that the recorded APIs make suspects."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Signature
from matrix.prove.bisection.question import suspected_releases

CORES = ["0.5.0", "0.6.0", "0.11.0", "0.12.0", "0.13.0"]
ENGINES = ["2.0.0", "2.5.0", "2.6.0"]


@pytest.mark.parametrize(
    ("exception", "message", "package", "versions", "places"),
    [
        ("ModuleNotFoundError", r"No module named 'megatron\.core\.inference'", "megatron-core", CORES, {1}),
        ("ModuleNotFoundError", r"No module named 'megatron\.core\.inference\.contexts'", "megatron-core", CORES, {3}),
        (
            "ImportError",
            r"cannot import name 'StaticInferenceContext' from 'megatron\.core\.inference\.contexts'",
            "megatron-core",
            CORES,
            {3},
        ),
        ("ModuleNotFoundError", r"No module named 'megatron\.core\.inference'", "transformer-engine", ENGINES, set()),
        ("ModuleNotFoundError", r"No module named 'megatron\.core\.inference'", "numpy", ["1.26.4", "2.0.0"], set()),
        ("ValueError", "the planted failure", "megatron-core", CORES, set()),
        (None, None, "megatron-core", CORES, set()),
    ],
)
def test_release_that_has_a_name_first_is_suspected(
    exception: str, message: str, package: str, versions: list[str], places: set[int]
) -> None:
    signature = Signature("learned", exception=exception, message=message)  # type: ignore[arg-type]
    assert suspected_releases([signature], package, versions) == places
