"""YAML as plain values: tables, lists and texts that hold their line. No number is read: 24.10 stays 24.10."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from matrix.ground.errors import MatrixError

DEEPEST: Final = 100  # nested tables and lists: the C loader overflows the stack. Those of NeMo have 8
TAGS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("bool", "null", "merge"))


class Text(str):
    """A text of a YAML document; `line` is that of its first character, counted from 1."""

    line: int = 0


def line_of(value: Any) -> int:
    """Return the line of a text of a document, 0 for any other value."""
    return value.line if isinstance(value, Text) else 0


def load_yaml(text: str, where: str, first_line: int = 1) -> list[Any]:
    """Return the documents of a YAML text, which starts at a line of a file.

    Raises MatrixError; tags that name Python objects are refused.
    """
    import yaml  # 10 ms: most files are no YAML

    try:
        depth = 0
        for event in yaml.parse(str(text), _loader(first_line)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ValueError(f"nested more than {DEEPEST} levels deep")
        return [document for document in yaml.load_all(str(text), _loader(first_line)) if document is not None]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        line = (
            f" (line {(error.problem_mark.line if error.problem_mark else 0) + first_line})"
            if isinstance(error, yaml.MarkedYAMLError)
            else ""
        )
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MatrixError("not YAML", where=where, got=problem + line) from error


@lru_cache(maxsize=64)
def _loader(first_line: int) -> Any:
    """Return PyYAML's safe loader, with texts for all scalars but switches and null."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C one takes a tenth of the time
        yaml_implicit_resolvers: dict[Any, Any] = {  # noqa: RUF012  (PyYAML copies it for a subclass that adds to it)
            first: [(tag, pattern) for tag, pattern in resolvers if tag in TAGS]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    def text(loader: Any, node: Any) -> Text:
        value = Text(loader.construct_scalar(node))
        value.line = first_line + node.start_mark.line + (node.style in ("|", ">"))
        return value

    Loader.add_constructor("tag:yaml.org,2002:str", text)
    return Loader
