"""Run every suite that this machine can, one after another: `tox run -e nightly-checks`.

    python -m tests.nightly_checks                    the short form of each suite
    python -m tests.nightly_checks --all              the long form
    python -m tests.nightly_checks slurm browser      some suites
    python -m tests.nightly_checks slurm -- -k kill   one suite, with options of its command, here pytest's
    python -m tests.nightly_checks --minutes 30       no suite begins, and none goes on, after 30 minutes
    python -m tests.nightly_checks --list             what each suite requires, and whether this machine has it

A suite that this machine can't run is skipped with the reason. One in which no test ran is red. The table at the end
is printed, and kept beside the logs. Exit status: 0, all that ran is green; 1, a suite is red or was not reached; 3,
nothing ran; 130, interrupted, with the table of what ran.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final

from matrix.ground.errors import ExitStatus, MatrixError
from matrix.prove.execution import interrupt
from matrix.prove.execution.ranks.descendants import end_below
from matrix.prove.provision import bases, host, tools
from matrix.read import kernel
from matrix.read.commands import python_module
from tests.mutation import TARGETS

ROOT: Final = Path(__file__).resolve().parents[1]
END_S: Final = 60.0  # s between Ctrl-C and SIGKILL: pytest ends its fixtures, such as a cluster, in a few seconds
PATHS: Final = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
SUMMARY: Final = re.compile(r"^=+ (.*) in [\d.]+s\b.*=+$", re.M)  # pytest's last line
COUNT: Final = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed)\b")
SKIP: Final = re.compile(r"^SKIPPED \[(\d+)\] \S+: (.*)$", re.M)
UNREAD: Final = re.compile(r"\d+ not run: [^,\n]+|unread without .+")  # of foreign_logs and framework_cores
COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")  # twine prints it in a file, too
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (.*)$", re.M)
Lack = Callable[[], str]  # what this machine lacks, "" if nothing


def programs(*names: str, package: str = "") -> Lack:
    """Return a check that programs are on PATH; `package` are Debian's packages that have them."""

    def lack() -> str:
        missing = [name for name in names if shutil.which(name, path=PATHS) is None]
        return f"no {', '.join(missing)} on PATH: apt-get install {package or ' '.join(missing)}" if missing else ""

    return lack


def one_program(*names: str) -> Lack:
    """Return a check that one of these programs is on PATH."""
    return lambda: "" if any(shutil.which(name, path=PATHS) for name in names) else f"no {' or '.join(names)} on PATH"


def root() -> str:
    """Return what is missing where this user is not root."""
    return "" if os.geteuid() == 0 else "needs root"


def container_tool() -> str:
    """Return what is missing where neither podman nor docker works."""
    return "" if tools.find() else tools.NO_TOOL


def clones() -> str:
    """Return which of both upstream clones is missing."""
    missing = [title for name, title in host.CLONES.items() if name not in host.load_configuration().sources]
    return f"no clone of {' and '.join(missing)}: megatrix sources fetch" if missing else ""


def variables(*names: str) -> Lack:
    """Return a check that variables, which name folders, are set."""

    def lack() -> str:
        missing = [name for name in names if not Path(os.environ.get(name) or "/missing").is_dir()]
        return f"{' and '.join(missing)} must name clones" if missing else ""

    return lack


def python(minor: str) -> Lack:
    """Return a check that this machine has a minor of Python."""

    def lack() -> str:
        try:
            bases.find_python([minor])
        except MatrixError as error:
            return error.brief
        return ""

    return lack


def changed_modules() -> list[str]:
    """Return the modules with mutation tests that the commits of the last day changed, or a change not committed."""
    asked = (("log", "--since=1 day ago", "--name-only", "--format="), ("diff", "--name-only", "HEAD"))
    lines = [
        line
        for words in asked
        for line in subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    ]
    return [module for module in TARGETS if module in lines]


@dataclass(frozen=True)
class Suite:
    """A suite: the command of its long form, what it requires, and what its short form replaces.

    `counts` finds in the output how many checks were made, where they are not pytest's; "" counts the command as one.
    `new` finds what exit status 1 stands for and nobody knows yet: without any, the suite is green.
    `minutes` are those of the short form and of the long one on two idle cores. `short` are the arguments and
    `variables` the variables of the short form, `whole` and `whole_variables` those of the long one; `unless` is the
    reason why there is no short form.
    """

    name: str
    command: Callable[[], Sequence[str]]
    minutes: tuple[float, float]
    requires: tuple[Lack, ...] = ()
    needs: str = "nothing"
    counts: str | None = None
    new: str = ""
    short: Callable[[], Sequence[str]] = tuple
    variables: Mapping[str, str] = field(default_factory=dict)
    whole: Sequence[str] = ()
    whole_variables: Mapping[str, str] = field(default_factory=dict)
    unless: Lack = str

    def lack(self, *, whole: bool) -> str:
        """Return why it is skipped, "" if it runs."""
        reasons = [reason for check in self.requires if (reason := check())]
        return "; ".join(reasons) or ("" if whole else self.unless())

    def words(self, options: Sequence[str] = (), *, whole: bool) -> list[str]:
        """Return its command line, with `options` in place of those of a form, if any."""
        return [*self.command(), *(options or (self.whole if whole else self.short()))]


