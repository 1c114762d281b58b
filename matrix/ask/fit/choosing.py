"""The search for the best set: backtracking that jumps back to an axis of the conflict, to the first set in order.

The order is lexicographic: the axis that matters most first, on each axis the best candidate first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from matrix.ask.fit.candidates import Candidate
from matrix.ask.fit.rules import Rejection

# Whether the candidate on an axis goes with those chosen before it: a rejection, or None.
Reject = Callable[[Mapping[str, Candidate], str], "Rejection | None"]


@dataclass
class ReleaseSearch:
    """One search. `rejections` are those met, by text, in order; `tried` counts the candidates."""

    axes: Mapping[str, Sequence[Candidate]]
    reject: Reject
    rejections: dict[str, Rejection] = field(default_factory=dict)
    tried: int = 0

    def best(self) -> dict[str, Candidate] | None:
        """Return the first set in order that nothing rejects, None where there is none."""
        found, _ = self._extend({}, list(self.axes))
        return found

    def _extend(
        self, chosen: dict[str, Candidate], open_axes: Sequence[str]
    ) -> tuple[dict[str, Candidate] | None, frozenset[str]]:
        """Return the first set that extends the chosen ones; without one, the axes that are to blame."""
        if not open_axes:
            return chosen, frozenset()
        axis, blamed = open_axes[0], frozenset[str]()
        for candidate in self.axes[axis]:
            self.tried += 1
            extended = {**chosen, axis: candidate}
            if rejection := self.reject(extended, axis):
                self.rejections.setdefault(rejection.text, rejection)
                blamed |= rejection.axes - {axis}
                continue
            result, inner = self._extend(extended, open_axes[1:])
            if result is not None:
                return result, frozenset()
            if axis not in inner:
                return None, inner
            blamed |= inner - {axis}
        return None, blamed
