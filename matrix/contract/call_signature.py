"""The signature of a callable, as text and as a record.

An example of the text: "(enabled=False,num_layers=1,*,tp_group=None,**kwargs)". A default is its literal if that is
short, "..." otherwise; it never contains a comma.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

LONGEST_DEFAULT = 16  # characters; longer defaults do not matter for binding


@dataclass(frozen=True)
class CallSignature:
    """The names of the parameters of a callable, in order.

    `slots` take positional arguments, the first `unnamed` of them only these; `keywords` are keyword-only; `required`
    have no default; `args` and `kwargs` are the names of *args and **kwargs, "" for none.
    """

    text: str
    slots: tuple[str, ...]
    unnamed: int
    keywords: tuple[str, ...]
    required: frozenset[str]
    args: str
    kwargs: str

    @cached_property
    def named(self) -> tuple[str, ...]:
        """Return the names of the parameters but those of *args and **kwargs."""
        return self.slots + self.keywords

    @cached_property
    def accepted(self) -> frozenset[str]:
        """Return the names that can be passed by keyword."""
        return frozenset(self.named[self.unnamed :])

    @cached_property
    def defaults(self) -> Mapping[str, object]:
        """Return the defaults that are literals and not None, which often stands for the value of the release."""
        items = (item.partition("=") for item in self.text[1:-1].split(","))
        return {name: ast.literal_eval(text) for name, _, text in items if text not in ("", "...", "None")}

    def takes(self, name: str) -> bool:
        """Return whether a parameter has that name; "**": whether it takes any keyword."""
        return bool(self.kwargs) if name == "**" else name in self.named or name in (self.args, self.kwargs)


@lru_cache(maxsize=16384)
def parse_signature(text: str) -> CallSignature:
    """Read a recorded signature. Raises ValueError on anything else."""
    if not (text.startswith("(") and text.endswith(")")):
        raise ValueError(f"not a signature: {text!r}")
    slots: list[str] = []
    keywords: list[str] = []
    required: list[str] = []
    names, unnamed, args, kwargs = slots, 0, "", ""
    for item in filter(None, text[1:-1].split(",")):
        name, has_default, _ = item.partition("=")
        if name == "/":
            unnamed = len(slots)
        elif name.startswith("**"):
            kwargs = name[2:]
        elif name.startswith("*"):
            names, args = keywords, name[1:]
        else:
            names.append(name)
            if not has_default:
                required.append(name)
    return CallSignature(text, tuple(slots), unnamed, tuple(keywords), frozenset(required), args, kwargs)


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


def constructor_text(items: Iterable[str]) -> str:
    """Write a constructor's parameters ("name", "name=default"): a later one takes the place of one of its name."""
    slots = {item.partition("=")[0]: item for item in items if item not in ("", "self")}
    return f"({','.join(['self', *slots.values()])})"


def default_text(node: ast.expr) -> str:
    """Return a short literal default as it is, "..." for anything else."""
    if isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)):
        text = ast.unparse(node)
        if len(text) <= LONGEST_DEFAULT and "," not in text:
            return text
    return "..."


def _item(name: str, default: str | None) -> str:
    return name if default is None else f"{name}={default}"
