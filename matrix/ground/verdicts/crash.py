"""Native crashes in logs, read from each printer's format into one normal form.

A rank that dies in C++ leaves no exception: its log holds the only report, in the format of whoever printed it. A
`NativeCrash` has the signal and the functions on the stack, but not the exact place: the same defect crashes in
different frames at different world sizes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final

MOST: Final = 64  # crashes read per printer; a rank's log holds one of each printer, mpirun's log one for each rank
# The names that faulthandler and glibc print for signals; Open MPI and UCX print the number.
WORDS: Final = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
}


@dataclass(frozen=True)
class NativeCrash:
    """One printed crash.

    `printer` is "faulthandler", "open-mpi", "ucx", "c10", "terminate", "glibc", or the launcher that reported it,
    "torchrun" or "mpirun". `frames` run innermost first: qualified names without arguments, as far as they were
    printed; a launcher prints none. `signal` is a name such as "SIGSEGV", None where only an `exit_code` was printed.
    `thrown` is the class of the C++ exception that nobody caught, `message` the first line of its message.
    """

    signal: str | None
    exit_code: int | None
    printer: str
    frames: tuple[str, ...] = ()
    thrown: str = ""
    message: str = ""

    def has_frame(self, function: str) -> bool:
        """Return whether a function is in the stack, at any depth; `function` is the end of its qualified name."""
        return any(f"::{frame}".endswith(f"::{function}") for frame in self.frames)


@dataclass(frozen=True)
class _Printer:
    """The format of one printer: its first line (with the signal's name) and its last.

    Where the first line has an `at`, every line in between starts with the same one. Logs hold arbitrary text: every
    pattern must take linear time, so adjacent repeats are bounded.
    """

    name: str
    start: re.Pattern[str]
    end: re.Pattern[str]


PRINTERS: Final = (
    _Printer(
        "faulthandler",
        re.compile(
            r"^Fatal Python error: (?P<words>[A-Z][\w -]*)$"
            r"(?:(?:(?!^Fatal )[\s\S])*?^Current thread 0x)?",  # threads that did not crash may come first
            re.M,
        ),
        re.compile(r"^(Thread 0x|Extension modules: )", re.M),
    ),
    _Printer(
        "open-mpi",
        re.compile(r"(?P<at>\[[\w.-]{1,255}:\d{1,9}\]) \*\*\* Process received signal \*\*\*$", re.M),
        re.compile(r"\*\*\* End of error message \*\*\*$", re.M),
    ),
    _Printer(
        "ucx",
        re.compile(r"\[[\w.-]{1,255}:\d{1,9} {0,9}:\d{1,9}:\d{1,9}\] {1,9}Caught signal (?P<number>\d{1,3}) "),
        re.compile(r"^=====+$", re.M),
    ),
    _Printer(
        "c10",
        re.compile(r"^(?P<words>SIG[A-Z]+)\(\d+\), PID: (?P<process>\d+), Thread \d+: *$", re.M),
        re.compile(r"^$", re.M),
    ),
    _Printer(
        "terminate",
        re.compile(r"^terminate called (?:after throwing|without an active exception|recursively)", re.M),
        re.compile(r"^$", re.M),
    ),
    _Printer(
        "glibc",
        re.compile(r"^\*\*\* (?:(?P<words>[A-Z][a-z ]+)$|glibc detected \*\*\*)", re.M),
        re.compile(r"^(Memory map:|=+ Memory map: =+)$", re.M),
    ),
)
ABORTS: Final = ("terminate", "glibc")  # printers of abort(), unless they name another signal
THROWN: Final = re.compile(r" an instance of '(?P<type>[^'\n]{1,200})'(?:\s{1,8}what\(\):(?P<message>[^\n]{0,2000}))?")

FRAMES: Final = re.compile(
    r"""
      ^\ *frame\ \#\d+:\ (?P<torch>.+)\ \+\ 0x[0-9a-f]+\ \(0x                      # c10, terminate
    | ^\ *\d+\ +0x[0-9a-f]{8,}\ (?P<ucx>\S.*?)\ {1,4}\S*:\d+$                           # UCX, with debug information
    | \((?P<symbol>[^()\s+]+)\+0x[0-9a-f]+\)\ ?\[0x                                # backtrace_symbols of glibc
    | ^\ *Binary\ file\ ".*",\ at\ (?P<binary>\S+?)\+0x[0-9a-f]+\ \[0x             # faulthandler of Python >= 3.14
    | ^\ *File\ ".*",\ line\ (?:\d+|\?\?\?)\ in\ (?P<python>\S+)$                   # faulthandler
    """,
    re.X | re.M,
)

LAUNCHERS: Final = (
    (
        "torchrun",
        re.compile(r"\bexitcode *: *(?P<code>-?\d+) \(pid: \d+\)|\(exitcode: (?P<failed>-?\d+)\) local_rank:"),
    ),
    (
        "mpirun",
        re.compile(r"noticed that process rank \d+ with PID \d+ on node \S+ exited\s+on\s+signal (?P<number>\d+)"),
    ),
    ("mpirun", re.compile(r"^ *Process name: .*\n *Exit code: +(?P<code>\d+)$", re.M)),
)


@lru_cache(maxsize=32)
def crashes(text: str) -> tuple[NativeCrash, ...]:
    """Return every crash in a log, in the log's order."""
    return tuple(crash for _, crash in located(text))


def located(text: str) -> list[tuple[int, NativeCrash]]:
    """Return every crash in a log with the offset at which it starts, ordered by it."""
    return sorted([*_printed(text), *_launched(text)], key=lambda one: one[0])


def _printed(text: str) -> Iterator[tuple[int, NativeCrash]]:
    processes: set[str] = set()
    for printer in PRINTERS:
        for start in islice(printer.start.finditer(text), MOST):
            groups = start.groupdict()
            if process := groups.get("process"):
                if process in processes:
                    continue  # c10 prints the process's other threads too
                processes.add(process)
            end = printer.end.search(text, start.end() + 1)
            body = text[start.end() : end.start() if end else len(text)]
            if at := groups.get("at"):
                body = "\n".join(line.partition(f"{at} ")[2] for line in body.splitlines())
            thrown = THROWN.match(body) if printer.name == "terminate" else None
            words = (thrown["type"], (thrown["message"] or "").strip()) if thrown else ()
            died_of = _signal(printer.name, groups, body)
            yield start.start(), NativeCrash(died_of, None, printer.name, _frames(body), *words)


def _signal(printer: str, named: dict[str, str | None], body: str) -> str | None:
    number = named.get("number")
    if printer == "open-mpi":
        printed = re.search(r"^Signal: .* \((\d+)\)$", body, re.M)
        number = printed and printed[1]
    if number:
        return _name(int(number))
    words = named.get("words") or ""
    return WORDS.get(words, words if words in signal.Signals.__members__ else "SIGABRT" if printer in ABORTS else None)


def _launched(text: str) -> Iterator[tuple[int, NativeCrash]]:
    for launcher, pattern in LAUNCHERS:
        for report in pattern.finditer(text):
            groups = report.groupdict()
            code = int(groups.get("code") or groups.get("failed") or -int(groups.get("number") or 0))
            if code:
                yield (
                    report.start(),
                    NativeCrash(_name(-code) if code < 0 else None, code if code > 0 else None, launcher),
                )


def _name(number: int) -> str | None:
    return signal.Signals(number).name if number in set(signal.Signals) else None


def _frames(body: str) -> tuple[str, ...]:
    python: list[str] = []
    native: list[str] = []
    for frame in FRAMES.finditer(body):
        kind = str(frame.lastgroup)
        (python if kind == "python" else native).append(function_name(frame[kind]))
    # Python >= 3.14 prints the Python frames first and the C++ frames that they called after them.
    return tuple(name for name in (*native, *python) if name)


def function_name(text: str) -> str:
    """Return the qualified name of a function, mangled or not, without its arguments; "" where none was printed.

    A mangled name is read up to the first template: more would take the whole of the C++ ABI.
    """
    mangled = re.match(r"_ZN[KVrRO]*(?:St)?(?=\d)", text)
    if mangled:
        return "::".join(_source_names(text[mangled.end() :]))
    if text in ("<unknown function>", "??"):
        return ""
    plain = re.sub(r"\[abi:\w+\]", "", text.replace("(anonymous namespace)", "{anonymous}"))
    return plain.partition("(")[0]


def plain_name(symbol: str) -> str:
    """Return the qualified name of a symbol, mangled or not, without arguments."""
    single = re.match(r"_Z(\d{1,4})(?=[A-Za-z_])", symbol)
    if single:
        return symbol[single.end() :][: int(single[1])]
    name = function_name(symbol)
    return f"std::{name}" if re.match(r"_ZN[KVrRO]*St", symbol) else name or symbol


def _source_names(mangled: str) -> Iterator[str]:
    """Yield the names of the leading <length><name> pairs."""
    while length := re.match(r"\d{1,4}", mangled):
        start = length.end()
        yield mangled[start : start + int(length[0])]
        mangled = mangled[start + int(length[0]) :]
