"""The catalog for readers: by topic, with when each failure was first reported and last reproduced; and as JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from matrix.ground.catalog.codec import encode
from matrix.ground.catalog.failure import Failure, Rule
from matrix.ground.catalog.loading import night_of
from matrix.ground.catalog.model import Catalog, Topic
from matrix.ground.catalog.schema import Identifier
from matrix.ground.catalog.stack import MCORE, PYTHON, TE, TORCH, WRITER, component_title
from matrix.ground.catalog.versions import parse


def failure_to_json(failure: Failure) -> dict[str, Any]:
    """Return one entry as it was loaded: groups of cases and shared stand-ins spelled out, no empty key.

    Version ranges are PEP 440 texts, sizes bytes.
    """
    entry: dict[str, Any] = _without_empty(encode(failure))
    entry.pop("folder", None)
    return entry


def _without_empty(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    table = {key: _without_empty(item) for key, item in value.items()}
    return {key: item for key, item in table.items() if item not in (None, [], {}, "")}


_BELOW: Final = re.compile(r"<(?!=) *([^,\s]+)")  # the exclusive upper bound of a range
_NO_FIX: Final = (PYTHON, *WRITER)  # nobody upgrades these to get rid of a failure
UNFILED: Final = Topic(Identifier(), "Without a topic", "")
GATES: Final = Topic(Identifier("gates"), "Gates, no known failures", "Does what works still work?")


@dataclass(frozen=True)
class Summary:
    """A failure in an overview: dates as texts ("" where none is recorded), and the releases that fix it."""

    failure: Failure
    last_verified: str
    fixed_in: tuple[str, ...]


def summary(failure: Failure) -> Summary:
    """Return a failure's line of the overview."""
    night = night_of(failure)
    return Summary(failure, night.date if night else "", fixed_in(failure))


def by_topic(catalog: Catalog) -> dict[Topic, list[Summary]]:
    """Return the failures of each topic, in the order of topics.toml; those without one, and the gates, come last."""
    known = [summary(failure) for failure in catalog.known_failures]
    topics = {topic: [one for one in known if one.failure.topic == topic.id] for topic in catalog.topics}
    unfiled = [one for one in known if not one.failure.topic]
    gates = [summary(failure) for failure in catalog.failures if failure.is_gate]
    return topics | {topic: some for topic, some in ((UNFILED, unfiled), (GATES, gates)) if some}


def fixed_in(failure: Failure) -> tuple[str, ...]:
    """Return the first releases outside all affected ranges, one text for each component that has one: each is a fix.

    A component has one where every rule without a case bounds it from above. Where none has, the releases that end each
    rule are a fix together, of the stack's own packages: "megatron-core 0.10.0 with Transformer Engine 1.9.0".
    """
    rules = [rule for rule in failure.affected if not rule.cases] or list(failure.affected)
    names = dict.fromkeys(name for rule in rules for name in rule.bounds if name not in _NO_FIX)
    ends = {name: [_end(rule, name) for rule in rules] for name in names}

    def first_release(name: str) -> str:
        return f"{component_title(name)} {max(filter(None, ends[name]), key=parse)}"

    alone = tuple(first_release(name) for name in ends if all(ends[name]))
    packages = [name for name in (MCORE, TE, TORCH) if name in ends]
    ended_by = [next((name for name in packages if ends[name][at]), "") for at in range(len(rules))]
    together = " with ".join(map(first_release, dict.fromkeys(ended_by))) if ended_by and all(ended_by) else ""
    return alone or ((together,) if together else ())


def _end(rule: Rule, name: str) -> str:
    """Return the first version above a rule's range of a component, "" where it has no such bound."""
    below = _BELOW.search(rule.bounds[name].text) if name in rule.bounds else None
    return re.sub(r"\.?(dev|a|rc)0$", "", below[1]) if below else ""
