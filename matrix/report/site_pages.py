"""The pages of the site that people paste: a container, a release, a framework, a stack. Pure.

The address of a page is KIND/NAME.html, that of its data api/1/KIND/NAME.json (docs/site.md): both stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from packaging.requirements import Requirement

from matrix.authoring.export import failure_to_json
from matrix.authoring.overview import summary
from matrix.catalog.distributions import Distributions
from matrix.catalog.failure import Expectation, Failure
from matrix.catalog.model import Catalog, Release
from matrix.catalog.stack import MCORE, TE, TORCH, Stack, component_title
from matrix.catalog.versions import spans
from matrix.check.rulings import BREAKS, BreakingCalls, FailureInStack
from matrix.check.table import Choice, StackAnswer
from matrix.report.stack_map import MEANS, Colour, MapCell, MapRow, StackMap
from matrix.report.words import in_words

API: Final = "api/1"
KINDS: Final = {  # folder of the pages -> title
    "failures": "Failures",
    "container": "Containers",
    "megatron-core": "megatron-core",
    "transformer-engine": "Transformer Engine",
    "torch": "torch",
    "framework": "Frameworks",
    "stack": "Stacks",
}


@dataclass(frozen=True)
class Pair:
    """One stack in the table of a page: the other part, its cell, the failures and texts behind it, and its page."""

    name: str
    cell: MapCell
    failures: Sequence[str]
    texts: Sequence[str]
    link: str


@dataclass(frozen=True)
class SitePage:
    """One page: `path` below the site's root, `sentence` what it answers, `question` the fragment of the first page."""

    kind: str
    name: str
    title: str
    sentence: str
    question: str = ""
    command: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    badge: str = ""
    other: str = ""
    pairs: Sequence[Pair] = ()
    failures: Mapping[str, Sequence[Failure]] = field(default_factory=dict)
    fitting: Sequence[str] = ()
    updated: str = ""

    @property
    def path(self) -> str:
        """Return its address."""
        return f"{self.kind}/{self.name}.html" if self.name else "all.html"

    @property
    def json(self) -> str:
        """Return the address of its data."""
        return f"{API}/{self.kind}/{self.name}.json" if self.name else f"{API}/{self.kind}.json"

    @property
    def group(self) -> str:
        """Return the title of its kind."""
        return KINDS[self.kind]

    def to_json(self) -> dict[str, Any]:
        """Return the head of its data."""
        own = {name: getattr(self, name) for name in ("kind", "name", "title", "sentence")}
        return {**own, "page": self.path, "json": self.json}

    def items(self) -> list[dict[str, Any]]:
        """Return its data: a stack in each item."""
        return [
            {
                "other": pair.name,
                "answer": MEANS[pair.cell.colour],
                "failures": list(pair.failures),
                "texts": list(pair.texts),
            }
            for pair in self.pairs
        ]


@dataclass(frozen=True, kw_only=True)
class FailurePage(SitePage):
    """The page of a failure, which failure_page.py writes."""

    failure: Failure

    @property
    def group(self) -> str:
        """Return the title of failures or of gates."""
        return "Gates" if self.failure.is_gate else super().group

    def items(self) -> list[dict[str, Any]]:
        """Return its entry."""
        return [failure_to_json(self.failure)]


@dataclass(frozen=True)
class StackPage(SitePage):
    """The page of one stack: an image with a megatron-core."""

    image: str = ""
    mcore: str = ""
    answer_class: str = ""
    certain: Sequence[FailureInStack] = ()
    calls: Sequence[BreakingCalls] = ()
    others: Sequence[FailureInStack] = ()

    def items(self) -> list[dict[str, Any]]:
        """Return its data: a failure in each item, and each call that breaks."""
        failures = [result.to_json() for result in (*self.certain, *self.others)]
        return [*failures, *(item for call in self.calls for item in call.to_json())]


def question(choice: Choice) -> str:
    """Return the fragment of the first page that asks about a stack."""
    return f"#{urlencode({'from': ' '.join(choice.values())})}"


def pages(map: StackMap, distributions: Distributions) -> Iterator[SitePage]:
    """Yield every page, by kind."""
    yield from failure_pages(map.catalog)
    for rows in map.groups.values():
        yield from (_row_page(map, row) for row in rows)
    yield from (_core_page(map, column, mcore) for column, mcore in enumerate(map.columns))
    yield from _framework_pages(map, distributions)
    shown, columns = map.newest
    yield from (
        _stack_page(map, row, mcore, row.cells[column]) for row in shown if not row.unknown for column, mcore in columns
    )


def _row_page(map: StackMap, row: MapRow) -> SitePage:
    """Return the page of a container, a torch or a Transformer Engine, with each megatron-core, newest first."""
    kind = {"base": "container", "torch": "torch", "te": "transformer-engine"}[row.word.partition("=")[0]]
    version = row.word.partition("=")[2]
    component = {"torch": TORCH, "transformer-engine": TE}.get(kind, "")
    name = version if kind == "container" else f"{component_title(component)} {version}"
    pairs = [
        _pair(map, row, mcore, mcore, row.cells[column], kind) for column, mcore in reversed([*enumerate(map.columns)])
    ]
    release = next((entry for entry in map.catalog.releases(component) if entry.version == version), None)
    image = (
        next((entry for entry in map.catalog.containers if entry.id == version), None) if kind == "container" else None
    )
    facts = {"image": image.tag, "contains": row.about, "note": image.note} if image else _release_facts(release)
    return SitePage(
        kind,
        version,
        name,
        _sentence(name if not row.about else f"{name} ({row.about})", pairs, "megatron-core releases"),
        question({row.axis: row.word}),
        f'megatrix check "{row.word}"',
        facts,
        badge=f"badges/{version}.svg" if image else "",
        other="megatron-core",
        pairs=pairs,
        failures={} if image else _bounding(map.catalog, {component: version}),
        updated=release.day if release else "",
    )


