"""`megatrix catalog verify`: everything that an entry needs before it is published, in one process."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from matrix.cli import case_options
from matrix.cli.run import executed
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Failure
from matrix.ground.catalog.folders import ENTRY
from matrix.ground.catalog.regular_file import read_regular_text
from matrix.ground.errors import ExitStatus
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.authoring import claims, entry, examples
from matrix.prove.authoring.entry import EntryProblem
from matrix.prove.execution import interrupt
from matrix.prove.provision.project import ROOT
from matrix.prove.store.history import with_history
from matrix.prove.store.paths import Paths, write_whole
from matrix.read.commands import python_module
from matrix.show.terminal import paragraphs, show, table, warn

TOOLS = (("ruff", "check"), ("ruff", "format", "--check"), ("mypy",))


def verify_command(parsed: argparse.Namespace) -> int:
    """Check an entry, run its part of the night, keep its examples, swap its expectations, lint it; return 0 or 1.

    What can't be run yet ends it at once: a draft, a case without its function.
    """
    interrupt.once()
    if path := loading.drafts().get(parsed.id):
        return _end([*entry.todo_problems(path.parent)], ["a draft: nothing was run"])
    catalog = loading.load()
    failure = catalog.failure(parsed.id)
    options = run_options(parsed)
    request = case_options.requested(catalog, options)
    early = [one for one in entry.problems(catalog, failure, request.planned) if not one.of_example]
    if early:
        return _end(early, ["nothing was run"])
    night = executed(request, catalog, options, [], pages=False)  # they take longer than the cases
    records = [record for record in night.records if record.failure == failure.id]
    missing = any(one.of_example for one in entry.problems(catalog, failure, request.planned))
    kept = keep(failure, records) if missing else []
    content = read_regular_text(failure.folder / ENTRY)
    if claims.OPEN in content:
        write_whole(failure.folder / ENTRY, claims.with_reasons(content, failure, records))
        failure = loading.load().failure(parsed.id)
    red = [record for record in records if record.verdict.colour == "red"]
    broken, text = claims.outcome(claims.rejudged(failure, records))
    problems = [
        *(EntryProblem(record.key, record.verdict.value, record.reproduce) for record in red),
        *([] if broken else [EntryProblem("expectations", text, "widen [night]: a cell on each side of the change")]),
        *entry.problems(catalog, failure, request.planned),
        *linted(failure.folder),
    ]
    kept_records = with_history(Paths(parsed.out).history, lambda history: history.records_of(failure.id), warn)
    claimed = [*map(str, claims.unsupported(failure, [*kept_records, *records])), *map(str, claims.unsourced(failure))]
    counts = ", ".join(
        f"{count} {verdict.value}" for verdict in Verdict if (count := sum(one.verdict is verdict for one in records))
    )
    rows = [("run:", counts or "no case"), ("swapped:", text), ("kept:", f"{len(kept)} new examples")]
    show("", table(rows), *paragraphs("\n".join(f"claim: {claim}" for claim in claimed)))
    return _end(problems, [f"{len(claimed) or 'no'} claim{'s' * (len(claimed) != 1)} without a record or a source"])


def run_options(parsed: argparse.Namespace) -> argparse.Namespace:
    """Return the options of the run: the entry's part of the night, with the output folder of the command."""
    words = ["--within", f"failure=={parsed.id}", "--out", str(parsed.out)]
    return case_options.parser_of("run").parse_args(words)


def keep(failure: Failure, records: Sequence[Record]) -> list[Path]:
    """Write the new examples of the records; return their paths."""
    texts = examples.new_texts(failure, records)
    for path, text in texts.items():
        write_whole(path, text)
    return [*texts]


def linted(folder: Path) -> Iterator[EntryProblem]:
    """Yield what ruff and mypy report of a folder's Python, or that one is not installed."""
    if not any(folder.glob("*.py")):
        return
    for name, *words in TOOLS:
        command = tool_command(name, *words, str(folder))
        if not command:
            yield EntryProblem(name, "it is not installed, and checked nothing", f"python3 -m pip install {name}")
            continue
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            yield EntryProblem(" ".join((name, *words)), (done.stdout + done.stderr).strip(), "correct the Python")


def tool_command(name: str, *words: str) -> list[str]:
    """Return the command of a tool: that of this Python, or of the PATH; [] where neither has it."""
    if importlib.util.find_spec(name) is not None:
        return python_module(sys.executable, name, *words)
    path = shutil.which(name)
    return [path, *words] if path else []


def _end(problems: Sequence[EntryProblem], notes: Sequence[str]) -> ExitStatus:
    """Print problems and the sum; return the exit status."""
    show(*paragraphs("\n".join(map(str, problems))), "; ".join([f"{len(problems) or 'no'} problems", *notes]))
    return ExitStatus.BAD if problems else ExitStatus.GOOD
