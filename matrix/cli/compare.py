"""`megatrix compare`."""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from matrix.ask.check import checking, declaring
from matrix.ask.history import likeliest
from matrix.cli import places
from matrix.cli.bisect import progress
from matrix.cli.usage import add_arguments, add_command, described
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.regular_file import read_regular_text
from matrix.ground.errors import MatrixError
from matrix.prove.bisection.joint import cell_for, cell_named
from matrix.prove.bisection.procedure import BisectionEvents
from matrix.prove.bisection.stack_comparison import CompareArguments, attributed, compare_stacks
from matrix.prove.bisection.turns import FIGURES, JudgedTest, TurnLimits, Turns
from matrix.prove.bisection.user_command import OwnCommand
from matrix.prove.execution import interrupt
from matrix.prove.store.paths import write_whole
from matrix.show.bisection import FORMATS, StackComparison, beside, plain, render_comparison
from matrix.show.terminal import json_object, say, show, warn


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "compare", compare_command, words={"MOST": str(TurnLimits.most)})
    formats = f"text (the default), json, {', '.join(FORMATS)}; a file for each but the first; may be repeated"
    parser.add_argument("--format", metavar="NAME[=FILE]", type=output, help=formats, action="append", default=[])
    add_arguments(parser, described("compare").parts["output"])
    parser.set_defaults(most=TurnLimits.most)


def compare_command(parsed: argparse.Namespace) -> int:
    """Print what changes; return 1 where something newly breaks, 3 where a test is undecided."""
    interrupt.once()
    catalog, started = places.with_environments(loading.load(), (parsed.old, parsed.new)), time.monotonic()
    accepted = baseline(parsed.baseline)
    arguments = arguments_of(catalog, parsed)
    events = BisectionEvents(progress, say, warn)
    own = arguments.command

    def start_engine(full: Catalog) -> Any:
        environ = own.environ(os.environ, *full.site) if own else os.environ
        return places.engine_of(full, parsed, 1, 1, environ)

    stacks = (arguments.old, arguments.new)
    with ExitStack() as stack:
        turns = compare_stacks(arguments, catalog, start_engine, events, stack)
        judged = turns.judged
        causes = attributed(arguments, judged, catalog, start_engine, events, stack) if parsed.bisect else {}
    compared = StackComparison(
        *stacks,
        judged,
        causes,
        accepted,
        [
            *turns.qualifications,
            *checking.certain_changes(catalog, *(cell_named(catalog, stack).stack for stack in stacks)),
        ],
        turns.rounds,
        time.monotonic() - started,
        arguments.limits.error,
        turns.unreached,
        {test.name: likely_commit(turns, test) for test in judged if test.finding.claimed},
        {test.name: place for test in judged if (place := place_of(turns, test, Path.cwd()))},
        {trial.name: (trial.line(0), trial.line(1)) for trial in turns.trials},
    )
    for name, path in parsed.format or [("json" if parsed.json else "text", "")]:
        if name == "text":
            show(*render_comparison(compared))
            continue
        answer = json_object("compare/1", plain(compared), **beside(compared))
        text = FORMATS[name](compared) if name in FORMATS else answer
        write_whole(Path(path), f"{text}\n") if path else print(text)
    return compared.status


def output(text: str) -> tuple[str, str]:
    """Return a format, and the file to write it to, "" for standard output. Raises ArgumentTypeError for another."""
    name, at, path = text.partition("=")
    if name not in ("text", "json", *FORMATS) or (at and not path) or (path and name == "text"):
        raise argparse.ArgumentTypeError(f"{text!r} is none of text, json, {', '.join(FORMATS)}, or NAME=FILE")
    return name, path


def likely_commit(turns: Turns, test: JudgedTest) -> str:
    """Return the commit between both stacks that upstream's history offers for a change, "" without one."""
    outcome = turns.failures.get(test.finding.signature)
    return likeliest(outcome.chain, [planned.cell.stack for planned in test.trial.planned]) if outcome else ""


def place_of(turns: Turns, test: JudgedTest, folder: Path) -> tuple[str, int] | None:
    """Return the line of a test in the user's files where its traceback enters them, else the file of its name."""
    outcome = turns.failures.get(test.finding.signature)
    frames = [(frame.file, frame.line) for raised in (outcome.chain if outcome else ()) for frame in raised.frames]
    words = test.name.split(".")
    files = [(f"{'/'.join(words[:end])}.py", 1) for end in range(len(words), 0, -1)]
    for file, line in (*frames, *files):
        parts = Path(file).parts
        for path in (Path(*parts[start:]) for start in range(len(parts))):
            if not path.is_absolute() and (folder / path).is_file():
                return str(path), line
    return None


