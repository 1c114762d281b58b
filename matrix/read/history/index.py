"""Read the index of upstream's history, which tests/history_facts.py makes from clones.

One file for each project: the size of the head in four bytes, the head, text that blocks have in common, then a block
for each source file and one for the commits. Head and blocks are JSON, each compressed alone, so that a question reads
what it is about; the blocks with the common text as zlib's dictionary. A project without a clone has no commits, and
none of its releases counts as tagged. A file's block is a weave: its lines in all releases, in order, as runs of lines
that belong to one function and are in the same releases, and behind it a hash of one byte for each line that a
traceback may print (0: any other).
"""

from __future__ import annotations

import json
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).parent
NAMES: Final = ("megatron-lm", "transformer-engine", "megatron-bridge", "pytorch")
EPOCH: Final = date(1970, 1, 1)
MADE: Final = 1  # kinds of a change, beside 0
REMOVED: Final = 2
NAMESAKES: Final = 3  # functions of one name in a file, which name none of them
LONG: Final = 100  # lines of a function, of all releases: a hash has 255 values, so of more it shows little
# Packages whose sources are in another folder of their project.
FOLDERS: Final = {"megatron/bridge/": "src/", "megatron_fsdp/": "megatron/core/distributed/fsdp/src/"}
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{3,}")


def hash_of_line(line: str) -> int:
    """Return the hash of a source line, 1 to 255."""
    return zlib.crc32(line.strip().encode()) % 255 + 1


def hash_of_word(word: str) -> int:
    """Return the hash of a word, of 16 bits."""
    return zlib.crc32(word.lower().encode()) & 0xFFFF


def words_of(text: str) -> set[str]:
    """Return the words and identifiers of a text that may identify what it is about."""
    return set(_WORD.findall(text))


@dataclass(frozen=True)
class FunctionChange:
    """A change of a function: the commit, whether it made or removed the function, hashes of words and old lines."""

    commit: int
    kind: int
    words: frozenset[int]
    removed: frozenset[int]


@dataclass(frozen=True)
class UpstreamCommit:
    """A commit of a project. `releases`: those that have it, oldest first. `reverted_by`: the number of a commit."""

    number: int
    id: str
    date: str
    subject: str
    numbers: tuple[int, ...]
    releases: tuple[str, ...]
    reverted_by: int | None


@dataclass(frozen=True)
class SourceLine:
    """A line of a source file in a release: its function ("": the module) and the hash of its text."""

    function: str
    hash: int


