"""Which public threads does the project answer? A table by class: `match` on the log, `check` on the stack.

    python -m tests.thread_coverage                 the threads of tests/threads/threads.json and public.json
    python -m tests.thread_coverage FILE            those of another file

Each thread is a table with repo, num, date, cls, and, if known, log (an excerpt) and stack ("te=2.1.0 torch=2.5.1").
The TOML file of the same name has the answers that are right, written from the threads: `answers` are ids of failures
or of kinds, `out_of_reach` is the reason why no answer is expected. Another answer is wrong, and so is the first one
for a thread without any. Where a file has no expectations, an answer counts as right if its topic is that of the class.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final

from matrix.cli.main import main as megatrix
from matrix.ground.catalog import loading
from matrix.ground.catalog.schema import read_toml

FOLDER: Final = Path(__file__).parent / "threads"
THREADS: Final = (FOLDER / "threads.json", FOLDER / "public.json")
# The classes of the threads and the topics of failures that they may be about.
TOPICS: Final[Mapping[str, tuple[str, ...]]] = {
    "ABI": ("loading",),
    "ATTN": ("attention", "hardware", "loading", "numbers"),
    "BUILD": ("builds", "packages", "loading"),
    "CKPT": ("checkpoints", "torch-api", "packages"),
    "CONFIG": ("options",),
    "DATA": ("data", "builds"),
    "DRIVER": ("driver",),
    "FW-API": ("framework-api", "packages", "te-api"),
    "GRAPH": ("cuda-graphs",),
    "HANG": ("hangs", "hardware"),
    "HW": ("hardware",),
    "NUM": ("numbers",),
    "OOM": ("memory",),
    "OVERLAP": ("overlap", "hardware"),
    "PKG": ("packages", "framework-api", "loading"),
    "TE-API": ("te-api", "packages", "framework-api"),
    "TORCH-API": ("torch-api", "checkpoints"),
}
STANDSTILL: Final = "standstill"  # the answer which rank is behind, failed or runs another collective
BREAKS: Final = (
    "will break", "breaks with these options", "silently different", "breaks with versions that are not named"
)  # fmt: skip


class Answer(Enum):
    """What a command answers about a thread; `ABSENT`: the thread has no log, or no stack."""

    RIGHT = "right"
    WRONG = "wrong"
    NOTHING = "nothing"
    ABSENT = "absent"


@dataclass(frozen=True)
class Thread:
    """A public thread, with an excerpt of its log and the stack that it states, "" where it has none."""

    repo: str
    num: int
    cls: str
    log: str
    stack: str

    @property
    def id(self) -> str:
        """Return "OWNER/NAME#NUMBER"."""
        return f"{self.repo}#{self.num}"


@dataclass(frozen=True)
class Expected:
    """The answers that are right, or the reason why none is expected."""

    answers: tuple[str, ...] = ()
    out_of_reach: str = ""


@dataclass(frozen=True)
class Named:
    """What `match` names in a log: the id of a failure or a kind, and its topic."""

    id: str
    topic: str


def judged(thread: Thread, named: Sequence[Named], expected: Expected | None) -> Answer:
    """Return whether the names are right: every one of them, and at least one."""
    if not named:
        return Answer.NOTHING
    if expected is None:
        right = [one.topic in TOPICS[thread.cls] for one in named]
    else:
        right = [one.id in expected.answers for one in named]
    return Answer.RIGHT if all(right) else Answer.WRONG


def checked(breaking: Iterable[str], expected: Expected | None) -> Answer:
    """Return whether `check` names a right failure among those that break: a stack may have further ones."""
    answers = expected.answers if expected else ()
    return Answer.RIGHT if set(breaking) & set(answers) else Answer.NOTHING


def read(path: Path) -> list[Thread]:
    """Return the threads of a file."""
    items = json.loads(path.read_text())
    return [
        Thread(item["repo"], item["num"], item["cls"], item.get("log") or "", item.get("stack") or "") for item in items
    ]


def expectations(path: Path) -> dict[str, Expected]:
    """Return the expectations by thread, {} for a file of threads without a TOML file of its name."""
    table = read_toml(path.with_suffix(".toml")) if path.with_suffix(".toml").is_file() else {}
    return {id: Expected(tuple(entry.get("answers", ())), entry.get("out_of_reach", "")) for id, entry in table.items()}


def command(*arguments: str) -> dict[str, Any]:
    """Return the JSON that a command prints, {} where it ends with an error."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        status = megatrix(list(arguments))
    return json.loads(printed.getvalue()) if status != 2 else {}


