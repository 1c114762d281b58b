"""Try to lose, break or mislead a command: `tox run -e campaign`, which ends in a table of tries and failures.

    python -m tests.campaign                          all parts; the table is also written to reports/measurements/
    python -m tests.campaign hosts disks --seed 2     some parts, with another seed
    python -m tests.campaign kills --tries 20

Exit status: 0, no failure; 1, a failure, each with its line; 3, nothing was tried.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from matrix.ground.errors import ExitStatus
from matrix.prove.store.paths import Paths
from tests.founding import BEHIND_MPI, SAVE
from tests.hostile import campaign as hostile
from tests.hostile_modules import HERE, QUICK
from tests.real.conftest import ROOT, remaining
from tests.real.kills import Kind, kill_at_random_points

Failures = Iterator[str]  # "" for a try that held, else what failed
COMMAND_S: Final = 600.0
GONE_S: Final = 20.0  # s for the processes of a killed command to end
MATRIX: Final = (sys.executable, "-m", "matrix")
RUN: Final = ("run", "--here", "--no-cache", "--json", "--select", HERE)
# Commands that read, each killed at a random moment of its first 2 s, then started again: the same answer.
READING: Final = tuple(
    words for status, words in QUICK if status == 0 and words[0] in ("plan", "fit", "check", "catalog")
)
READ: Final = (*READING, ("check", "mcore=0.8.0", "torch=2.4.1"), ("show", SAVE))
NIGHT: Final = (
    "--select",
    f"failure=={SAVE} and case!=train-loop and base==torch-2.4.0 and mcore>=0.7 and mcore<0.10",
)
MAKING: Final = (
    "run",
    "--no-cache",
    "--json",
    "--select",
    f"failure=={SAVE} and case==tp2 and mcore==0.8.0 and base==torch-2.13.0",
)


def started(words: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a command of megatrix in a group of its own, with its output, temporary files and errors in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {"MEGATRIX_OUT": str(folder / "out"), "TMPDIR": str(folder), "MEGATRIX_CAMPAIGN": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*MATRIX, *words], cwd=ROOT, env={**os.environ, **own, **(environ or {})}, stdout=pipe, stderr=pipe, text=True,
        start_new_session=True,
    )  # fmt: skip


def answer(words: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Return the status, the output and the errors of a command."""
    process = started(words, folder, environ)
    out, err = process.communicate(timeout=COMMAND_S)
    return process.returncode, out, err


def verdicts(printed: str) -> list[tuple[str, str]]:
    """Return (case, verdict) of the records that a run printed."""
    try:
        return sorted((item["case"], item["verdict"]) for item in json.loads(printed)["items"])
    except (ValueError, KeyError):
        return []


