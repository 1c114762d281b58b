"""Hook of mkdocs: the reference of commands, JSON, failure.toml and the kit, from code and schemas; not committed."""

import json
import os
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

WIDTH = "100"  # columns of a help text


def commands() -> str:
    """Return a page with the help of each command, as `megatrix COMMAND --help` prints it."""
    from matrix.cli import COMMANDS
    from matrix.cli.main import parser
    from matrix.cli.usage import described

    os.environ["COLUMNS"] = WIDTH
    parts = ["# Every command", "", "```", parser([]).format_help().rstrip(), "```"]
    for name in COMMANDS:
        (subcommands,) = (action for action in parser([name])._actions if action.choices and name in action.choices)
        text = subcommands.choices[name].format_help().rstrip()  # type: ignore[index, call-overload]
        parts += ["", f"## megatrix {name}", "", described(name).text, "", "```", text, "```"]
    return "\n".join(parts) + "\n"


def schemas(folder: Path) -> str:
    """Return a page with the keys of each JSON object that a command prints."""
    parts = ["# JSON", "", "Each object has `schema` (NAME/NUMBER), `version` (of Megatrix) and `items`."]
    for path in sorted(folder.glob("*.json")):
        schema = json.loads(path.read_text("utf-8"))
        parts += ["", f"## {path.stem}", "", f"{schema['title']}. {schema.get('description', '')}".strip()]
        parts += ["", "| key | type | meaning |", "|---|---|---|", *rows(schema, "")]
    return "\n".join(parts) + "\n"


def entry(path: Path) -> str:
    """Return a page with the tables of a failure.toml: what each is, and its keys."""
    tables = json.loads(path.read_text("utf-8"))["$defs"]
    parts = ["# Keys of failure.toml"]
    for name, table in tables.items():
        keys = ", ".join(f"`{key}`" for key in table.get("properties", {}))
        parts += ["", f"## {name}", "", table.get("description", ""), "", f"Keys: {keys}"] if keys else []
    return "\n".join(parts) + "\n"


def kit() -> str:
    """Return a page with the helpers that reproductions may import."""
    from tests import kit_table

    head = ["# Helpers of the kit", "", "What at least two entries import of `matrix.kit`, and how many do.", ""]
    return "\n".join([*head, "| helper | does | entries |", "|---|---|---|", *kit_table.rows(), ""])


def rows(schema: dict[str, Any], above: str) -> list[str]:
    """Return a row for each property of a schema, those of nested objects below it."""
    lines = []
    for key, value in schema.get("properties", {}).items():
        kind = value.get("type", "one of" if "enum" in value else "")
        text = value.get("description") or ", ".join(map(str, value.get("enum", []))) or value.get("const", "")
        name = f"{above}{key}"
        shown = " or ".join(kind) if isinstance(kind, list) else kind
        lines.append(f"| `{name}` | {shown} | {str(text).replace('|', '&#124;')} |")
        nested = value.get("items", value) if isinstance(value.get("items", {}), dict) else value
        lines += rows(nested, f"{name}[]." if "items" in value else f"{name}.")
    return lines


def on_files(files: Files, /, *, config: Any, **_: Any) -> Files:
    """Add the pages."""
    schema = Path(config["docs_dir"], "schema")
    failure = entry(schema / "toml" / "failure.json")
    pages = {"cli": commands(), "json": schemas(schema), "failure": failure, "kit": kit()}
    for name, content in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files
