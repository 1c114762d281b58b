"""What is written of a syntax tree: a definition as an entry of a surface, a signature, a condition as a text."""

from __future__ import annotations

import ast
import gc
import hashlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from matrix.ground.catalog.regular_file import within_limits
from matrix.ground.errors import MatrixError
from matrix.read.api.api import Entry
from matrix.read.api.binding import constructor_text
from matrix.read.trees import syntax_tree

# Decorators that keep a function's signature. Any other decorator makes the signature unknown.
TRANSPARENT = re.compile(
    r"abstractmethod|api_method|append_parent_docstring|assume_constant_result|cache|compile|contextmanager|contract"
    r"|copy_signature|deprecated|(dropout|jit)_fuser|experimental_(api|fn)|fp32_compute|internal_api|lru_cache|no_grad"
    r"|no_torch_dynamo|nvtx_decorator|once_differentiable|override|profile|script|wraps|_(dcp_method|exception|time)_logger"
    r"|_disable_dynamo(_if_unsupported)?|_use_grad_for_differentiable"
)
LOOSE = "_api_bc_check"  # of torch: passes a second positional argument on by keyword
# Called with a value to look up a member: the signature is not checked.
ENUMERATIONS = ("Enum", "IntEnum", "Flag", "IntFlag")
OF_ENUMERATIONS = ("__members__", "name", "value")
Names = dict[str, Entry]
LONGEST_DEFAULT = 16  # characters; longer defaults do not matter for binding
# Limits of a source file. Of 13,344 files of a Python 3.11 with 100 packages, the largest with code has 0.8 MB, two are
# nested deeper than 200 levels (tables of sympy), and none has more than 16 operands. Deeper ones exceed the recursion
# limit of the readers, whose calls nest up to five times as deep; 2 MiB parse in 10 s and 1.2 GB.
LARGEST = 2 * 2**20  # bytes
DEEPEST = 200  # levels of nested syntax
MOST_OPERANDS = 500  # of one `and` or `or`
LONGEST_TEXT = 90  # characters of a condition; a longer one is cut and ends with a digest
ORDERS: Final = {ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Lt: "<", ast.Eq: "==", ast.NotEq: "!="}
WORDS: Final = {**ORDERS, ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not"}


def class_entry(node: ast.ClassDef, bases: Sequence[Entry], names: Mapping[str, Entry], *, pydantic: bool) -> Entry:
    """Return the entry of a class; `bases` are entries, `names` those of its module.

    `pydantic`: the module's dataclasses are pydantic's.
    """
    members: Names = {}
    fields: list[str] = []  # "name" or "name=default"
    for statement in node.body:
        _member(statement, members, fields)
    members = dict.fromkeys(_assigned(node, "cls", node.name), "=") | members
    kinds = {dotted(base).rpartition(".")[2] for base in node.bases}
    is_dataclass = any(dotted(called(d)).rpartition(".")[2] == "dataclass" for d in node.decorator_list)
    if "__init__" not in members:
        if is_dataclass or "NamedTuple" in kinds:
            members["__init__"] = _constructor(bases, names, fields, pydantic=pydantic, is_dataclass=is_dataclass)
        elif kinds & set(ENUMERATIONS):
            members["__init__"] = "~"
    if any(keyword.arg == "metaclass" and "ABCMeta" not in dotted(keyword.value) for keyword in node.keywords):
        members |= {"__init__": "~", "__getattr__": "~"}  # a metaclass may define more
    if "__new__" in members:
        members["__getattr__"] = "~"  # it may return an object of another class
    own_attributes = sorted(set(_assigned(node, "self")) - set(members))
    own_attributes += OF_ENUMERATIONS if kinds & set(ENUMERATIONS) else ()
    return {"bases": list(bases), "members": members, **({"own": own_attributes} if own_attributes else {})}


def _constructor(
    bases: Sequence[Entry], names: Mapping[str, Entry], fields: Sequence[str], *, pydantic: bool, is_dataclass: bool
) -> str:
    """Return the entry of the constructor that a dataclass or a NamedTuple generates, inherited fields first.

    A pydantic dataclass drops unknown keywords: its `extra` is "ignore" unless configured.
    """
    parents = [names.get(base.partition(":")[2]) for base in bases]
    texts = [str(parent["members"].get("__init__")) for parent in parents if isinstance(parent, dict)]
    inherited = [item for text in texts if text.startswith("(self,") for item in text[6:-1].split(",")]
    items = [item for item in [*inherited, *fields] if not item.startswith("*")]
    text = constructor_text([*items, *(["**extra"] if is_dataclass and pydantic else [])])
    # The fields of a base in another module are added at look-up.
    is_distant = any(not isinstance(parent, (dict, list)) for parent in parents)
    return f"d{text}" if is_dataclass and (is_distant or any(text.startswith("d(") for text in texts)) else text


def function_entry(node: ast.FunctionDef | ast.AsyncFunctionDef, *, member: bool = False) -> str:
    """Return the entry of a function: its signature, "~" if a decorator may change it, "=" for a property."""
    mark, arguments = "", node.args
    for decorator in node.decorator_list:
        word = dotted(called(decorator)).rpartition(".")[2]
        if member and word in ("staticmethod", "classmethod"):
            mark = word[0]
        elif member and word in ("property", "cached_property", "setter", "getter"):
            return "="
        elif word == LOOSE:
            defaults = [default for default in arguments.kw_defaults if default is not None]
            slots = [*arguments.args, *arguments.kwonlyargs]
            arguments = ast.arguments([], slots, None, [], [], None, [*arguments.defaults, *defaults])
        elif not TRANSPARENT.fullmatch(word):
            return "~"
    return mark + signature_text(arguments)


def signature_text(arguments: ast.arguments) -> str:
    """Write the parameters of a function definition as text."""
    slots = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(slots) - len(arguments.defaults)) + [default_text(node) for node in arguments.defaults]
    items = [_item(slot.arg, default) for slot, default in zip(slots, defaults, strict=True)]
    if arguments.posonlyargs:
        items.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg:
        items.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        items.append("*")
    for slot, node in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        items.append(_item(slot.arg, None if node is None else default_text(node)))
    if arguments.kwarg:
        items.append(f"**{arguments.kwarg.arg}")
    return f"({','.join(items)})"


