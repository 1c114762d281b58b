"""The answer to a kind of failure that a log shows, computed from what its pattern captured.

Tables name the packages of libraries, symbols, headers and modules; the recorded APIs (matrix/read/api/recording.py)
have the releases in which a module, a name or a parameter exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from matrix.ground.catalog import versions
from matrix.ground.catalog.kinds import AXIS, VERSIONS, KindTable, NameFact, filled
from matrix.ground.catalog.stack import component_title
from matrix.ground.verdicts.crash import plain_name
from matrix.ground.verdicts.kind_match import KindSighting, VersionsSeen
from matrix.ground.verdicts.text import mask
from matrix.read.api.api import Surface
from matrix.read.api.provider import PROVIDERS, Provider
from matrix.read.api.recording import all_surfaces, defines, releases_with, spans

NEW_STRING: Final = "NSt7__cxx1112basic_string"  # in a mangled name: std::string of the C++11 ABI
OF_NEW_STRING: Final = (
    "it passes std::string of the C++11 ABI: PyTorch's wheels for x86-64 have it from 2.7 on, those of 2.6 for "
    "CUDA 12.6 alone (release notes of PyTorch 2.6)",
    'python -c "import torch; print(torch.__version__, torch._C._GLIBCXX_USE_CXX11_ABI)"',
)
BYTES: Final = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
NAMESAKE: Final = 12  # characters of the name of a class after which another package may name its own
# Groups whose names may be those of any program.
OF_NAMES: Final = frozenset({"module", "callable", "owner", "package"})
ELSEWHERE: Final = 3  # modules named that have a name which another lacks


@dataclass(frozen=True)
class KindAnswer:
    """What was computed for a sighting: `facts` in words, `commands` for a shell. No facts: only the kind is known."""

    sighting: KindSighting
    facts: tuple[str, ...]
    commands: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        sighting = self.sighting
        frame = sighting.frame
        return {
            "kind": sighting.kind.id,
            "title": sighting.kind.title,
            "topic": sighting.kind.topic,
            "line": sighting.line,
            "text": mask(sighting.text),
            "times": sighting.times,
            "captured": {name: mask(text) for name, text in sighting.groups.items()},
            "frame": f"{frame.file}:{frame.line} {frame.function}" if frame else "",
            "means": sighting.kind.means,
            "answer": list(map(mask, self.facts)),
            "commands": list(map(mask, self.commands)),
        }


def answer(sighting: KindSighting, table: KindTable, seen: VersionsSeen) -> KindAnswer:
    """Return what can be computed for a kind in a log. `seen`: the versions that the log names."""
    rows = [row for part in _parts(sighting, table, seen) for row in part]
    components = [f"{component_title(name)} {' and '.join(seen.of(name))}" for name in seen.texts]
    axis = table.axis_of(sighting.frame.file) if sighting.frame else ""
    groups = sighting.groups | {name: text for name, text in ((VERSIONS, ", ".join(components)), (AXIS, axis)) if text}
    facts = [*filled(sighting.kind.facts, groups), *(fact for fact, _ in rows)]
    commands = [*(command for _, command in rows), *filled(sighting.kind.next, groups)]
    return KindAnswer(sighting, _once(facts), _once(commands))


def _once(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))


def says_something(answered: KindAnswer) -> bool:
    """Return whether an answer is one: of a name in the program's own code, only what was computed says something."""
    return bool(answered.facts) or not (answered.sighting.is_own and OF_NAMES & answered.sighting.groups.keys())


Rows = Iterator[tuple[str, str]]  # a fact and a command, "" for none


