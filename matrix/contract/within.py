"""How a provider uses its own API: the arguments of its calls, what it returns, the attributes of its instances.

A consuming package overrides methods and replaces functions. Whether those fit depends on how the provider calls them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from matrix.contract.definition import Names, called, dotted
from matrix.contract.surface import ANONYMOUS, CallShape, Instance

BUILDERS = ("build_module",)  # megatron-core constructs the class of a spec with their keyword arguments
PLAIN_BASES = ("object", "threading.local")  # outside the package, without attributes of their own
FEWEST = 2  # keywords by which such a call is recognised


def use_within(
    modules: Mapping[str, Names], trees: Mapping[str, ast.Module]
) -> tuple[Mapping[str, list[CallShape]], Mapping[str, Instance], Mapping[str, int]]:
    """Return the shapes of calls by the callee's last name, module-level instances, and sizes of returned tuples.

    The latter two are by path ("module:name", "module:class.name").
    """
    defined = {name for names in modules.values() for name, entry in names.items() if _is_callable(entry)}
    methods = {
        name
        for names in modules.values()
        for entry in names.values()
        if isinstance(entry, dict)
        for name, member in entry["members"].items()
        if _is_callable(member)
    }
    shapes_of: dict[str, dict[tuple[object, ...], CallShape]] = defaultdict(dict)
    instances: dict[str, Instance] = {}
    for module, tree in trees.items():
        kinds = (ast.Call, ast.Assign, ast.AnnAssign, ast.ClassDef)
        nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
        classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        own = _made_here(nodes)
        for node in nodes:
            if isinstance(node, ast.Call):
                name = _callee(node, defined | methods)
                if name and not own(node.func):
                    shape = _shape(node, module, bool(name == "__init__"))
                    shapes_of[name].setdefault(tuple(map(str, shape[1:])), shape)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
                made = classes.get(dotted(node.value.func))
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if made is not None and isinstance(target, ast.Name) and modules[module].get(target.id) == "~":
                    attributes = _attributes(made, classes)
                    if attributes is not None:
                        instances[f"{module}:{target.id}"] = [made.name, *sorted(attributes)]
    returned = {path: size for module, tree in trees.items() for path, size in _sizes(tree.body, f"{module}:")}
    return {name: [*shapes.values()] for name, shapes in sorted(shapes_of.items())}, instances, returned


def _sizes(body: Sequence[ast.stmt], before: str) -> Iterator[tuple[str, int]]:
    """Yield the functions and methods whose every return statement has a tuple of one size."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _sizes(node.body, f"{before}{node.name}.")
        elif isinstance(node, ast.FunctionDef) and not set(map(_word, node.decorator_list)) - {"staticmethod"}:
            sizes = {
                _size(part) for part in _own_nodes(node) if isinstance(part, (ast.Return, ast.Yield, ast.YieldFrom))
            }
            if len(sizes) == 1 and (size := sizes.pop()):
                yield f"{before}{node.name}", size


def _size(node: ast.AST) -> int:
    """Return the size of a returned tuple, 0 if it is not fixed."""
    value = node.value if isinstance(node, ast.Return) else None
    fixed = isinstance(value, ast.Tuple) and not any(isinstance(element, ast.Starred) for element in value.elts)
    return len(value.elts) if isinstance(value, ast.Tuple) and fixed else 0


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a function without those of the functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            yield from _own_nodes(child)


def _word(node: ast.expr) -> str:
    return dotted(called(node)).rpartition(".")[2]


def _made_here(nodes: Iterable[ast.AST]) -> Callable[[ast.expr], bool]:
    """Return a function that decides whether a callee is one of the provider's own classes or its object.

    No override is called through `Linear.forward(...)`, nor through `self.qkv(...)` after `self.qkv = Linear(...)`.
    """
    values: dict[str, list[ast.expr]] = defaultdict(list)
    for node in nodes:
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                values[dotted(target)].append(node.value)
    made = {name for name, all_of_it in values.items() if all(map(_constructs, all_of_it))}

    def decide(callee: ast.expr) -> bool:
        owner = dotted(callee.value) if isinstance(callee, ast.Attribute) else ""
        return dotted(callee) in made or owner in made or _is_class(owner)

    return decide


def _constructs(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _is_class(dotted(node.func))


def _is_class(name: str) -> bool:
    return name.rpartition(".")[2].lstrip("_")[:1].isupper()


def _is_callable(entry: object) -> bool:
    return isinstance(entry, str) and entry.startswith(("(", "c(", "s("))


def _callee(node: ast.Call, known: set[str]) -> str:
    """Return the name under which a call is recorded, "" for none."""
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    if name in BUILDERS:
        return "__init__"
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call) and dotted(func.value.func) == "super":
        return ""
    if name in known:
        return name
    keywords = sum(keyword.arg is not None for keyword in node.keywords)
    return ANONYMOUS if keywords >= FEWEST and not name[:1].isupper() else ""


def _shape(node: ast.Call, module: str, built: bool) -> CallShape:
    """Return the shape of a call; the first argument of a builder is the spec."""
    positional = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    keywords = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
    starred = len(positional) != len(node.args)
    is_open = len(keywords) != len(node.keywords)
    return [f"{module}:{node.lineno}", len(positional) - built, keywords, int(starred), int(is_open)]


def _attributes(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> set[str] | None:
    """Return the names that a class and its methods define; None where a base or __getattr__ may define more."""
    names: set[str] = set()
    for base in node.bases:
        parent = classes.get(dotted(base))
        inherited = _attributes(parent, classes) if parent is not None and parent is not node else None
        if inherited is None and dotted(base) not in PLAIN_BASES:
            return None
        names |= inherited or set()
    names.update(_defined(node))
    return None if {"__getattr__", "__getattribute__"} & names or node.decorator_list else names


def _defined(node: ast.ClassDef) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield part.name
        elif isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Store):
            yield part.id if isinstance(part, ast.Name) else part.attr
