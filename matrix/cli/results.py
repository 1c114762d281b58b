"""Find the newest run in an output folder; print the summary of a run; write its results of level gpu."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.model import Catalog
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.prove.execution.engine import Engine
from matrix.prove.planning.statistics import Durations, statement
from matrix.prove.provision import host
from matrix.prove.store import stored_run
from matrix.prove.store.history import History, with_history
from matrix.prove.store.paths import BISECTION, Paths, unwritable
from matrix.prove.store.stored_run import Night
from matrix.show import run_summary
from matrix.show.run_summary import summary
from matrix.show.terminal import Prose, show, warn

# What a reason proposes: a command, or what follows "fix:".
REMEDY: Final = re.compile(r"(?:fix: |\b(?=(?:megatrix|pip|apt-get|podman|docker) [a-z]+ ))([^;)]+)")
NO_DRIVER: Final = "no NVIDIA driver: /proc/driver/nvidia is missing, and NVML can't be loaded"


def newest(out: Path, label: str = "") -> str:
    """Return the id of the newest run with this label if there is one, else of any; bisection rounds are excluded.

    Raises MatrixError when there is none.
    """
    runs = [run for run in Paths(out).runs() if not run.endswith(f"-{BISECTION}")]
    if not runs:
        raise MatrixError("there is no run yet", where=str(out), fix="megatrix run makes one")
    return (labelled(runs, label) or runs)[-1]


def labelled(runs: Sequence[str], label: str) -> list[str]:
    """Return the ids of runs with this label."""
    return [run for run in runs if run.endswith(f"-{label}")]


def last_red(planned: Sequence[Planned], out: Path, label: str) -> list[Planned]:
    """Return the cases that are red in the newest run with this label. Raises MatrixError where there is none."""
    runs = labelled(Paths(out).runs(), label)
    records = stored_run.read(Paths(out).run(runs[-1])).records if runs else ()
    red = {record.key for record in records if record.verdict.colour == "red"}
    if not (selected := [item for item in planned if item.key in red]):
        raise MatrixError(
            f"no red case in the last run of {label}",
            where=str(out),
            got=f"{runs[-1]}, {len(red)} red" if runs else "no such run",
            expected="a run with a red case among the selected ones",
            fix="leave --lf out",
        )
    return selected


def durations(catalog: Catalog, out: Path) -> Durations:
    """Return the durations of the cases in the history of an output folder; none where it has no usable history."""
    path = Paths(out).history
    return Durations(catalog, with_history(path, History.seconds, warn) if path.is_file() else {})


def print_summary(night: Night, out: Path, *, quiet: bool = False) -> None:
    """Print the summary of a run and the paths of its pages; with `quiet` the headline, its last line, alone."""
    pages = Paths(out).pages(night.run)
    *parts, verdict = summary(night.records, night.missing)
    show(*([verdict] if quiet else ["", *parts, verdict, f"page: {pages.page}  junit: {pages.junit}"]))


def opening(
    catalog: Catalog,
    engine: Engine,
    planned: Sequence[Planned],
    parallel: tuple[int, int],
    unavailable_cases: Sequence[Record],
    waiting: Sequence[Planned],
) -> list[Prose]:
    """Return the lines with which a run opens after its unavailable cases: what it is about to run.

    At level gpu also where, of which entries, and what would add most cases. `parallel` are the bases, and the cases on
    each of them, that run at a time.
    """
    bases = {item.cell.base for item in waiting}
    absent = [base.id for base in catalog.wheels if base.id in bases and not engine.installed(base.id)]
    lines = [statement(waiting, len(planned) - len(unavailable_cases) - len(waiting), absent, parallel)]
    if any(item.level is Level.GPU for item in (waiting or planned)):
        counts = Counter(item.failure for item in waiting).most_common()
        entries = [f"cases by entry: {', '.join(f'{name} {count}' for name, count in counts)}"] if counts else []
        lines = [f"machine: {host.look().text}", *entries, *lines, *most_with(unavailable_cases)]
    return [Prose(line) for line in lines]


def most_with(unavailable_cases: Sequence[Record]) -> list[str]:
    """Return the remedy that the reasons of the most cases name, as a line; [] where none names one."""
    remedies = Counter(match[1] for record in unavailable_cases if (match := REMEDY.search(record.outcome.reason)))
    return [f"{count} more cases need: {remedy}" for remedy, count in remedies.most_common(1)]


def lacking_gpu() -> str:
    """Return why level gpu can't run on this machine, "" if it has a GPU."""
    offer = host.look().offers(Level.GPU)
    return "" if offer.gpus else f"CUDA shows no GPU on this machine ({offer.problem or NO_DRIVER})"


def write_gpu_results(folder: Path, finished: Night) -> Path:
    """Write the page of a run at level gpu; return its path."""
    path = folder / run_summary.name(finished)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(run_summary.page(finished), encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def add_step_summary(out: Path, run: str) -> None:
    """Add the summary of a run to the page of a step of GitHub Actions, if this process is one. Raises MatrixError."""
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(page).open("a", encoding="utf-8") as file:
                file.write(Paths(out).pages(run).summary.read_text("utf-8"))
        except OSError as error:
            raise unwritable(Path(page), error) from error