def _parts(sighting: KindSighting, table: KindTable, seen: VersionsSeen) -> Iterator[Rows]:
    """Yield the facts of each captured group that a table or a recorded API explains."""
    groups = sighting.groups
    if binary := groups.get("binary"):
        yield _of_binary(binary, table)
    for name, text in groups.items():
        yield _of_name(text, [fact for fact in table.fact if fact.group == name])
    if NEW_STRING in groups.get("symbol", ""):
        yield iter([OF_NEW_STRING])
    if module := groups.get("module"):
        yield _of_module(module, groups.get("name", ""), table, seen)
    if "callable" in groups and "keyword" in groups:
        yield _of_keyword(groups["callable"], groups["keyword"], seen, is_own=sighting.is_own)
    if "tried" in groups and "reserved" in groups:
        yield iter([(_of_memory(groups["tried"], groups["reserved"]), "")])
    if "owner" in groups and "attribute" in groups:
        yield _of_attribute(groups["owner"], groups["attribute"], seen)


def _of_name(name: str, rows: Sequence[NameFact]) -> Rows:
    for row in rows:
        if shown := re.match(row.pattern, name):
            yield f"{plain_name(name)}: {row.means.format_map(shown.groupdict())}", row.install
            return


def _of_binary(path: str, table: KindTable) -> Rows:
    """Yield whose extension a shared object is, by the folder of its package or its own name."""
    parts = re.split(r"[/\\]", path.removeprefix("lib"))
    for part in (parts[-1].partition(".")[0].removeprefix("lib"), *reversed(parts)):
        if row := table.package_of(part):
            yield f"{parts[-1]} belongs to {row.title}", row.install
            return


def _of_memory(wanted: str, reserved: str) -> str:
    """Return whether memory that PyTorch reserves and does not use would be enough: "2.00 GiB", "0 bytes"."""
    wanted_bytes, reserved_bytes = (
        float(text.split()[0]) * BYTES.get(text.split()[1], 1) for text in (wanted, reserved)
    )
    if reserved_bytes >= wanted_bytes:
        return "more is reserved and unused than wanted: fragments are the cause, and expandable segments may suffice"
    return "the tensors themselves fill the GPU: a smaller micro batch, more parallelism, recomputation or offloading"


# --------------------------------------------------------------- recorded APIs


def _of_module(module: str, name: str, table: KindTable, seen: VersionsSeen) -> Rows:
    """Yield the releases that have a module, or a name of it, and the package of the module."""
    row = table.package_of(module)
    by_provider = {
        provider: releases_with(provider, {"module": module, "name": name})
        for provider in PROVIDERS.values()
        if provider.owns(module)
    }
    if row:  # where some releases lack it, the one to install follows
        recorded = {exists for releases in by_provider.values() for _, exists in releases} - {None}
        is_partial, is_within = False in recorded, not recorded and module not in row.modules
        lacking = "; the package is installed, and its release lacks the module" * (is_within and not name)
        yield (
            f"{module} belongs to {row.title}{lacking}{': ' * bool(row.note)}{row.note}",
            "" if name or is_partial or is_within else row.install,
        )
    for provider, releases in by_provider.items():
        yield from _by_release(provider, f"{module}.{name}" if name else module, releases, seen)
        if not releases[-1][1] and (elsewhere := _elsewhere(provider, module, name)):
            yield f"{provider.title} {releases[-1][0]} has it as {' and '.join(elsewhere)}", ""


def _elsewhere(provider: Provider, module: str, name: str) -> list[str]:
    """Return where the newest release has a name that a module lacks, or a module of the same last name."""
    newest = all_surfaces(provider)[-1]
    if not name:
        last = module.rpartition(".")[2]
        return [other for other in sorted(newest.modules) if other.endswith(f".{last}")][:ELSEWHERE]
    places = [f"{other}.{name}" for other, names in sorted(newest.modules.items()) if defines(names.get(name))]
    return places[:ELSEWHERE]


