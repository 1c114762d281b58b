"""Mine API mismatches that projects mended, and count those that the reader finds in the commit before.

    python bench/contract_recall.py --provider PACKAGE=CLONE_OR_WHEELS ... --consumer CLONE ... [--most 60]
    python bench/contract_recall.py --truths bench/contract_truths.toml --consumer CLONE ...

The first line mines truths from histories alone, without the reader, and prints them as TOML. A commit whose message
has a word of FIX removes or guards one of these in a file, and some releases of the provider lack it while others have
it: an imported name, an attribute of an imported module or class, a keyword of a call to an imported name. A call may
be `super().__init__()` of a class with an imported base, a keyword a key of a dictionary that is passed with `**`, an
import an optional one, in a try statement. Both sides are read with `ast`: of the provider every release's modules,
names and parameters (tags of a clone, or a folder of wheels), of the consumer the two blobs of the file. Names are
compared as they are written; there is no evaluation, no guard and no scope. The changed files of a history come in
drawn order (`--seed`) until `--most` truths of each project are mined. What a commit mends in several files is one
truth.

The second line runs the reader on recorded truths. A truth is a file of such a commit. The reader finds it if it has a
finding that names one of its symbols, at a line of it in the parent commit, for the release that lacks it and is
nearest to one that has it; the file is read alone. Behind is one that it finds at its line, with the break that raises
before it: with that release the code does not come to it. Of a missing member of a missing class the import is the
finding. contract_truths.toml states why a truth is no mismatch (`no_mismatch`), and the class of a missed one.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import subprocess
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, NamedTuple

from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.versions import parse
from matrix.read.api import recording
from matrix.read.api.comparison import find
from matrix.read.api.consuming import read_calls
from matrix.read.api.definition import absolute
from matrix.read.api.pairs import recorded, released
from matrix.read.api.provider import Provider, provider_of

SINCE: Final = "2023-06-01"  # before it no framework called megatron-core
FIX: Final = "mcore|megatron.?core|compat|bump|upgrade|deprecat"  # in the message of a commit that mends a mismatch
FOUND, BEHIND, OWNER, MISSED = "found", "found behind another break", "found at its class", "missed"
NO_MISMATCH: Final = "no mismatch"
WORD: Final = re.compile(rb"\w+")
MOST_EXPORTS: Final = 3  # modules that a name passes through
NEAR: Final = 3  # lines between an argument and the statement that it is part of
# What a version's code may stand in; a use there is guarded already.
GUARDED: Final = re.compile(
    r"version|hasattr|signature|getattr|HAVE|HAS_|avail|TYPE_CHECKING|_ge_|_GE_|MCORE|MIN_|support"
)
CAUGHT: Final = re.compile(r"\b(?:ImportError|ModuleNotFoundError|AttributeError|TypeError|(?:Base)?Exception)\b")
OPTIONAL: Final = {"ImportError", "ModuleNotFoundError"}
ANY: Final = ast.Name("Exception")  # what a handler without a type catches
CONSTRUCTOR: Final = re.compile(r"super\(.*\)\.__init__")
TAG: Final = re.compile(r"(?:core_)?v(\d+\.\d+(?:\.\d+)?)")
READ: Final = {
    "megatron-core": re.compile(r"megatron/core/.*\.py"),
    "transformer-engine": re.compile(r"transformer_engine/(?!jax|paddle|tensorflow).*\.py"),
    "torch": re.compile(
        r"torch/(__init__|(distributed|optim|utils|amp|cuda|onnx|nn/functional|library|autograd)\b.*)\.py"
    ),
}
Names = dict[str, set[str]]
File = tuple[str, object, Callable[[], bytes]]  # path, identity of the content, content


@dataclass
class Api:
    """The names of one release: of each module and class, and the parameters of each callable by its bare name.

    A callable that takes any keyword has "**". `sources` are the paths that a module's imported name may stand for.
    """

    names: Names = field(default_factory=dict)
    parameters: Names = field(default_factory=dict)
    sources: Names = field(default_factory=dict)

    def lacks(self, truth: Symbol) -> bool | None:
        """Return whether this release lacks a symbol; None if its owner is missing too."""
        owner, name, is_keyword = truth
        if not is_keyword:
            for _ in range(MOST_EXPORTS):  # a class that another module has imported
                owner = owner if owner in self.names else min(self.sources.get(owner, {owner}))
            if owner in self.names and (name in self.names[owner] or f"{owner}.{name}" in self.names):
                return False
            return None if "*" in self.names.get(owner, ()) else True
        known = self.parameters.get(owner)
        return None if known is None or "**" in known else name not in known


class Symbol(NamedTuple):
    """A name of a module or class, or a keyword of a callable."""

    owner: str
    name: str
    is_keyword: bool


class Lack(NamedTuple):
    """A symbol that a file uses at a line, and the release that lacks it beside one that has it."""

    symbol: Symbol
    line: int
    release: str
    works: str

    def __str__(self) -> str:
        owner, name, is_keyword = self.symbol
        return f"{self.line}: {owner}{'()' if is_keyword else ''}.{name}: not in {self.release}, in {self.works}"


class Truth(NamedTuple):
    """A file in the parent of a commit that breaks with some releases of a provider, and is mended by the commit."""

    consumer: Path
    commit: str
    subject: str
    path: str
    provider: Provider
    lacks: Sequence[Lack]

    def __str__(self) -> str:
        return f"{project(self.consumer)} {self.commit[:10]} {self.path} x {self.provider.package}"

    def to_toml(self) -> str:
        """Return a row of contract_truths.toml."""
        lacks = [[*lack.symbol, [lack.line, lack.release, lack.works]] for lack in self.lacks]
        values = {
            "project": project(self.consumer),
            "commit": self.commit,
            "path": self.path,
            "provider": self.provider.package,
            "lacks": lacks,
        }
        return "\n".join(["[[truth]]", f"# {self.subject}", *(f"{k} = {json.dumps(v)}" for k, v in values.items()), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--provider", action="append", default=[], help="PACKAGE=CLONE, or a folder of wheels")
    parser.add_argument("--consumer", type=Path, action="append", required=True, help="OWNER+NAME/CLONE, with history")
    parser.add_argument("--truths", type=Path, help="a file of recorded truths, on which the reader is run")
    parser.add_argument("--message", default=FIX, help="a regular expression for the messages of the commits that mend")
    parser.add_argument("--most", type=int, default=60)
    parser.add_argument("--seed", type=int, default=35)
    options = parser.parse_args()
    if options.truths:
        judge(options.truths, options.consumer)
        return
    for text in options.provider:
        package, _, source = text.partition("=")
        offers = apis(package, Path(source))
        for clone in options.consumer:
            if clone != Path(source):
                order = random.Random(f"{options.seed} {project(clone)}")
                truths = mined(clone, provider_of(package), offers, order, options.message)
                for truth in islice(truths, options.most):
                    print(truth.to_toml(), flush=True)


def judge(file: Path, clones: Sequence[Path]) -> None:
    """Run the reader on the truths of a file, and print the counts."""
    counts: Counter[str] = Counter()
    by_project = {project(clone): clone for clone in clones}
    for row in read_toml(file)["truth"]:
        lacks = [Lack(Symbol(*symbol), *rest) for *symbol, (*rest,) in row["lacks"]]
        truth = Truth(by_project[row["project"]], row["commit"], "", row["path"], provider_of(row["provider"]), lacks)
        word = NO_MISMATCH if "no_mismatch" in row else judgement(truth)
        counts[word] += 1
        print(f"{word} {truth}: {row.get('no_mismatch') or row.get('missed', '')}", *lacks, sep="\n    ", flush=True)
    print(dict(counts))


def project(clone: Path) -> str:
    """Return owner/name of a clone."""
    return clone.parent.name.replace("+", "/")


# ---------------------------------------------------------------- provider


def apis(package: str, source: Path) -> dict[str, Api]:
    """Return the API of each recorded release that a clone has a tag of, or a folder a wheel."""
    kept: dict[object, Api] = {}
    versions = set(recording.recorded_surfaces(provider_of(package)))
    found: dict[str, Api] = {}
    for version, files in sorted(releases(package, source), key=lambda item: parse(item[0])):
        if version in versions:
            found[version] = api = Api()
            for path, identity, text in files:
                if (identity, path) not in kept:
                    kept[identity, path] = of_file(path, text())
                for every, part in ((getattr(api, name), getattr(kept[identity, path], name)) for name in vars(api)):
                    for key, values in part.items():
                        every.setdefault(key, set()).update(values)
    return found


def content(clone: Path, blob: str) -> bytes:
    return blobs(clone, [blob])[blob]


def releases(package: str, source: Path) -> Iterator[tuple[str, list[File]]]:
    """Yield each release with its files."""
    if not (source / "objects").is_dir():
        for wheel in source.glob(f"{package.replace('-', '_')}-*.whl"):
            archive = zipfile.ZipFile(wheel)
            members = [info for info in archive.infolist() if READ[package].fullmatch(info.filename)]
            files = [(info.filename, info.CRC, partial(archive.read, info)) for info in members]
            yield wheel.name.split("-")[1], list[File](files)
        return
    for tag in git(source, "tag").split():
        match = TAG.fullmatch(tag)
        if match:
            version = match[1] if match[1].count(".") == 2 else f"{match[1]}.0"
            rows = [row.split() for row in git(source, "ls-tree", "-r", tag).splitlines()]
            paths = [(row[3], row[2]) for row in rows if READ[package].fullmatch(row[3])]
            yield version, [(path, blob, partial(content, source, blob)) for path, blob in paths]


def of_file(path: str, content: bytes) -> Api:
    """Return what a module adds to an API."""
    api = Api()
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    names = api.names.setdefault(module, set())
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            source = absolute("." * node.level + (node.module or ""), module, path.endswith("__init__.py"))
            for alias in node.names:
                api.sources.setdefault(f"{module}.{alias.asname or alias.name}", set()).add(f"{source}.{alias.name}")
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
            add(api, node.name, node.args)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            of_class(api, f"{module}.{node.name}", node)
    return api


def of_class(api: Api, path: str, node: ast.ClassDef) -> None:
    members = api.names.setdefault(path, set())
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            members.add(part.attr)
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            members.add(part.id)
        elif isinstance(part, ast.FunctionDef):
            members.add(part.name)
    constructors = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    is_data = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    parameters = api.parameters.setdefault(node.name, set())
    for constructor in constructors:
        add(api, node.name, constructor.args)
    if is_data and not constructors:
        parameters |= {
            part.target.id
            for part in node.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        }
    if not constructors and (not is_data or [base for base in node.bases if ast.unparse(base) != "object"]):
        parameters.add("**")  # it may inherit any
    if node.bases:
        members.add("*")  # it may inherit any


def add(api: Api, name: str, arguments: ast.arguments) -> None:
    slots = [*arguments.posonlyargs, *arguments.args]
    known = {slot.arg for slot in [*slots, *arguments.kwonlyargs]} | ({"**"} if arguments.kwarg else set())
    api.parameters.setdefault(name, set()).update(known)


# ---------------------------------------------------------------- consumer


def changes(
    clone: Path, message: str, is_read: Callable[[str], bool], source: random.Random
) -> Iterator[tuple[str, str, str, bytes, bytes]]:
    """Yield (commit, subject, path, content before, content after) of each changed Python file, in drawn order."""
    fixes = (f"--since={SINCE}", "-E", "-i", f"--grep={message}", "--no-merges")
    raw = ("--raw", "-r", "--no-abbrev", "--no-renames", "--diff-filter=M")
    log = git(clone, "log", *fixes, *raw, "--format=%x01%H%x09%s", "HEAD", "--", "*.py")
    rows: list[tuple[str, str, str, str, str]] = []
    for entry in log.split("\x01")[1:]:
        head, *lines = entry.splitlines()
        commit, _, subject = head.partition("\t")
        for fields, path in (line.split("\t") for line in lines if line.startswith(":")):
            old, new = fields.split()[2:4]
            if is_read(path):
                rows.append((commit, subject, path, old, new))
    source.shuffle(rows)
    for first in range(0, len(rows), 200):
        part = rows[first : first + 200]
        contents = blobs(clone, [blob for row in part for blob in row[3:]])
        for commit, subject, path, old, new in part:
            if old in contents and new in contents:
                yield commit, subject, path, contents[old], contents[new]


class Used(NamedTuple):
    """What a file uses without a guard: symbol -> line."""

    symbols: dict[Symbol, int]
    optional: dict[Symbol, int]  # what it imports in a try statement, or passes with **: a form that a guard takes, too


def used(content: bytes, provider: Provider) -> Used:
    """Return what a file uses of a provider."""
    tree = ast.parse(content)
    known = imported(tree)
    result = Used({}, {})
    unseen, optional = guarded(tree, provider)
    is_provided = {name for name, path in known.items() if provider.owns(path)}
    constructors, collected = base_constructors(tree), collected_keywords(tree, unseen)
    for node in ast.walk(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.ImportFrom) and not node.level and provider.owns(node.module or ""):
            imports = result.optional if node in optional else result.symbols
            for alias in node.names:
                imports[Symbol(node.module or "", alias.name, is_keyword=False)] = node.lineno
        elif isinstance(node, ast.Attribute):
            first, _, rest = dotted(node.value).partition(".")
            if first in is_provided:
                path = known[first] + (f".{rest}" if rest else "")
                result.symbols.setdefault(Symbol(path, node.attr, is_keyword=False), node.lineno)
        elif isinstance(node, ast.Call):
            first, *attributes = (constructors.get(node) or dotted(node.func)).split(".")
            if first in is_provided:
                bare = attributes[-1] if attributes else known[first].split(".")[-1]
                for keyword in node.keywords:
                    if keyword.arg:
                        result.symbols.setdefault(Symbol(bare, keyword.arg, is_keyword=True), node.lineno)
                for name in collected.get(node, ()):
                    result.optional.setdefault(Symbol(bare, name, is_keyword=True), node.lineno)
    return result


def imported(tree: ast.AST) -> dict[str, str]:
    """Return the names that a file imports: name -> dotted path."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top_name = alias.name.partition(".")[0]
                known[alias.asname or top_name] = alias.name if alias.asname else top_name
    return known


