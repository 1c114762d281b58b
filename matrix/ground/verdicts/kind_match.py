"""The kinds of failure that a log shows (catalog/kinds.py): general signatures beside those of the catalog.

Without evidence that Megatron's stack ran, an error message may come from any other program.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Final

from matrix.ground.catalog.failure import Failure
from matrix.ground.catalog.kinds import Beside, Clue, FailureKind, KindTable, Sign, groups_in
from matrix.ground.catalog.reach import (
    OPEN_VALUE,
    SWITCH,
    JobArguments,
    Reached,
    dashed,
    recognised,
    translated,
)
from matrix.ground.catalog.schema import long_texts, longest_text
from matrix.ground.catalog.stack import Stack, component_named, components
from matrix.ground.catalog.versions import is_version
from matrix.ground.verdicts.lines import Triggers
from matrix.ground.verdicts.outcome import Frame, Raised
from matrix.ground.verdicts.tracebacks import LoggedFrame

# Frames, modules, packages, options, variables and lines of the stack: a text, which is found faster than a pattern,
# and the pattern that it is part of. Each takes a search through a log that has none of them, so they are few.
# "consumed samples" is in Megatron-LM's line of an iteration (training_log in megatron/training/training.py), the sizes
# are in its options and in its list of them.
_STACK: Final = (
    ("egatron", re.compile("[Mm]egatron")),
    ("ransformer", re.compile("[Tt]ransformer[ _-]?[Ee]ngine")),
    ("consumed samples", re.compile("consumed samples")),
    ("arallel", re.compile("(?:tensor|pipeline|expert)[_-]model[_-]parallel[_-]size|--context-parallel-size")),
    ("_PARALLEL_GROUP", re.compile(r"[A-Z]_PARALLEL_GROUP\b")),  # a group's description (parallel_state.py)
    ("--seq-length", re.compile(r"--seq-length\b")),
    ("NVTE_", re.compile(r"\bNVTE_\w+")),
    ("UB_SKIPMC", re.compile("UB_SKIPMC")),
)
# Names of megatron-core's own parameters and modules: within what a fault is about, they show the stack.
_CORE_NAMES: Final = re.compile(
    r"\bpacked_seq_params\b|_model_parallel_|\bgradient_accumulation_fusion\b|\bsharded_state_dict\b|\bpg_collection\b"
    r"|self_attention\.linear_(?:qkv|proj)\b|\bmlp\.linear_fc[12]\b|\bmlp\.experts\.linear_fc|\btransformer_layer_spec\b"
    r"|_extra_state/shard_\d"
)
_LONGEST: Final = 64  # characters of the end of a part that may hold the start of such a text


def evidence_in(text: str) -> str:
    """Return what in a text shows the stack: a frame, module, package, option or line of it; "" where nothing does."""
    searches = (pattern.search(text) for part, pattern in _STACK if part in text)
    return next((shown[0] for shown in searches if shown), "")


def names_core(text: str) -> bool:
    """Return whether a text that a fault is about has a name that only megatron-core's API or checkpoints have."""
    return bool(_CORE_NAMES.search(text))


class EvidenceScan:
    """The parts of a log, unchanged; `evidence` is what shows the stack in those read so far."""

    def __init__(self, chunks: Iterable[str]) -> None:
        self._chunks, self.evidence = chunks, ""

    def __iter__(self) -> Iterator[str]:
        end = ""
        for chunk in self._chunks:
            self.evidence = self.evidence or evidence_in(end + chunk[:_LONGEST]) or evidence_in(chunk)
            end = (end + chunk)[-_LONGEST:] if len(chunk) < _LONGEST else chunk[-_LONGEST:]
            yield chunk


# A folder named megatron or mbridge may be anyone's, outside of site-packages; megatron/core is not.
_UNMISTAKABLE: Final = re.compile(r"transformer_engine|\w+\.")
# Code between a caller and what it calls: torch's modules call forward(), Python's library imports.
_BETWEEN: Final = re.compile(
    r"(?:^|/)torch/nn/modules/module\.py$|/lib/python3[\d.]{0,4}/(?!\w{4}-packages/)|^<frozen "
)
_CLONE: Final = re.compile(r"(?i:/megatron-lm)[\w.-]{0,40}/")  # /opt/megatron-lm/, ~/Megatron-LM-core_v0.9.0/
MOST: Final = 20  # places of one pattern that are read in one window of a log
Groups = tuple[tuple[str, str], ...]
_WORDS: Final = re.compile(r"[^\s,`'\"]+")
_SPACE: Final = re.compile(r"\s+")
_REQUIREMENT: Final = re.compile(r"[\[<>=!~]")  # where the name of a requirement ends
PACKAGES: Final = ("megatron-core", "transformer-engine", "torch", "flash-attn")  # named in the draft of an entry
# No package has their name, and logs name their versions: "NCCL version 2.27.7", "NVSHMEM v3.4.5".
LIBRARIES: Final = ("nccl", "nvshmem")
# Before the name of a package whose version is wanted, not installed.
_WANTED: Final = re.compile(
    r"(?i:requir|need|support|at least|minimum|please|upgrade|tested with|built (?:for|with))[^\n]{0,40}$"
)


