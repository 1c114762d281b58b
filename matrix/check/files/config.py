"""YAML of Megatron, NeMo and Megatron-Bridge: settings as the arguments of a training command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from matrix.catalog.place import Place
from matrix.catalog.reach import SETTINGS
from matrix.check.files.declared import Declared, Open, UserCommand
from matrix.check.files.locks import load_yaml

PROGRAM: Final = "settings"  # the first word of the command that stands for a file of settings


def read_config(text: str, where: str, _: Open) -> Declared:
    """Return the settings as one command: `key: value` is --key value, `key: true` is --key, `key: false` --no-key."""
    words = [word for name, value in _settings(load_yaml(text, where)) for word in _argument(name, value)]
    return Declared(commands=(UserCommand((PROGRAM, *words), Place(where)),) if words else ())


def _settings(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield each key of a plain value with that value; a table is read once, however often aliases repeat it."""
    pending, seen = [content], set[int]()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        if isinstance(one, dict):
            seen.add(id(one))
            for key, value in one.items():
                if isinstance(value, (dict, list)):
                    pending.append(value)
                else:
                    yield str(key), value
        elif isinstance(one, list):
            seen.add(id(one))
            pending += one


def _argument(name: str, value: Any) -> list[str]:
    option = name.lstrip("-").replace("_", "-")
    option = SETTINGS.get(option, option)
    if value is None or not option:
        return []
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", str(value)]
