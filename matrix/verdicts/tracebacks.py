"""Python's tracebacks as they stand in a log, read back into exceptions."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Final

from matrix.verdicts.outcome import Frame, Raised

FRAMES: Final = 200  # kept of one traceback, the innermost: Python prints 1,000 of a recursion at most
# Lines of somebody else between two lines of a traceback that nothing tells apart from it; then it is given up.
STRANGERS: Final = 200

HEADER: Final = "Traceback (most recent call last):"
# What torch puts around a traceback that it quotes in a message: "Original " (DataLoader), " (RANK 0)" (checkpoints).
_HEADER: Final = re.compile(r"^\s*(Original )?Traceback \(most recent call last\):(?P<behind>.*)$")
_LINKS: Final = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d{1,9})(?:, in (?P<function>.*))?$')
_RAISED: Final = re.compile(r"^(?P<module>(?:[^\W\d]\w*\.)*)(?P<type>[^\W\d]\w*)(?P<says>:(?: (?P<message>.*))?)?$")
_CLASS: Final = re.compile(r"(Error|Exception|Exit|Interrupt|Iteration|Warning|Failure|Expired|Timeout|Empty|Full)$")
# Where torch says more than one line: what the last line of a message looks like, and one that then belongs to it.
# NCCL's errors as torch 2.4 words them, and what a state dict lacks.
_MORE: Final = tuple(
    (re.compile(last), re.compile(line))
    for last, line in (
        (r"NCCL error in: ", r"nccl[A-Z]\w+: "),
        (r"^nccl[A-Z]\w+: ", r"Last error:$"),
        (r"^Last error:$", r"\S"),
        (r":$|^\t", r"\t\S"),
    )
)
_ANY: Final = re.compile("")
SAID: Final = 65_536  # characters of a message after which no line is added; a state dict may lack thousands of keys


@dataclass(frozen=True)
class LoggedException:
    """One exception of a log. `line` is where it stands; those with one `chain` led to each other or quote each other.

    `raised.message` is the first line of what it says, the second where the first is empty, and what torch is known to
    say in further lines: nothing tells where another one ends.
    """

    line: int
    chain: int
    raised: Raised


class Tracebacks:
    """Reads the lines of one rank, one after the other. `types`: class names that are known to be exceptions."""

    def __init__(self, types: Container[str] = ()) -> None:
        self._types = types
        self._frames: list[Frame] | None = None  # None outside of a traceback
        self._strangers = self._chain = 0
        self._linked = False
        self._open: LoggedException | None = None  # what it says may go on

    def take(self, number: int, text: str) -> Iterator[LoggedException]:
        """Take a line, without what stands before every line of its log; yield the exception that ends with it."""
        if told := self._open:
            self._open = None
            more = _more(told.raised.message)
            if more and more.match(text):
                message = f"{told.raised.message}\n{text.rstrip()}"
                yield from self._say(replace(told, raised=replace(told.raised, message=message)))
            else:
                yield told
        if HEADER in text and (header := _HEADER.match(text)):
            quoted = header[1] or header["behind"].strip()
            self._chain += not (quoted or self._linked)
            self._frames, self._strangers, self._linked = [], 0, False
        elif text.strip() in _LINKS:
            self._linked = True
        elif self._frames is not None:
            if frame := _FRAME.match(text):
                self._frames.append(Frame(frame["file"], int(frame["line"]), frame["function"] or "<module>"))
                del self._frames[:-FRAMES]
            elif (raised := _RAISED.match(text)) and self._names_one(raised):
                frames, self._frames = tuple(self._frames), None
                told = LoggedException(
                    number, self._chain, Raised(raised["type"], (raised["message"] or "").rstrip(), frames)
                )
                if raised["says"]:
                    yield from self._say(told)
                else:
                    yield told
            elif text[:1].strip():  # no source line, which is indented
                self._strangers += 1
                if self._strangers > STRANGERS:
                    self._frames = None

    def close(self) -> Iterator[LoggedException]:
        """Yield the exception with which the log broke off; to be called after the last line."""
        if told := self._open:
            self._open = None
            yield told

    def _say(self, told: LoggedException) -> Iterator[LoggedException]:
        """Yield an exception, unless what it says may go on."""
        if _more(told.raised.message):
            self._open = told
        else:
            yield told

    def _names_one(self, raised: re.Match[str]) -> bool:
        """Say whether this is an exception's name and not a word of somebody else, such as "INFO: starting"."""
        name = raised["type"]
        return name in self._types or bool(_CLASS.search(name)) or bool(raised["module"] and name[0].isupper())


def _more(message: str) -> re.Pattern[str] | None:
    """Return what a line looks like that belongs to a message, None where the message is whole."""
    if not message:
        return _ANY
    last = message.rpartition("\n")[2]
    return next((line for before, line in _MORE if before.search(last)), None) if len(message) < SAID else None
