"""What the catalog states about a failure, in the same words wherever a command names one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from matrix.ground.catalog.failure import Failure, Rule
from matrix.ground.catalog.model import Catalog, Topic
from matrix.ground.catalog.stack import component_title
from matrix.ground.catalog.versions import format_ranges
from matrix.show.terminal import Part, table

if TYPE_CHECKING:  # `check` prints no overview, and needs no history
    from matrix.prove.authoring.overview import Summary
    from matrix.read.history.index import UpstreamCommit, UpstreamHistory

REPAIRS: Final = 40  # commits on the page of a release


def title(failure: Failure) -> str:
    """Return the failure in one line."""
    return f"{failure.id}: {failure.title}"


def size(catalog: Catalog) -> str:
    """Return how many failures a catalog has, in the words of each place that counts them."""
    return f"{len(catalog.known_failures)} known failures"


def where(rule: Rule) -> str:
    """Return the versions that a rule names: "megatron-core >=0.4.0 and Transformer Engine >=1.8.0,<1.9.0"."""
    parts = [f"the image {' or '.join(rule.base)}"] if rule.base else []
    parts += [f"{component_title(name)} {bound.text}" for name, bound in rule.bounds.items()]
    return (" and ".join(parts) or "everywhere") + (f" in case {', '.join(rule.cases)}" if rule.cases else "")


def affected_versions(catalog: Catalog, rule: Rule) -> str:
    """Return the versions of a rule in plain words: "megatron-core 0.16.0 and later, torch 2.4.0 to 2.4.1"."""
    parts = [f"image {' or '.join(rule.base)}"] if rule.base else []
    for name, bound in rule.bounds.items():
        recorded = [release.version for release in catalog.releases(name)]
        within = [version for version in recorded if version in bound]
        is_run = within and recorded[recorded.index(within[0]) :][: len(within)] == within
        if not is_run:
            text = format_ranges(within, recorded) or bound.text
        elif within == recorded:
            parts.append(f"any {component_title(name)}")
            continue
        elif within[-1] == recorded[-1]:
            text = f"{within[0]} and later"
        else:
            text = f"{within[0]} to {within[-1]}" if len(within) > 1 else within[0]
        parts.append(f"{component_title(name)} {text}")
    return ", ".join(parts) or "every version"


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


def topic_table(topic: Topic, summaries: Sequence[Summary]) -> Iterator[Part]:
    """Yield a topic with its question, and a row for each of its failures."""
    yield f"{topic.title} ({len(summaries)}). {topic.question}"
    heads = ("failure", "first seen", "last reproduced", "fixed in", "title")
    rows = [
        (row.failure.id, row.failure.first_seen or "-", row.last_verified or "-", fixes(row), row.failure.title)
        for row in summaries
    ]
    if rows:
        yield table(rows, heads, indent=2, gap=2)


def fixes(summary: Summary) -> str:
    """Return the releases that fix a failure, each alone, "no release" where none does."""
    return " or ".join(summary.fixed_in) or "no release"


def commits_of(failure: Failure) -> list[tuple[UpstreamHistory, UpstreamCommit]]:
    """Return the commits of upstream that name an issue of a failure, or that its fix or cause names."""
    from matrix.ask.history import named_in

    return list(named_in(f"{' '.join(failure.references)} {failure.fix} {failure.cause}"))


@cache
def release_pages() -> dict[str, str]:
    """Return by name the page of each release whose history is known: what upstream repaired in it."""
    from matrix.ask.history import repairs_of
    from matrix.read.history.index import histories
    from matrix.show.document import document  # check and match print no page

    pages = {}
    for history in histories():
        for number in (number for number in reversed(range(len(history.releases))) if history.tagged[number]):
            predecessor, repairs = repairs_of(history, number)
            values = {"version": history.releases[number], "predecessor": predecessor, "count": len(repairs)}
            commits = [(history, commit) for commit in repairs[:REPAIRS]]
            page = document("release.html.j2", history=history, commits=commits, **values)
            pages[f"{history.component}-{history.releases[number]}"] = page
    return pages
