"""The releases of a provider that a consuming package is held against, from text: "megatron-core>=0.16,<0.20"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from matrix.catalog.regular_file import within_limits
from matrix.catalog.stack import CALL_PAIRS
from matrix.contract import reading, recording
from matrix.contract.api import Surface
from matrix.contract.comparison import changed, find
from matrix.contract.finding import Finding
from matrix.contract.pairs import recorded, released
from matrix.contract.provider import PROVIDERS, Provider, provider_of
from matrix.contract.relevance import days_between, is_yanked, relevance
from matrix.contract.uses import Calls
from matrix.errors import MatrixError

FORMS: Final = '"megatron-core" (all recorded releases), "megatron-core>=0.16,<0.20", "torch==2.6.0", "torch=FILE.whl"'


@dataclass(frozen=True)
class Target:
    """Releases of a provider. `chosen`: the text selects some of them, so a break in any is an error."""

    provider: Provider
    versions: tuple[str, ...]
    chosen: bool
    source: str = ""  # of the only release, if that is not a recorded one

    def surfaces(self) -> list[Surface]:
        """Return the APIs. Raises MatrixError for a source that can't be read."""
        if self.source:
            return [reading.surface_of_source(self.source, self.provider)]
        return [recorded(self.provider, version) for version in self.versions]


def parse(text: str) -> Target:
    """Return the releases that a text selects. Raises MatrixError when it is in none of FORMS, or selects none."""
    name, equals, source = text.partition("=")
    if equals and source[:1] not in "=" and name[-1:] not in "<>!~=":
        return Target(provider_of(name.strip()), (), chosen=True, source=source)
    requirement = _requirement(text)
    provider = provider_of(requirement.name)
    versions = _selected(text, provider.package, recording.recorded_surfaces(provider))
    return Target(provider, versions, chosen=bool(requirement.specifier))


def default(consumer: str) -> list[Target]:
    """Return the releases that a project declares, of each provider; all of megatron-core where it declares none.

    A range without a recorded release selects all. Of a recorded consumer they are all releases that it calls. Left out
    are providers that it does not mention, and those of which only the names that recorded packages use are recorded.
    """
    called = [pair.provider for pair in CALL_PAIRS if consumer.startswith(pair.consumer)]
    if called:
        return [parse(package) for package in called]
    declared = reading.declared_ranges(consumer)
    targets = []
    used = reading.mentioned(consumer) if declared.keys() & PROVIDERS else []
    whole = [provider.package for provider in used if provider.package in declared and provider.is_whole]
    for package in whole or [recording.MCORE]:
        allowed = declared.get(package, SpecifierSet())
        is_met = any(allowed.filter(recording.recorded_surfaces(provider_of(package))))
        targets.append(parse(f"{package}{allowed}" if is_met else package))
    return targets


def _requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise MatrixError("not a package", got=text, expected=FORMS, fix=str(error).splitlines()[0]) from None


def _selected(text: str, package: str, versions: Sequence[str]) -> tuple[str, ...]:
    """Return the releases in a range, without withdrawn ones that it does not name."""
    offered = [version for version in versions if not is_yanked(package, version) or f"=={version}" in text]
    selected = tuple(_requirement(text).specifier.filter(offered))
    if not selected:
        raise MatrixError(f"no recorded release of {package} is in this range", got=text, expected=", ".join(offered))
    return selected


def consumers(text: str, provider: Provider) -> list[Calls]:
    """Return the calls of a consumer into a provider: recorded releases of megatron-core or TE, or a project.

    Raises MatrixError for a text that names neither.
    """
    for package in provider.consumers:
        if text.startswith(package):
            versions = _selected(text, package, recording.recorded_consumers(provider, package))
            return [recording.recorded_calls(provider, version, package) for version in versions]
    return [reading.calls_of_project(text, provider)]


def findings(consumers: Sequence[Calls], provider: Provider, surfaces: Sequence[Surface]) -> list[Finding]:
    """Return the findings of consumers in releases of a provider, by consumer, then by release."""
    results: list[Finding] = []
    for calls, surface in product(consumers, surfaces):
        is_recorded = calls.consumer in provider.consumers
        tested = _tested(calls.consumer, calls.version, provider) if is_recorded else surfaces[0]
        with within_limits(calls.consumer):
            breaks = find(calls, surface, history=released(provider))
            breaks += changed(calls, surface, tested) if tested else []
        results += relevance().judged(breaks) if is_recorded else breaks
    return results


@cache
def _tested(consumer: str, version: str, provider: Provider) -> Surface | None:
    """Return the newest release of a provider that is not newer than a recorded release that calls it.

    None where the days of its releases are not known.
    """
    releases = recording.recorded_surfaces(provider)
    ages = ((days_between(version, release, provider.package, consumer), release) for release in releases)
    older = [(age, release) for age, release in ages if age is not None and age >= 0]
    return recorded(provider, min(older)[1]) if older else None