def own(name: str, module: str, *arguments: str, minutes: tuple[float, float], **settings: Any) -> Suite:
    """Return the suite of a module, started by this Python."""
    return Suite(name, lambda: python_module(sys.executable, module, *arguments, folder=ROOT), minutes, **settings)


def tests(name: str, *arguments: str, minutes: tuple[float, float], **settings: Any) -> Suite:
    """Return the suite of pytest's arguments."""
    return own(name, "pytest", *arguments, minutes=minutes, **settings)


def in_tox(name: str, minutes: tuple[float, float], *options: Callable[[], str], **settings: Any) -> Suite:
    """Return the suite of a tox environment of that name."""
    tox = shlex.split(os.environ.get("MEGATRIX_TOX", "tox"))
    return Suite(name, lambda: [*tox, "run", "-e", name, *(option() for option in options)], minutes, **settings)


def on(minor: str) -> Callable[[], str]:
    """Return the option of tox that runs unit311 with this machine's Python 3.11, active or not."""
    name = f"unit{minor.replace('.', '')}"
    return lambda: f"--override=testenv:{name}.base_python={bases.find_python([minor]).path}"


SLURM: Final = (root, programs("slurmctld", "slurmd", "sbatch", "squeue", package="slurmctld slurmd slurm-client"))
IMAGE: Final = (container_tool, clones, programs("gcc"), one_program("debootstrap", "mmdebstrap"))
PYXIS: Final = programs(
    *("make", "git", "musl-gcc", "mksquashfs", "squashfuse", "fuse-overlayfs", "parallel", "jq"),
    package="make git musl-tools linux-libc-dev libslurm-dev squashfs-tools squashfuse fuse-overlayfs parallel jq",
)
PARALLEL: Final = (
    *("-n", "logical", "--maxprocesses", "4", "--dist", "worksteal"),
    *("tests/unit", "tests/failures", "--megatrix-own-tests"),
)
CORES: Final = ("--mcore", "0.16.1", "--mcore", "0.17.1", "--mcore", "0.18.2", "--mcore", "0.19.2", "--seconds", "1500")
# Cheap ones first. Of what .ci/run has, only tests/real and the properties are repeated, whole.
SUITES: Final = (
    own("threads", "tests.thread_coverage", minutes=(1, 1), counts=r"^ *all +(\d+)"),
    own("foreign-logs", "tests.foreign_logs", minutes=(1, 1), counts=r"(\d+) nothing named"),
    in_tox("docs", (1, 1), counts=""),
    own("release-check", "tests.release_check", minutes=(1, 1), counts=r"^Checking dist/\S+: PASSED()"),
    own("frameworks", "tests.framework_cores", minutes=(3, 3), counts=r"^(\d+) pairs"),
    *(
        in_tox(f"unit{minor.replace('.', '')}", (5, 5), on(minor), needs=f"Python {minor}", requires=(python(minor),))
        for minor in ("3.11", "3.12", "3.13")  # 3.10 is in .ci/run
    ),
    tests(
        "properties", *PARALLEL, "-m", "hypothesis or draws", minutes=(4, 45), variables={"MEGATRIX_TESTS": "night"},
        whole_variables={"MEGATRIX_TESTS": "thorough"},
    ),
    tests(
        "browser", "tests/browser", minutes=(3, 3), needs="chromium, npm",
        requires=(programs("chromium"), programs("npm")),
    ),
    own(
        "hostile", "tests.hostile.campaign", minutes=(3, 10), counts=r"^\| all \| (\d+) \|",
        short=lambda: ("--tries", "80"),
    ),
    tests(
        "slurm", "tests/slurm", minutes=(15, 15), needs="root; slurmctld, slurmd, sbatch, squeue", requires=SLURM,
    ),
    own(
        "off-night", "tests.off_night", minutes=(5, 25), counts=r"^\[ *\d+/\d+\] .* (?:holds|reproduced)\b",
        short=lambda: ("--cells", "8"),
    ),
    tests("slow", "--durations", "10", "tests/real", minutes=(40, 40)),
    tests(
        "interrupts", "-s", "-k", "moments or cpu", "tests/real/test_interrupts.py", "tests/real/test_kills.py",
        minutes=(60, 60), needs="--all", whole_variables={"MEGATRIX_INTERRUPTS": "10", "MEGATRIX_KILLS": "400"},
        unless=lambda: "`slow` has 4 signals and 10 kills; --all has 20 and 500",
    ),
    tests(
        "image", "tests/image", minutes=(6, 6), requires=IMAGE,
        needs="podman or docker, both clones, gcc, debootstrap or mmdebstrap",
    ),
    tests(
        "pyxis", "tests/pyxis", minutes=(6, 6),
        requires=(*SLURM, *IMAGE, PYXIS, variables("MEGATRIX_PYXIS", "MEGATRIX_ENROOT")),
        needs="as slurm and image; MEGATRIX_PYXIS, MEGATRIX_ENROOT, and what builds them",
    ),
    tests(
        "rehearsal", "tests/rehearsal", minutes=(14, 43), needs="gcc, both clones", requires=(programs("gcc"), clones),
        variables={"MEGATRIX_REHEARSED": "newest"},
    ),
    own(
        "parity", "matrix", "parity", minutes=(6, 30), counts=r"(\d+) comparisons,",
        new=r"^megatron-core \S+  (?!known as )\S",
        short=lambda: ("--mcore", "0.19.2", "--seconds", "300"), whole=CORES,
    ),
    own(
        "mutation", "tests.mutation", minutes=(5, 60), counts=r"^matrix/\S+ +(\d+)", needs="git, in the short form",
        short=changed_modules,
        unless=lambda: "" if changed_modules() else "no deciding module changed in the last day; --all has every one",
    ),
)  # fmt: skip


