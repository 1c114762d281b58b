"""Run a command of the user's own in a cell: with its Python first on PATH, its overlays, its stand-ins.

The output goes to the rank's log as it comes. The rank ends as the command does: it returns, leaves with the command's
status or dies by its signal. A command that leaves with a status after a Python traceback raises that exception
instead, so that its class, message and frame can be compared with a signature.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary, StackSummary
from typing import IO, TYPE_CHECKING, Any, Final
from xml.etree import ElementTree

from matrix.ground.catalog.regular_file import read_regular, read_regular_text
from matrix.ground.verdicts.outcome import Frame, Raised
from matrix.ground.verdicts.tracebacks import LoggedException, Tracebacks
from matrix.kit import child
from matrix.kit.rank import LackError

if TYPE_CHECKING:
    from matrix.kit.rank import Rank
LARGEST: Final = 2**20  # bytes of a file that is copied
MOST: Final = 5_000  # files and folders that are copied
BYTES: Final = 2**26  # of all copied files
SYSTEM: Final = ("/usr/local/bin", "/usr/bin", "/bin")  # behind the cell's own programs on PATH, for shells and tools
KEPT: Final = 65_536  # characters of the output's end that are searched for exceptions, as many as an outcome carries
LEFT_S: Final = 2.0  # s for the output of processes that outlive the command
_PREFIX: Final = re.compile(r"^\[rank\d+\]: ?")  # torch's, before each line of a traceback of a process group
METRIC: Final = "metric"  # the key of the numbers in the value of a rank
RUNS: Final = "runs"  # the key of the number of runs, all of which passed
TESTS: Final = "tests"  # the key of the results in a file of JUnit: by name (result, type, message, text)
NUMBERS: Final = "numbers"  # the key of several numbers, by name
PART: Final = "part"  # the key that marks a run of some tests alone, which has no exit status of the whole
AGAIN: Final = "again.json"  # beside the reproduction: the names of the tests to run, [] for all
EXIT: Final = "exit status"  # the test that is not in the file: whether the command succeeded
FAILED: Final = ("failure", "error")  # the elements of a test that fails
SHOWN: Final = 4_000  # characters of the end of a failed test's text
_FRAME: Final = re.compile(r"^(\S+\.py):(\d+): (?:in (\w+)|\w+)$", re.M)  # pytest's, in the text of a failed test
_PLUGIN: Final = "megatrix_only"
# A plugin of pytest: it runs the tests of these names alone, and imports no file that has none of them.
_ONLY: Final = """\
import pytest
from _pytest.junitxml import bin_xml_escape, mangle_test_address

ONLY = {only!r}


class Unread(pytest.Module):
    def collect(self):
        return []


