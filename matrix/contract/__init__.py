"""The contract level: every call that Megatron makes into Transformer Engine, held against the signature it meets.

Both sides are read from their sources and never imported; no GPU, no torch, one pair in milliseconds.

    offering    what a TE release offers     -> Surface      consuming   what a Megatron release calls -> Calls
    guard       under which TE versions a line is reached     reach       ... because of what stands elsewhere
    finding     find(calls, surface, te_version) -> [Finding]
    recording   the recorded releases         reading     a wheel, a folder or a git revision as either side
    command     `megatrix contract`, `megatrix surface record`

docs/contract.md says how it works, what it found, and how far it can be trusted.
"""

from matrix.contract.finding import Finding, FindingKind, find
from matrix.contract.recording import load_calls, load_surface, released

__all__ = ["Finding", "FindingKind", "find", "load_calls", "load_surface", "released"]
