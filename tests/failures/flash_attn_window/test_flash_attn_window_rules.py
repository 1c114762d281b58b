"""Which attention is left where Transformer Engine does not use the installed flash-attn, by release, GPU and cuDNN."""

from __future__ import annotations

import pytest

from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.stack import Stack

FAILURE = loading.load().failure("flash-attn-window")
FUSED, UNFUSED = "cuDNN's fused attention, which is left", "the unfused attention alone is left"


@pytest.mark.parametrize(
    ("te", "flash_attn", "sm", "cudnn", "certain", "text"),
    [
        ("1.11.0", "2.8.3", "9.0", "9.1", True, ""),
        ("1.12.0", "2.8.3", "9.0", "9.1", False, f"{FUSED}, does not take the case"),
        ("2.9.0", "2.8.3", "9.0", "9.10.2.21", False, "256 on 9.0 from"),
        ("2.9.0", "2.8.3", "10.0", "9.10.2.21", False, "192 and 128 from cuDNN 9.11"),
        ("2.9.0", "2.8.3", "10.0", "9.5.1.17", False, UNFUSED),
        ("2.9.0", "2.8.3", "", "", False, f"{FUSED} on 8.0 and later"),
        ("2.18.0", "2.6.3", "10.0", "9.20", False, FUSED),
        ("2.14.0", "2.8.3+local", "", "", False, FUSED),
        ("2.18.0", "2.8.3.post1", "", "", False, FUSED),
    ],
)
def test_attention_that_is_left(te: str, flash_attn: str, sm: str, cudnn: str, *, certain: bool, text: str) -> None:
    named = {"transformer-engine": te, "flash-attn": flash_attn, "sm": sm, "cudnn": cudnn}
    stack = Stack({name: version for name, version in named.items() if version})
    reached = FAILURE.reach(stack, None)
    assert FAILURE.expectation(stack) is Expectation.BROKEN
    assert reached.certain is certain
    assert text in reached.needs
    assert certain or "are 4 GiB for each layer" in reached.needs


@pytest.mark.parametrize(
    ("te", "flash_attn", "sm"),
    [("2.18.0", "2.6.3", "9.0"), ("2.18.0", "2.8.3", "10.0"), ("2.18.0", "2.8.3+local", "9.0")],
)
def test_inside_the_window_it_works(te: str, flash_attn: str, sm: str) -> None:
    stack = Stack({"transformer-engine": te, "flash-attn": flash_attn, "sm": sm})
    assert FAILURE.expectation(stack) is Expectation.WORKS
