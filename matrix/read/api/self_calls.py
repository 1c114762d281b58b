"""How a provider uses its own API: the arguments of its calls, what it returns, the attributes of its instances.

A consuming package overrides methods and replaces functions. Whether those fit depends on how the provider calls them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from matrix.read.api.api import ANONYMOUS, FEWEST, Instance, OwnCall, Refusal
from matrix.read.api.definition import Names, called, dotted, raised_name

BUILDERS = ("build_module",)  # megatron-core constructs the class of a spec with their keyword arguments
PLAIN_BASES = ("object", "threading.local")  # outside the package, without attributes of their own
LEAVING = (ast.Return, ast.Yield, ast.YieldFrom)
Nodes: TypeAlias = Mapping[str, Sequence[ast.AST]]  # module -> its nodes


def use_within(
    modules: Mapping[str, Names], trees: Mapping[str, ast.Module]
) -> tuple[Mapping[str, list[str]], Mapping[str, Instance], Mapping[str, int], Mapping[str, list[Refusal]]]:
    """Return the calls by the callee's last name, module-level instances, sizes of returned tuples, refusals.

    The latter three are by path ("module:name", "module:class.name").
    """
    functions = [pair for module, tree in trees.items() for pair in _functions(tree.body, f"{module}:")]
    sizes = {path: size for path, node in functions if (size := _returned(node))}
    refusals = {path: refused for path, node in functions if (refused := [*_refusals(node)])}
    nodes = {module: list(ast.walk(tree)) for module, tree in trees.items()}
    return _calls(modules, nodes), _instances(modules, nodes), sizes, refusals


def _calls(modules: Mapping[str, Names], nodes: Nodes) -> dict[str, list[str]]:
    """Return the calls of the provider to its own API, by the callee's last name, each form once."""
    entries = [pair for names in modules.values() for pair in names.items()]
    entries += [pair for _, entry in entries if isinstance(entry, dict) for pair in entry["members"].items()]
    callables = {name for name, entry in entries if isinstance(entry, str) and entry.startswith(("(", "c(", "s("))}
    numbers = {module: number for number, module in enumerate(sorted(modules))}
    calls: dict[str, dict[tuple[object, ...], OwnCall]] = defaultdict(dict)
    for module, parts in nodes.items():
        objects, imported = _own_objects(parts), _imported(parts)
        owners = {part: node.name for node in parts if isinstance(node, ast.ClassDef) for part in ast.walk(node)}
        for node in parts:
            name = _callee(node, callables, imported, module.partition(".")[0]) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and name and not _is_of_own_class(node.func, objects):
                is_own = dotted(node.func) == f"self.{name}"
                call = _call(node, numbers[module], owners.get(node, "") if is_own else "", built=name == "__init__")
                calls[name].setdefault(call[1:], call)
    return {name: [str(call) for call in forms.values()] for name, forms in sorted(calls.items())}


def _instances(modules: Mapping[str, Names], nodes: Nodes) -> dict[str, Instance]:
    """Return the class and the attributes of each object that a module constructs from one of its classes."""
    instances: dict[str, Instance] = {}
    for module, parts in nodes.items():
        classes = {node.name: node for node in parts if isinstance(node, ast.ClassDef)}
        for node in parts:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
                blueprint = classes.get(dotted(node.value.func))
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if blueprint and isinstance(target, ast.Name) and modules[module].get(target.id) == "~":
                    attributes = _attributes(blueprint, classes)
                    if attributes is not None:
                        instances[f"{module}:{target.id}"] = [blueprint.name, *sorted(attributes)]
    return instances


