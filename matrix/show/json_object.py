"""The one shape of JSON that commands print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from matrix import __version__
from matrix.show.escaping import json_text


def json_object(schema: str, items: Iterable[Mapping[str, Any]], **beside: Any) -> str:
    """Return one line: an object with the keys schema, version (of Megatrix) and items, and those `beside` them.

    A schema is written NAME/N: docs/schema/NAME.json describes it, and N increases when a key changes its meaning.
    """
    # ASCII: texts may not be UTF-8.
    return json_text({"schema": f"megatrix/{schema}", "version": __version__, "items": list(items)} | beside)