def arguments_of(catalog: Catalog, parsed: argparse.Namespace) -> CompareArguments:
    """Return the request. Raises MatrixError for options that do not fit."""
    if parsed.own and parsed.select:
        raise MatrixError("a command runs instead of the catalog's cases", got="--select with --", fix="leave one out")
    if not parsed.own and (parsed.junit or parsed.bisect):
        raise MatrixError("--junit and --bisect are for a command", expected="-- COMMAND ...")
    if not parsed.own and not {*parsed.metric} <= FIGURES:
        raise MatrixError("no number of a case", got=" ".join(parsed.metric), expected=" or ".join(sorted(FIGURES)))
    if not 0 < parsed.confidence < 1 or not 1 <= parsed.least <= parsed.most:
        got = f"{parsed.confidence}, {parsed.least}, {parsed.most}"
        raise MatrixError("out of range", got=got, expected="0 < C < 1, 1 <= least <= most")
    level = Level(parsed.level)
    own = OwnCommand(
        tuple(parsed.own),
        Path.cwd(),
        level,
        parsed.deadline,
        shared_folder=parsed.shared_folder,
        overrides=tuple(parsed.override),
    )
    seconds = parsed.minutes * 60 if parsed.minutes is not None else None
    return CompareArguments(
        stack_named(catalog, parsed.old),
        stack_named(catalog, parsed.new),
        parsed.out,
        own if parsed.own else None,
        parsed.select,
        level,
        TurnLimits(1 - parsed.confidence, parsed.worse_than, parsed.most, seconds, parsed.least),
        parsed.junit,
        metrics(parsed.metric),
        parsed.same,
        parsed.fresh,
    )


def metrics(texts: Sequence[str]) -> dict[str, str]:
    """Return the expression of each number, "" of a property. Raises MatrixError for a bad one."""
    found = {}
    for text in texts:
        name, _, pattern = text.partition("=")
        try:
            re.compile(pattern)
        except re.error as error:
            raise MatrixError(
                "not a regular expression", where=f"--metric {name}", got=pattern, expected=error
            ) from None
        found[name] = pattern
    return found


def stack_named(catalog: Catalog, text: str) -> str:
    """Return a stack as the base or the cell that runs it, with its sources. Raises MatrixError where it is none."""
    if re.match(r"[\w.+-]+/mcore-", text) or catalog.find_base(text):
        return text
    words = [text] if declaring.is_file(text) else text.split()
    cells = {word: cell for word in words if (cell := places.environment_cell(catalog, word))}
    sources = {word: source for word in words if word not in cells and (source := places.source_of(word))}
    versions = [f"base={word}" if catalog.find_base(word) else word for word in words if word not in cells | sources]
    if cells and (versions or len(cells) > 1):
        fix = "leave the rest out, or name versions alone; mcore=CLONE@REV may be laid over an environment"
        raise MatrixError("an environment is a whole stack", where=text, got=" ".join([*cells, *versions]), fix=fix)
    if cells:
        return " ".join([*cells.values(), *sources.values()])
    if not versions:
        raise MatrixError("a source needs a base", where=text, got="no torch", fix=f'"torch=2.13.0 {text}"')
    (checked,) = declaring.inputs(catalog, versions, as_one=True)
    if limits := checked.stack.limits:
        got = ", ".join(f"{name}{limit}" for name, limit in limits.items())
        raise MatrixError("a stack that runs has versions", where=text, got=got, expected="NAME=VERSION for each")
    return " ".join([cell_for(catalog, checked.stack.stack, text).id, *sources.values()])


def baseline(path: str) -> frozenset[tuple[str, str]]:
    """Return the breaks in the JSON of an earlier comparison. Raises MatrixError for another file."""
    if not path:
        return frozenset()
    try:
        content = json.loads(read_regular_text(Path(path)))
        items = content["items"] if content["schema"].startswith("megatrix/compare/") else []
        return frozenset((item["test"], item["signature"]) for item in items if item["breaks"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MatrixError("no baseline", where=path, got=error, expected="the --json of megatrix compare") from None
