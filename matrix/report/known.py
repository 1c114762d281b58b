"""What the catalog states about a failure, in the same words wherever a command names one."""

from __future__ import annotations

from collections.abc import Iterable

from matrix.catalog.failure import Failure, Rule
from matrix.catalog.stack import component_title


def title(failure: Failure) -> str:
    """Return the failure in one line."""
    return f"{failure.id}: {failure.title}"


def where(rule: Rule) -> str:
    """Return the versions that a rule names: "megatron-core >=0.4.0 and Transformer Engine >=1.8.0,<1.9.0"."""
    parts = [f"the image {' or '.join(rule.base)}"] if rule.base else []
    parts += [f"{component_title(name)} {bound.text}" for name, bound in rule.bounds.items()]
    return (" and ".join(parts) or "everywhere") + (f" in case {', '.join(rule.cases)}" if rule.cases else "")


def advice(failure: Failure, changes: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return the fix and the workarounds as rows; `changes` are those that were computed for a stack."""
    fix = " ".join(failure.fix.split())
    return [
        *([("fix:", fix)] if fix else []),
        *(("workaround:", change) for change in changes),
        *(("workaround:", f"{way.text} [{way.verified or 'not verified'}]") for way in failure.workarounds),
    ]


def statement(failure: Failure) -> list[str]:
    """Return the failure, its fix and its workarounds as lines."""
    return [f"known: {title(failure)}", *(f"{label} {text}" for label, text in advice(failure))]
