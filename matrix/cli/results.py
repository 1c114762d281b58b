"""Find the newest run in an output folder; print the summary of a run; write its results of level gpu."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from matrix.bisection.probing import RUN_LABEL as BISECTION
from matrix.catalog.failure import Level
from matrix.catalog.model import Catalog
from matrix.errors import MatrixError
from matrix.planning.estimates import Durations
from matrix.provision import host
from matrix.report import gpu_results
from matrix.report.run_summary import summary
from matrix.report.terminal import show, warn
from matrix.store.history import History, with_history
from matrix.store.paths import Paths, is_night, unwritable
from matrix.store.stored_run import Night

NO_DRIVER: Final = "no NVIDIA driver: /proc/driver/nvidia is missing, and NVML can't be loaded"


def newest(out: Path, *, night: bool) -> str:
    """Return the id of the newest run, or of the newest night if there is one; bisection rounds are excluded.

    Raises MatrixError when there is none.
    """
    runs = [run for run in Paths(out).runs() if not run.endswith(f"-{BISECTION}")]
    nights = [run for run in runs if is_night(run)] if night else []
    if not runs:
        raise MatrixError("there is no run yet", where=str(out), fix="megatrix run makes one")
    return (nights or runs)[-1]


def durations(catalog: Catalog, out: Path) -> Durations:
    """Return the durations of the cases in the history of an output folder; none where it has no usable history."""
    path = Paths(out).history
    return Durations(catalog, with_history(path, History.seconds, warn) if path.is_file() else {})


def print_summary(night: Night, out: Path) -> None:
    """Print the summary of a run and the paths of its pages."""
    pages = Paths(out).pages(night.run)
    end = f"page: {pages.page}  junit: {pages.junit}"
    show("", *summary(night.records, night.missing), end)


def lacking_gpu() -> str:
    """Return why level gpu can't run on this machine, "" if it has a GPU."""
    offer = host.look().offers(Level.GPU)
    return "" if offer.gpus else f"CUDA shows no GPU on this machine ({offer.problem or NO_DRIVER})"


def write_gpu_results(folder: Path, finished: Night) -> Path:
    """Write the page of a run at level gpu; return its path."""
    machine = host.look()
    gpus = machine.offers(Level.GPU).gpus or ()
    path = folder / gpu_results.name(finished, gpus)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(gpu_results.page(finished, gpus, machine.machine.driver or "unknown"), encoding="utf-8")
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
