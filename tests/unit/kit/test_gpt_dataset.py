"""The parts of matrix/kit/gpt_dataset.py that do not need megatron-core."""

from __future__ import annotations

import pytest

from matrix.kit.gpt_dataset import held


def test_memory_of_this_process_is_in_bytes() -> None:
    assert held("VmSize") >= held("VmHWM") >= held("VmRSS") // 2 > 2**20
    with pytest.raises(KeyError):
        held("VmMoon")