def name_of(nodeid, config):
    *parts, last = mangle_test_address(nodeid)
    return ".".join(filter(None, [config.getoption("junitprefix", None), *parts, bin_xml_escape(last)]))


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path, parent):
    config = parent.config
    if module_path.name == "__init__.py" or any("::" in word for word in config.args):
        return None
    module = Unread.from_parent(parent, path=module_path)
    start = f"{{name_of(module.nodeid, config)}}."
    return None if any(f"{{name}}.".startswith(start) for name in ONLY) else module


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items, config):
    kept, others = [], []
    for item in items:
        (kept if name_of(item.nodeid, config) in ONLY else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = 0
"""


class CommandError(Exception):
    """The command failed. `failures` has the exceptions that it printed: (exception, stack) by number."""

    failures: Mapping[int, tuple[Exception, StackSummary]]

    def __init__(self, text: str, printed: Sequence[Raised] = ()) -> None:
        self.failures = {number: _made_again(raised) for number, raised in enumerate(printed)}
        super().__init__(text)


@dataclass(frozen=True)
class Repeats:
    """How often a command runs in one rank.

    `least` runs always; further ones, up to `most` in all, while they take less than `seconds` (0: no limit).
    """

    least: int = 1
    most: int = 1
    seconds: float = 0.0

    def again(self, runs: int, took: float) -> bool:
        """Return whether to run again after so many runs, which took so many seconds."""
        return runs < self.least or (runs < self.most and took * (1 + 1 / runs) < self.seconds)


def run(
    rank: Rank, command: Sequence[str], folder: str, metric: str = "", repeats: Repeats = Repeats(), **where: Any
) -> dict[str, Any] | None:
    """Run a command in a folder of its own, a copy of `folder`, until it fails or `repeats` end.

    With `metric` return the numbers under METRIC, else of several runs their count under RUNS. `metric` is a regular
    expression: the number is its first group, or the whole match, the last one in the output. `where`: see `place`.
    Raises CommandError, and LackError where the command does not exist.
    """
    folder = place(rank, folder, **where)
    numbers: list[float | str] = []
    started, runs = time.monotonic(), 0
    while not runs or repeats.again(runs, time.monotonic() - started):
        output = _run(rank, command, folder)
        runs += 1
        if metric:
            numbers.append(number_in(output, metric))
    return {METRIC: numbers} if metric else {RUNS: runs} if repeats.most > 1 else None


def run_tests(
    rank: Rank,
    command: Sequence[str],
    folder: str,
    junit: str = "",
    numbers: Mapping[str, str] | None = None,
    only: Collection[str] = (),
    again: Path | None = None,
    **where: Any,
) -> dict[str, Any]:
    """Run a command once, as `run`; return its numbers by name, and with `junit` the results in that file, by test.

    A name without an expression is a property in the file. A number that is missing is left out. `only`, or the file
    `again`, has the names of the tests that pytest runs; another runner runs all, which its results show.
    """
    folder, patterns = place(rank, folder, **where), numbers or {}
    path = Path(folder, junit)
    if again and again.is_file():
        only = json.loads(read_regular_text(again))
    if junit:
        path.unlink(missing_ok=True)  # of an earlier run
    output, status = _output(rank, command, folder, only)
    if not junit:
        _end(status, output)
    elif not path.is_file():
        _end(status, output)
        raise CommandError(f"the command has not written {junit}")
    tests, properties = read_junit(path) if junit else ({}, {})
    part = bool(only) and tests.keys() <= {*only}
    if status and not part and not any(test[0] in FAILED for test in tests.values()):
        tests[EXIT] = ("failure", "", f"the command left with status {status}, and no test failed", output[-SHOWN:])
    found = {name: _number(output, pattern) if pattern else properties.get(name) for name, pattern in patterns.items()}
    present = {name: number for name, number in found.items() if number is not None}
    return {TESTS: tests, NUMBERS: present, **({PART: True} if part else {})}


def run_test(rank: Rank, command: Sequence[str], folder: str, junit: str, test: str, **where: Any) -> None:
    """Run one test of a command, and end as it does. Raises CommandError, and LackError where that did not run."""
    tests = run_tests(rank, command, folder, junit, only=[test], **where)[TESTS]
    result, kind, message, text = tests.get(test, ("skipped", "", "", ""))
    if result in FAILED:
        raise CommandError(text or message, [raised_in(kind, message, text)])
    if result:
        raise LackError(f"the test {test} did not run: {message or 'it is missing in the file'}")


def _number(output: str, pattern: str) -> float | str | None:
    try:
        return number_in(output, pattern)
    except CommandError:
        return None


TestResult = tuple[str, str, str, str]  # "" of a pass, failure, error or skipped; its type, message and text


def read_junit(path: Path) -> tuple[dict[str, TestResult], dict[str, float]]:
    """Return the results in a file of JUnit by test, and the properties that are numbers. Raises CommandError."""
    try:
        root = ElementTree.fromstring(read_regular(path))  # noqa: S314  (expat limits what entities expand to)
    except ElementTree.ParseError as error:
        raise CommandError(f"{path.name} is no file of JUnit: {error}") from None
    tests, numbers = dict[str, TestResult](), dict[str, float]()
    for case in root.iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        ends = [part for part in case if part.tag in (*FAILED, "skipped")]
        end = ends[0] if ends else None
        if end is None:
            tests.setdefault(name, ("", "", "", ""))
            continue
        text = (end.text or "").strip()
        tests[name] = (end.tag, end.get("type") or "", end.get("message") or "", text[-SHOWN:])
    for item in root.iter("property"):
        with suppress(ValueError):
            numbers[item.get("name", "")] = float(item.get("value") or item.text or "")
    return tests, numbers


def raised_in(kind: str, message: str, text: str) -> Raised:
    """Return the exception of a failed test: of the traceback in its text, else of its type and message."""
    if printed := last_printed(text.splitlines()):
        return printed[-1]
    frames = tuple(Frame(file, int(line), function or "") for file, line, function in _FRAME.findall(text))
    stated = re.match(r"(?:\w+\.)*([A-Z]\w*): ?", message)  # pytest's messages start with the type
    if stated and kind in ("", stated[1]):
        return Raised(stated[1], message[stated.end() :], frames)
    if not kind and message.startswith("assert "):
        return Raised("AssertionError", message, frames)
    return Raised(kind.rpartition(".")[2] or "failure", message or text.rpartition("\n")[2], frames)


def place(rank: Rank, folder: str, copies: Path | None = None, *, shared: bool = False) -> str:
    """Return the folder to run in: a copy of `folder` that is the rank's own, or with `shared` that folder itself.

    Where `folder` or a file of `copies` in it is missing, as in an image, it is a copy of `copies`.
    """
    files = [path.relative_to(copies) for path in copies.rglob("*")] if copies else []
    complete, own_folder = all(Path(folder, path).exists() for path in (Path(), *files)), rank.workdir / "files"
    if complete and shared:
        return folder
    if complete:
        copy_folder(Path(folder), own_folder)
    else:
        own_folder.mkdir()
        if copies and files:
            shutil.copytree(copies, own_folder, dirs_exist_ok=True)
    return str(own_folder)


def number_in(output: str, metric: str) -> float | str:
    """Return the last number that `metric` finds in the output; "nan", "inf" or "-inf" of a diverged loss.

    Raises CommandError.
    """
    numbers = list(re.finditer(metric, output, re.M))
    if not numbers:
        raise CommandError(f"the metric {metric!r} matches nothing in the last {KEPT} characters of the output")
    text = numbers[-1][1] if numbers[-1].re.groups else numbers[-1][0]
    try:
        number = float(text)
    except (TypeError, ValueError):
        raise CommandError(f"the metric {metric!r} matches {text!r}, which is no number") from None
    return number if math.isfinite(number) else str(number)  # JSON has no word for it


def _run(rank: Rank, command: Sequence[str], folder: str) -> str:
    """Run the command once and return the end of its output; end as it does unless it succeeds."""
    output, status = _output(rank, command, folder)
    _end(status, output)
    return output


def _output(rank: Rank, command: Sequence[str], folder: str, only: Collection[str] = ()) -> tuple[str, int]:
    """Run the command once and return the end of its output, and its status; end as it does by a signal."""
    environment = environment_of(rank, os.environ)
    if only:
        plugin = Path(environment["PYTHONPATH"].partition(os.pathsep)[0], f"{_PLUGIN}.py")
        plugin.write_text(_ONLY.format(only={*only}), encoding="utf-8")
        environment["PYTEST_ADDOPTS"] = f"{environment.get('PYTEST_ADDOPTS', '')} -p {_PLUGIN}".strip()
    sys.stdout.flush()
    try:
        words = [program(command[0], folder, environment["PATH"]), *command[1:]]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(words, cwd=folder, env=environment, **pipes)
    except OSError as error:
        raise LackError(
            f"the command can't be started: {shlex.join(command)}: {error.strerror}: {error.filename}"
        ) from None
    tail = bytearray()
    assert process.stdout
    reader = threading.Thread(target=_copy, args=(process.stdout, tail), daemon=True)
    reader.start()
    status = process.wait()
    reader.join(LEFT_S)
    output = bytes(tail).decode(errors="replace")
    if status < 0:
        _die(-status)
    return output, status


def _end(status: int, output: str) -> None:
    """End as the command did, unless it succeeded."""
    if status:
        printed = last_printed(output.splitlines())
        if printed:
            raise CommandError(f"the command left with status {status}", printed)
        sys.exit(status)


def program(name: str, folder: str, path: str) -> str:
    """Return the program to start: of a name with a slash, the one relative to `folder`; of another, from `path`.

    Raises FileNotFoundError.
    """
    if "/" in name:
        return str(Path(folder, name))
    candidates = (Path(candidate, name) for candidate in path.split(os.pathsep))
    program_path = next(
        (str(candidate) for candidate in candidates if os.access(candidate, os.X_OK) and candidate.is_file()), None
    )
    if program_path is None:
        raise FileNotFoundError(errno.ENOENT, f"not found in {path}", name)
    return program_path


def environment_of(rank: Rank, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a command that the rank starts."""
    inherited = environ.get("PATH", "").split(os.pathsep)
    machine = environ.get("PYTHONPATH", "").split(os.pathsep)
    path = dict.fromkeys([str(Path(sys.executable).parent), *filter(None, inherited), *SYSTEM])
    return {
        **environ,
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join([str(child.site_folder(rank)), *rank.overlays, *filter(None, machine)]),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(rank.workdir),
    }


def last_printed(lines: Iterable[str]) -> list[Raised]:
    """Return the exception that was printed last with its traceback; [] if there is none."""
    reader = Tracebacks()
    printed: list[LoggedException] = []
    for number, line in enumerate(lines, start=1):
        printed += reader.take(number, _PREFIX.sub("", line))
    printed += reader.close()
    return [logged.raised for logged in printed if not logged.alone][-1:]


def _copy(source: IO[bytes], kept: bytearray) -> None:
    """Copy the command's output to the rank's, and keep its end."""
    with source:
        while chunk := os.read(source.fileno(), 65_536):
            os.write(1, chunk)
            kept += chunk
            del kept[:-KEPT]


def _made_again(raised: Raised) -> tuple[Exception, StackSummary]:
    """Return an exception of the same class name, message and stack."""
    kind: type[Exception] = type(raised.type, (Exception,), {})
    frames = [FrameSummary(frame.file, frame.line, frame.function, lookup_line=False) for frame in raised.frames]
    return kind(raised.message), StackSummary.from_list(frames)


def _die(number: int) -> None:
    """End this process by a signal; the default action replaces faulthandler, which would print a second stack."""
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pause()


def copy_folder(source: Path, target: Path) -> None:
    """Copy `source` to `target`, which must not exist: the upper levels first, links below them where it is large.

    Points that run side by side then can't mix their files. What is large, hidden or beyond the limits is a link:
    reading it costs nothing, and a command that writes into it shares it with the others.
    """
    folders, entries, size = deque([(source, target)]), 0, 0
    while folders:
        origin, copy = folders.popleft()
        copy.mkdir(parents=True)
        for entry in sorted(os.scandir(origin), key=lambda item: item.name):
            if Path(entry.path) == target:  # the copy lies in the folder
                continue
            entries += 1
            within, path = entries <= MOST and size <= BYTES, copy / entry.name
            if within and entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                folders.append((Path(entry.path), path))
            elif within and _is_small(entry):
                size += entry.stat().st_size
                shutil.copy2(entry.path, path)
            else:
                path.symlink_to(os.path.abspath(entry.path))  # noqa: PTH100  (a link stays one)


def _is_small(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a file to copy: small and readable. A link to one is copied, too."""
    try:
        return entry.is_file() and entry.stat().st_size <= LARGEST and os.access(entry.path, os.R_OK)
    except OSError:
        return False
