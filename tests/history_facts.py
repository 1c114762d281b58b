"""Make the index of upstream's history (matrix/read/history/) from clones, and from wheels of releases without a tag.

    python -m tests.history_facts megatron-lm CLONE [VERSION=FOLDER ...]      FOLDER: an unpacked wheel
    python -m tests.history_facts pytorch VERSION=FOLDER ...                  its releases alone: no commit is known

A clone is read as blobs (matrix/read/git.py). A FOLDER is an unpacked wheel of a release whose tag the clone lacks:
its lines are known, its commits are those of the release before. Of functions that came with their file, the index has
the later changes. PyTorch's git history of 4.06 GB is too large to be fetched, and its folders can't be fetched alone.
The wheels of torch for macOS are the smallest and have the same Python files (`pip download --no-deps --only-binary
:all: --platform macosx_11_0_arm64 --python-version 3.11 torch==2.8.0`): the modules of torch.distributed and its
folders `checkpoint`, `fsdp`, `_composable`, `tensor`, `_shard` and `algorithms`. The form of the file is described in
matrix/read/history/index.py.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import re
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from matrix.read.git import Repository
from matrix.read.history.index import DATA, MADE, REMOVED, hash_of_line, hash_of_word, words_of

DAYS: Final = 7  # by which a release's branch may have a commit before main has it
WINDOW, PART = 32_768, 1_000  # bytes that zlib looks back, and of each block that its dictionary has
MOST_WORDS, MOST_REMOVED, MOST_TEXT = 10, 16, 110
SETTINGS: Final = ("args", "config", "cfg", "transformer_config")  # names of what has the options of a job


@dataclass(frozen=True)
class Upstream:
    """A project: its repository, component, the pattern of its release tags, and the sources that are indexed."""

    repository: str
    component: str
    tag: str
    sources: str
    since: str


UPSTREAMS: Final = {
    "megatron-lm": Upstream(
        "NVIDIA/Megatron-LM",
        "megatron-core",
        r"core_v(\d+\.\d+\.\d+)$",
        r"megatron/(?!energon).*\.py$|tools/.*\.py$|[\w]+\.py$",
        "0.4.0",
    ),
    "transformer-engine": Upstream(
        "NVIDIA/TransformerEngine",
        "transformer-engine",
        r"v(\d+\.\d+(?:\.\d+)?)$",
        r"transformer_engine/(?:__init__|common/.*|pytorch/.*|debug/.*)\.py$|transformer_engine/__init__\.py$",
        "1.0",
    ),
    "megatron-bridge": Upstream(
        "NVIDIA-NeMo/Megatron-Bridge",
        "megatron-bridge",
        r"v(\d+\.\d+\.\d+)$",
        r"src/megatron/bridge/.*\.py$",
        "0.1.0",
    ),
    "pytorch": Upstream(
        "pytorch/pytorch",
        "torch",
        r"v(\d+\.\d+\.\d+)$",
        r"torch/distributed/(?:\w+|(?:checkpoint|fsdp|_composable|_?tensor|_shard|algorithms)/.*)\.py$",
        "2.0.0",
    ),
}


@dataclass(frozen=True)
class Message:
    """A commit's message and place."""

    parents: tuple[str, ...]
    day: int
    subject: str
    body: str

    @property
    def title(self) -> str:
        """Return the subject; of a merge, the first line of its body, which states what was merged."""
        lines = [line.strip() for line in self.body.splitlines() if line.strip()]
        merged = self.subject.startswith("Merge branch") and lines and not lines[0].startswith("See merge request")
        return " ".join((lines[0] if merged else self.subject).split())[:MOST_TEXT]

    @property
    def numbers(self) -> list[int]:
        """Return the issues and pull requests of its own project that the message names."""
        text = f"{self.subject}\n{self.body}"
        named = re.findall(r"(?<![\w/&])(?:NVIDIA(?:-NeMo)?/[\w-]+)?#(\d{1,5})\b|\((\d{3,5})\)`", text)
        links = re.findall(r"github\.com/NVIDIA(?:-NeMo)?/[\w-]+/(?:issues|pull)/(\d{1,5})", text)
        return sorted({int(number) for pair in named for number in pair if number} | set(map(int, links)))


@dataclass(frozen=True)
class Source:
    """A source file: its lines' texts, labels (the innermost function or class, "": the module) and hashes."""

    lines: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    hashes: bytes = b""
    messages: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()  # label, option

    @property
    def bodies(self) -> Mapping[str, list[str]]:
        """Return the lines of each label."""
        bodies: dict[str, list[str]] = defaultdict(list)
        for label, line in zip(self.labels, self.lines, strict=True):
            bodies[label].append(line)
        return bodies