@cache
def topics() -> dict[str, str]:
    """Return the topic of each failure."""
    return {failure.id: failure.topic for failure in loading.load().failures}


def named_in(log: str) -> list[Named]:
    """Return what `match` names in a log."""
    with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
        file.write(log + "\n")
        file.flush()
        result = command("match", file.name, "--json")
    known = [Named(item["failure"], topics()[item["failure"]]) for item in result.get("items", ())]
    kinds = [Named(item["kind"], item["topic"]) for item in result.get("kinds", ())]
    ranks = [Named(STANDSTILL, "hangs")] if result.get("standstills") else []
    return known or kinds or ranks


def breaking_in(stack: str) -> list[str]:
    """Return the failures that `check` reports for a stack."""
    result = command("check", stack, "--json")
    failures = [failure for item in result.get("items", ()) for failure in item.get("failures", ())]
    return [failure["failure"] for failure in failures if failure["standing"] in BREAKS]


@dataclass(frozen=True)
class Row:
    """A thread, the answers to its log and its stack, and what `match` named."""

    thread: Thread
    match: Answer
    check: Answer
    named: tuple[Named, ...]


def row_of(thread: Thread, expected: Expected | None) -> Row:
    """Return the answers of the commands to a thread."""
    named = tuple(named_in(thread.log)) if thread.log else ()
    match = judged(thread, named, expected) if thread.log else Answer.ABSENT
    check = checked(breaking_in(thread.stack), expected) if thread.stack else Answer.ABSENT
    return Row(thread, match, check, named)


def table(rows: Sequence[Row]) -> str:
    """Return the coverage by class as text: of the logs and of the stacks, how many are answered."""
    heads = ("class", "threads", "logs", "right", "wrong", "nothing", "stacks", "right", "nothing", "answered")
    classes = [name for name, _ in Counter(row.thread.cls for row in rows).most_common()]
    lines = [heads, *(_line(name, [row for row in rows if row.thread.cls == name]) for name in classes)]
    lines.append(_line("all", rows))
    widths = [max(len(str(line[column])) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(f"{cell!s:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines
    )


def _line(name: str, rows: Sequence[Row]) -> tuple[object, ...]:
    match, check = Counter(row.match for row in rows), Counter(row.check for row in rows)
    answered = sum(Answer.RIGHT in (row.match, row.check) for row in rows)
    logs, stacks = len(rows) - match[Answer.ABSENT], len(rows) - check[Answer.ABSENT]
    of_logs = (logs, match[Answer.RIGHT], match[Answer.WRONG], match[Answer.NOTHING])
    return name, len(rows), *of_logs, stacks, check[Answer.RIGHT], check[Answer.NOTHING], answered


def report(rows: Sequence[Row], expected: Mapping[str, Expected]) -> str:
    """Return the table, the wrong answers, and every thread without an answer, with the reason that is recorded."""
    wrong = [f"{row.thread.id}: {', '.join(one.id for one in row.named)}" for row in rows if row.match is Answer.WRONG]
    silent = [
        f"{row.thread.id} ({row.thread.cls}): {_reason(row, expected.get(row.thread.id, Expected()))}"
        for row in rows
        if Answer.RIGHT not in (row.match, row.check) and row.match is not Answer.WRONG
    ]
    return "\n".join([table(rows), "", "wrong:", *wrong, "", "without an answer:", *silent])


def _reason(row: Row, expected: Expected) -> str:
    no_input = row.match is row.check is Answer.ABSENT
    return expected.out_of_reach or ("neither log nor versions" if no_input else "no reason recorded")


def main(arguments: Sequence[str]) -> int:
    """Print the report of each file; return 1 where an answer is wrong, or an expected one is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.thread_coverage", description=__doc__.partition("\n")[0])
    parser.add_argument("file", metavar="FILE", nargs="*", type=Path, default=THREADS, help="threads as a JSON list")
    results = [failed(path) for path in parser.parse_args(arguments).file]  # every file is reported
    return int(any(results))


def failed(path: Path) -> bool:
    """Print the report of a file; return whether an answer is wrong, or an expected one is missing."""
    expected = expectations(path)
    rows = [row_of(thread, expected.get(thread.id, Expected()) if expected else None) for thread in read(path)]
    print(f"{path.name}\n{report(rows, expected)}\n")
    missed = [row for row in rows if (one := expected.get(row.thread.id)) and one.answers and row.thread.log]
    return any(row.match is Answer.WRONG for row in rows) or any(row.match is Answer.NOTHING for row in missed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
