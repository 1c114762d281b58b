"""What changes from one stack to another: what newly breaks, is fixed, stays, or is no longer known. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final

from matrix.ask.check.answer import CheckResult
from matrix.ask.check.rulings import KNOWN_BREAK, BreakingCalls, Standing
from matrix.ground.catalog.stack import UNKNOWN
from matrix.ground.errors import ExitStatus


class Effect(str, Enum):
    """What a part of the answer does between the two stacks."""

    NEW = "newly breaks"
    OPEN = "breaks, not known before"
    FIXED = "fixed"
    STAYS = "stays broken"
    UNKNOWN = "no longer known"


# How a part stands: True, it breaks; False, it does not; None, nothing that is known decides.
EFFECTS: Final[Mapping[tuple[bool | None, bool | None], Effect]] = {
    (False, True): Effect.NEW,
    (None, True): Effect.OPEN,
    (True, False): Effect.FIXED,
    (True, True): Effect.STAYS,
    (True, None): Effect.UNKNOWN,
    (False, None): Effect.UNKNOWN,
}


@dataclass(frozen=True)
class ChangedPart:
    """A failure, a call or two parts that exclude each other.

    `certain`: it occurs, or what is fixed occurred, without any further option. `needs` is what must hold besides,
    `reason` what decides in the second stack.
    """

    effect: Effect
    name: str
    title: str = ""
    certain: bool = False
    needs: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Transition:
    """The step from one stack to another."""

    before: CheckResult
    after: CheckResult

    @cached_property
    def parts(self) -> tuple[ChangedPart, ...]:
        """Return what changes or stays broken: certain parts first, then in the order of `check`'s answer."""
        return tuple(sorted([*self._clashes(), *self._failures(), *self._calls()], key=lambda part: not part.certain))

    def of(self, effect: Effect) -> list[ChangedPart]:
        """Return the parts of one change."""
        return [part for part in self.parts if part.effect is effect]

    @property
    def status(self) -> ExitStatus:
        """Return 1 where something newly breaks for certain, 3 where a part is not known or a side is empty."""
        if any(part.certain for part in (*self.of(Effect.NEW), *self.of(Effect.OPEN))):
            return ExitStatus.BAD
        return ExitStatus.NOTHING if any(side.unknown or not side.checked for side in self._both) else ExitStatus.GOOD

    def _failures(self) -> Iterator[ChangedPart]:
        earlier = {failure.failure.id: failure for failure in self.before.failures}
        for failure in self.after.failures:
            entry, old = failure.failure, earlier[failure.failure.id]
            if effect := effect_of(old.standing, failure.standing):
                is_open = effect is Effect.NEW and old.standing is Standing.UNKNOWN and self.before.unknown
                effect = Effect.OPEN if is_open else effect  # a version that is no release has no statement
                certain = (old if effect is Effect.FIXED else failure).certain
                yield ChangedPart(effect, str(entry.id), entry.title, certain, failure.needs, failure.reason)

    def _calls(self) -> Iterator[ChangedPart]:
        earlier, later = (
            {f"{finding.error}: {finding.message}": call for call in side.calls for finding in call.findings}
            for side in self._both
        )
        for error, call in {**earlier, **later}.items():
            errors = zip((earlier, later), self._both, strict=True)
            breaks = [error in stated or _judged(call, result) for stated, result in errors]
            if effect := EFFECTS.get((breaks[0], breaks[1])):
                certain = call.certain and effect is not Effect.UNKNOWN
                yield ChangedPart(effect, f"a call into {call.into}", error, certain, call.needs)

    def _clashes(self) -> Iterator[ChangedPart]:
        earlier, later = ({clash.text for clash in side.clashes} for side in self._both)
        for text in sorted(earlier | later):
            if effect := EFFECTS.get((text in earlier, text in later)):
                yield ChangedPart(effect, text, certain=text in later)

    @property
    def _both(self) -> tuple[CheckResult, CheckResult]:
        return self.before, self.after

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; docs/schema/check-to.json describes them."""
        return {
            "status": int(self.status),
            "items": [{**vars(part), "effect": part.effect.value} for part in self.parts],
            "unknown": [
                {"stack": word, **item.to_json()}
                for word, side in zip(("from", "to"), self._both, strict=True)
                for item in side.unknown
            ],
            "from": self.before.stack.to_json(),
            "to": self.after.stack.to_json(),
        }


def _judged(call: BreakingCalls, side: CheckResult) -> bool | None:
    """Return False for a call that is known not to break in a stack, None where that is not known."""
    packages, stack = call.findings[0].packages, side.stack.stack
    unknown = packages[1] in side.problems or any(stack[name] is UNKNOWN for name in packages)
    return None if unknown else False


def effect_of(before: Standing, after: Standing) -> Effect | None:
    """Return what the step from one standing to the other does, None where it neither breaks nor was known to.

    What versions decide that the first stack does not name is not new; of versions without a statement it is.
    """
    if before is Standing.UNKNOWN and after in KNOWN_BREAK:
        return Effect.NEW
    return EFFECTS.get((_breaks(before), _breaks(after)))


def _breaks(standing: Standing) -> bool | None:
    if standing in KNOWN_BREAK:
        return True
    return None if standing in (Standing.UNKNOWN, Standing.WITH_VERSIONS) else False
