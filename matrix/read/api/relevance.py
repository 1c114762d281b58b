"""How much a finding matters: whether another break masks it, what feature is lost, whether anyone has that pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from itertools import chain
from typing import Final

from matrix.ground.catalog import versions
from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.model import Container, Release
from matrix.ground.catalog.reach import ReachedBy
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.versions import Range
from matrix.read.api.finding import Finding, FindingKind
from matrix.read.api.provider import provider_of
from matrix.read.api.recording import MCORE, TE, folder

MOST_DAYS: Final = 365  # a TE that is older than a core by more is implausible, unless upstream tests the pair


@dataclass(frozen=True)
class LostFeature:
    """The feature that a caught failure at `callee` (a part of its path) turns off."""

    callee: str
    lost: str
    effect: str = ""
    fallback: bool = False

    def matches(self, finding: Finding) -> bool:
        """Return whether a finding is about this feature."""
        return self.callee in finding.callee and finding.message.endswith(self.effect)


@dataclass(frozen=True)
class Mask:
    """The functions `later` run only after `first` has returned, for the reason."""

    first: str
    later: tuple[str, ...]
    reason: str
    callee: str = ""
    same: bool = False

    def hides(self, break_: Finding, finding: Finding) -> bool:
        """Return whether a break masks a finding of the same pair."""
        is_later = break_.call_site.function == self.first and finding.call_site.function in self.later
        is_same = break_.callee == finding.callee or not self.same
        return is_later and is_same and break_.callee.endswith(self.callee)


@dataclass(frozen=True)
class ArgumentCheck:
    """Megatron-LM's checks of its arguments refuse what would reach `functions`, for the reason."""

    functions: tuple[str, ...]
    callee: str
    package: str
    provided: Range
    reason: str
    mcore: Range | None = None

    def hides(self, finding: Finding) -> bool:
        """Return whether no arguments reach a finding."""
        is_call = finding.line.function in self.functions and finding.callee.endswith(self.callee)
        is_provided = finding.packages[1] == self.package and finding.provider in self.provided
        return is_call and is_provided and (self.mcore is None or finding.consumer in self.mcore)


@dataclass(frozen=True)
class FailedImport:
    """Where the import of one of `modules` fails, in import order, no other file `inside` a folder is imported.

    `package` is the one that imports them, `versions` its releases.
    """

    inside: str
    modules: tuple[str, ...]
    reason: str
    versions: Range
    package: str = MCORE

    def reasons(self, breaks: Sequence[Finding], finding: Finding) -> Iterator[str]:
        """Yield why a line is not reached."""
        is_inside = finding.packages[0] == self.package and finding.call_site.path.startswith(self.inside)
        if finding.kind is FindingKind.SILENTLY_OFF or not is_inside:
            return
        imports = (by.call_site for by in breaks if by.exception and not by.call_site.function)
        sites = [(self.modules.index(site.path), site) for site in imports if site.path in self.modules]
        if sites and finding.consumer in self.versions:
            _, site = min(sites)
            if site.path != finding.call_site.path:
                yield f"{site}: {self.reason}"


@dataclass(frozen=True)
class FunctionReach(ReachedBy):
    """The arguments of a training command that reach functions of `package`, or the import of its modules.

    Of a function that raises for several missing names, `callee` is a part of the path of one.
    """

    functions: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    callee: str = ""
    package: str = MCORE

    def covers(self, finding: Finding) -> bool:
        """Return whether it states how a line is reached."""
        site = finding.line
        is_stated = site.function in self.functions if site.function else site.path in self.modules
        return is_stated and finding.packages[0] == self.package and self.callee in finding.callee


@dataclass(frozen=True)
class Relevance:
    """The facts by which findings are ranked."""

    feature: tuple[LostFeature, ...] = ()
    mask: tuple[Mask, ...] = ()
    check: tuple[ArgumentCheck, ...] = ()
    failed_import: tuple[FailedImport, ...] = ()
    reached_by: tuple[FunctionReach, ...] = ()
    yanked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def judged(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings of a core and its provider, with these facts; intended fallbacks are left out."""
        breaks = [finding for finding in findings if finding.kind is FindingKind.DEFINITE]
        caught = (FindingKind.DEFINITE, FindingKind.SILENTLY_OFF)
        raised = [finding for finding in findings if finding.kind in caught]
        judged = []
        for finding in findings:
            if finding.end and any(check.hides(finding) for check in self.check):
                finding = replace(finding, kind=FindingKind.SILENTLY_OFF, guard="", end=None)
            rare = implausible(finding.consumer, finding.provider, *finding.packages[::-1])
            feature = next((feature for feature in self.feature if feature.matches(finding)), None)
            if finding.kind is FindingKind.SILENTLY_OFF and feature and not finding.end:
                if not feature.fallback:
                    judged.append(replace(finding, implausible=rare, lost=feature.lost))
                continue
            masks = (f"{by.call_site}: {mask.reason}" for mask in self.mask for by in raised if mask.hides(by, finding))
            checks = (f"arguments.py: {check.reason}" for check in self.check if check.hides(finding))
            imports = (reason for failed in self.failed_import for reason in failed.reasons(breaks, finding))
            masked = finding.masked or next(chain(masks, checks, imports), "")
            judged.append(replace(finding, implausible=rare, masked=masked))
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
def implausible(version: str, provided: str, package: str = TE, consumer: str = MCORE) -> str:
    """Return why nobody runs a release with one of a provider, "" for a plausible pair and where no date is known."""
    days = days_between(version, provided, package, consumer)
    if days is None:
        return ""
    releases, images = _releases()
    release = releases[consumer, version.partition(".post")[0]]
    if declared := release.requires.get(package):
        return "" if provided in declared else f"{consumer} {version} declares {package}{declared.text}"
    tested_in = release.ci_base_images if package == TE else ()
    months = [month for month in images if any(month in text for text in tested_in)]
    tested = {versions.parse(images[month]).release[:2] for month in months}
    if days <= MOST_DAYS or versions.parse(provided).release[:2] in tested:
        return ""
    return f"{provider_of(package).title} {provided} is {days} days older"


@cache
def days_between(version: str, provided: str, package: str = TE, consumer: str = MCORE) -> int | None:
    """Return the days from the release of a provider to that of a consumer; None where a date is unknown."""
    releases, _ = _releases()
    core = releases.get((consumer, version.partition(".post")[0]))  # of 2.6.0.post1
    base = releases.get((package, versions.parse(provided).base_version))
    used = releases.get((package, provided), base)
    if core is None or used is None or not (core.day and used.day):
        return None
    return (date.fromisoformat(core.day) - date.fromisoformat(used.day)).days


@cache
def _releases() -> tuple[Mapping[tuple[str, str], Release], Mapping[str, str]]:
    """Return the releases by package and version, and the TE of each NGC image by its month ("24.07")."""
    facts = folder().parent
    tables = read_toml(facts / "releases.toml")
    releases = {
        (package, row["version"]): decode(Release, row, f"releases.toml: {package} {row['version']}")
        for package in (MCORE, TE, "torch")
        for row in tables[package.replace("-", "_")]
    }
    images = [decode(Container, row, "containers.toml") for row in read_toml(facts / "containers.toml")["container"]]
    return releases, {image.id.removeprefix("ngc-"): image.te for image in images if image.te}
