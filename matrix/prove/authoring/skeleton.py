"""Template files of a new failure, with every key that an entry needs and a hint for its value."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from textwrap import indent
from typing import Any, Final

from matrix.ground.catalog import loading
from matrix.ground.catalog.folders import ENTRY, folder_name
from matrix.ground.catalog.kinds import kind_table
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.regular_file import read_regular_text
from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.log_match import Reading, match
from matrix.prove.authoring.api_change import ApiChange
from matrix.prove.authoring.draft import BASE_OF_DRAFTS, Thread, change_of, entry_text, template
from matrix.prove.store.paths import write_whole

SCRIPT: Final = "reproduction.py"
_UNWRITTEN: Final = "    raise NotImplementedError"
_RESULT: Final = "dict[str, Any]"
ReadLog = Callable[[str], Reading]  # of the path of a log, or - for stdin: what is known of its faults


def reproduction_text(lines: str = "") -> str:
    """Return reproduction.py with the indented lines of its function; without any, a template."""
    result = _RESULT if re.search(r"\breturn\b", lines) or not lines else "None"
    return template("reproduction.py").format(
        todo="What fails, on each rank." if lines else "TODO: what each rank does, in one line.",
        imported=", Any" * (result == _RESULT),
        result=result,
        what="Run it." if lines else "Run upstream's real code; return what it measured, as JSON values.",
        lines=lines or _UNWRITTEN,
    )


def files(id: str, *, contract: bool) -> Mapping[str, str]:
    """Return the files of a new failure by name; `contract`: read at level contract, without code that runs."""
    entry = template("new_failure.toml").format(id=id, level=template("contract.toml" if contract else "run.toml"))
    return {ENTRY: entry} if contract else {ENTRY: entry, SCRIPT: reproduction_text()}


def create(id: str, root: Path, read: ReadLog, *, contract: bool, log: str | None = None) -> Path:
    """Write the files of a new failure under `root`, drafted from a source if there is one; return its folder.

    A source is a log, the JSON of a public thread, or the draft of a bisection: its folder, or the JSON that names it.
    Raises MatrixError for an unusable id, and for a source without a new fault.
    """
    folder = new_folder(id, root)
    if log and (draft := bisected(Path(log))):
        shutil.copytree(draft, folder)
        entry = read_regular_text(folder / ENTRY)
        write_whole(folder / ENTRY, re.sub('^id = ".*"', f'id = "{id}"', entry, count=1, flags=re.MULTILINE))
        return folder
    drafted = drafted_files(id, log, date.today(), read) if log else {}
    for name, text in {**files(id, contract=contract), **drafted}.items():
        write_whole(folder / name, text)
    return folder


def new_folder(id: str, root: Path) -> Path:
    """Return the folder of a new failure. Raises MatrixError for an unusable id, and where the folder exists."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", id):
        raise MatrixError("not an id of a failure", got=id, expected="small letters, digits and -: my-failure")
    folder = root / folder_name(id)
    if folder.exists():
        raise MatrixError("the failure exists", where=str(folder), fix="choose another id, or edit its failure.toml")
    return folder


def drafted_files(id: str, source: str, today: date, read: ReadLog) -> dict[str, str]:
    """Return the failure.toml of a log or of a thread, and the script where it is known.

    Raises MatrixError where it has no new fault.
    """
    thread, catalog = thread_of(Path(source)), loading.load()
    reading = match([thread.text], catalog.failures, kind_table()) if thread else read(source)
    change = change_of(reading)
    script = {SCRIPT: reproduction_text(indent(change.script, "    "))} if change and change.script else {}
    return {ENTRY: entry_text(id, reading, today, thread, change, _base(change, catalog)), **script}


def _base(change: ApiChange | None, catalog: Catalog) -> str:
    """Return a base of the night on which both sides of a change can run."""
    recorded = [release.version for release in catalog.releases(MCORE)]
    sides = change.boundary.sides(change.parts, recorded) if change else ()
    bases = [BASE_OF_DRAFTS, *(base.id for base in reversed(catalog.wheels) if base.night)]
    possible = (
        base for base in bases if not any(catalog.excluded(catalog.cell(base, {MCORE: side}).stack) for side in sides)
    )
    return next(possible, BASE_OF_DRAFTS)


def bisected(source: Path) -> Path | None:
    """Return the folder of a bisection's draft: the source itself, or what its JSON names; None for other sources."""
    items = _json_object(source).get("items")
    first = items[0] if isinstance(items, list) and items else {}
    folder = Path(str(first.get("draft", source))) if isinstance(first, dict) else source
    folder = folder.parent if folder.name == ENTRY else folder
    return folder if (folder / ENTRY).is_file() else None


def thread_of(source: Path) -> Thread | None:
    """Return the thread of a JSON file as GitHub's API and `gh issue view --json` write it; None for another file."""
    content = _json_object(source)
    address = re.search(r"([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)", str(content.get("html_url") or content.get("url")))
    if not address or not isinstance(content.get("title"), str):
        return None
    comments = content["comments"] if isinstance(content.get("comments"), list) else []
    bodies = [part.get("body") for part in (content, *comments) if isinstance(part, dict)]
    day = str(content.get("created_at") or content.get("createdAt") or f"{date.today()}")
    text = "\n".join(body.replace("\r\n", "\n") for body in bodies if isinstance(body, str))
    return Thread(content["title"], f"{address[1]}#{address[2]}", day, text)


def _json_object(source: Path) -> dict[str, Any]:
    """Return the object of a JSON file, {} for any other file."""
    if source.suffix != ".json" or not source.is_file():
        return {}
    try:
        content = json.loads(read_regular_text(source))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