def default_text(node: ast.expr) -> str:
    """Return a short literal default as it is, "..." for anything else."""
    if isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)):
        text = ast.unparse(node)
        if len(text) <= LONGEST_DEFAULT and "," not in text:
            return text
    return "..."


def _item(name: str, default: str | None) -> str:
    return name if default is None else f"{name}={default}"


def forwarded(node: ast.FunctionDef) -> str:
    """Return the callee to which a function that takes anything passes it all, "" for another function."""
    if ast.unparse(node.args).removeprefix("self, ") != "*args, **kwargs":
        return ""
    parts = list(ast.walk(node))
    is_used_once = sum(isinstance(part, ast.Name) and part.id in ("args", "kwargs") for part in parts) == 2
    callees = [ast.unparse(part) for part in parts if isinstance(part, ast.Call) and len(part.keywords) == 1]
    passing = [text.removesuffix("(*args, **kwargs)") for text in callees if text.endswith("(*args, **kwargs)")]
    return passing[0] if passing and is_used_once else ""


def _member(node: ast.stmt, members: Names, fields: list[str]) -> None:
    if isinstance(node, ast.FunctionDef) and node.name == "__init__" and forwarded(node) == "super().__init__":
        return  # it takes what the inherited one takes
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        members[node.name] = function_entry(node, member=True)
    elif isinstance(node, ast.ClassDef):
        members[node.name] = "~"
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        members[node.target.id] = "="
        if "ClassVar" not in ast.unparse(node.annotation):
            fields += _field(node.target.id, node.value)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                alias = node.value.id if isinstance(node.value, ast.Name) else ""
                members[target.id] = members.get(alias, "~" if isinstance(node.value, ast.Call) else "=")
    elif isinstance(node, (ast.If, ast.Try)):
        for statement in [*node.body, *node.orelse]:
            _member(statement, members, fields)


def _field(name: str, value: ast.expr | None) -> list[str]:
    if not (isinstance(value, ast.Call) and dotted(value.func).endswith("field")):
        return [name if value is None else f"{name}={default_text(value)}"]
    options = {keyword.arg: keyword.value for keyword in value.keywords}
    init = options.get("init")
    if isinstance(init, ast.Constant) and init.value is False:
        return []
    return [f"{name}=..." if {"default", "default_factory"} & set(options) else name]