def guarded(tree: ast.AST, provider: Provider) -> tuple[set[ast.AST], set[ast.AST]]:
    """Return the nodes that a version's code may stand in, and the optional imports.

    Where an optional import fails, a feature is off; where its handler uses the provider, it is guarded.
    """
    nodes: set[ast.AST] = set()
    optional: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp)) and GUARDED.search(ast.unparse(node.test)):
            nodes.update(ast.walk(node))
        elif isinstance(node, ast.Try):
            handlers = {part for handler in node.handlers for part in ast.walk(handler)}
            body = {part for statement in node.body for part in ast.walk(statement)}
            caught = CAUGHT.findall(" ".join(ast.unparse(handler.type or ANY) for handler in node.handlers))
            others = {*map(dotted, handlers), *(path for part in node.handlers for path in imported(part).values())}
            nodes |= handlers
            if any(map(provider.owns, others)):
                nodes |= body
            elif caught:
                imports = {part for part in body if isinstance(part, ast.ImportFrom)}
                optional |= imports
                nodes |= body - imports if {*caught} - OPTIONAL else set()
    return nodes, optional


def base_constructors(tree: ast.AST) -> dict[ast.AST, str]:
    """Return the calls of the constructor of a class's first base: call -> the base as it is written."""
    calls: dict[ast.AST, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.bases:
            parts = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
            calls |= {part: dotted(node.bases[0]) for part in parts if CONSTRUCTOR.fullmatch(ast.unparse(part.func))}
    return calls


def collected_keywords(tree: ast.AST, unseen: Collection[ast.AST]) -> dict[ast.AST, list[str]]:
    """Return the keywords that a function puts in a dictionary and passes with **: call -> keywords."""
    calls: dict[ast.AST, list[str]] = {}
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            nodes = [node for node in ast.walk(function) if node not in unseen]
            keys: dict[str, list[str]] = {}
            for name, part in stored_keys(nodes):
                keys.setdefault(name, []).extend(part)
            for node in nodes:
                for keyword in node.keywords if isinstance(node, ast.Call) else ():
                    if not keyword.arg:
                        found = keys_of(keyword.value) + keys.get(dotted(keyword.value), [])
                        calls.setdefault(node, []).extend(found)
    return calls


def stored_keys(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, list[str]]]:
    """Yield the keys that assignments give a dictionary: `keywords = {"key": ...}` and `keywords["key"] = ...`."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    yield dotted(target.value), keys_of(ast.Dict([target.slice], []))
                else:
                    yield dotted(target), keys_of(node.value)


def keys_of(node: ast.AST) -> list[str]:
    """Return the keys of a dictionary that are written in it."""
    if isinstance(node, ast.Dict):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        return [key for key in keys if isinstance(key, str)]
    if isinstance(node, ast.Call) and dotted(node.func) == "dict":
        return [keyword.arg for keyword in node.keywords if keyword.arg]
    return []


def dotted(node: ast.AST) -> str:
    """Return a.b.c for an attribute of names, "" for anything else."""
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return owner and f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def mined(
    clone: Path, provider: Provider, offers: Mapping[str, Api], source: random.Random, message: str
) -> Iterator[Truth]:
    """Yield the truths of a project's history, in drawn order."""
    owners = varying(offers)
    borders: dict[Symbol, tuple[str, str] | None] = {}
    mended: set[tuple[str, Symbol]] = set()
    for commit, subject, path, old, new in changes(
        clone, message, lambda path: not provider.files.fullmatch(path) and "test" not in path, source
    ):
        if provider.top.encode() not in old:
            continue
        # Before both are parsed: a removed line has a name that varies, and the file that of its owner.
        removed = {word for line in {*old.splitlines()}.difference(new.splitlines()) for word in WORD.findall(line)}
        words = set(WORD.findall(old))
        if not any(words & owners[word] for word in removed & owners.keys()):
            continue
        try:
            before, after = used(old, provider), used(new, provider)
        except (SyntaxError, ValueError):
            continue
        rest = new.decode("utf-8", "replace")
        lacks: list[Lack] = []
        for symbol, line in {**before.optional, **before.symbols}.items():
            if symbol not in borders:
                borders[symbol] = nearest(symbol, offers)
            is_kept = symbol in after.symbols or (symbol in after.optional and symbol not in before.symbols)
            border = not is_kept and (commit, symbol) not in mended and borders[symbol]
            # What only older releases lack is mended where the new text still has it, under a guard.
            if border and (parse(border[0]) > parse(border[1]) or re.search(rf"\b{symbol.name}\b", rest)):
                lacks.append(Lack(symbol, line, *border))
        mended |= {(commit, lack.symbol) for lack in lacks}
        if lacks:
            yield Truth(clone, commit, subject, path, provider, lacks)