class SourceFile:
    """The block of a source file; `path` is its newest."""

    def __init__(self, path: str, content: dict[str, Any], hashes: bytes) -> None:
        self.path, self._content, self._hashes = path, content, hashes
        self._sets = [int(bits, 16) for bits in content["sets"]]
        self.names: list[str] = content["names"]

    def releases(self, path: str) -> int:
        """Return the releases that have the file under a path, as bits."""
        return int(self._content["paths"].get(path, "0"), 16)

    def having(self, function: str, source: str) -> int:
        """Return the releases in which a function of this name has a printed source line, as bits; "" for any line.

        Of a long function all count: another line of it has the same hash by chance.
        """
        releases = with_line = offset = size = 0
        for count, name, bits in zip(*self._content["runs"], strict=True):
            if self.names[name].rpartition(".")[2] == function:
                releases |= self._sets[bits]
                size += count
                with_line |= self._sets[bits] if hash_of_line(source) in self._hashes[offset : offset + count] else 0
            offset += count
        return with_line if source and size <= LONG else releases

    def line(self, release: int, number: int) -> SourceLine | None:
        """Return a line of the file in a release, both by number, None where it has fewer."""
        offset = 0
        for count, name, bits in zip(*self._content["runs"], strict=True):
            if self._sets[bits] >> release & 1:
                if 0 < number <= count:
                    return SourceLine(self.names[name], self._hashes[offset + number - 1])
                number -= count
            offset += count
        return None

    def functions_at(self, function: str, line: int, releases: Sequence[int]) -> list[str]:
        """Return the qualified names that a frame may be of: by its line in these releases, else by its name."""
        name = function.rpartition(".")[2].replace("<module>", "")
        at_line = dict.fromkeys(found.function for release in releases if (found := self.line(release, line)))
        exact = [label for label in at_line if name in (label.rpartition(".")[2], "<lambda>") or name.endswith("comp>")]
        namesakes = [label for label in self.names if label.rpartition(".")[2] == name]
        return exact or (namesakes if len(namesakes) < NAMESAKES else [])

    def changes(self, function: str) -> Iterator[FunctionChange]:
        """Yield the changes of a function, oldest first on main, then those of releases' branches."""
        number = str(self.names.index(function)) if function in self.names else ""
        for commit, kind, words, removed in self._content["changes"].get(number, ()):
            yield FunctionChange(commit, kind, _hashes(words), frozenset(bytes.fromhex(removed)))

    def changed_in(self, functions: Collection[str]) -> int:
        """Return the releases in which code of these functions is not that of the release before, as bits."""
        wanted, offset = set(functions), 0
        bodies = [defaultdict[str, bytes](bytes) for _ in range(max(map(int.bit_length, self._sets), default=0) + 1)]
        for count, number, bits in zip(*self._content["runs"], strict=True):
            if (name := self.names[number]) in wanted:
                code = self._hashes[offset : offset + count].replace(b"\0", b"")
                for body in (body for release, body in enumerate(bodies) if self._sets[bits] >> release & 1):
                    body[name] += code
            offset += count
        return sum(1 << release for release in range(1, len(bodies)) if bodies[release] != bodies[release - 1])

    def functions_changed(self, commit: int) -> list[str]:
        """Return the functions that a commit changed."""
        changes = self._content["changes"].items()
        return [self.names[int(name)] for name, rows in changes if any(row[0] == commit for row in rows)]

    @property
    def options(self) -> dict[str, frozenset[int]]:
        """Return the functions that read options of a job, in some release: the hashes of the options' names."""
        return {self.names[int(number)]: _hashes(text) for number, text in self._content["options"].items()}

    @property
    def messages(self) -> list[tuple[str, str, int]]:
        """Return the messages of raise, assert and warnings: function, text with {}, releases as bits."""
        return [(self.names[name], text, self._sets[bits]) for name, text, bits in self._content["messages"]]