def _core_page(map: StackMap, column: int, mcore: str) -> SitePage:
    title = f"megatron-core {mcore}"
    pairs = [_pair(map, row, mcore, row.name, row.cells[column], "megatron-core") for row in map.images]
    release = map.catalog.releases(MCORE)[column]
    return SitePage(
        "megatron-core",
        mcore,
        title,
        _sentence(title, pairs, "containers"),
        question({"mcore": f"mcore={mcore}"}),
        f'megatrix check "mcore={mcore}"',
        _release_facts(release),
        badge=f"badges/mcore-{mcore}.svg",
        other="container",
        pairs=pairs,
        failures=_bounding(map.catalog, {MCORE: mcore}),
        updated=release.day,
    )


def _release_facts(release: Release | None) -> dict[str, str]:
    if release is None:
        return {}
    declared = ", ".join(f"{name} {bound.text}" for name, bound in release.requires.items())
    python = release.requires_python.text if release.requires_python else ""
    return {"released": in_words(release.day), "declares": declared, "Python": python}


def _pair(map: StackMap, row: MapRow, mcore: str, name: str, cell: MapCell, kind: str) -> Pair:
    choice = row.choice(mcore)
    answer = map.table.answer(choice)
    calls = [f"calls into {call.into}: {call.needs}" for call in answer.calls if call.certain]
    rows, columns = map.newest
    static = row in rows and not row.unknown and mcore in {core for _, core in columns}
    link = f"../stack/{row.name}/{mcore}.html" if static else f"../index.html{question(choice)}"
    failures = [str(result.failure.id) for result in answer.certain]
    return Pair(name, cell, failures, [*answer.clashes, *calls, *answer.unread[:1]], link)


def _sentence(title: str, pairs: Sequence[Pair], others: str) -> str:
    counts = Counter(pair.cell.colour for pair in pairs)
    parts = [f"{counts[colour]} {MEANS[colour]}" for colour in Colour if counts[colour]]
    return f"{title}, with {len(pairs)} {others}: {'; '.join(parts)}."


def _bounding(catalog: Catalog, versions: Mapping[str, str]) -> dict[str, list[Failure]]:
    """Return the failures whose rules bound a component, by what they state of its version alone."""
    (component,) = versions
    bounding = [
        failure
        for failure in catalog.failures
        if any(component in rule.bounds for rule in (*failure.affected, *failure.works) if not rule.cases)
    ]
    listed: dict[str, list[Failure]] = {"Known breaks": [], "May break, with other parts": []}
    for failure in bounding:
        ruling = failure.ruling(Stack(versions))
        if ruling.may_break:
            listed["May break, with other parts"].append(failure)
        elif ruling.expectation is Expectation.BROKEN:
            listed["Known breaks"].append(failure)
    return listed


def _framework_pages(map: StackMap, distributions: Distributions) -> Iterator[SitePage]:
    cores = [release.version for release in map.catalog.megatron_core]
    for package in distributions.package:
        for version, release in distributions.by_package[package.name].items() if package.framework else ():
            declared = [text for text in release.requires if Requirement(text).name in (MCORE, TORCH, TE)]
            ranges = release.ranges("3.12", package.extras).get(MCORE)
            fitting = [core for core in cores if ranges is not None and ranges.contains(core, prereleases=True)]
            core = f"fits megatron-core {spans(fitting, cores)}" if fitting else "declares no recorded megatron-core"
            title = f"{package.name} {version}"
            yield SitePage(
                "framework",
                f"{package.name}-{version}",
                title,
                f"{title} {core}, as its metadata declares.",
                question({"mcore": f"mcore={fitting[-1]}"}) if fitting else "",
                f'megatrix fit --for "{package.name}=={version}"',
                {"declares": "; ".join(declared) or "no megatron-core, Transformer Engine or torch"},
                fitting=fitting[::-1],
            )


def _stack_page(map: StackMap, row: MapRow, mcore: str, cell: MapCell) -> StackPage:
    choice = row.choice(mcore)
    answer = map.table.answer(choice)
    title = f"{row.name} with megatron-core {mcore}"
    others = [result for result in answer.failures if result.standing in BREAKS and not result.certain]
    return StackPage(
        "stack",
        f"{row.name}/{mcore}",
        title,
        f"{title}: {_stack_sentence(answer, cell)}",
        question(choice),
        f'megatrix check "{" ".join(choice.values())}"',
        image=row.name,
        mcore=mcore,
        answer_class="no" if answer.breaks else "unknown" if answer.unread else "yes",
        certain=answer.certain,
        calls=answer.calls,
        others=others,
    )


def _stack_sentence(answer: StackAnswer, cell: MapCell) -> str:
    certain = [result.failure.id for result in answer.certain]
    calls = [f"calls into {call.into}" for call in answer.calls if call.certain]
    if answer.breaks:
        return f"breaks for certain: {', '.join([*answer.clashes, *certain, *calls])}."
    if answer.unread:
        return f"not known: {'; '.join(answer.unread)}."
    return f"{MEANS[cell.colour]}."


def failure_pages(catalog: Catalog) -> Iterator[FailurePage]:
    """Yield the page of each failure; its date is that of the night that verified it last, else of its first report."""
    for failure in catalog.failures:
        yield FailurePage(
            "failures",
            str(failure.id),
            failure.title,
            f"{failure.title}. {' '.join(failure.fix.split())}".strip(),
            updated=summary(failure).last_verified or failure.first_seen,
            failure=failure,
        )