class State(str, Enum):
    """How a suite stands."""

    GREEN = "green"
    RED = "red"
    SKIPPED = "skipped"
    NOT_REACHED = "not reached"


@dataclass(frozen=True)
class Result:
    """How a suite stands: its tests, those that passed and that are red, why tests or all of it did not run."""

    suite: str
    state: State
    tests: int = 0
    passed: int = 0
    red: int = 0
    why: str = ""
    minutes: float = 0.0
    processor: float = 0.0
    failed: tuple[str, ...] = ()

    def row(self) -> str:
        """Return its row of the table."""
        times = f"{self.minutes:.1f} | {self.processor:.1f}" if self.minutes else " | "
        counts = f"{self.tests} | {self.passed} | {self.red}" if self.tests or self.red else " |  | "
        return f"| {self.suite} | {self.state.value} | {counts} | {self.why.replace('|', '/')} | {times} |"


HEADING: Final = (
    "| suite | state | tests | passed | red | not run, and why | minutes | processor minutes |\n"
    "|---|---|---|---|---|---|---|---|"
)


def judged(suite: Suite, status: int, output: str) -> Result:
    """Return the result of a suite that ended: red is a failure, an exit status, and an output without any test."""
    counts: Counter[str] = Counter()
    output = COLOUR.sub("", output)
    if suite.counts is None:
        for summary in SUMMARY.findall(output):
            for number, what in COUNT.findall(summary):
                counts[what] += int(number)
    elif suite.counts:
        found = re.finditer(suite.counts, output, re.M)
        counts["passed"] = sum(int(next((text for text in match.groups() if text), 1)) for match in found)
    else:
        counts["passed"] = 1
    if suite.new and status == ExitStatus.BAD:
        status = len(re.findall(suite.new, output, re.M))
    red = counts["failed"] + counts["error"] + counts["errors"]
    reasons = [f"{number} skipped: {reason}" for number, reason in SKIP.findall(output)]
    reasons += UNREAD.findall(output) if suite.counts else []
    nothing = not (counts["passed"] or red)
    if nothing:
        reasons.append("no test ran")
    elif status and not red:
        reasons.append(f"exit status {status}")
    if (status or nothing) and not red:
        red = 1
        counts["passed"] -= suite.counts is not None and not nothing  # it counts its checks, not those that passed
    tests = counts["passed"] + red + counts["skipped"] + counts["xfailed"]
    state = State.RED if red else State.GREEN
    return Result(
        suite.name, state, tests, counts["passed"], red, "; ".join(reasons), failed=tuple(FAILED.findall(output))
    )