# What follows the name of a package before its version: in paths, in pip's output, in TE's list of its configuration.
_VERSION: Final = re.compile(
    r"(?:_version|\.__version__)?['\"]?(?:==|-| {0,2}[:=] ?|,? [Vv]ersion:? ?| )['\"]?v?"
    r"(?P<version>\d+\.\d+(?:\.\d+)*(?:\.?(?:post|rc|dev)\d+)?(?:a0)?(?:\+[\w.]+)?)"
)
_IN_NAME: Final = re.compile(r"[\w.-]")


@cache
def _versioned() -> tuple[str, ...]:
    """Return the names of packages whose versions logs name, canonical, with their aliases."""
    rows = [row for row in components().values() if row.distribution or row.name in LIBRARIES]
    return tuple(dict.fromkeys(word for row in rows for word in (row.name, *row.aliases)))


def versions_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield each component whose version a text names, with the version, in the order of the text.

    One pattern of all names in any case takes ten times as long as str.find of each.
    """
    lower = text.lower()
    canonical = (lower if len(lower) == len(text) else text).replace("_", "-")  # a few letters become two
    starts = []
    for name in _versioned():
        start = canonical.find(name)
        while start >= 0:
            starts.append((start, name))
            start = canonical.find(name, start + len(name))
    for start, name in sorted(starts):
        version = _VERSION.match(text, start + len(name))
        is_part = start and _IN_NAME.match(text[start - 1])
        if version and not is_part and not _WANTED.search(text, max(0, start - 60), start):
            yield component_named(name), version["version"]


@dataclass(frozen=True)
class KindSighting:
    """A kind of failure in a log, at its first line, with what its pattern captured.

    `frame` is the deepest frame of Megatron's stack on the traceback. `of_stack`: it shows by itself that the stack
    ran. `is_own`: no frame shows that the stack raised it, and no module that it names is of the stack: the
    program's own code, or a fault of a call into the stack.
    """

    kind: FailureKind
    line: int
    text: str
    captured: Groups = ()
    frame: Frame | None = None
    of_stack: bool = False
    times: int = 1
    is_own: bool = False

    @property
    def groups(self) -> dict[str, str]:
        """Return what its pattern captured."""
        return dict(self.captured)


@dataclass
class VersionsSeen:
    """The versions of packages that a log names near its faults: package -> versions, in their order."""

    texts: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, text: str) -> None:
        """Add the versions that a text names."""
        for name, version in versions_in(text):
            self.texts.setdefault(name, {})[version] = None

    def of(self, package: str) -> tuple[str, ...]:
        """Return the versions of a package."""
        return tuple(self.texts.get(package, ()))

    @property
    def stack(self) -> Stack:
        """Return the components of which the log names one version; what it does not name is unknown."""
        single = {name: next(iter(versions)) for name, versions in self.texts.items() if len(versions) == 1}
        return Stack({name: version for name, version in single.items() if is_version(version)})


# Megatron-LM's list of its arguments (_print_args in megatron/training/arguments.py), and the lines of a command.
_LISTED: Final = re.compile(
    r"(?m)^[^\n]{0,100}?(?<!\S)(?P<name>[a-z][a-z0-9_]{1,60}) \.{3,60} (?P<value>\S[^\n]{0,200})$"
)
_OPTION: Final = re.compile(r" (?:--[a-z][\w-]|\+{0,2}(?:\w+\.)+\w+=\S)")
ASIDE: Final = 3  # rank of a kind that may have nothing to do with the other faults of a log
HEAD: Final = 262_144  # characters of the start of a log, where versions and arguments are printed


def _commands(text: str) -> Iterator[str]:
    """Yield the lines of a text that start a program with options, those that a backslash continues in one."""
    joined = text.replace("\\\n", " ") if "\\\n" in text else text
    for mark in (".py ", "torchrun ", "python -m "):
        offset = joined.find(mark)
        while offset >= 0:
            end = joined.find("\n", offset) % (len(joined) + 1)  # -1: the last line
            line = joined[joined.rfind("\n", 0, offset) + 1 : end]
            if _OPTION.search(line):
                yield line
            offset = joined.find(mark, end)


@dataclass
class ArgumentsSeen:
    """The arguments of the training commands that a log shows, and those that Megatron-LM lists.

    An argument with two values counts as unknown, and so does one that is not shown, unless a list or a command is
    `complete`.
    """

    given: dict[str, str | bool] = field(default_factory=dict)
    differing: set[str] = field(default_factory=set)
    complete: bool = False

    def add(self, text: str) -> None:
        """Add the arguments that a text shows."""
        if " ...." in text:
            listed = {row["name"]: row["value"].strip() for row in _LISTED.finditer(text)}
            self._add(translated({dashed(name): SWITCH.get(value.lower(), value) for name, value in listed.items()}))
            self.complete |= bool(listed)
        for command in dict.fromkeys(_commands(text)):
            try:
                words = shlex.split(command)
            except ValueError:  # an open quote
                words = command.split()
            arguments = JobArguments.parse(words)
            if evidence_in(command) or recognised(arguments.given):
                self._add(arguments.given)
                self.complete |= arguments.complete

    def _add(self, given: Mapping[str, str | bool]) -> None:
        for name, value in given.items():
            if value != "None" and not (isinstance(value, str) and OPEN_VALUE.search(value)):
                self.differing |= {name} if self.given.setdefault(name, value) != value else set()

    @property
    def arguments(self) -> JobArguments:
        """Return the arguments whose values are known."""
        options = {name: value for name, value in self.given.items() if name not in self.differing}
        return JobArguments(options, self.complete and not self.differing)

    def reach(self, failure: Failure, stack: Stack) -> Reached:
        """Return whether a job with these arguments reaches a failure, by the ways that its stack leaves open."""
        return failure.reach(stack, self.arguments)


class KindIndex:
    """The signs of all kinds, in their order: of several that an exception shows, the first counts."""

    def __init__(self, table: KindTable | None = None) -> None:
        signs = [(kind, sign) for kind in (table.kind if table else ()) for sign in kind.sign]
        self._of_exceptions = [(kind, sign, longest_text(sign.message or "")) for kind, sign in signs if not sign.log]
        self._of_logs = [(kind, sign, sign.log, longest_text(sign.log)) for kind, sign in signs if sign.log]
        self._beside = [(row, longest_text(row.line)) for row in (table.beside if table else ())]
        self._clues = [(clue, longest_text(clue.line)) for clue in (table.clue if table else ())]
        patterns = [
            *(sign.log for _, sign in signs if sign.log),
            *(row.line for row, _ in self._beside),
            *(clue.line for clue, _ in self._clues),
        ]
        self._texts = Triggers(map(longest_text, patterns))
        packages = table.package if table else ()
        self._modules = frozenset(module for package in packages if package.stack for module in package.modules)
        frames = [module for package in packages if package.stack == "frames" for module in package.modules]
        self._folders = tuple(
            f"{'/' if _UNMISTAKABLE.match(module) else '-packages/'}{module.replace('.', '/')}" for module in frames
        )
        self.shown_by = lru_cache(maxsize=1024)(self._shown_by)

    def may_show(self, text: str) -> bool:
        """Return whether a part of a log has a text of any pattern: nearly all have none."""
        return self._texts.found(text)

    def choices(self) -> Iterator[Sequence[str]]:
        """Yield for each pattern that may match far from other faults the texts that must be in a log."""
        yield from (long_texts(pattern) for _, sign, pattern, _ in self._of_logs if sign.anywhere)
        yield from (long_texts(clue.line) for clue, _ in self._clues)

    def clues_in(self, text: str) -> Iterator[tuple[int, Clue, str]]:
        """Yield the lines of a part of a log that may state why an error was raised, with their places in it."""
        for clue, part in self._clues:
            if part in text:
                shown_lines = zip(range(MOST), re.finditer(clue.line, text), strict=False)
                yield from ((line.start(), clue, line[0].strip()) for _, line in shown_lines)

    def beside_in(self, text: str) -> Iterator[tuple[int, Beside, str]]:
        """Yield what a part of a log states beside its faults: the number of the row, the row, what it captured."""
        for number, (row, part) in enumerate(self._beside):
            if part in text and (line := re.search(row.line, text)):
                yield number, row, line[row.group]

    def with_beside(self, kind: KindSighting, stated: Mapping[str, str]) -> KindSighting:
        """Return a sighting with what its kind's facts use of the text that the log states beside its faults."""
        groups = {name for text in (*kind.kind.facts, *kind.kind.next) for name in groups_in(text)}
        added = [(name, text) for name, text in stated.items() if name in groups and name not in kind.groups]
        of_stack = kind.of_stack or any(self._names_stack(text) for _, text in added)
        return replace(kind, captured=(*kind.captured, *added), of_stack=of_stack)

    def stack_frame(self, frames: Iterable[Frame]) -> Frame | None:
        """Return the deepest frame in a package of Megatron's stack."""
        return next((frame for frame in reversed([*frames]) if self._is_of_stack(frame.file)), None)

    def _is_of_stack(self, path: str) -> bool:
        """Return whether a source file is in a package of the stack, or in a clone of Megatron-LM.

        A folder of one's own whose name has "megatron" in it is neither.
        """
        rooted = f"/{path}"
        in_package = any(f"{folder}/" in rooted or f"{folder}.py" in rooted for folder in self._folders)
        return in_package or bool(_CLONE.search(rooted))

    def _shown_by(self, raised: Raised) -> KindSighting | None:
        """Return the first kind that an exception shows, without its line."""
        message, innermost = raised.compared, raised.frames[-1] if raised.frames else None
        source = innermost.source if isinstance(innermost, LoggedFrame) else ""
        for kind, sign, part in self._of_exceptions:
            if part not in message or (sign.exception and raised.type not in sign.exception):
                continue
            if sign.function and all(frame.function != sign.function for frame in raised.frames):
                continue
            if sign.raised_in_stack and not (innermost and self._is_of_stack(innermost.file)):
                continue
            shown, printed = re.search(sign.message or "", message), re.search(sign.source or "", source)
            if shown and printed:
                frame = self.stack_frame(raised.frames)
                text = _SPACE.sub(" ", f"{raised.type}: {raised.message}").removesuffix(": ")
                sighting = self._sighting(kind, sign, shown.groupdict() | printed.groupdict(), text, frame)
                raising = next(
                    (caller.file for caller in reversed(raised.frames) if not _BETWEEN.search(caller.file)), ""
                )
                is_own = not self._is_of_stack(raising)
                return replace(sighting, is_own=is_own and not any(map(self._is_module, sighting.groups.values())))
        return None

    def shown_by_text(self, text: str) -> Iterator[tuple[int, KindSighting]]:
        """Yield the kinds that a part of a log shows, with the place in it."""
        for kind, sign, pattern, part in self._of_logs:
            if part in text:
                for _, shown in zip(range(MOST), re.finditer(pattern, text), strict=False):
                    line = text[text.rfind("\n", 0, shown.start()) + 1 :].partition("\n")[0]
                    yield shown.start(), self._sighting(kind, sign, shown.groupdict(), line.strip(), None)

    def _sighting(
        self, kind: FailureKind, sign: Sign, groups: Mapping[str, str | None], text: str, frame: Frame | None
    ) -> KindSighting:
        captured = tuple((name, _SPACE.sub(" ", value).strip()) for name, value in groups.items() if value)
        of_stack = (
            sign.of_stack or sign.any_program or bool(frame) or any(self._names_stack(value) for _, value in captured)
        )
        return KindSighting(kind, 0, text, captured, frame, of_stack)

    def _names_stack(self, value: str) -> bool:
        """Return whether a captured text has the name of a module of the stack, or the path of one."""
        return names_core(value) or bool(evidence_in(value)) or any(map(self._is_module, _WORDS.findall(value)))

    def _is_module(self, value: str) -> bool:
        """Return whether a word is the name of a module of the stack, or the path of one."""
        name = _REQUIREMENT.split(value.replace("-", "_").rpartition("/")[2])[0]
        names = (name.replace("megatron_", "megatron.")).split(".")
        beginnings = (".".join(names[:size]) for size in range(1, len(names) + 1))
        return self._is_of_stack(value) or any(beginning in self._modules for beginning in beginnings)