def _functions(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions and methods that no decorator changes, by path."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            decorators = {dotted(called(decorator)).rpartition(".")[2] for decorator in node.decorator_list}
            if decorators <= {"staticmethod"}:
                yield f"{prefix}{node.name}", node


def _returned(node: ast.FunctionDef) -> int:
    """Return the size of the tuple in every return statement, 0 if it is not fixed."""
    sizes = {_size(part) for part in _own_nodes(node) if isinstance(part, LEAVING)}
    return sizes.pop() if len(sizes) == 1 else 0


def _refusals(node: ast.FunctionDef) -> Iterator[Refusal]:
    """Yield what a function certainly refuses: every call, or one without a parameter whose default is None."""
    arguments = node.args
    slots = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(slots[len(slots) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    keyword_only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    pairs += [(slot, default) for slot, default in keyword_only if default]
    optional = {slot.arg for slot, default in pairs if isinstance(default, ast.Constant) and default.value is None}
    for statement in node.body:
        parts = [statement, *_own_nodes(statement)]
        if isinstance(statement, ast.Raise):
            if raised_name(statement) not in ("", "NotImplementedError"):  # of a base
                yield [raised_name(statement), ""]
            return
        if isinstance(statement, ast.Assert):
            yield from (["AssertionError", name] for name in sorted(optional) if _truth(statement.test, name) is False)
        elif isinstance(statement, ast.If) and isinstance(statement.body[0], ast.Raise):
            names = [name for name in sorted(optional) if _truth(statement.test, name)]
            yield from ([error, name] for name in names if (error := raised_name(statement.body[0])))
        if any(isinstance(part, LEAVING) for part in parts):
            return
        optional -= {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def _truth(test: ast.expr, name: str) -> bool | None:
    """Return the value of a condition where a name is None; None if that depends on others."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand, name)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        decided = isinstance(test.op, ast.Or)
        values = {_truth(part, name) for part in test.values}
        return decided if decided in values else None if None in values else not decided
    if dotted(test) == name:
        return False
    compared = isinstance(test, ast.Compare) and ast.unparse(test)
    return {f"{name} is None": True, f"{name} is not None": False}.get(compared or "")


def _size(node: ast.AST) -> int:
    """Return the size of a returned tuple, 0 if it is not fixed."""
    elements = node.value.elts if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) else []
    return 0 if any(isinstance(element, ast.Starred) for element in elements) else len(elements)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a function without those of the functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            yield from _own_nodes(child)


def _own_objects(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the attributes of `self` that hold objects of the provider's own classes only."""
    values: dict[str, list[ast.expr]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets = [target for target in node.targets if isinstance(target, ast.Attribute)]
            for name in (dotted(target) for target in targets if dotted(target.value) == "self"):
                values[name].append(node.value)
    return {
        name
        for name, assigned in values.items()
        if all(isinstance(value, ast.Call) and _is_class(dotted(value.func)) for value in assigned)
    }


def _is_of_own_class(callee: ast.expr, objects: Collection[str]) -> bool:
    """Return whether a callee is one of the provider's own classes or its object.

    No override is called through `Linear.forward(...)`, nor through `self.qkv(...)` after `self.qkv = Linear(...)`.
    """
    owner = dotted(callee.value) if isinstance(callee, ast.Attribute) else ""
    return dotted(callee) in objects or owner in objects or _is_class(owner)


def _is_class(name: str) -> bool:
    return name.rpartition(".")[2].lstrip("_")[:1].isupper()


def _imported(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the imported names, each with the package that it comes from, "" where the import is relative."""
    sources: dict[str, str] = {}
    for node in (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))):
        for alias in node.names:
            module = alias.name if isinstance(node, ast.Import) else "" if node.level else node.module or ""
            sources[(alias.asname or alias.name).partition(".")[0]] = module.partition(".")[0]
    return sources


def _callee(node: ast.Call, known: set[str], imported: Mapping[str, str], package: str) -> str:
    """Return the name under which a call is recorded, "" for none: what is imported is no object with a method."""
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    if name in BUILDERS:
        return "__init__"
    top = dotted(func).partition(".")[0]
    is_of_parent = isinstance(func, ast.Attribute) and dotted(called(func.value)) == "super"
    if is_of_parent or imported.get(top, "") not in ("", package):
        return ""
    if name in known:
        return name
    keywords = sum(keyword.arg is not None for keyword in node.keywords)
    return ANONYMOUS if keywords >= FEWEST and not name[:1].isupper() and top not in imported else ""


def _call(node: ast.Call, module: int, owner: str, *, built: bool) -> OwnCall:
    """Return a call; the first argument of a builder is the spec."""
    positional = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    keywords = tuple(keyword.arg for keyword in node.keywords if keyword.arg is not None)
    starred, is_open = len(positional) != len(node.args), len(keywords) != len(node.keywords)
    return OwnCall(module, len(positional) - built, keywords, starred, is_open, owner)


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
