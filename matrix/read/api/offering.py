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
from collections.abc import Iterable, Mapping, Sequence

from matrix.read.api.api import MISSING, REDIRECTS, STATE, Entry, Surface
from matrix.read.api.definition import (
    ENUMERATIONS,
    Names,
    absolute,
    class_entry,
    dotted,
    forwarded,
    function_entry,
    module_name,
    parsed,
    uncollected,
)
from matrix.read.api.provider import TRANSFORMER_ENGINE, Provider
from matrix.read.api.self_calls import use_within

PYBIND_NAME = re.compile(
    r'(?:\bm\.(?:def|attr)\s{0,99}\(|(?:py|pybind11)::(?:enum_|class_)\s{0,99}<[^;{]{0,512}?>\s{0,99}\(\s{0,99}m\s{0,99},)\s{0,99}"(\w{1,99})"',
    re.DOTALL,
)
COMPILED_IMPORT = re.compile(r"^[ \t]*(?:from|import)\s+(transformer_engine_(?:torch|extensions))\b", re.MULTILINE)
FILLED = re.compile(rb"\b(globals\(\)|setattr\(|sys\.modules\b)")  # code that may add names to its module
ALIASED = "_VariableFunctions.pyi"  # a stub without the other names of parameters that numpy has: axis, x
UNKNOWN: Names = {"__getattr__": "~"}  # of a module that is not recorded itself


@uncollected()
def read_offering(
    files: Mapping[str, bytes],
    version: str,
    origin: Mapping[str, str] | None = None,
    provider: Provider = TRANSFORMER_ENGINE,
    used: Iterable[str] = (),
) -> Surface:
    """Return the surface of a provider, given its `files` (path -> content). Raises SyntaxError for a broken file.

    `used` are the paths that are recorded of its sparse files.
    """
    paths = [path for path in sorted(files) if path.endswith(".py") and provider.files.fullmatch(path)]
    sources = {module_name(path): (path, files[path].decode("utf-8", "replace")) for path in paths}
    readers = {
        name: _ModuleReader(name, path.endswith("__init__.py"), frozenset(sources), parsed(text), provider)
        for name, (path, text) in sources.items()
    }
    modules = {name: reader.names for name, reader in readers.items()}
    unread = [module_name(path) for path in sorted(files) if provider.unread.fullmatch(path)]
    for name in readers:
        _expand_stars(name, readers)
    pybind = [path for path in sorted(files) if provider.files.fullmatch(path) and not path.endswith(".py")]
    compiled = {name: "~" for path in pybind for name in PYBIND_NAME.findall(files[path].decode("utf-8", "replace"))}
    if compiled:
        imports = {name for _, text in sources.values() for name in COMPILED_IMPORT.findall(text)}
        modules.update(dict.fromkeys(imports, compiled))
    modules |= _SparseReader(files, provider, frozenset(sources)).read(used)
    for name in [*modules, *unread]:
        for depth in range(name.count(".") + 1):
            modules.setdefault(name.rsplit(".", depth)[0], UNKNOWN)
    # Without the root, the modules that importing it loads are unknown.
    dormant = frozenset(sources) - _imported(provider.top, readers) if provider.top in sources else frozenset()
    trees = {name: reader.tree for name, reader in readers.items()}
    return Surface(version, modules, dormant, dict(origin or {}), provider.package, *use_within(modules, trees))


def is_part(path: str) -> bool:
    """Return whether a file belongs to the surface of Transformer Engine."""
    return TRANSFORMER_ENGINE.files.fullmatch(path) is not None


