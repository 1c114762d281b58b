"""How much a finding matters: whether another break masks it, what feature is lost, whether anyone has that pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from itertools import chain
from typing import Final

from matrix.catalog import versions
from matrix.catalog.codec import decode
from matrix.catalog.model import Container, Release
from matrix.catalog.reach import ReachedBy
from matrix.catalog.schema import read_toml
from matrix.catalog.versions import Range
from matrix.contract.finding import Finding, FindingKind
from matrix.contract.provider import provider_of
from matrix.contract.recording import MCORE, TE, folder
from matrix.contract.usage import Site

MOST_DAYS: Final = 365  # a TE that is older than a core by more is implausible, unless upstream tests the pair


@dataclass(frozen=True)
class LostFeature:
    """The feature that a caught failure at `callee` (a part of its path) turns off."""

    callee: str
    lost: str
    effect: str = ""
    fallback: bool = False

    def matches(self, one: Finding) -> bool:
        """Return whether a finding is about this feature."""
        return self.callee in one.callee and one.message.endswith(self.effect)


@dataclass(frozen=True)
class Mask:
    """The functions `later` run only after `first` has returned, for the reason."""

    first: str
    later: tuple[str, ...]
    reason: str
    callee: str = ""
    same: bool = False

    def hides(self, break_: Finding, one: Finding) -> bool:
        """Return whether a break masks a finding of the same pair."""
        return (
            break_.call_site.function == self.first
            and one.call_site.function in self.later
            and break_.callee.endswith(self.callee)
            and (not self.same or break_.callee == one.callee)
        )


@dataclass(frozen=True)
class ArgumentCheck:
    """Megatron-LM's checks of its arguments refuse what would reach `functions`, for the reason."""

    functions: tuple[str, ...]
    callee: str
    package: str
    provided: Range
    reason: str
    mcore: Range | None = None

    def hides(self, one: Finding) -> bool:
        """Return whether no arguments reach a finding."""
        return (
            one.call_site.function in self.functions
            and one.callee.endswith(self.callee)
            and one.packages[1] == self.package
            and one.provider in self.provided
            and (self.mcore is None or one.consumer in self.mcore)
        )


@dataclass(frozen=True)
class FailedImport:
    """Where the import of one of `modules` fails, in import order, no other file `inside` a folder is imported."""

    inside: str
    modules: tuple[str, ...]
    reason: str
    mcore: Range

    def reasons(self, sure: Sequence[Finding], one: Finding) -> Iterator[str]:
        """Yield why a line of a core is not reached."""
        inside = one.kind is not FindingKind.SILENTLY_OFF and one.call_site.path.startswith(self.inside)
        sites = [by.call_site for by in sure if not by.call_site.function and by.exception] if inside else []
        first = min((site for site in sites if site.path in self.modules), key=self._order, default=None)
        if first and first.path != one.call_site.path and one.consumer in self.mcore:
            yield f"{first}: {self.reason}"

    def _order(self, site: Site) -> tuple[int, int]:
        return self.modules.index(site.path), site.line


@dataclass(frozen=True)
class FunctionReach(ReachedBy):
    """The arguments of a training command that reach functions of Megatron-LM."""

    functions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Relevance:
    """The facts by which findings are ranked."""

    feature: tuple[LostFeature, ...] = ()
    mask: tuple[Mask, ...] = ()
    check: tuple[ArgumentCheck, ...] = ()
    failed_import: tuple[FailedImport, ...] = ()
    reached_by: tuple[FunctionReach, ...] = ()
    yanked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def judged(self, found: Sequence[Finding]) -> list[Finding]:
        """Return the findings of a core and its provider, without intended fallbacks; the other facts are added."""
        sure = [one for one in found if one.kind in (FindingKind.DEFINITE, FindingKind.SILENTLY_OFF)]
        broken = [one for one in sure if one.kind is FindingKind.DEFINITE]
        judged = []
        for original in found:
            one = replace(original, implausible=implausible(original.consumer, original.provider, original.packages[1]))
            feature = next((known for known in self.feature if known.matches(one)), None)
            if one.kind is FindingKind.SILENTLY_OFF and feature:
                if not feature.fallback:
                    judged.append(replace(one, lost=feature.lost))
                continue
            masks = (f"{by.call_site}: {mask.reason}" for mask in self.mask for by in sure if mask.hides(by, one))
            checks = (f"arguments.py: {check.reason}" for check in self.check if check.hides(one))
            imports = (reason for each in self.failed_import for reason in each.reasons(broken, one))
            judged.append(replace(one, masked=next(chain(masks, checks, imports), "")))
        return judged


@cache
def relevance() -> Relevance:
    """Return the facts of contract.toml."""
    path = folder().parent / "contract.toml"
    return decode(Relevance, read_toml(path), str(path))


def is_yanked(package: str, version: str) -> bool:
    """Return whether a release was withdrawn."""
    return version in relevance().yanked.get(package, ())


@cache
def implausible(mcore: str, provided: str, package: str = TE) -> str:
    """Return why nobody runs a core with a TE or torch, "" for a plausible pair and releases without a known date."""
    days = days_between(mcore, provided, package)
    releases, images = _releases()
    declared = days is not None and releases[MCORE, mcore].requires.get(package)
    if declared:
        return "" if provided in declared else f"megatron-core {mcore} declares {package}{declared.text}"
    if days is None or days <= MOST_DAYS:
        return ""
    title = provider_of(package).title
    if package != TE:
        return f"{title} {provided} is {days} days older"
    tested = {
        versions.parse(images[month]).release[:2]
        for text in releases[MCORE, mcore].ci_base_images
        for month in images
        if month in text
    }
    return "" if versions.parse(provided).release[:2] in tested else f"{title} {provided} is {days} days older"


@cache
def days_between(mcore: str, provided: str, package: str = TE) -> int | None:
    """Return the days from the release of a TE or torch to that of a core; None where a date is unknown."""
    releases, _ = _releases()
    core = releases.get((MCORE, mcore))
    same = releases.get((package, versions.parse(provided).base_version))  # of 2.6.0.post1
    used = releases.get((package, provided)) or same
    if core is None or used is None or not (core.day and used.day):
        return None
    return (date.fromisoformat(core.day) - date.fromisoformat(used.day)).days


@cache
def _releases() -> tuple[Mapping[tuple[str, str], Release], Mapping[str, str]]:
    """Return the releases by package and version, and the TE of each NGC image by its month ("24.07")."""
    facts = folder().parent
    known = read_toml(facts / "releases.toml")
    tables = {MCORE: known["megatron_core"], TE: known["transformer_engine"], "torch": known["torch"]}
    releases = {
        (package, row["version"]): decode(Release, row, f"releases.toml: {package} {row['version']}")
        for package, rows in tables.items()
        for row in rows
    }
    images = [decode(Container, row, "containers.toml") for row in read_toml(facts / "containers.toml")["container"]]
    return releases, {one.id.removeprefix("ngc-"): one.te for one in images if one.te}
