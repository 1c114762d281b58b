"""Calls that Megatron-LM makes into Transformer Engine and that do not fit there; nothing of either is run."""

from __future__ import annotations

import pytest

from matrix.contract.finding import Kind
from matrix.reproduction import Reproduction
from tests.failures.te_contract import outcome_of

OFFLOAD = r"\.get_cpu_offload_context$"
# What each failure's call is, as a pattern of the callee's dotted path; a call breaks there unless `SHIFTED` says how.
CALLEES = {
    "cpu-offload-args": OFFLOAD,
    "cpu-offload-pinned": OFFLOAD,
    "cpu-offload-shifted": OFFLOAD,
    "fp8-padding-align": r"\.Fp8Padding",
    "fp8-skip-update": r"\.set_skip_fp8_weight_update_tensor$",
    "graphed-callables": r"\.make_graphed_callables$",
    "rope-interleaved": r"\.apply_rotary_pos_emb$",
    "te-norm-shape": r"\.(LayerNorm|RMSNorm)$",
    "ub-quantization-mode": r"\.UserBufferQuantizationMode$",
    "ub-tp-size": r"\.initialize_ub$",
}
SHIFTED = {"cpu-offload-shifted": Kind.MISBOUND}


@pytest.mark.failure(*CALLEES)
def test_contract(reproduction: Reproduction) -> None:
    """Megatron's call fits what it meets under its own version guards."""
    failure = reproduction.failure.id
    kind = SHIFTED.get(failure, Kind.DEFINITE)
    reproduction.read(lambda: outcome_of(reproduction.planned.cell, CALLEES[failure], kind))