def run(suite: Suite, log: Path, limit_s: float, options: Sequence[str], *, whole: bool) -> Result:
    """Run a suite with its output in `log`; Ctrl-C and the limit end it by SIGINT. What it leaves is killed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TOX_")}
    environ |= {"NO_COLOR": "1", **(suite.whole_variables if whole else suite.variables)}
    began, used = time.monotonic(), processor_s()
    with log.open("wb") as file:
        process = subprocess.Popen(
            suite.words(options, whole=whole), cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    signal.signal(signal.SIGCHLD, lambda *_: reap(process.pid))  # a test may wait until a process is gone
    cut = None
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        cut = "the time is over"
    except KeyboardInterrupt:
        cut = "interrupted"
    if cut:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end_below(os.getpid())
    reap()
    result = Result(suite.name, State.NOT_REACHED, why=cut) if cut else judged(suite, status, log.read_text("utf-8"))
    seconds = time.monotonic() - began, processor_s() - used
    return Result(**{**vars(result), "minutes": seconds[0] / 60, "processor": seconds[1] / 60})


def processor_s() -> float:
    """Return the seconds of processor of all descendants that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def reap(kept: int = 0) -> None:
    """Wait for the adopted processes that have ended, as init would; not for the process `kept`."""
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != kept:
            os.waitpid(ended.si_pid, 0)


def run_all(
    suites: Iterable[Suite],
    folder: Path,
    minutes: float,
    say: Callable[[str], None],
    options: Sequence[str] = (),
    *,
    whole: bool = False,
) -> list[Result]:
    """Run suites one after another, each with a log in `folder`; after `minutes` or Ctrl-C none begins.

    With `options` each command has them in place of those of its form.
    """
    results, end, stopped = list[Result](), time.monotonic() + minutes * 60, ""
    for suite in suites:
        if not stopped and time.monotonic() >= end:
            stopped = "the time is over"
        if stopped:
            results.append(Result(suite.name, State.NOT_REACHED, why=stopped))
            continue
        if why := suite.lack(whole=whole or bool(options)):
            results.append(Result(suite.name, State.SKIPPED, why=why))
        else:
            log = folder / f"{suite.name}.log"
            say(f"{suite.name}: {log}")
            results.append(run(suite, log, end - time.monotonic(), options, whole=whole))
            stopped = results[-1].why if results[-1].state is State.NOT_REACHED else ""
        say(results[-1].row())
    return results


def table(results: Sequence[Result]) -> str:
    """Return the table, and the failed tests of each red suite."""
    failed = [f"- {one.suite}: {name}" for one in results for name in one.failed]
    return "\n".join([HEADING, *(one.row() for one in results), *(["", "Red:", "", *failed] if failed else [])])


def exit_status(results: Sequence[Result]) -> ExitStatus:
    """Return the exit status of a run."""
    states = {one.state for one in results}
    if any(one.why == "interrupted" for one in results):
        return ExitStatus.INTERRUPTED
    if states & {State.RED, State.NOT_REACHED}:
        return ExitStatus.BAD
    return ExitStatus.GOOD if State.GREEN in states else ExitStatus.NOTHING


def listing(suites: Iterable[Suite], *, whole: bool) -> str:
    """Return what each suite requires, and what this machine lacks, as a table."""
    rows = [
        f"| {one.name} | {one.minutes[0]:g} | {one.minutes[1]:g} | {one.needs} | {one.lack(whole=whole) or 'runs'} |"
        for one in suites
    ]
    return "\n".join(["| suite | minutes | --all | requires | here |", "|---|---|---|---|---|", *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    by_name = {suite.name: suite for suite in SUITES}
    parser.add_argument("suites", nargs="*", choices=[[], *by_name], metavar="SUITE", help=f"of {', '.join(by_name)}")
    parser.add_argument("--all", action="store_true", help="the long forms")
    parser.add_argument("--minutes", type=float, default=24 * 60, help="limit of all together (default: a day)")
    parser.add_argument("--list", action="store_true", help="print what each suite requires; run nothing")
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    parsed, options = parser.parse_args(words[:cut]), words[cut + 1 :]
    if options and len(parsed.suites) != 1:
        parser.error(f"options of one suite alone: {shlex.join(options)}")
    suites = [by_name[name] for name in parsed.suites] or list(SUITES)
    if parsed.list:
        print(listing(suites, whole=parsed.all))
        return ExitStatus.GOOD
    interrupt.once()
    kernel.adopt_orphans()
    folder = ROOT / "reports" / "out" / "checks" / time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    folder.mkdir(parents=True)
    results = run_all(suites, folder, parsed.minutes, partial(print, flush=True), options, whole=parsed.all)
    text = table(results)
    (folder / "table.md").write_text(f"{text}\n", encoding="utf-8")
    print(f"\n{text}\n\nlogs: {folder}")
    return exit_status(results)


if __name__ == "__main__":
    sys.exit(main())