def varying(offers: Mapping[str, Api]) -> dict[bytes, set[bytes]]:
    """Return the names and parameters that some releases lack, each with the last names of its owners."""
    words: dict[bytes, set[bytes]] = {}
    for kind in ("names", "parameters"):
        for owner in {owner for api in offers.values() for owner in getattr(api, kind)}:
            every = [getattr(api, kind).get(owner, set()) for api in offers.values()]
            last = owner.rpartition(".")[2].encode()
            for word in set.union(*every) - set.intersection(*every):
                words.setdefault(word.encode(), set()).add(last)
            if not all(every):  # the module or class itself, which is a name of its parent
                words.setdefault(last, set()).add(last)
    return words


def nearest(symbol: Symbol, offers: Mapping[str, Api]) -> tuple[str, str] | None:
    """Return the last release that lacks a symbol beside one that has it, and that one."""
    known = [(version, lacks) for version, api in offers.items() if (lacks := api.lacks(symbol)) is not None]
    for (left, misses), (right, lacks) in reversed([*pairwise(known)]):
        if misses != lacks:
            return (right, left) if lacks else (left, right)
    return None


# ------------------------------------------------------------------ reader


def judgement(truth: Truth) -> str:
    """Return FOUND for a finding that names a symbol at one of its lines in the parent commit, BEHIND for a masked one.

    OWNER: the class of a missing member is missing itself, and its import is the finding.
    """
    source = git(truth.consumer, "show", f"{truth.commit}~1:{truth.path}")
    name, files = project(truth.consumer), {truth.path: source.encode()}
    calls = read_calls(files, "parent", provider=truth.provider, consumer=name, part=lambda path: True)
    words: set[str] = set()
    for symbol, line, release, _ in truth.lacks:
        lines = [number for number, text in enumerate(source.splitlines(), 1) if symbol.name in text] + [line]
        for finding in find(calls, recorded(truth.provider, release), history=released(truth.provider)):
            is_near = any(abs(finding.call_site.line - number) <= NEAR for number in lines)
            # Of several wrong arguments of a call Python names the first.
            callee = finding.callee.removesuffix(".__init__").rpartition(".")[2]
            is_its_call = symbol.is_keyword and callee == symbol.owner
            if is_near and (is_its_call or symbol.name in f"{finding.callee} {finding.message}"):
                words.add(BEHIND if finding.masked else FOUND)
            elif finding.callee == symbol.owner:
                words.add(OWNER)
    return next((word for word in (FOUND, BEHIND, OWNER) if word in words), MISSED)


def blobs(clone: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of blobs that the clone has."""
    command = ["git", "-C", str(clone), "cat-file", "--batch"]
    data = subprocess.run(command, input="\n".join(names).encode(), capture_output=True, check=True).stdout
    contents: dict[str, bytes] = {}
    start = 0
    while start < len(data):
        end = data.index(b"\n", start)
        blob, *facts = data[start:end].split()
        size = int(facts[1]) if len(facts) == 2 else -1
        if size >= 0:
            contents[blob.decode()] = data[end + 1 : end + 1 + size]
        start = end + 2 + size
    return contents


def git(clone: Path, *command: str) -> str:
    """Return what a git command prints."""
    result = subprocess.run(["git", "-C", str(clone), *command], capture_output=True, check=True)
    return result.stdout.decode(errors="replace")


if __name__ == "__main__":
    main()
