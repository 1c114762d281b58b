"""The contract level: check every call of a consuming package against the signature of the callee in a provider.

Both sides are read from their sources and never imported; no GPU, no torch, one pair in milliseconds.

    sides       texts -> Surface, Calls                 recording   recorded releases; pairs: what breaks in two of them
    offering    the API of a provider -> Surface        consuming   the uses of it in a consuming package -> Calls
    statements  what each statement does to names and guards (expressions, evaluation: the expressions and calls in it)
    guard       the condition under which a line runs   flow        ... given forks, callers and constructors
    comparison  find(calls, surface) -> [Finding]       finding     the ways in which a use breaks

docs/contract.md describes the method, the findings and their limits.
"""
