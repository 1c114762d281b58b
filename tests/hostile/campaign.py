"""Feed hostile inputs to all commands, and count tracebacks, hangs, executed content and wrong statuses.

    python -m tests.hostile.campaign                     the default: 320 inputs
    python -m tests.hostile.campaign --tries 2000 --seed 7
    python -m tests.hostile.campaign --kind wheel --tries 50

Each input (tests/hostile/inputs.py) runs in a process of its own, forked from one that has imported the commands, in a
folder of its own with its own home, cache and output folder, 4 GiB of memory at most. An input that is wrong is printed
with its arguments, and its folder is kept under --keep. Linux only.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from matrix.cli.main import main as megatrix
from matrix.ground.catalog import loading
from matrix.ground.catalog.folders import SITE
from matrix.prove.store.journal import Journal
from matrix.prove.store.stored_run import StoredRun
from tests.hostile.inputs import Hostile, kinds
from tests.unit.show.samples import MCORES, cell, record

HANG_S: Final = 30.0  # wall time of one input
MEMORY: Final = 4 * 2**30  # bytes of address space of one process
LARGEST_KEPT: Final = 2**24  # bytes of a file of a wrong input that is kept
POLL_S: Final = 0.005
RUN: Final = "20260101T000000000000Z-night"
TRACEBACK: Final = 99  # the status of a process whose command raised something
VARIABLES: Final = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "GIT_CONFIG_GLOBAL": os.devnull}


@dataclass(frozen=True)
class Answer:
    """What a command did with an input: "" in `wrong` where it is right."""

    hostile: Hostile
    status: int
    seconds: float
    wrong: str
    errors: str


def drawn(tries: int, start: int, run: Mapping[str, bytes], only: str = "") -> list[Hostile]:
    """Return at least `tries` inputs, the same ones for the same seed, evenly over the kinds."""
    selected = {name: strategy for name, strategy in kinds(run).items() if only in ("", name)}
    count = -(-tries // len(selected))
    return [hostile for strategy in selected.values() for hostile in _examples(strategy, count, start)]


def _examples(strategy: SearchStrategy[Hostile], count: int, start: int) -> list[Hostile]:
    examples: list[Hostile] = []

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(hostile: Hostile) -> None:
        examples.append(hostile)

    collect()
    return examples


def true_run(folder: Path) -> dict[str, bytes]:
    """Return the files of a small run by path, written below `folder`."""
    records = [record(where=cell(mcore=mcore)) for mcore in MCORES[:3]]
    run = StoredRun.create(folder / "runs" / RUN, [result.planned for result in records])
    with Journal(run.folder / "journal-a.jsonl") as journal:
        for result in records:
            journal.started(result.key)
            journal.result(result)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write(hostile: Hostile, folder: Path) -> None:
    """Write the files of an input."""
    for name, content in hostile.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content == "fifo":
            os.mkfifo(path)
        elif content == "folder":
            path.mkdir()
        elif content == "huge":
            with path.open("wb") as file:
                file.truncate(2**41)
        elif content == "unreadable-name":
            (path.parent / os.fsdecode(b"\xff" + path.name.encode())).write_bytes(b"\xff")
        elif content != "missing":
            path.symlink_to({"loop": path.name, "zero": "/dev/zero", "kernel": "/proc/self/status"}[content])
    if hostile.git:
        clone = folder / "clone"
        for words in (
            ["init", "-q"],
            ["add", "-A"],
            ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
        ):
            subprocess.run(["git", "-C", str(clone), *words], check=True, capture_output=True)


def answer(hostile: Hostile, folder: Path, seconds: float = HANG_S) -> Answer:
    """Run the command of an input in a process of its own; return what it did."""
    write(hostile, folder)
    output, begin = folder / ".output", time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(_run(hostile, folder, output))
    status = None
    while status is None and time.monotonic() - begin < seconds:
        pid, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if pid else None
        time.sleep(POLL_S)
    if status is None:
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:  # it has not made its group yet
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    errors = output.read_text("utf-8", "replace") if output.exists() else ""
    wrong = ""
    if status is None:
        wrong = "hang"
    elif status == TRACEBACK or "Traceback (most recent call last)" in errors:
        wrong = "traceback"
    elif any(folder.rglob("EXECUTED")):
        wrong = "executed"
    elif status not in hostile.right:
        wrong = "status"
    return Answer(hostile, -99 if status is None else status, time.monotonic() - begin, wrong, errors)


def _run(hostile: Hostile, folder: Path, output: Path) -> int:
    """Run the command in this process, the forked one, and return its exit status."""
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        os.environ.update(VARIABLES | {"HOME": str(folder), "XDG_CACHE_HOME": f"{folder}/.cache"})
        os.environ.update(
            {"MEGATRIX_OUT": f"{folder}/out"} | ({SITE: f"{folder}/site"} if "site" in _tops(hostile) else {})
        )
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  (until this process ends)
        sys.stdout = (folder / ".stdout").open("w", encoding="utf-8", errors="strict")
        sys.stderr = output.open("w", encoding="utf-8", errors="backslashreplace")
        try:
            status = megatrix([word.replace("{folder}", str(folder)) for word in hostile.words])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        status = TRACEBACK
    sys.stderr.flush()
    return int(status)


def _tops(hostile: Hostile) -> set[str]:
    return {name.partition("/")[0] for name in hostile.files}


def answers(inputs: Iterable[Hostile], keep: Path, seconds: float = HANG_S) -> list[Answer]:
    """Run all inputs, one after another; the folders of wrong ones are kept."""
    results = []
    loading.load()  # once, before the forks
    for number, hostile in enumerate(inputs):
        folder = Path(tempfile.mkdtemp(prefix="hostile-"))
        try:
            result = answer(hostile, folder, seconds)
            results.append(result)
            if result.wrong:
                kept = keep / f"{number}-{result.wrong}"
                shutil.copytree(folder, kept, symlinks=True, ignore=lambda at, names: _unkept(Path(at), names))
                words = " ".join(word[:100] for word in hostile.words)
                last = (result.errors.strip().splitlines() or [""])[-1][:160]
                print(f"{result.wrong}: {hostile.kind}: {words!r}: status {result.status}: {last}: {kept}", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return results


def _unkept(folder: Path, names: Sequence[str]) -> list[str]:
    """Return the names of what can't be copied."""
    paths = {name: folder / name for name in names}
    plain = {name for name, path in paths.items() if path.is_symlink() or path.is_dir()}
    plain |= {name for name, path in paths.items() if path.is_file() and path.stat().st_size < LARGEST_KEPT}
    return [name for name in names if name not in plain]