def kills(tries: int, seed: int, folder: Path) -> Failures:
    """Kill commands, a night at both levels, and the making of an environment of torch, at random moments."""
    rng, share = (
        random.Random(seed),
        {"making": max(1, tries // 15), "cpu": max(1, tries // 15), "contract": tries // 4},
    )
    for kind, choice, cases in (("contract", ("--here", "--select", f"level==contract and failure=={BEHIND_MPI}"), 12),
                                ("cpu", NIGHT, 9)):  # fmt: skip
        part = Kind(choice, ("-m pytest", "multiprocessing.forkserver"), cases, share[kind])
        with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as temporary:
            yield from blamed(partial(kill_at_random_points, part, folder / kind, Path(temporary)), share[kind])
    for number in range(share["making"]):
        home = folder / f"making-{number}"
        environ = {"MEGATRIX_CACHE": str(folder / "cache"), "MEGATRIX_OUT": str(home / "out")}
        process = started(MAKING, home, environ)
        yield killed(process, home, rng.uniform(1, 12))
    for number in range(tries - sum(share.values())):
        words, home = READ[number % len(READ)], folder / f"read-{number}"
        whole = answer(words, home)
        process = started(words, home)
        lost = killed(process, home, rng.uniform(0, 1.5))
        again = answer(words, home)
        yield lost or ("" if again == whole else f"{shlex.join(words)}: another answer after a kill")
    status, out, err = answer(MAKING, folder / "made", {"MEGATRIX_CACHE": str(folder / "cache")})
    if status or not verdicts(out):
        yield f"making an environment after {share['making']} kills: {status}: {err[-300:]}"


def killed(process: subprocess.Popen[str], folder: Path, after_s: float) -> str:
    """Kill a process alone or with its group; return which processes are left, "" for none."""
    time.sleep(after_s)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=COMMAND_S)
    left = remaining(f"MEGATRIX_CAMPAIGN={folder}", GONE_S)
    return f"left after a kill: {left}" if left else ""


def blamed(check: Callable[[], object], tries: int) -> Failures:
    """Yield a result for each try of a check that raises AssertionError where one failed."""
    try:
        check()
    except AssertionError as error:
        yield f"{type(error).__name__}: {str(error)[:300]}"
        tries -= 1
    yield from [""] * tries


def inputs(tries: int, seed: int, folder: Path) -> Failures:
    """Feed hostile inputs of each kind to the commands."""
    run = hostile.true_run(folder / "run")
    for result in hostile.answers(hostile.drawn(tries, seed, run), folder / "kept", 120):
        yield f"{result.wrong}: {result.hostile.words}" if result.wrong else ""


# The entry point of a plugin of pytest, as an installation of it has; pytest imports it unless that is turned off.
PLUGIN: Final = (
    "cd $PYTHONPATH; mkdir theirs-1.dist-info; echo 'raise RuntimeError' > theirs.py; "
    "printf '[pytest11]\\ntheirs = theirs\\n' > theirs-1.dist-info/entry_points.txt; "
    "printf 'Name: theirs\\nVersion: 1\\n' > theirs-1.dist-info/METADATA; cd $OLDPWD; "
)
# A virtual environment of a Python, which may be of one itself, as start.py of a bundle makes it for its host.
ENVIRONMENT: Final = """
import os, sys
from pathlib import Path
from matrix.prove.provision.bundle_folder import make_environment
make_environment(Path(sys.argv[1]), os.environ, visible=True)
"""
PLUGINS: Final = "pytest-benchmark pytest-cov pytest-randomly pytest-sugar pytest-timeout anyio"
NESTED: Final = f"$PYTHON -c {shlex.quote(ENVIRONMENT)} {{new}}/venv && PYTHON={{new}}/venv/bin/python && "
# What a host may have: variables of the command, and what a shell runs before it. {new} is an empty folder, $PYTHON the
# interpreter of the command.
HOSTS: Final[Mapping[str, tuple[Mapping[str, str], str]]] = {
    **{name: ({name: value}, "") for name, value in {
        "PYTHONOPTIMIZE": "2", "PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "random", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONFAULTHANDLER": "1",
        "PYTHONMALLOC": "debug", "PYTHONPYCACHEPREFIX": "{new}/pyc", "PYTHONINSPECT": "", "PYTHONSAFEPATH": "1",
        "PYTEST_ADDOPTS": "-k nothing --maxfail=1", "PYTEST_PLUGINS": "missing_plugin", "PYTEST_DEBUG": "1",
        "PYTEST_THEME": "none", "LC_ALL": "C", "LANG": "tr_TR.UTF-8", "TZ": "Pacific/Kiritimati", "TERM": "dumb",
        "COLUMNS": "1", "NO_COLOR": "1", "RANK": "3", "WORLD_SIZE": "8", "SLURM_JOB_ID": "1",
        "OMPI_COMM_WORLD_RANK": "1", "MASTER_ADDR": "unknown.invalid", "CUDA_VISIBLE_DEVICES": "7",
        "OMP_NUM_THREADS": "0", "MKL_NUM_THREADS": "3", "TORCHINDUCTOR_COMPILE_THREADS": "4",
        "LD_LIBRARY_PATH": "{new}",
        "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "none0", "CUDA_HOME": "{new}", "CUDA_LAUNCH_BLOCKING": "1",
        "PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1", "PYTHONPATH": "{new}", "UV_PYTHON_PREFERENCE": "only-system",
        "XDG_CACHE_HOME": "{new}/cache", "UV_OFFLINE": "1", "UV_CACHE_DIR": "{new}/uv",
        "PIP_INDEX_URL": "file:///nonexistent", "GIT_DIR": "{new}/nowhere", "HTTPS_PROXY": "http://127.0.0.1:9",
    }.items()},
    "a Python of a virtual environment": ({}, NESTED),
    "plugins of pytest": ({}, f"{NESTED}$PYTHON -m pip install --quiet {PLUGINS} && "),
    "no compiler, uv or git": ({}, "mkdir {new}/bin; ln -s $(command -v sh env python3) {new}/bin; PATH={new}/bin; "),
    "a small /tmp": ({"TMPDIR": "{new}"}, "mount -t tmpfs -o size=2m tmpfs {new} && "),
    "a read-only home": ({"HOME": "{new}"}, "mount --bind {new} {new} && mount -o remount,bind,ro {new} && "),
    "no HOME": ({"HOME": "/nonexistent"}, ""),
    "64 open files": ({}, "ulimit -Sn 64; "),
    "umask 077": ({}, "umask 077; "),
    "no core, 2 GiB of files": ({}, "ulimit -c 0; ulimit -f 2097152; "),
    "256 open files, a stack of 512 KiB": ({}, "ulimit -n 256; ulimit -s 512; "),
    "a plugin that can't be imported": ({"PYTHONPATH": "{new}"}, PLUGIN),
    "warnings are errors in each Python": (
        {"PYTHONPATH": "{new}"},
        "echo 'import warnings; warnings.simplefilter(\"error\")' > $PYTHONPATH/sitecustomize.py; ",
    ),
    "closed input": ({}, "exec <&-; "),
    "ignored SIGHUP": ({}, "trap '' HUP; "),
}  # fmt: skip


def hosts(tries: int, seed: int, folder: Path) -> Failures:
    """Run cases in this environment on hosts with one property each: the same verdicts."""
    expected = verdicts(answer(RUN, folder / "plain")[1])
    for number, (name, (variables, before)) in enumerate([*HOSTS.items()][:tries]):
        home = folder / f"host-{number}"
        home.mkdir()
        environ = {variable: value.replace("{new}", str(home)) for variable, value in variables.items()}
        words = shlex.join(["-m", "matrix", *RUN, "--out", str(folder / f"out-{number}")])
        command = ["sh", "-c", f"{before.replace('{new}', str(home))}exec $PYTHON {words}"]
        own = {**os.environ, **environ, "PYTHON": sys.executable}
        inside = ["unshare", "--mount", *command] if "mount " in before else command
        done = subprocess.run(inside, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
        held = expected and done.returncode == 0 and verdicts(done.stdout) == expected
        yield "" if held else f"{name}: status {done.returncode}: {done.stderr[-300:]}"


def disks(tries: int, seed: int, folder: Path) -> Failures:
    """Fill the disk of the output at a random moment, after some lines; free it, and finish the run."""
    rng, home = random.Random(seed), folder / "disk"
    home.mkdir()
    for _ in range(tries):
        words = [*RUN, "--out", str(home)] if rng.random() < 0.7 else ["report", "--out", str(home)]
        inner = [
            sys.executable,
            "-m",
            "tests.campaign",
            "--on-disk",
            str(home),
            str(rng.uniform(0, 4)),
            *MATRIX,
            *words,
        ]
        done = subprocess.run(["unshare", "--mount", *inner], cwd=ROOT, capture_output=True, text=True, check=False)
        yield done.stdout.strip() if done.returncode in (0, 1) else f"{words[0]}: {done.stderr[-300:]}"


def on_disk(home: Path, after_s: float, command: list[str]) -> str:
    """Run a command on a small disk that gets full; then a whole run with free space. Return what failed."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(home)], check=True)
    environ = {**os.environ, "TMPDIR": "/tmp"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        time.sleep(after_s)
        with (home / "filler").open("wb", buffering=0) as filler:
            for size in (2**20, 2**12, 1):
                try:
                    while True:
                        filler.write(b"\0" * size)
                except OSError:
                    continue
        err = process.communicate(timeout=COMMAND_S)[1]
    (home / "filler").unlink()
    if "Traceback" in err or process.returncode not in (*ExitStatus,):
        return f"status {process.returncode}: {err[-300:]}"
    words = [*MATRIX, *RUN, "--out", str(home)]
    again = subprocess.run(words, capture_output=True, text=True, env=environ, check=False)
    return "" if again.returncode == 0 and verdicts(again.stdout) else f"then {again.returncode}: {again.stderr[-300:]}"


CLOCK: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long jump(void) {  /* seconds, from the file that $CLOCK names */
    long by = 0;
    FILE *file = getenv("CLOCK") ? fopen(getenv("CLOCK"), "r") : 0;
    if (file) { if (fscanf(file, "%ld", &by) != 1) by = 0; fclose(file); }
    return by;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, at);
    if (id == CLOCK_REALTIME) at->tv_sec += jump();
    return status;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec; at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""
JUMPS: Final = (-1, 1, -3600, 3600, -86_400, 86_400, -30 * 86_400, 365 * 86_400, -20 * 365 * 86_400, 40 * 365 * 86_400)


def clocks(tries: int, seed: int, folder: Path) -> Failures:
    """Set the clock that programs see, in the middle of a run; the next run is the newest, and its history is read."""
    source, library, clock = folder / "clock.c", folder / "clock.so", folder / "jump"
    source.write_text(CLOCK)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    environ = {"LD_PRELOAD": str(library), "CLOCK": str(clock)}
    expected, rng = verdicts(answer(RUN, folder / "plain")[1]), random.Random(seed)
    for number in range(tries):
        home = folder / f"clock-{number}"
        clock.write_text("0")
        process = started(RUN, home, environ)
        time.sleep(rng.uniform(0, 3))
        clock.write_text(str(JUMPS[number % len(JUMPS)]))
        out, err = process.communicate(timeout=COMMAND_S)
        known = Paths(home / "out").runs()
        after = answer(RUN, home, environ)
        runs = Paths(home / "out").runs()
        held = expected and verdicts(out) == expected == verdicts(after[1]) and process.returncode == after[0] == 0
        newest = runs[:-1] == known and len(runs) == 2
        yield (
            "" if held and newest else f"{JUMPS[number % len(JUMPS)]} s: {process.returncode}, {after[0]}: {err[-300:]}"
        )


NOBODY: Final = ("setpriv", "--reuid=65534", "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
                 "--bounding-set=+dac_read_search")  # fmt: skip


def users(tries: int, seed: int, folder: Path) -> Failures:
    """Two users share a cache, which both may write, at once; then one of them purges half of it."""
    rng, cache = random.Random(seed), folder / "cache"
    cache.mkdir()
    expected = verdicts(answer(RUN, folder / "plain")[1])
    for path in (folder.parent, folder, cache):
        path.chmod(0o777)
    for number in range(tries):
        pending = []
        for user, before in (("root", ()), ("nobody", NOBODY)):
            home = folder / f"{user}-{number}"
            home.mkdir()
            home.chmod(0o777)
            own = {
                "MEGATRIX_CACHE": str(cache),
                "HOME": str(home),
                "TMPDIR": str(home),
                "MEGATRIX_OUT": str(home / "out"),
            }
            pending.append(subprocess.Popen(
                ["sh", "-c", f"umask 000; exec {shlex.join([*before, *MATRIX, *RUN])}"], cwd=ROOT,
                env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            ))  # fmt: skip
        for process in pending:
            out, err = process.communicate(timeout=COMMAND_S)
            held = expected and process.returncode == 0 and verdicts(out) == expected
            yield "" if held else f"status {process.returncode}: {err[-300:]}"
        files = [path for path in sorted(cache.rglob("*")) if path.is_file()]
        for path in rng.sample(files, len(files) // 2):
            path.unlink()


PARTS: Final[Mapping[str, tuple[Callable[[int, int, Path], Failures], int]]] = {
    "kills": (kills, 150), "inputs": (inputs, 3_000), "hosts": (hosts, len(HOSTS)), "disks": (disks, 20),
    "clocks": (clocks, 10), "users": (users, 5),
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """What a part of the campaign tried."""

    name: str
    results: Sequence[str]
    seconds: float

    @property
    def failures(self) -> list[str]:
        """Return what failed."""
        return [text for text in self.results if text]


def tried(name: str, tries: int, seed: int) -> Part:
    """Run a part in a new folder; Ctrl-C ends it with what was tried. Each failure is printed at once."""
    began, results = time.monotonic(), list[str]()
    with (
        tempfile.TemporaryDirectory(prefix="c-", ignore_cleanup_errors=True) as folder,
        suppress(KeyboardInterrupt),
    ):
        for text in PARTS[name][0](tries, seed, Path(folder)):
            results.append(text)
            sys.stderr.write(f"{name} {len(results)}: {' '.join(text.split()) or 'held'}\n")
    return Part(name, results, time.monotonic() - began)


def table(parts: Sequence[Part]) -> str:
    """Return the table, and each failure."""
    rows = [f"| {part.name} | {len(part.results)} | {len(part.failures)} | {part.seconds:.0f} |" for part in parts]
    failed = [f"- {part.name}: {' '.join(text.split())}" for part in parts for text in part.failures]
    return "\n".join(["| part | tries | failures | seconds |", "|---|---|---|---|", *rows, "", *failed]).strip()


def main(words: Sequence[str] | None = None) -> int:
    """Run the parts, print their table and write it."""
    words = list(sys.argv[1:] if words is None else words)
    if words[:1] == ["--on-disk"]:
        failed = on_disk(Path(words[1]), float(words[2]), words[3:])
        sys.stdout.write(failed)
        return ExitStatus.BAD if failed else ExitStatus.GOOD
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--tries", type=int, help="of each part (default: those of a release)")
    parser.add_argument("--seed", type=int, default=1)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    default = ROOT / "reports" / "measurements" / f"{day}-campaign.md"
    parser.add_argument("--out", type=Path, default=default, help="the file of the table")
    parsed = parser.parse_args(words)
    parts = []
    for name in parsed.parts or PARTS:
        parts.append(tried(name, parsed.tries or PARTS[name][1], parsed.seed))
        sys.stdout.write(f"{table(parts[-1:])}\n")
        sys.stdout.flush()
    text = (
        f"# Campaign ({day})\n\n`tox run -e campaign -- {shlex.join(words)}`, seed {parsed.seed}.\n\n{table(parts)}\n"
    )
    parsed.out.write_text(text, encoding="utf-8")
    if not any(part.results for part in parts):
        return ExitStatus.NOTHING
    return ExitStatus.BAD if any(part.failures for part in parts) else ExitStatus.GOOD


if __name__ == "__main__":
    sys.exit(main())