class _ModuleReader(ast.NodeVisitor):
    """Reads the names that one module defines, and the modules it imports while it is imported."""

    def __init__(
        self, name: str, is_package: bool, sources: frozenset[str], tree: ast.Module, provider: Provider
    ) -> None:
        self.name, self.is_package, self.sources, self.tree, self.provider = name, is_package, sources, tree, provider
        self.state = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        self.names: Names = {}  # in a branch, those that it leaves
        self.imports: set[str] = set()
        self.stars: list[str] = []
        self.public: list[str] | None = None
        self.visit_block(tree.body)

    def visit_block(self, body: Sequence[ast.stmt]) -> None:
        """Read statements in order."""
        for statement in body:
            self.visit(statement)

    def generic_visit(self, node: ast.AST) -> None:
        """Skip a statement that defines no names."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Read a function; one that passes all of its arguments on has the signature of their function."""
        entry, callee = function_entry(node), forwarded(node)
        is_passed = entry.endswith(")") and callee in self.names
        self.names[node.name] = f">{self.name}:{callee}" if is_passed else entry

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Read a coroutine."""
        self.names[node.name] = function_entry(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Read a class."""
        neutral = {"object", "ABC", "abc.ABC"}
        if any(dotted(base).rpartition(".")[2] in ENUMERATIONS for base in node.bases):
            neutral |= {"str", "int", *ENUMERATIONS, *(f"enum.{name}" for name in ENUMERATIONS)}
        bases = [self._base(base) for base in node.bases if dotted(base) not in neutral]
        imports = (statement.module or "" for statement in self.tree.body if isinstance(statement, ast.ImportFrom))
        pydantic = any(module.startswith("pydantic") for module in imports)
        self.names[node.name] = class_entry(node, bases, self.names, pydantic=pydantic)

    def visit_Import(self, node: ast.Import) -> None:
        """Read `import a.b as c`."""
        for alias in node.names:
            is_own = self.provider.owns(alias.name)
            target = alias.name if alias.asname else alias.name.partition(".")[0]
            self.names[alias.asname or target] = f">{target}:" if is_own else "~"
            self.imports.update([alias.name] if is_own else [])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Read `from a import b`, `from a import *`."""
        source = absolute("." * node.level + (node.module or ""), self.name, self.is_package)
        self.imports.add(source)
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(source)
                continue
            submodule = f"{source}.{alias.name}"
            self.imports.add(submodule)
            # `from . import x` in the package itself imports the submodule, not the name that it defines.
            is_module = source == self.name and submodule in self.sources
            if self.provider.owns(source) and not is_module:
                entry = f">{source}:{alias.name}"
            else:
                entry = f">{submodule}:" if self.provider.owns(submodule) else "~"
            self.names[alias.asname or alias.name] = entry

    def visit_Assign(self, node: ast.Assign) -> None:
        """Read `a = b = ...`."""
        self._assign(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Read `a: int = ...`; without a value it defines nothing."""
        if node.value is not None:
            self._assign([node.target], node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Read `__all__ += [...]`."""
        if dotted(node.target) == "__all__" and self.public is not None:
            self.public += _texts(node.value)

    def visit_If(self, node: ast.If) -> None:
        """Read both branches; that of a type checker never runs."""
        is_of_checker = dotted(node.test).rpartition(".")[2] == "TYPE_CHECKING"
        self._branches([node.orelse] if is_of_checker else [node.body, node.orelse])

    def visit_Try(self, node: ast.Try) -> None:
        """Read the block and its handlers as branches."""
        self._branches([[*node.body, *node.orelse], *(handler.body for handler in node.handlers)])
        self.visit_block(node.finalbody)

    def visit_For(self, node: ast.For) -> None:
        """Read a loop as if it ran once."""
        self.names |= {target.id: "=" for target in ast.walk(node.target) if isinstance(target, ast.Name)}
        self.visit_block(node.body)

    def visit_While(self, node: ast.While) -> None:
        """Read a loop as if it ran once."""
        self.visit_block(node.body)

    def visit_With(self, node: ast.With) -> None:
        """Read a block."""
        self.visit_block(node.body)

    def _branches(self, bodies: Iterable[Sequence[ast.stmt]]) -> None:
        names = self.names
        outcomes: list[Names] = []
        for body in bodies:
            self.names = dict(names)
            self.visit_block(body)
            if not (body and isinstance(body[-1], ast.Raise)):
                outcomes.append(self.names)
        self.names = names
        for name in dict.fromkeys(name for outcome in outcomes for name in outcome):
            names[name] = _alternatives(outcome[name] for outcome in outcomes if name in outcome)

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        for target in targets:
            if isinstance(target, ast.Subscript) and dotted(target.value) == "sys.modules":
                # Of a module that another object replaces, the names are unknown, not those inside it.
                self.names["__getattr__" if dotted(target.slice) == "__name__" else REDIRECTS] = "~"
            if isinstance(target, ast.Name):
                if target.id == "__all__":
                    self.public = _texts(value)
                is_state = target.id in self.state and isinstance(value, ast.Constant) and isinstance(value.value, bool)
                self.names[target.id] = STATE if is_state else self._value(value)
            elif isinstance(target, (ast.Tuple, ast.List)):
                self.names |= {element.id: "=" for element in target.elts if isinstance(element, ast.Name)}

    def _value(self, node: ast.expr) -> Entry:
        """Return the entry of an assigned value: that of `old` for `new = old`, "=" for a literal, else "~"."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, "~")
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        return "=" if isinstance(node, (ast.Constant, ast.Dict, ast.List, ast.Tuple, ast.Set)) else "~"

    def _attribute(self, node: ast.Attribute) -> Entry:
        """Write `module.name` as an entry."""
        name, *attributes = dotted(node).split(".")
        entry = self.names.get(name, "~")
        if not (isinstance(entry, str) and entry.startswith(">") and entry.endswith(":")):
            return "~"
        module = entry[1:-1]
        while attributes and f"{module}.{attributes[0]}" in self.sources:
            module = f"{module}.{attributes.pop(0)}"
        return f">{module}:{'.'.join(attributes)}" if len(attributes) < 2 else "~"

    def _base(self, node: ast.expr) -> Entry:
        entry = self._value(node) if isinstance(node, (ast.Name, ast.Attribute)) else "~"
        # A class of this module is written as a reference, to avoid a copy of its entry.
        return f">{self.name}:{dotted(node)}" if isinstance(entry, (dict, list)) else entry


class _SparseReader:
    """Reads single names of modules that are not recorded as a whole; a name that another module defines there.

    Of a class only its existence is recorded; of a compiled function the signature in its stub, if that has only one. A
    module that code fills at run time has the names of its compiled
    library: one that occurs in no file of the release is missing.
    """

    def __init__(self, files: Mapping[str, bytes], provider: Provider, whole: frozenset[str]) -> None:
        self._files = {path: content for path, content in files.items() if provider.sparse.fullmatch(path)}
        self._provider, self._whole = provider, whole
        stubs = (path for path in sorted(self._files, reverse=True) if path.endswith((".py", ".pyi")))  # .py over .pyi
        self._paths = {module_name(path.replace(".pyi", ".py")): path for path in stubs}
        self._packages = {name.rsplit(".", depth)[0] for name in self._paths for depth in range(name.count(".") + 1)}
        self._modules: dict[str, Names] = {}
        self._readers: dict[str, _ModuleReader] = {}
        self._open: list[tuple[str, str]] = []

    def read(self, used: Iterable[str]) -> dict[str, Names]:
        """Return the names behind paths ("module:attribute.attribute") by module."""
        for path in sorted(used) if self._paths else ():
            self._follow(re.split("[:.]", path.rstrip(":")))
        searched, words = {name.encode() for _, name in self._open}, set[bytes]()
        for content in self._files.values() if searched else ():
            words |= searched.intersection(re.findall(rb"\w+", content))
        for module, name in self._open:
            self._modules[module][name] = "~" if name.encode() in words else MISSING
        return self._modules

    def _follow(self, names: Sequence[str]) -> None:
        """Record the first of the names that is no module; of one that another module defines, that one, too."""
        size = 1
        while size < len(names) and ".".join(names[: size + 1]) in self._packages:
            size += 1
        module, rest = ".".join(names[:size]), names[size:]
        if module in self._whole or names[0] != self._provider.top:
            return
        known_names = self._modules.setdefault(module, dict(UNKNOWN))
        if rest and rest[0] not in known_names:
            entry = known_names[rest[0]] = self._entry(module, rest[0])
            if entry[0] == ">":
                self._follow([*re.split("[:.]", entry[1:].rstrip(":")), *rest[1:]])

    def _entry(self, module: str, name: str) -> str:
        path, reader = self._paths.get(module, ""), self._reader(module)
        entry = reader.names.get(name) if reader and not path.endswith(ALIASED) else None
        if entry is not None:
            return entry if isinstance(entry, str) else "~"
        stars = reader.stars if reader else ()
        for source in stars:
            if name in self._exported(source):
                return f">{source}:{name}"
        if not all(map(self._provider.owns, stars)):
            return "~"  # `from multiprocessing import *`
        is_open = reader is None or path.endswith(".pyi") or "__getattr__" in reader.names
        is_filled = is_open or FILLED.search(self._files[path])
        if not is_filled and all(self._paths.get(source, "").endswith(".py") for source in stars):
            return MISSING
        self._open.append((module, name))
        return "~"

    def _reader(self, module: str) -> _ModuleReader | None:
        path = self._paths.get(module, "")
        if path and module not in self._readers:
            tree = parsed(self._files[path], path)
            names = frozenset(self._paths)
            self._readers[module] = _ModuleReader(module, path.endswith("__init__.py"), names, tree, self._provider)
        return self._readers.get(module)

    def _exported(self, module: str) -> Iterable[str]:
        """Return the names that `from module import *` binds, as far as they are read."""
        reader = self._reader(module)
        if reader is None:
            return ()
        return [name for name in reader.names if not name.startswith("_")] if reader.public is None else reader.public


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
        for exported, entry in list(readers[source].names.items()):
            if exported == "*":
                reader.names["*"] = [*reader.names.get("*", ()), *entry]
            elif exported in public if public is not None else not exported.startswith("_"):
                reader.names.setdefault(exported, f">{source}:{exported}")


def _imported(start: str, readers: Mapping[str, _ModuleReader]) -> set[str]:
    """Return the modules that importing `start` imports."""
    imported: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in readers and name not in imported:
            imported.add(name)
            waiting += [*readers[name].imports, name.rpartition(".")[0]]
    return imported


def _alternatives(entries: Iterable[Entry]) -> Entry:
    alternatives: list[Entry] = []
    for entry in entries:
        candidates = entry if isinstance(entry, list) else [entry]
        alternatives += [alternative for alternative in candidates if alternative not in alternatives]
    return alternatives[0] if len(alternatives) == 1 else alternatives


def _texts(node: ast.expr) -> list[str]:
    return [str(part.value) for part in ast.walk(node) if isinstance(part, ast.Constant)]
