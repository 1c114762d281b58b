"""Failures of the catalog that are one call into Transformer Engine, judged by reading both sides."""

from __future__ import annotations

import re
from typing import Final

from matrix.contract.finding import Finding, Kind, find
from matrix.contract.surface import Surface
from matrix.contract.usage import Calls
from matrix.verdicts.outcome import Outcome, OutcomeKind

OFFLOAD: Final = r"\.get_cpu_offload_context$"
# What each failure's call is, as a pattern of the callee's dotted path; a call breaks there unless `SHIFTED` says how.
CALLEES: Final = {
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
SHIFTED: Final = ("cpu-offload-shifted",)


def outcome_of(failure: str, calls: Calls, surface: Surface, te_version: str | None = None) -> Outcome:
    """Return what the uses of the failure's callee come to: raised where one breaks in the failure's way.

    Where an argument lands on another parameter than its caller means, Python raises nothing; here it is a Misbound. A
    call that can't be made at all has not shifted: that is another failure, and no pass. What else was found of the
    callee is said in the reason. `te_version` as in `find`.
    """
    kinds = (Kind.MISBOUND, Kind.DEFINITE) if failure in SHIFTED else (Kind.DEFINITE,)
    found = [one for one in find(calls, surface, te_version) if re.search(CALLEES[failure], one.callee)]
    broken = [one for one in found if one.kind in kinds]
    if broken:
        return Outcome(OutcomeKind.RAISED, _told(broken[0]), chain=tuple(one.raised for one in broken))
    return Outcome(OutcomeKind.PASSED, "; ".join(map(_told, found)))


def _told(finding: Finding) -> str:
    return f"{finding.kind.value} at {finding.call_site}: {finding.message}"