class UpstreamHistory:
    """The index of one project."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        size = int.from_bytes(data[:4], "big")
        head = _content(data[4 : 4 + size])[0]
        self._blocks = memoryview(data)[4 + size :]
        self._common = zlib.decompress(self._blocks[: head["common"]])
        self.repository: str = head["repository"]
        self.component: str = head["component"]
        self.releases: Sequence[str] = head["releases"]
        self.tagged: Sequence[bool] = head["tagged"]
        self.until: str = str(EPOCH + timedelta(head["day"]))
        self.commit: str = head["commit"]
        self.files: dict[str, list[int]] = head["files"]
        self._old: dict[str, str] = head["old"]
        self._place: list[int] = head["commits"]
        self._definitions: list[int] = head["definitions"]

    @property
    def has_commits(self) -> bool:
        """Return whether commits of the project are known, not its releases alone."""
        return any(self.tagged)

    @property
    def extent(self) -> str:
        """Return the project, whether it is known by its releases alone, and up to which day."""
        return f"{self.repository} {'' if self.has_commits else 'by its releases, '}up to {self.until}"

    def _block(self, place: Sequence[int]) -> tuple[dict[str, Any], bytes]:
        return _content(self._blocks[place[0] : sum(place)], self._common)

    def path_of(self, file: str) -> str:
        """Return the path in the project of a file in a traceback, "" for a file that is not of the project."""
        parts = re.split(r"[/\\]", file)
        for start in range(len(parts)):
            path = "/".join(parts[start:])
            folders = [folder for package, folder in FOLDERS.items() if path.startswith(package)]
            for candidate in (path, *(folder + path for folder in folders)):
                if "/" in candidate and (candidate in self.files or candidate in self._old):
                    return candidate
        return ""

    @cache  # noqa: B019 - an index lives as long as the process
    def file(self, path: str) -> SourceFile:
        """Return a source file by its path, also an old one."""
        newest = path if path in self.files else self._old[path]
        return SourceFile(newest, *self._block(self.files[newest]))

    def number_of_release(self, version: str) -> int | None:
        """Return the number of a release, None for one that is not known; 2.4.0 is 2.4."""
        return self._numbers.get(_short(version))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {_short(release): number for number, release in enumerate(self.releases)}

    def defining(self, name: str) -> list[SourceFile]:
        """Return the source files that define a class or a function of a module."""
        paths = list(self.files)
        return [self.file(paths[number]) for number in self._files_of.get(name, ())]

    @cached_property
    def _files_of(self) -> dict[str, list[int]]:
        return self._block(self._definitions)[0]

    @cached_property
    def _commits(self) -> dict[str, Any]:
        return self._block(self._place)[0]

    @cached_property
    def _revision(self) -> dict[str, int]:
        ids, (inner, merges) = self._commits["ids"], self._commits["inner"]
        within = {inner[10 * k : 10 * k + 10]: merge for k, merge in enumerate(merges)}
        return within | {ids[10 * k : 10 * k + 10]: k for k in range(len(ids) // 10)}

    def has(self, commit: int, release: int) -> bool:
        """Return whether a release has a commit, both by number."""
        content = self._commits
        on_main = commit < content["main"] and commit <= content["positions"][release]
        if on_main or release in content["picks"].get(str(commit), ()):
            return True
        tagged = self.tagged_before(release)
        return tagged != release and self.has(commit, tagged)

    def tagged_before(self, release: int) -> int:
        """Return the release whose commits count as those of a release: a wheel alone has those of the one before."""
        while release and not self.tagged[release]:
            release -= 1
        return release

    @cache  # noqa: B019 - as above
    def commit_of(self, number: int) -> UpstreamCommit:
        """Return a commit by its number."""
        content = self._commits
        return UpstreamCommit(
            number,
            content["ids"][10 * number : 10 * number + 10],
            str(EPOCH + timedelta(content["days"][number])),
            content["subjects"][number],
            tuple(content["numbers"].get(str(number), ())),
            tuple(version for k, version in enumerate(self.releases) if self.has(number, k)),
            content["reverts"].get(str(number)),
        )

    def find(self, id: str) -> list[tuple[str, int]]:
        """Return the commits whose id begins so, or is begun by it: the id, and the number of the one on main."""
        return sorted((whole, k) for whole, k in self._revision.items() if whole.startswith(id[:10]))

    def naming(self, number: int) -> list[UpstreamCommit]:
        """Return the commits that name an issue or pull request."""
        return [self.commit_of(int(k)) for k, numbers in self._commits["numbers"].items() if number in numbers]

    def number_of(self, id: str) -> int | None:
        """Return the number of a commit, of a merge for what it brought; None for one that is not known."""
        return self._revision.get(id[:10])

    @property
    def subjects(self) -> list[str]:
        """Return the subjects of all commits."""
        return list(self._commits["subjects"])

    def largest_number(self) -> int:
        """Return the largest number of an issue or pull request that a commit names."""
        numbers: dict[str, list[int]] = self._commits["numbers"]
        return max(map(max, numbers.values()), default=0)

    def new_in(self, release: int, before: int) -> list[UpstreamCommit]:
        """Return the commits that a release has and another one lacks."""
        count = len(self._commits["days"])
        return [self.commit_of(k) for k in range(count) if self.new(k, release, before)]

    def new(self, commit: int, release: int, before: int) -> bool:
        """Return whether a release has a commit that another one lacks, all by number."""
        return self.has(commit, release) and not self.has(commit, before)


def _short(version: str) -> str:
    return re.sub(r"(\.0){0,9}(\+.{0,99})?$", "", version)


def _hashes(text: str) -> frozenset[int]:
    return frozenset(int(text[k : k + 4], 16) for k in range(0, len(text), 4))


def _content(block: bytes | memoryview, common: bytes = b"") -> tuple[dict[str, Any], bytes]:
    text, _, tail = zlib.decompressobj(zdict=common).decompress(block).partition(b"\0")
    return json.loads(text), tail


@cache
def histories() -> tuple[UpstreamHistory, ...]:
    """Return the indexes of all projects."""
    return tuple(UpstreamHistory(path) for name in NAMES if (path := DATA / f"{name}.bin").is_file())


def history_of(component: str) -> UpstreamHistory | None:
    """Return the index of a component, None where its history is not known."""
    return next((history for history in histories() if history.component == component), None)