def _assigned(node: ast.ClassDef, *owners: str) -> Iterator[str]:
    """Yield the attributes that a class assigns to names: `self.x = ...`, `cls.x = ...`, `ClassName.x = ...`."""
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store) and dotted(child.value) in owners:
            yield child.attr


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector in a block or a function: nearly all that is made there is kept.

    A megatron-core is read in two thirds of the time.
    """
    is_collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collected:
            gc.enable()


def parsed(source: str | bytes, path: str = "<source>") -> ast.Module:
    """Parse a source file; syntax warnings (an escape "\\i") are ignored: they are upstream's.

    Raises SyntaxError, and MatrixError for a file that is larger, nested more deeply or wider than the limits above.
    """
    if len(source) > LARGEST:
        raise _beyond_limit(path, f"{len(source):,} bytes", f"at most {LARGEST:,} bytes")
    with warnings.catch_warnings(), within_limits(path):
        warnings.simplefilter("ignore")
        try:
            tree = syntax_tree(source, path)
        except (SyntaxError, ValueError) as error:  # ValueError: a null byte, before Python 3.12
            raise SyntaxError(
                getattr(error, "msg", str(error)), (path, getattr(error, "lineno", None) or 1, 0, "")
            ) from None
    depth, level = 0, list[ast.AST]([tree])
    while level:
        depth, wide = depth + 1, max((len(node.values) for node in level if isinstance(node, ast.BoolOp)), default=0)
        if depth > DEEPEST or wide > MOST_OPERANDS:
            line = next((node.lineno for node in level if isinstance(node, (ast.expr, ast.stmt))), 0)
            got = f"{wide:,} operands of `and` or `or`" if wide > MOST_OPERANDS else f"more than {DEEPEST} levels"
            expected = f"at most {DEEPEST} nested levels, {MOST_OPERANDS} operands; an elif is a level"
            raise _beyond_limit(f"{path}:{line}", got, expected)
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return tree


def _beyond_limit(where: str, got: str, expected: str) -> MatrixError:
    fix = "leave the file out of what is read, or split it"
    return MatrixError(
        "this source file is too large or nested too deeply", where=where, got=got, expected=expected, fix=fix
    )


def module_name(path: str) -> str:
    """Return the name under which a file is imported; the folder src/ is no part of it."""
    return re.sub(r"(^|/)__init__$", "", path.removeprefix("src/").removesuffix(".py")).replace("/", ".")


def called(node: ast.expr) -> ast.expr:
    """Return the callable of a decorator, with or without arguments."""
    return node.func if isinstance(node, ast.Call) else node


def raised_name(node: ast.Raise) -> str:
    """Return the last name of what is raised, "" for what was caught or is computed."""
    return dotted(called(node.exc)).rpartition(".")[2] if node.exc else ""


def absolute(source: str, module: str, is_package: bool) -> str:
    """Return the absolute name of SOURCE in `from SOURCE import ...` of `module`."""
    name = source.lstrip(".")
    level = len(source) - len(name)
    if not level:
        return name
    parts = module.split(".")
    base = parts[: len(parts) - level + is_package]
    return ".".join([*base, *([name] if name else [])])


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` for a plain chain of names, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def shown(node: ast.AST) -> str:
    """Write a condition in short form. Equal texts are equal conditions, so every omission is marked by a digest."""
    return shortened(_text(node))


def shortened(text: str) -> str:
    """Cut a text that is too long for a report; a digest keeps it distinct from others with the same start."""
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 9]}...{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _text(node: ast.AST) -> str:
    if name := dotted(node):
        return name
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.Call) and dotted(node.func):
        arguments = [*map(_text, node.args), *(f"{keyword.arg}={_text(keyword.value)}" for keyword in node.keywords)]
        return f"{dotted(node.func)}({', '.join(arguments)})"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"not {_text(node.operand)}"
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return f"{_text(node.left)} {WORDS[type(node.ops[0])]} {_text(node.comparators[0])}"
    if isinstance(node, ast.Subscript):
        return f"{_text(node.value)}[{_text(node.slice)}]"
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return f"({', '.join(map(_text, node.elts))})"
    return f"...{_digest(ast.dump(node))}"
