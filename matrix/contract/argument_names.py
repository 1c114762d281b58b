"""Match argument names with parameter names, to find the parameter that a caller means."""

from __future__ import annotations

from functools import lru_cache

ENDINGS = ("ing", "ed", "s")  # offloading, padded, layers: the same word as offload, pad(d), layer


@lru_cache(maxsize=4096)
def words(name: str) -> frozenset[str]:
    """Return the words of a name, without endings: cpu_offloading_activations -> cpu, offload, activation."""
    return frozenset(_stem(word) for word in name.lower().split("_") if word)


def _stem(word: str) -> str:
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)
    return word


def fit(argument: str, parameter: str) -> float:
    """Return the share of a parameter's words that an argument's name contains, 0 to 1."""
    meant = words(parameter)
    return len(words(argument) & meant) / len(meant) if meant else 0.0


@lru_cache(maxsize=65536)
def misplaced(argument: str, landed: str, parameters: tuple[str, ...]) -> str | None:
    """Return the parameter that an argument's name means, if that is certainly not the parameter it lands on.

    It is certain if the name contains every word of the other parameter, and not every word of the one it lands on.
    A one-word parameter ("bias", "input") matches only its own name, since longer names contain such words by chance.
    A name whose words all occur in the parameter it lands on ("probs" on "merging_probs") means that one.
    """
    if words(argument) <= words(landed):
        return None
    fit_landed = fit(argument, landed)
    candidates = [
        parameter
        for parameter in parameters
        if parameter != landed
        and fit(argument, parameter) == 1.0 > fit_landed
        and (len(words(parameter)) > 1 or words(parameter) == words(argument))
    ]
    return max(candidates, key=lambda parameter: len(words(parameter)), default=None)
