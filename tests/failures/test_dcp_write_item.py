"""ms-swift#4111, ROCm/Megatron-LM#83: megatron-core calls torch's private _write_item with too few arguments."""

from __future__ import annotations

import pytest

from matrix.execution.reproduction import Reproduction


@pytest.mark.failure("dcp-write-item")
def test_save_and_load(reproduction: Reproduction) -> None:
    """A checkpoint that was saved loads back bit for bit."""
    reproduction.run(
        "tests.failures.dcp_assertion:save_and_load",
        tensor_parallel=2,
        pipeline_parallel=1,
        stand_ins=reproduction.stand_ins,
    )
