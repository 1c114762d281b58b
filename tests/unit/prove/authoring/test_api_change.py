"""The change of a recorded API that a log shows."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.versions import ReleaseBoundary
from matrix.prove.authoring.api_change import api_change

HELPER = {"module": "megatron.core.utils", "name": "get_tensor_model_parallel_group_if_none"}
ENUM = {"owner": "ModelType", "attribute": "encoder_and_decoder"}
ARGUMENT = {"callable": "GatedDeltaNet.__init__", "keyword": "cp_comm_type"}


@pytest.mark.parametrize(
    ("groups", "boundary", "parts", "fact"),
    [
        (HELPER, ReleaseBoundary(fixed="0.13.0"), ("broken", "fixed"), "0.13.0 and later; missing in 0.4.0 - 0.12.3"),
        (ENUM, ReleaseBoundary(breaks="0.17.0"), ("before", "broken"), "0.4.0 - 0.16.1; missing in 0.17.0 and later"),
        (
            ARGUMENT,
            ReleaseBoundary(breaks="0.16.0", fixed="0.19.0"),
            ("broken", "fixed"),
            "GatedDeltaNet.__init__(cp_comm_type=) is in megatron-core 0.19.0 and later; missing in 0.16.0 - 0.18.2",
        ),
    ],
)
def test_boundary_is_that_of_the_recorded_apis(
    groups: dict[str, str], boundary: ReleaseBoundary, parts: tuple[str, ...], fact: str
) -> None:
    change = api_change(groups)
    assert change is not None
    assert (change.boundary, change.parts) == (boundary, parts)
    assert fact in change.fact


@pytest.mark.parametrize(
    ("groups", "script"),
    [
        (
            HELPER,
            "from megatron.core.utils import get_tensor_model_parallel_group_if_none  # noqa: F401",
        ),
        (
            ENUM,
            "from megatron.core.enums import ModelType\n\n"
            'return {"encoder_and_decoder": str(ModelType.encoder_and_decoder)}',
        ),
        (ARGUMENT, ""),
    ],
)
def test_script_needs_what_is_missing(groups: dict[str, str], script: str) -> None:
    change = api_change(groups)
    assert change is not None
    assert change.script == script


@pytest.mark.parametrize(
    "groups",
    [
        {},
        {"module": "torch.utils", "name": "nothing"},
        {"module": "megatron.core.utils", "name": "in_no_release"},
        {"module": "megatron.core.utils", "name": "divide"},
        {"owner": "NoSuchClass", "attribute": "value"},
        {"callable": "f", "keyword": "no_such_keyword"},
    ],
)
def test_no_change_without_a_release_on_each_side(groups: dict[str, str]) -> None:
    assert api_change(groups) is None
