"""The answer of `megatrix check` for CI services: SARIF, GitHub annotations, Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matrix import __version__
from matrix.check.answer import CheckResult, FailureInStack, Standing
from matrix.report.check import summary
from matrix.verdicts.text import one_line, visible

SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
# By whether a finding is certain: SARIF's level and GitHub's command.
LEVELS: Final = {True: "error", False: "warning"}
CALL: Final = "a call into Transformer Engine breaks"
LISTED: Final = (Standing.WILL_BREAK, Standing.WITH_OPTIONS, Standing.SILENT, Standing.WITH_VERSIONS)


@dataclass(frozen=True)
class CheckNote:
    """One finding with its place: a file and line, "" and 0 where no file states it."""

    id: str
    title: str
    text: str
    certain: bool
    path: str = ""
    line: int = 0


def notes(result: CheckResult) -> Iterator[CheckNote]:
    """Yield what breaks, may break or differs silently, the most certain first."""
    for clash in result.clashes:
        yield CheckNote(
            "stack", "parts of the stack exclude each other", clash.text, clash.breaks, *place(clash.source)
        )
    for one in result.failures:
        if one.standing in LISTED and not one.missing:
            yield CheckNote(
                str(one.failure.id), one.failure.title, _text(one), one.certain, *place(_source(result, one))
            )
    for each in result.calls:
        if not each.missing:
            raised = (f"{one.raised.type}: {one.message}; at {one.call_site}" for one in each.findings)
            said = _first(result, ("te", "mcore", "base"), each.source)
            yield CheckNote("call", CALL, ". ".join([each.needs, *raised]), each.certain, *place(said))


def place(source: str) -> tuple[str, int]:
    """Return the file and line of a source, ("", 0) where it is none."""
    path, _, line = source.rpartition(":")
    if path and line.isdecimal():
        return path, int(line)
    return (source, 1) if source and Path(source).is_file() else ("", 0)


def _source(result: CheckResult, one: FailureInStack) -> str:
    """Return the place of the version that decides, else of the command, else of any version."""
    axes = [axis for rule in one.failure.affected for axis, _ in rule.bounds()]
    return _first(result, (*axes, "mcore", "te", "torch", "base"), one.source)


def _first(result: CheckResult, axes: Sequence[str], command: str) -> str:
    sources = [result.stack.sources.get(axis, "") for axis in axes]
    return next((source for source in (*sources, command) if place(source)[0]), "")


def _text(one: FailureInStack) -> str:
    parts = [one.failure.title, one.needs, one.reason, *(f"workaround: {each.text}" for each in one.workarounds[:2])]
    return ". ".join(part.rstrip(".") for part in parts if part)


def sarif(result: CheckResult) -> str:
    """Return a SARIF 2.1.0 log."""
    found = list(notes(result))
    rules = {one.id: one.title for one in found}
    references = {str(one.failure.id): one.failure.references for one in result.failures}
    log: dict[str, Any] = {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "megatrix",
                        "version": __version__,
                        "rules": [
                            {
                                "id": id,
                                "shortDescription": {"text": visible(title)},
                                "help": {"text": ", ".join(references.get(id, ())) or visible(title)},
                            }
                            for id, title in rules.items()
                        ],
                    }
                },
                "results": [_sarif_result(one) for one in found],
            }
        ],
    }
    return json.dumps(log, indent=2)


def _sarif_result(one: CheckNote) -> dict[str, Any]:
    made: dict[str, Any] = {
        "ruleId": one.id,
        "level": LEVELS[one.certain],
        "message": {"text": visible(one.text)},
    }
    if one.path:
        where = {"artifactLocation": {"uri": Path(one.path).as_posix()}, "region": {"startLine": max(one.line, 1)}}
        made["locations"] = [{"physicalLocation": where}]
    return made


def github(result: CheckResult) -> str:
    """Return workflow commands of GitHub Actions: an error or a warning for each finding, and the sum."""
    lines = []
    for one in notes(result):
        file = f"file={_property(one.path)},line={max(one.line, 1)}," if one.path else ""
        lines.append(f"::{LEVELS[one.certain]} {file}title={_property(f'{one.id}: {one.title}')}::{_data(one.text)}")
    sums = (summary(result), *result.upgrades)
    return "\n".join([*lines, *(f"::notice title=megatrix check::{_data(one)}" for one in sums)])


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(result: CheckResult) -> str:
    """Return a table of the findings, and the sum."""
    rows = [
        f"| {'**yes**' if one.certain else 'maybe'} | {_cell(one.id)} | {_cell(one.text)} | {_cell(_where(one))} |"
        for one in notes(result)
    ]
    table = ["| breaks | failure | what | where |", "|---|---|---|---|", *rows, ""] if rows else []
    upgrades = [line for one in result.upgrades for line in (_cell(one), "")]
    return "\n".join([f"**{_cell(summary(result))}**", "", *upgrades, *table])


def _where(one: CheckNote) -> str:
    return f"{one.path}:{one.line}" if one.path else ""


def _cell(text: str) -> str:
    """Return a text as a table's cell: no markup of it counts."""
    escaped = one_line(text, 600).replace("\\", "\\\\")
    for mark in "|`*_[]#~":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped.replace("<", "&lt;").replace("@", "&#64;")


FORMATS: Final[dict[str, Callable[[CheckResult], str]]] = {"sarif": sarif, "github": github, "markdown": markdown}
