"""The contract level: check every call from Megatron into Transformer Engine against the callee's signature.

Both sides are read from their sources and never imported; no GPU, no torch, one pair in milliseconds.

    offering    the API of a TE release -> Surface      consuming   the TE uses of a Megatron release -> Calls
    guard       the TE versions that reach a line       reach       ... given constructors, callers and checks
    finding     find(calls, surface, te_version) -> [Finding]
    recording   the recorded releases                   reading     a wheel, a folder or a git revision as a side

docs/contract.md describes the method, the findings and their limits.
"""

from matrix.contract.comparison import find
from matrix.contract.finding import Finding, FindingKind
from matrix.contract.recording import load_calls, load_surface, released

__all__ = ["Finding", "FindingKind", "find", "load_calls", "load_surface", "released"]