def table(results: Sequence[Answer]) -> str:
    """Return the table: kind, tries, right, and what was wrong."""
    wrongs = ("traceback", "hang", "executed", "status")
    rows: list[tuple[str, ...]] = [("input", "tries", "right", *wrongs, "slowest, s")]
    for kind in [*dict.fromkeys(result.hostile.kind.partition(":")[0] for result in results), "all"]:
        part = [result for result in results if kind in ("all", result.hostile.kind.partition(":")[0])]
        counts = Counter(result.wrong for result in part)
        slowest = f"{max(result.seconds for result in part):.1f}"
        rows.append((kind, str(len(part)), str(counts[""]), *(str(counts[wrong]) for wrong in wrongs), slowest))
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], ("---",) * len(rows[0]), *rows[1:]))


def main(words: Sequence[str] | None = None) -> int:
    """Run a campaign and print its table; return 1 where an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=320, help="inputs of all kinds together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other inputs (default: %(default)s)")
    hang = "wall time after which an input hangs; more on a busy machine (default: %(default)s)"
    parser.add_argument("--seconds", type=float, default=HANG_S, help=hang)
    parser.add_argument("--kind", default="", help="only inputs of this kind")
    parser.add_argument(
        "--keep", type=Path, help="where folders of wrong inputs are kept (default: a new one in TMPDIR)"
    )
    parsed = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        run = true_run(Path(folder))
    inputs = drawn(parsed.tries, parsed.seed, run, parsed.kind)
    results = answers(inputs, parsed.keep or Path(tempfile.mkdtemp(prefix="hostile-kept-")), parsed.seconds)
    print(table(results))
    return int(any(result.wrong for result in results))


if __name__ == "__main__":
    sys.exit(main())