def gathered(sightings: Iterable[KindSighting], *, stack: bool) -> list[KindSighting]:
    """Return each kind once for what it captured, at its first line, with its count; only those of Megatron's stack.

    `stack`: the log shows that the stack ran. A kind whose first line counts is there once.
    """
    by_answer: dict[tuple[str, Groups], list[KindSighting]] = {}
    for sighting in sorted(sightings, key=lambda one: (one.line, one.frame is None)):
        groups = () if sighting.kind.first else sighting.captured
        by_answer.setdefault((sighting.kind.id, groups), []).append(sighting)
    results = []
    for occurrences in by_answer.values():
        if stack or any(sighting.of_stack for sighting in occurrences):
            lines = {sighting.line for sighting in occurrences}
            results.append(replace(occurrences[0], times=len(lines)))
    return results


def causes(sightings: Sequence[KindSighting], *, known: bool) -> list[KindSighting]:
    """Return the kinds without those that follow from another one of their topic; `known`: the log has an entry.

    A kind of the rank ASIDE is left out beside any other, and beside an entry.
    """
    ranks: dict[str, int] = {}
    for sighting in sightings:
        ranks[sighting.kind.topic] = min(sighting.kind.rank, ranks.get(sighting.kind.topic, ASIDE))
    most = ASIDE - int(known or min(ranks.values(), default=ASIDE) < ASIDE)
    return [sighting for sighting in sightings if sighting.kind.rank == ranks[sighting.kind.topic] <= most]
