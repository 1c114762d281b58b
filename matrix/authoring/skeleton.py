"""Template files of a new failure, with every key that an entry needs and a hint for its value."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, Final

from matrix.authoring.draft import Thread, entry_text
from matrix.authoring.questions import ACCEPT, DraftQuestion, answered, questions
from matrix.catalog import loading
from matrix.catalog.folders import ENTRY, folder_name
from matrix.catalog.kinds import kind_table
from matrix.catalog.regular_file import read_regular_text
from matrix.check.log_reading import read_log
from matrix.errors import MatrixError
from matrix.store.paths import write_whole
from matrix.verdicts.log_match import match

_HEAD: Final = """\
id = "{id}"
title = "TODO: the symptom, in one line"
topic = "TODO"  # megatrix catalog list shows them
first_seen = "2000-01"  # TODO: month of the first public report
references = ["OWNER/REPOSITORY#NUMBER"]
symptom = "TODO: what happens, and who is affected."
cause = "TODO: the cause, as far as code or runs support it."
fix = "TODO: the release or commit that fixes it."

[[signature]]
name = "TODO"
exception = "TypeError"
message = "TODO: a regular expression, as narrow as the evidence allows"

[boundary.mcore]  # leave out a side that does not exist, and its rule
breaks = "0.0"  # TODO: the first release that it breaks with
fixed = "0.0"  # TODO: the first release without it

[[affected]]
mcore = "broken"
reason = "TODO: the evidence: run with ..., or read in ..."

[[works]]
mcore = "fixed"
reason = "TODO"
"""
_RUN: Final = """
[[case]]
name = "TODO"
run = "reproduce"  # a function of reproduction.py
levels = ["cpu"]

[night]  # without it every release on every base of the night is a cell: 46 cases a night
reason = "TODO: why these are enough"
bases = ["torch-2.13.0"]
mcore = ["0.0", "0.0"]  # TODO: both sides of each change
"""
_READ: Final = """
[contract]
callee = '\\.TODO$'  # of the callee's dotted path: megatrix contract --mcore V --te V lists them

[night]
reason = "the releases of Transformer Engine on both sides of each change"
bases = ["no-torch"]
te = ["0.0", "0.0"]  # TODO
"""
_TAIL: Final = """
[[workaround]]
text = "TODO"
"""
_REPRODUCTION: Final = '''\
"""TODO: what each rank does, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def reproduce(rank: Rank) -> dict[str, Any]:
    """Run upstream's real code; return what it measured, as JSON values. Raises what upstream raises."""
    raise NotImplementedError
'''


def files(id: str, *, contract: bool) -> Mapping[str, str]:
    """Return the files of a new failure by name; `contract`: read at level contract, without code that runs."""
    entry = _HEAD.format(id=id) + (_READ if contract else _RUN) + _TAIL
    return {ENTRY: entry} if contract else {ENTRY: entry, "reproduction.py": _REPRODUCTION}


def create(id: str, root: Path, *, contract: bool, log: str | None = None) -> Path:
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
    drafted = {ENTRY: drafted_text(id, log, date.today())} if log else {}
    for name, text in {**files(id, contract=contract), **drafted}.items():
        write_whole(folder / name, text)
    return folder


def ask(folder: Path, reply: Callable[[str], str]) -> None:
    """Ask what a draft leaves to its author, and write the answers; EOFError of `reply` ends the questions."""
    text = read_regular_text(folder / ENTRY)
    answers: dict[DraftQuestion, str] = {}
    prompt = f"Enter leaves a TODO, {ACCEPT} accepts the value in brackets, Ctrl-D ends the questions.\n"
    with suppress(EOFError):
        for question in questions(text):
            answers[question] = reply(f"{prompt}{question}: ")
            prompt = ""
    write_whole(folder / ENTRY, answered(text, answers))


def new_folder(id: str, root: Path) -> Path:
    """Return the folder of a new failure. Raises MatrixError for an unusable id, and where the folder exists."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", id):
        raise MatrixError("not an id of a failure", got=id, expected="small letters, digits and -: my-failure")
    folder = root / folder_name(id)
    if folder.exists():
        raise MatrixError("the failure exists", where=str(folder), fix="choose another id, or edit its failure.toml")
    return folder


def drafted_text(id: str, source: str, today: date) -> str:
    """Return the failure.toml of a log or of a thread. Raises MatrixError where it has no new fault."""
    thread = thread_of(Path(source))
    if thread is None:
        return entry_text(id, read_log(source), today)
    reading = match([thread.text], loading.load().failures, kind_table())
    return entry_text(id, reading, today, thread)


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