@lru_cache(maxsize=8_000)
def read_source(text: str) -> Source:
    """Return a source file, without labels where Python can't parse it."""
    lines = tuple(text.replace("\f", " ").split("\n"))
    labels, starts, messages, options = [""] * len(lines), set(), [], []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        tree = ast.Module([], [])
    documents = set()

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}" if name else child.name
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                labels[first - 1 : child.end_lineno] = [inner] * ((child.end_lineno or first) - first + 1)
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                documents.add(id(child.value))
                continue
            if isinstance(child, ast.stmt | ast.expr) and id(child) not in documents:
                starts.add(child.lineno)
            if text := message_of(child):
                messages.append((inner, text))
            if option := option_of(child):
                options.append((inner, option))
            visit(child, inner)

    visit(tree, "")
    hashes = bytes(hash_of_line(line) if number in starts else 0 for number, line in enumerate(lines, 1))
    return Source(lines, tuple(labels), hashes, tuple(dict.fromkeys(messages)), tuple(dict.fromkeys(options)))


def alike(one: Source, two: Source) -> bool:
    """Return whether one file is the other one, moved."""
    first, second = set(one.lines), set(two.lines)
    return len(first & second) * 2 > max(len(first), len(second)) > 10


def option_of(node: ast.AST) -> str:
    """Return the option of a job that is read from args, a config or self.config, "" for another expression."""
    settings: ast.AST | None = node.value if isinstance(node, ast.Attribute) else None
    name = (
        settings.id if isinstance(settings, ast.Name) else settings.attr if isinstance(settings, ast.Attribute) else ""
    )
    return node.attr if isinstance(node, ast.Attribute) and name in SETTINGS else ""


def message_of(node: ast.AST) -> str:
    """Return the text of a raise, assert or warning, with {} for what is put in; "" for another statement."""
    text: ast.expr | None = None
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
        text = node.exc.args[0]
    elif isinstance(node, ast.Assert):
        text = node.msg
    elif (
        isinstance(node, ast.Call) and node.args and re.search(r"warn(?:ing)?(?:_once)?$", ast.unparse(node.func)[:80])
    ):
        text = node.args[0]
    return " ".join(literal(text).split())[:MOST_TEXT] if text else ""


def literal(node: ast.expr) -> str:
    """Return the constant text of an expression, "" for one without."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return literal(node.left) + (literal(node.right) or "{}")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return re.sub(r"%[sdrif]", "{}", literal(node.left))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return re.sub(r"\{[^}]*\}", "{}", literal(node.func.value))
    return ""


@dataclass
class Weave:
    """The lines of a file in all releases: in order, each with its label, hash and the releases that have it."""

    rows: list[tuple[tuple[str, str], int, int]] = field(default_factory=list)  # (label, text), hash, bits
    messages: dict[tuple[str, str], int] = field(default_factory=dict)
    paths: dict[str, int] = field(default_factory=dict)
    options: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, release: int, path: str, source: Source) -> None:
        """Add the file as a release has it."""
        bit, previous = 1 << release, 1 << release >> 1
        self.paths[path] = self.paths.get(path, 0) | bit
        for message in source.messages:
            self.messages[message] = self.messages.get(message, 0) | bit
        for label, option in source.options:
            self.options[label].add(option)
        keys = list(zip(source.labels, source.lines, strict=True))
        active = [number for number, row in enumerate(self.rows) if row[2] & previous]
        known = [self.rows[number][0] for number in active]
        insert: list[tuple[int, int, int]] = []
        for tag, one, end, new, last in matching(known, keys):
            if tag == "equal":
                for number in active[one:end]:
                    key, line, bits = self.rows[number]
                    self.rows[number] = (key, line, bits | bit)
            elif new < last:
                insert.append((active[one] if one < len(active) else len(self.rows), new, last))
        for place, new, last in reversed(insert):
            self.rows[place:place] = [(keys[k], source.hashes[k], bit) for k in range(new, last)]

    def block(self, changes: Mapping[str, Any]) -> bytes:
        """Return the file's block, not yet compressed."""
        names = sorted({row[0][0] for row in self.rows} | set(changes) | {name for name, _ in self.messages})
        sets = sorted({row[2] for row in self.rows} | set(self.messages.values()))
        name_of, set_of = ({one: k for k, one in enumerate(many)} for many in (names, sets))
        runs: list[int] = []
        for (label, _), _, bits in self.rows:
            if runs and runs[-2:] == [name_of[label], set_of[bits]]:
                runs[-3] += 1
            else:
                runs += [1, name_of[label], set_of[bits]]
        content = {
            "names": names,
            "sets": [f"{bits:x}" for bits in sets],
            "paths": {path: f"{bits:x}" for path, bits in self.paths.items()},
            "runs": [runs[k::3] for k in range(3)],
            "changes": {name_of[name]: rows for name, rows in changes.items()},
            "messages": [[name_of[name], text, set_of[bits]] for (name, text), bits in self.messages.items()],
            "options": {name_of[name]: hashed(options) for name, options in sorted(self.options.items())},
        }
        return plain(content, bytes(row[1] for row in self.rows))


