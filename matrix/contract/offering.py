"""Read the API of a provider (Transformer Engine, megatron-core, torch) from its sources, without importing it.

This uses the standard library's ast, not griffe (2.4.1, still released regularly, pure Python). griffe was tried on
TE 2.18: it resolves re-exports well, but takes 1.1 s where ast takes 0.4 s, keeps only one definition of a name that
two branches define differently, and does not record calls and guards, so the other half of this package would need
ast anyway. griffe would save about a hundred lines and add a dependency wherever a working tree is checked.

Branches that torch decides at run time (`if torch_version() >= ...`) are kept as alternatives. Compiled names come
from the pybind11 sources; without them the compiled module stays unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from matrix.contract.definition import ENUMERATIONS, Names, absolute, class_entry, dotted, function_entry, parsed
from matrix.contract.provider import TRANSFORMER_ENGINE, Provider
from matrix.contract.surface import Entry, Surface
from matrix.contract.within import use_within

PYBIND_NAME = re.compile(
    r'(?:\bm\.(?:def|attr)\s*\(|(?:py|pybind11)::(?:enum_|class_)\s*<[^;{]*?>\s*\(\s*m\s*,)\s*"(\w+)"', re.DOTALL
)
COMPILED_IMPORT = re.compile(r"^\s*(?:from|import)\s+(transformer_engine_(?:torch|extensions))\b", re.MULTILINE)
UNKNOWN: Names = {"__getattr__": "~"}  # of a module that is not recorded itself


def read_offering(
    files: Mapping[str, bytes],
    version: str,
    origin: Mapping[str, str] | None = None,
    provider: Provider = TRANSFORMER_ENGINE,
) -> Surface:
    """Return the surface of a provider, given its `files` (path -> content). Raises SyntaxError for a broken file."""
    sources = dict(_python_modules(files, provider))
    readers = {
        name: _ModuleReader(name, is_package, frozenset(sources), parsed(text), provider)
        for name, (is_package, text) in sources.items()
    }
    modules = {name: reader.names for name, reader in readers.items()}
    unread = (path for path in sorted(files) if provider.unread.fullmatch(path))
    modules |= {name: UNKNOWN for name, _ in map(_module_name, unread) if name not in modules}
    for name in readers:
        _expand_stars(name, readers)
    for name in list(modules):
        for place in range(name.count(".")):
            modules.setdefault(name.rsplit(".", place + 1)[0], UNKNOWN)
    compiled = {match for _, text in sources.values() for match in COMPILED_IMPORT.findall(text)}
    compiled_names = _compiled_names(files)
    if compiled_names:
        modules.update(dict.fromkeys(compiled, compiled_names))
    # Without the root, the modules that importing it loads are unknown.
    dormant = frozenset(sources) - _imported(provider.top, readers) if provider.top in sources else frozenset()
    trees = {name: reader.tree for name, reader in readers.items()}
    return Surface(version, modules, dormant, dict(origin or {}), provider.package, *use_within(modules, trees))


def is_part(path: str) -> bool:
    """Return whether a file belongs to the surface of Transformer Engine."""
    return TRANSFORMER_ENGINE.files.fullmatch(path) is not None


def _python_modules(files: Mapping[str, bytes], provider: Provider) -> Iterator[tuple[str, tuple[bool, str]]]:
    for path in sorted(files):
        if path.endswith(".py") and provider.files.fullmatch(path):
            name, is_package = _module_name(path)
            yield name, (is_package, files[path].decode("utf-8", "replace"))


def _module_name(path: str) -> tuple[str, bool]:
    parts = path.removesuffix(".py").split("/")
    is_package = parts[-1] == "__init__"
    return ".".join(parts[:-1] if is_package else parts), is_package


def _compiled_names(files: Mapping[str, bytes]) -> Names:
    names: set[str] = set()
    for path, content in files.items():
        if not path.endswith(".py"):
            names.update(PYBIND_NAME.findall(content.decode("utf-8", "replace")))
    return dict.fromkeys(sorted(names), "~")


@dataclass
class _ModuleReader:
    """Reads the names that one module defines, and the modules it imports while it is imported."""

    name: str
    is_package: bool
    known: frozenset[str]
    tree: ast.Module
    provider: Provider
    names: Names = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)
    public: list[str] | None = None

    def __post_init__(self) -> None:
        self._block(self.tree.body, self.names)

    def _block(self, body: Sequence[ast.stmt], names: Names) -> None:
        for statement in body:
            self._statement(statement, names)

    def _statement(self, node: ast.stmt, names: Names) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names[node.name] = function_entry(node)
        elif isinstance(node, ast.ClassDef):
            names[node.name] = self._class(node, names)
        elif isinstance(node, ast.Import):
            self._import(node, names)
        elif isinstance(node, ast.ImportFrom):
            self._import_from(node, names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            self._assign(node, names)
        elif isinstance(node, ast.AugAssign) and dotted(node.target) == "__all__" and self.public is not None:
            self.public += _texts(node.value)
        elif isinstance(node, ast.If):
            if not _is_type_checking(node.test):
                self._branches([node.body, node.orelse], names)
        elif isinstance(node, ast.Try):
            self._branches([[*node.body, *node.orelse], *(handler.body for handler in node.handlers)], names)
            self._block(node.finalbody, names)
        elif isinstance(node, (ast.For, ast.While)):
            for target in ast.walk(node.target) if isinstance(node, ast.For) else ():
                if isinstance(target, ast.Name):
                    names[target.id] = "="
            self._block(node.body, names)
        elif isinstance(node, ast.With):
            self._block(node.body, names)

    def _branches(self, bodies: Iterable[Sequence[ast.stmt]], names: Names) -> None:
        outcomes: list[Names] = []
        for body in bodies:
            outcome = dict(names)
            self._block(body, outcome)
            if not (body and isinstance(body[-1], ast.Raise)):
                outcomes.append(outcome)
        for name in dict.fromkeys(name for outcome in outcomes for name in outcome):
            names[name] = _alternatives(outcome[name] for outcome in outcomes if name in outcome)

    def _import(self, node: ast.Import, names: Names) -> None:
        for alias in node.names:
            if not self.provider.owns(alias.name):
                names[alias.asname or alias.name.partition(".")[0]] = "~"
                continue
            self.imports.add(alias.name)
            target = alias.name if alias.asname else alias.name.partition(".")[0]
            names[alias.asname or target] = f">{target}:"

    def _import_from(self, node: ast.ImportFrom, names: Names) -> None:
        source = absolute("." * node.level + (node.module or ""), self.name, self.is_package)
        self.imports.add(source)
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(source)
                continue
            self.imports.add(f"{source}.{alias.name}")
            names[alias.asname or alias.name] = self._imported_name(source, alias.name)

    def _imported_name(self, source: str, name: str) -> Entry:
        if not self.provider.owns(source):
            return f">{source}.{name}:" if self.provider.owns(f"{source}.{name}") else "~"
        # `from . import x` in the package itself imports the submodule, not the name that it defines.
        submodule = source == self.name and f"{source}.{name}" in self.known
        return f">{source}.{name}:" if submodule else f">{source}:{name}"

    def _assign(self, node: ast.Assign | ast.AnnAssign, names: Names) -> None:
        if node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                if target.id == "__all__":
                    self.public = _texts(node.value)
                names[target.id] = self._value(node.value, names)
            elif isinstance(target, (ast.Tuple, ast.List)):
                names.update({e.id: "=" for e in target.elts if isinstance(e, ast.Name)})

    def _value(self, node: ast.expr, names: Names) -> Entry:
        """Return the entry of an assigned value: that of `old` for `new = old`, "=" for a literal, else "~"."""
        if isinstance(node, ast.Name):
            return names.get(node.id, "~")
        if isinstance(node, ast.Attribute):
            return self._attribute(node, names)
        return "=" if isinstance(node, (ast.Constant, ast.Dict, ast.List, ast.Tuple, ast.Set)) else "~"

    def _attribute(self, node: ast.Attribute, names: Names) -> Entry:
        """Write `module.name` as an entry."""
        first, *rest = dotted(node).split(".")
        entry = names.get(first, "~")
        if not (isinstance(entry, str) and entry.startswith(">") and entry.endswith(":")):
            return "~"
        module = entry[1:-1]
        while rest and f"{module}.{rest[0]}" in self.known:
            module = f"{module}.{rest.pop(0)}"
        return f">{module}:{'.'.join(rest)}" if len(rest) < 2 else "~"

    def _class(self, node: ast.ClassDef, names: Names) -> Entry:
        empty = {"object", "ABC", "abc.ABC"}
        if any(dotted(base).rpartition(".")[2] in ENUMERATIONS for base in node.bases):
            empty |= {"str", "int", *ENUMERATIONS, *(f"enum.{name}" for name in ENUMERATIONS)}
        bases = [self._base(base, names) for base in node.bases if dotted(base) not in empty]
        return class_entry(node, bases, names, pydantic=_imports_pydantic(self.tree))

    def _base(self, node: ast.expr, names: Names) -> Entry:
        if isinstance(node, ast.Attribute):
            return self._attribute(node, names)
        entry = names.get(node.id, "~") if isinstance(node, ast.Name) else "~"
        # A class of this module is written as a reference, to avoid a copy of its entry.
        return f">{self.name}:{dotted(node)}" if isinstance(entry, (dict, list)) else entry


def _expand_stars(name: str, readers: Mapping[str, _ModuleReader]) -> None:
    """Replace `from .x import *` by the names it imports; modules outside the package stay listed under "*"."""
    reader = readers[name]
    while reader.stars:
        source = reader.stars.pop(0)
        if source not in readers:
            if reader.provider.owns(source):
                reader.names["*"] = [*reader.names.get("*", ()), source]
            continue
        _expand_stars(source, readers)
        public = readers[source].public
        for exported, _ in list(readers[source].names.items()):
            if exported == "*":
                reader.names["*"] = [*reader.names.get("*", ()), *readers[source].names["*"]]
            elif exported in public if public is not None else not exported.startswith("_"):
                reader.names.setdefault(exported, f">{source}:{exported}")


def _imported(start: str, readers: Mapping[str, _ModuleReader]) -> set[str]:
    """Return the modules that importing `start` imports."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in readers and name not in seen:
            seen.add(name)
            waiting += [*readers[name].imports, name.rpartition(".")[0]]
    return seen


def _alternatives(entries: Iterable[Entry]) -> Entry:
    found: list[Entry] = []
    for entry in entries:
        for alternative in entry if isinstance(entry, list) else [entry]:
            if alternative not in found:
                found.append(alternative)
    return found[0] if len(found) == 1 else found


def _texts(node: ast.expr) -> list[str]:
    return [str(part.value) for part in ast.walk(node) if isinstance(part, ast.Constant)]


def _is_type_checking(node: ast.expr) -> bool:
    return dotted(node).rpartition(".")[2] == "TYPE_CHECKING"


def _imports_pydantic(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pydantic") for node in tree.body)
