"""A new entry: its files from templates, and its draft from the first unknown fault of a log.

The recorded APIs show the releases around the fault, and Python that needs what some of them lack.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import groupby
from pathlib import Path
from textwrap import indent
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from matrix.ground.catalog import loading
from matrix.ground.catalog.checks import FRAME, NATIVE
from matrix.ground.catalog.folders import ENTRY, folder_name
from matrix.ground.catalog.kinds import kind_table
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.regular_file import read_regular_text
from matrix.ground.catalog.stack import MCORE
from matrix.ground.catalog.versions import PARTS, ReleaseBoundary
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.crash import NativeCrash
from matrix.ground.verdicts.kind_match import PACKAGES, KindSighting
from matrix.ground.verdicts.log_match import LogFault, Reading, match
from matrix.ground.verdicts.outcome import Raised
from matrix.ground.verdicts.text import MASKED, mask, one_line, visible
from matrix.prove.bisection import ends
from matrix.prove.store.paths import write_whole
from matrix.read.api.provider import MEGATRON_CORE
from matrix.read.api.recording import defining_module, releases_with, spans

SCRIPT: Final = "reproduction.py"
_UNWRITTEN: Final = "    raise NotImplementedError"
_RESULT: Final = "dict[str, Any]"
ReadLog = Callable[[str], Reading]  # of the path of a log, or - for stdin: what is known of its faults


def reproduction_text(lines: str = "") -> str:
    """Return reproduction.py with the indented lines of its function; without any, a template."""
    result = _RESULT if re.search(r"\breturn\b", lines) or not lines else "None"
    return template(
        "reproduction.py",
        todo="What fails, on each rank." if lines else "TODO: what each rank does, in one line.",
        imported=", Any" * (result == _RESULT),
        result=result,
        what="Run it." if lines else "Run upstream's real code; return what it measured, as JSON values.",
        lines=lines or _UNWRITTEN,
    )


def files(id: str, *, contract: bool) -> Mapping[str, str]:
    """Return the files of a new failure by name; `contract`: read at level contract, without code that runs."""
    entry = template("new_failure.toml", id=id, contract=contract)
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
    link = str(content.get("html_url") or content.get("url"))
    address = re.search(r"([\w.-]{1,99}/[\w.-]{1,99})/(?:issues|pull)/(\d+)", link)
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


BASE_OF_DRAFTS: Final = "torch-2.13.0"  # the newest on which every megatron-core of the matrix was measured
LONGEST: Final = 200  # characters of a message in a signature: what comes after them differs from run to run
_ORIGIN: Final = re.compile(r"(?<=') \((?:/[^)]{0,512}|unknown location)\)$")
# The path of a file before its package: what is left is "megatron/core/optimizer.py".
_PACKAGE_ROOT: Final = re.compile(r"^.*(?:-packages/|(?=megatron/|transformer_engine/))")
_UPSTREAM: Final = re.compile("(megatron/core|transformer_engine)/")


@dataclass(frozen=True)
class Thread:
    """A public thread: its title, its reference ("OWNER/REPOSITORY#NUMBER"), the day it was opened, all its text."""

    title: str
    reference: str
    day: str
    text: str


_ENVIRONMENT: Final = Environment(  # noqa: S701  (no HTML)
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters["json"] = partial(json.dumps, ensure_ascii=False)


def template(file: str, /, **values: Any) -> str:
    """Return a file from its template."""
    return _ENVIRONMENT.get_template(f"{file}.txt").render(values)


def entry_text(
    id: str,
    reading: Reading,
    today: date,
    thread: Thread | None = None,
    change: ApiChange | None = None,
    base: str = BASE_OF_DRAFTS,
) -> str:
    """Return the failure.toml of a fault in a log or a thread; `change` is what the recorded APIs show of it.

    Raises MatrixError where it has none that the catalog lacks.
    """
    fault = _fault(reading)
    sighting = _kind(reading, fault)
    parts = change.parts if change else PARTS[:3]
    return template(
        "drafted_failure.toml",
        id=id,
        title=thread.title if thread else one_line(fault.what)[:LONGEST],
        topic=sighting.kind.topic if sighting else "",
        month=thread.day[:7] if thread else f"{today:%Y-%m}",
        thread=thread,
        change=change,
        boundary=vars(change.boundary) if change else {},
        fixed=change.boundary.fixed if change else "",
        name=_name(fault),
        keys=list(_keys(fault, change)),
        versions=[f"{package} {' and '.join(seen)}" for package in PACKAGES if (seen := reading.versions.of(package))],
        parts=sorted(parts, key=lambda part: part != "broken"),
        base=base,
    )


def change_of(reading: Reading) -> ApiChange | None:
    """Return what the recorded APIs show of the fault of a draft. Raises MatrixError where there is none."""
    sighting = _kind(reading, _fault(reading))
    return api_change(sighting.groups) if sighting else None


def _kind(reading: Reading, fault: LogFault) -> KindSighting | None:
    return next((sighting for sighting in reading.kinds if sighting.line == fault.line), None)


def _name(fault: LogFault) -> str:
    """Return a name for the signature: that of its exception or signal, in small letters."""
    name = fault.raised.type.rpartition(".")[2] if isinstance(fault.raised, Raised) else "crash"
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def _fault(reading: Reading) -> LogFault:
    """Return the fault that a draft is about: an exception with its traceback before others, the first in the log."""
    faults = [fault for fault in reading.unknown if fault.raised or fault.crash]
    if not faults:
        known_failures = ", ".join(sighting.failure.id for sighting in reading.known)
        raise MatrixError(
            "no fault in this log is new",
            got=f"known failures: {known_failures}" if known_failures else "no exception and no crash",
            expected="an exception or a native crash that no entry names",
            fix=f"megatrix catalog check {known_failures}"
            if known_failures
            else "name the log of the rank that failed",
        )
    return min(faults, key=lambda fault: not (fault.raised and fault.raised.frames))


def _keys(fault: LogFault, change: ApiChange | None) -> Iterator[str]:
    """Yield the keys of the signature, the narrowest that are the same in each run.

    A name that releases lack fails in each program that needs it: a frame of the program in the log is left out.
    """
    if isinstance(raised := fault.raised, Raised):
        yield f"exception = {json.dumps(raised.type)}"
        if raised.message:
            yield f"message = {json.dumps(generalised(raised.compared))}"
        frame = fault.frame or (raised.frames[-1] if raised.frames else None)
        location = f"{_PACKAGE_ROOT.sub('', frame.file) or frame.file}:{frame.function}" if frame else ""
        if FRAME.fullmatch(location) and (change is None or _UPSTREAM.match(location)):
            yield f"{'frame' if frame == raised.frames[-1] else 'through'} = {json.dumps(location)}"
    elif isinstance(crash := fault.crash, NativeCrash):
        function = next((name for name in crash.frames if "::" in name), "")
        yield f"signal = {json.dumps(crash.signal)}" if crash.signal else f"exit_code = {crash.exit_code}"
        if NATIVE.fullmatch(function):
            yield f"stack = {json.dumps(function)}  # TODO: the function of the stack's own code"


def generalised(message: str) -> str:
    """Return an expression that matches a message in every run: its addresses, paths and numbers stand for any.

    Python ends "cannot import name" with the path of the module, which differs by machine, and threads often lack.
    """
    text = mask(visible(_ORIGIN.sub("", message.partition("\n")[0])))[:LONGEST]
    pattern = ends.generalised(text).replace(re.escape(MASKED), ".{1,500}")
    return f"^{pattern}" + "$" * (text.rstrip() == message and not text.startswith("cannot import name "))


@dataclass(frozen=True)
class ApiChange:
    """A name or an argument that some releases lack: its boundary, the fact in words, and lines that need it.

    `title` is the name, `parts` are the words of the rules with evidence. `script` is "" where the log does not show
    how it is reached.
    """

    boundary: ReleaseBoundary
    parts: tuple[str, ...]
    title: str
    fact: str
    script: str


def api_change(groups: Mapping[str, str]) -> ApiChange | None:
    """Return the change for what a kind's pattern captured; None where the recorded APIs show none, or several."""
    releases = releases_with(MEGATRON_CORE, groups)
    runs = [(has, next(run)[0]) for has, run in groupby(releases, lambda release: release[1]) if has is not None]
    values = [has for has, _ in runs]
    if values not in ([False, True], [True, False], [True, False, True]):
        return None
    first = "" if runs[0][1] == releases[0][0] else runs[0][1]
    releases_of_runs = [""] * (not values[0]) + [first, *(version for _, version in runs[1:])]
    boundary = ReleaseBoundary(**dict(zip(("works", "breaks", "fixed"), releases_of_runs, strict=False)))
    parts = ("before",) * values[0] + ("broken",) + ("fixed",) * values[-1]
    title, script = _need(groups)
    fact = f"{title} is in megatron-core {spans(releases, True)}; missing in {spans(releases, False)} (recorded APIs)."
    return ApiChange(boundary, parts, title, fact, script)


def _need(groups: Mapping[str, str]) -> tuple[str, str]:
    """Return what is needed, and lines of Python that need it."""
    module, name = groups.get("module", ""), groups.get("name", "")
    if module:
        line = f"from {module} import {name}" if name else f"import {module}"
        return ".".join(filter(None, (module, name))), f"{line}  # noqa: F401"
    if "keyword" in groups:
        return f"{groups['callable']}({groups['keyword']}=)", ""
    owner, attribute = groups["owner"], groups["attribute"]
    place = defining_module(MEGATRON_CORE, owner)
    script = f'from {place} import {owner}\n\nreturn {{"{attribute}": str({owner}.{attribute})}}' if place else ""
    return f"{owner}.{attribute}", script