def hashed(words: Iterable[str]) -> str:
    """Return the hashes of words as text."""
    return "".join(f"{hash_of_word(word):04x}" for word in sorted(words))


def matching(old: Sequence[Any], new: Sequence[Any]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield difflib's opcodes, with the common start and end left out of the comparison."""
    least = min(len(old), len(new))
    start = next((k for k in range(least) if old[k] != new[k]), least)
    end = next((k for k in range(least - start) if old[-1 - k] != new[-1 - k]), least - start)
    yield "equal", 0, start, 0, start
    inner = difflib.SequenceMatcher(None, old[start : len(old) - end], new[start : len(new) - end], autojunk=False)
    for tag, one, last, two, final in inner.get_opcodes():
        yield tag, one + start, last + start, two + start, final + start
    yield "equal", len(old) - end, len(old), len(new) - end, len(new)


def defined(names: Iterable[Iterable[str]]) -> dict[str, list[int]]:
    """Return the numbers of the files that have each class or function of a module, by the names in each file."""
    files: dict[str, list[int]] = {}
    for number, labels in enumerate(names):
        for label in sorted({label for label in labels if label and "." not in label}):
            files.setdefault(label, []).append(number)
    return files


def plain(content: Any, tail: bytes = b"") -> bytes:
    """Return a block before it is compressed: JSON, and bytes behind a NUL."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode() + b"\0" + tail


def packed(block: bytes, common: bytes = b"") -> bytes:
    """Return a block, compressed beside the text that many blocks have in common."""
    packer = zlib.compressobj(9, zdict=common) if common else zlib.compressobj(9)
    return packer.compress(block) + packer.flush()


def common_text(blocks: Sequence[bytes]) -> bytes:
    """Return the starts of some blocks, as zlib's dictionary of all."""
    return b"".join(block[:PART] for block in blocks[:: max(len(blocks) * PART // WINDOW, 1)])[-WINDOW:]


class History:
    """The commits of a clone: those of main (first parents) in order, then those of the releases' branches."""

    def __init__(self, repository: Repository, upstream: Upstream) -> None:
        self.repository, self.upstream = repository, upstream
        tags = {found[1]: name for name in repository.refs() if (found := re.match(upstream.tag, name))}
        self.releases = sorted((v for v in tags if Version(v) >= Version(upstream.since)), key=Version)
        self.tips = {version: repository.commit(f"refs/tags/{tags[version]}") for version in self.releases}
        self.head = repository.commit("HEAD")
        self.all = self._messages([self.head, *self.tips.values()])
        self.main = self._first_parents(self.head)
        self.index = {id: k for k, id in enumerate(self.main)}
        self.order = list(self.main)
        self.inner: dict[str, int] = {}
        self.position: dict[str, int] = {}
        self.picks: dict[int, set[int]] = defaultdict(set)
        self.merges: set[int] = set()  # numbers of merge requests
        for k, id in enumerate(self.main):
            self._within(id, k)
        for number, version in enumerate(self.releases):
            self._release(number, version)
        self._pair()

    def _messages(self, tips: Sequence[str]) -> dict[str, Message]:
        listing = self.repository.git("rev-list", "--format=%x01%H%x00%P%x00%ct%x00%s%x00%b", *tips).out
        rows = [row.split("\0") for row in listing.split("\1")[1:]]
        lines = {id: (parents, when, subject, body) for id, parents, when, subject, body in rows}
        return {
            id: Message(
                tuple(parents.split()), int(when) // 86_400, subject, re.sub(r"\ncommit [0-9a-f]{40}\n$", "", body)
            )
            for id, (parents, when, subject, body) in lines.items()
        }

    def _first_parents(self, tip: str) -> list[str]:
        chain = []
        while tip in self.all:
            chain.append(tip)
            tip = next(iter(self.all[tip].parents), "")
        return chain[::-1]

    def _within(self, id: str, number: int) -> None:
        """Count the commits that a merge brings as parts of it."""
        ahead = list(self.all[id].parents[1:])
        while ahead:
            parent = ahead.pop()
            if parent in self.all and parent not in self.index and parent not in self.inner:
                self.inner[parent] = number
                ahead += self.all[parent].parents

    def _release(self, number: int, version: str) -> None:
        chain, tip = [], self.tips[version]
        reached, ahead, position = set(), [tip], -1
        while ahead:
            id = ahead.pop()
            if id in reached or id not in self.all:
                continue
            reached.add(id)
            if (place := self.index.get(id, len(self.main))) < len(self.main):
                position = max(position, place)
                continue
            ahead += self.all[id].parents
        self.position[version] = position
        while tip in self.all and self.index.get(tip, len(self.main)) >= len(self.main) and tip not in self.inner:
            chain.append(tip)
            tip = next(iter(self.all[tip].parents), "")
        for id in reversed(chain):
            if id not in self.index:
                self.index[id] = len(self.order)
                self.order.append(id)
                self._within(id, self.index[id])
            self.picks[self.index[id]].add(number)

    def _pair(self) -> None:
        """Find the commits of main that a release's branch took over: by their ids, subjects, or numbers."""
        by_title = {key(self.all[id].title): k for k, id in enumerate(self.main)}
        by_number = {
            found[1] or f"!{found[2]}": k  # of a pull request, of a merge request
            for k, id in enumerate(self.main)
            if (found := re.search(r"\((#\d+)\)$|^ADLR/megatron-lm!(\d+) - ", self.all[id].subject))
        }
        self.merges = {int(name[1:]) for name in by_number if name[0] == "!"}
        for id in self.order[len(self.main) :]:
            message = self.all[id]
            trailers = re.findall(r"cherry picked from commit ([0-9a-f]{40})", message.body)
            twins = {self.index.get(one, self.inner.get(one, len(self.order))) for one in trailers}
            if not twins:
                twins = {by_title.get(key(message.title), len(self.order))}
            if twins == {len(self.order)} and not re.match(r"(?i)(?:\w+: )?\W*revert", message.subject):
                named = re.findall(r"(#?)\b(\d{3,5})\b", message.subject)
                names = [
                    f"!{number}" if not sharp and f"!{number}" in by_number else f"#{number}" for sharp, number in named
                ]
                twins = {by_number.get(name, len(self.order)) for name in names}
            for twin in twins:
                if twin < len(self.main) and self.all[self.main[twin]].day <= message.day + DAYS:
                    releases = self.picks[self.index[id]]
                    self.picks[twin] |= {n for n in releases if self.position[self.releases[n]] < twin}

    def reverts(self) -> dict[int, int]:
        """Return commit -> the commit that reverts it."""
        titles: dict[str, int] = {}  # of the commits before
        pairs = {}
        for k, id in enumerate(self.order):
            message = self.all[id]
            named = re.search(r"This reverts commit ([0-9a-f]{7,40})", message.body)
            quoted = re.match(r'(?:\w+: )?[Rr]evert "(.*?)"', message.title)
            other = next((self.index[one] for one in self.index if named and one.startswith(named[1])), None)
            other = titles.get(key(quoted[1])) if other is None and quoted else other
            if other is not None and other != k:
                pairs[other] = k
            titles[key(message.title)] = k
        return pairs


def key(title: str) -> str:
    """Return a subject without what a cherry-pick adds: numbers, quotes, its own words."""
    title = re.sub(r"(?i)^(?:adlr/megatron-lm!\d+ - )?(?:cherry[- ]pick(?:ed)?:?\s*)?", "", title)
    title = re.sub(r"(?i)into `[^`]*`|\(#?\d+\)|[`'\"]|^chore: |\bcp: ", " ", title)
    return " ".join(title.lower().split())


class Wheels(History):
    """A project without a clone: no commit is known, up to today."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream, self.head, self.inner, self.position, self.merges = upstream, "", {}, {}, set()
        self.all, self.tips, self.index, self.picks = {"": Message((), int(time.time()) // 86_400, "", "")}, {}, {}, {}
        self.releases = self.main = self.order = []


class Maker:
    """Makes the index of one project."""

    def __init__(self, history: History, trees: Mapping[str, Path]) -> None:
        self.history, self.trees = history, trees
        self.sources = re.compile(history.upstream.sources)
        self.source = lru_cache(maxsize=6_000)(
            lambda id: read_source(self.history.repository.object(id)[1].decode("utf-8", "replace"))
        )  # by id: no object is read twice
        self.moved: dict[str, str] = {}
        self.changes: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self.last_files: tuple[str, dict[str, str]] = ("", {})

    def files(self, commit: str) -> dict[str, str]:
        """Return path -> blob of the sources of a commit."""
        if self.last_files[0] != commit:
            found: dict[str, str] = {}
            roots = {"megatron-core": ("megatron", "tools"), "transformer-engine": ("transformer_engine",)}
            for folder in roots.get(self.history.upstream.component, ("src/megatron/bridge",)):
                if self.history.repository.id(f"{commit}:{folder}"):
                    found |= self.history.repository.files(commit, folder, lambda path: bool(self.sources.match(path)))
            if self.history.upstream.component == "megatron-core":
                found |= {
                    n: i
                    for n, is_folder, i in self.history.repository._tree(f"{commit}:", "")
                    if not is_folder and self.sources.match(n)
                }
            self.last_files = (commit, found)
        return self.last_files[1]

    def commits(self) -> None:
        """Compare each commit with its first parent."""
        start = max(self.history.position[self.history.releases[0]], 1)
        for id in (*self.history.main[start + 1 :], *self.history.order[len(self.history.main) :]):
            parent = next(iter(self.history.all[id].parents), "")
            old, new = dict(self.files(parent)), self.files(id)
            self._commit(self.history.index[id], old, new)

    def _commit(self, number: int, old: dict[str, str], new: dict[str, str]) -> None:
        gone = {path for path in old if path not in new}
        for path in [path for path in new if old.get(path) != new[path]]:
            alike = (one for one in sorted(gone) if path not in old and self._alike(old[one], new[path]))
            before = path if path in old else next(alike, "")
            if before and before != path and number < len(self.history.main):
                self.moved[before] = path
                gone.discard(before)
            self._compare(number, path, self.source(old[before]) if before else Source(), self.source(new[path]))
        for path in gone:
            self._compare(number, path, self.source(old[path]), Source())

    def _alike(self, one: str, two: str) -> bool:
        return one == two or alike(self.source(one), self.source(two))

    def moves(self) -> None:
        """Find the files that moved between releases, of a project whose commits are not known."""
        releases = [dict(self._of_release(version)) for version in sorted(self.trees, key=Version)]
        for number, (old, new) in enumerate(pairwise(releases), 1):
            for path in sorted(new.keys() - old.keys()):
                gone = old.keys() - {*self.moved}.union(*releases[number:])
                before = next((one for one in sorted(gone) if alike(old[one], new[path])), "")
                self.moved |= {before: path} if before else {}

    def _compare(self, number: int, path: str, old: Source, new: Source) -> None:
        before, after = old.bodies, new.bodies
        for label in sorted({*before, *after}):
            first, second = before.get(label, []), after.get(label, [])
            if first != second and (first or old.lines) and (second or new.lines):
                lost, won = Counter(first) - Counter(second), Counter(second) - Counter(first)
                lost_words, won_words = (
                    Counter(word for line in lines.elements() for word in words_of(line)) for lines in (lost, won)
                )
                words = [*(won_words - lost_words), *(lost_words - won_words)] if first and second else []
                words = sorted(set(words), key=lambda word: (-len(word), word))[:MOST_WORDS]
                removed = sorted({hash_of_line(line) for line in lost if line.strip()})[:MOST_REMOVED] if second else []
                kind = 0 if first and second else MADE if second else REMOVED
                row = [number, kind, "".join(f"{hash_of_word(word):04x}" for word in words), bytes(removed).hex()]
                self.changes[path][label].append(row)

    def where(self, path: str, newest: Collection[str]) -> str:
        """Return the newest path of a file."""
        passed = {path}
        while path not in newest and (further := self.moved.get(path, "")) and further not in passed:
            path = further
            passed.add(path)
        return path

    def write(self, target: Path) -> dict[str, Any]:
        """Write the index; return its counts."""
        releases = sorted({*self.history.releases, *self.trees}, key=Version)
        newest = self.files(self.history.head) if self.history.main else dict(self._of_release(releases[-1]))
        weaves: dict[str, Weave] = defaultdict(Weave)
        for number, version in enumerate(releases):
            for path, source in self._of_release(version):
                weaves[self.where(path, newest)].add(number, path, source)
        changes: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for path, labels in self.changes.items():
            for label, rows in labels.items():
                changes[self.where(path, newest)][label] += rows
        files = sorted({*weaves, *changes})
        blocks = [weaves[path].block({label: sorted(rows) for label, rows in changes[path].items()}) for path in files]
        common = common_text(blocks)
        blocks.append(plain(self._commits(releases)))
        blocks.append(plain(defined([(*(row[0][0] for row in weaves[path].rows), *changes[path]) for path in files])))
        parts = [packed(common), *(packed(block, common) for block in blocks)]
        ends = [*accumulate(map(len, parts))]
        places = [[end - len(part), len(part)] for end, part in zip(ends, parts, strict=True)]
        old = {path: newer for path in self.moved if (newer := self.where(path, newest)) != path and newer in files}
        head = self.history.all[self.history.head]
        content = {
            "repository": self.history.upstream.repository,
            "component": self.history.upstream.component,
            "commit": self.history.head,
            "day": head.day,
            "releases": releases,
            "tagged": [version in self.history.tips for version in releases],
            "common": len(parts[0]),
            "files": dict(zip(files, places[1:], strict=False)),
            "old": old,
            "commits": places[-2],
            "definitions": places[-1],
        }
        header = packed(plain(content))
        target.write_bytes(len(header).to_bytes(4, "big") + header + b"".join(parts))
        return {
            "files": len(files),
            "functions": sum(len({row[0][0] for row in weave.rows}) for weave in weaves.values()),
            "commits": len(self.history.order),
            "messages": sum(len(weave.messages) for weave in weaves.values()),
            "changes": sum(len(rows) for labels in changes.values() for rows in labels.values()),
            "releases": len(releases),
            "bytes": target.stat().st_size,
        }

    def _of_release(self, version: str) -> Iterator[tuple[str, Source]]:
        if version in self.history.tips:
            for path, id in self.files(self.history.tips[version]).items():
                yield path, self.source(id)
        else:
            folder = self.trees[version]
            prefix = "src/" if self.history.upstream.component == "megatron-bridge" else ""
            for file in sorted(folder.rglob("*.py")):
                path = prefix + file.relative_to(folder).as_posix()
                if self.sources.match(path):
                    yield path, read_source(file.read_text("utf-8", "replace"))

    def _commits(self, releases: Sequence[str]) -> dict[str, Any]:
        history = self.history
        place = {number: releases.index(version) for number, version in enumerate(history.releases)}
        messages = [history.all[id] for id in history.order]
        numbers: dict[int, set[int]] = defaultdict(set)
        for id, k in [*history.index.items(), *history.inner.items()]:
            message = history.all[id]
            linked = set(map(int, re.findall(r"[#/](\d{1,5})\b", f"{message.subject}\n{message.body}")))
            numbers[k] |= {number for number in message.numbers if number in linked or number not in history.merges}
        positions, last = [], -1
        for version in releases:
            last = history.position.get(version, last)
            positions.append(last)
        return {
            "ids": "".join(id[:10] for id in history.order),
            "days": [message.day for message in messages],
            "subjects": [message.title for message in messages],
            "numbers": {k: sorted(named) for k, named in sorted(numbers.items()) if named},
            "main": len(history.main),
            "positions": positions,
            "picks": {k: sorted(place[n] for n in picks) for k, picks in history.picks.items()},
            "reverts": history.reverts(),
            "inner": ["".join(id[:10] for id in history.inner), list(history.inner.values())],
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the index of a project."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=UPSTREAMS)
    parser.add_argument("sources", nargs="+", metavar="CLONE | VERSION=FOLDER")
    parsed = parser.parse_args(arguments)
    start, upstream, target = time.monotonic(), UPSTREAMS[parsed.name], DATA / f"{parsed.name}.bin"
    trees = {
        version: Path(folder) for version, found, folder in (one.partition("=") for one in parsed.sources) if found
    }
    clones = [one for one in parsed.sources if "=" not in one]
    if clones:
        with Repository(Path(clones[0])) as repository:
            maker = Maker(History(repository, upstream), trees)
            maker.commits()
            counts = maker.write(target)
    else:
        maker = Maker(Wheels(upstream), trees)
        maker.moves()
        counts = maker.write(target)
    print(parsed.name, counts, f"{time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