def _of_keyword(callable_name: str, keyword: str, seen: VersionsSeen, *, is_own: bool = False) -> Rows:
    """Yield the releases whose function or class of this name takes a keyword.

    Of a class that no recorded API has, those whose class with the end of its name takes it: frameworks name theirs so.
    Failing that, where the stack made the call (not `is_own`), the releases of which any function takes it.
    """
    owner, _, method = callable_name.rpartition(".")
    for name in filter(None, (owner, _namesake(owner))) if owner else ("",):
        for provider in PROVIDERS.values():
            releases = releases_with(provider, {"callable": f"{name}.{method}", "keyword": keyword})
            if any(taken is not None for _, taken in releases):
                if name != owner:
                    yield f"{owner} is of another package; it may be made after {name} of {provider.title}", ""
                yield from _by_release(provider, f"{name}{'.' * bool(name)}{method}({keyword}=)", releases, seen)
                return
    for provider in () if is_own else PROVIDERS.values():
        releases = [(surface.version, _mentions(surface, keyword)) for surface in all_surfaces(provider)]
        if "_" in keyword and {True, False} <= {taken for _, taken in releases}:
            title = f"the parameter {keyword}, of any function or class,"
            yield from ((fact, "") for fact, _ in _by_release(provider, title, releases, seen))


def _namesake(owner: str) -> str:
    """Return the longest name of a class in the recorded APIs with which another class's name ends, "" for none."""
    ends = [
        owner[start:] for start in range(1, len(owner)) if owner[start].isupper() and len(owner) - start >= NAMESAKE
    ]
    defined = {name for provider in PROVIDERS.values() for name in _classes(provider)}
    return next((end for end in ends if end in defined), "")


@cache
def _classes(provider: Provider) -> frozenset[str]:
    surfaces = all_surfaces(provider)
    modules = [names for surface in surfaces for names in surface.modules.values()]
    return frozenset(name for names in modules for name, entry in names.items() if isinstance(entry, dict))


def _mentions(surface: Surface, keyword: str) -> bool:
    """Return whether a function or a class of the API has a parameter of that name."""
    parameter = re.compile(rf"[(,]{re.escape(keyword)}[=,)]")
    entries = [entry for names in surface.modules.values() for entry in names.values()]
    members = [member for entry in entries if isinstance(entry, dict) for member in entry["members"].values()]
    return any(isinstance(entry, str) and bool(parameter.search(entry)) for entry in (*entries, *members))


def _of_attribute(owner: str, attribute: str, seen: VersionsSeen) -> Rows:
    """Yield the releases whose class of this name has an attribute."""
    for provider in PROVIDERS.values():
        releases = releases_with(provider, {"owner": owner, "attribute": attribute})
        if any(exists is not None for _, exists in releases):
            yield from _by_release(provider, f"{owner}.{attribute}", releases, seen)


def _by_release(
    provider: Provider, title: str, releases: Sequence[tuple[str, bool | None]], seen: VersionsSeen
) -> Rows:
    """Yield in which releases something exists, and the line that installs the nearest one that has it."""
    having = [version for version, exists in releases if exists]
    lacking = [version for version, exists in releases if exists is False]
    if not having and not lacking:
        return
    shown = seen.of(provider.package)
    log = f"the log shows {' and '.join(shown)}" if shown else "the log does not show its version"
    if not having:
        yield f"no recorded release of {provider.title} ({releases[0][0]} - {releases[-1][0]}) has {title}; {log}", ""
        return
    if not lacking:
        yield (
            f"every recorded release of {provider.title} with this API ({spans(releases, True)}) has {title}; {log}",
            "",
        )
        return
    version = _nearest(having, lacking, shown[-1] if shown else "")
    fact = f"{title} is in {provider.title} {spans(releases, True)}; missing in {spans(releases, False)}; {log}"
    yield fact, provider.install.format(package=provider.package, version=version)


def _nearest(having: Sequence[str], lacking: Sequence[str], installed: str) -> str:
    """Return the first release that has it from the installed one on, or the last before it.

    The installed one lacks it: where its version is not known, the releases that lack it show on which side it is.
    """
    if not versions.is_version(installed):
        is_newer = versions.parse(lacking[0]) < versions.parse(having[0])
        return having[0] if is_newer and versions.parse(lacking[-1]) < versions.parse(having[-1]) else having[-1]
    later = [version for version in having if versions.parse(version) >= versions.parse(installed)]
    return later[0] if later else having[-1]
