"""Parser for Python tracebacks in a log."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Final

from matrix.verdicts.outcome import Frame, Raised

FRAMES: Final = 200  # kept of one traceback, the innermost: Python prints 1,000 of a recursion at most
# Unindented lines of other writers within a traceback after which the traceback is given up.
FOREIGN_LINES: Final = 200

HEADER: Final = "Traceback (most recent call last):"
# torch marks a traceback that it quotes in a message: "Original " before it (DataLoader), " (RANK 0)" after the header
# (checkpoints).
_HEADER: Final = re.compile(r"^\s*(Original )?Traceback \(most recent call last\):(?P<behind>.*)$")
_LINKS: Final = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d{1,9})(?:, in (?P<function>.*))?$')
_RAISED: Final = re.compile(r"^(?P<module>(?:[^\W\d]\w*\.)*)(?P<type>[^\W\d]\w*)(?P<colon>:(?: (?P<message>.*))?)?$")
_CLASS: Final = re.compile(r"(Error|Exception|Exit|Interrupt|Iteration|Warning|Failure|Expired|Timeout|Empty|Full)$")
# torch's messages of several lines: a pattern of the message's last line, and one of a next line that belongs to it.
# NCCL's errors as in torch 2.4, and the keys that a state dict lacks.
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
MESSAGE_SIZE: Final = (
    65_536  # characters of a message after which no line is added; a state dict may lack 1,000s of keys
)


@dataclass(frozen=True)
class LoggedException:
    """One exception in a log, on line `line`. Exceptions with the same `chain` number caused or quote each other.

    `raised.message` is the first line of the message (the second where the first is empty) and those further lines that
    torch is known to write: the end of any other message of several lines can't be detected.
    """

    line: int
    chain: int
    raised: Raised


class Tracebacks:
    """Reader of one rank's lines, in order. `types`: class names that are known to be exceptions."""

    def __init__(self, types: Container[str] = ()) -> None:
        self._types = types
        self._frames: list[Frame] | None = None  # None outside of a traceback
        self._foreign = self._chain = 0
        self._linked = False
        self._open: LoggedException | None = None  # its message may continue on the next line

    def take(self, number: int, text: str) -> Iterator[LoggedException]:
        """Process a line without its log's prefix; yield the exceptions that are complete with it."""
        if pending := self._open:
            self._open = None
            continuation = _continuation(pending.raised.message)
            if continuation and continuation.match(text):
                message = f"{pending.raised.message}\n{text.rstrip()}"
                yield from self._complete(replace(pending, raised=replace(pending.raised, message=message)))
            else:
                yield pending
        if HEADER in text and (header := _HEADER.match(text)):
            quoted = header[1] or header["behind"].strip()
            self._chain += not (quoted or self._linked)
            self._frames, self._foreign, self._linked = [], 0, False
        elif text.strip() in _LINKS:
            self._linked = True
        elif self._frames is not None:
            if frame := _FRAME.match(text):
                self._frames.append(Frame(frame["file"], int(frame["line"]), frame["function"] or "<module>"))
                del self._frames[:-FRAMES]
            elif (raised := _RAISED.match(text)) and self._is_exception(raised):
                frames, self._frames = tuple(self._frames), None
                found = LoggedException(
                    number, self._chain, Raised(raised["type"], (raised["message"] or "").rstrip(), frames)
                )
                if raised["colon"]:
                    yield from self._complete(found)
                else:
                    yield found
            elif text[:1].strip():  # not a source line, which is indented
                self._foreign += 1
                if self._foreign > FOREIGN_LINES:
                    self._frames = None

    def close(self) -> Iterator[LoggedException]:
        """Yield the pending exception of a log that ends within its message; call it after the last line."""
        if pending := self._open:
            self._open = None
            yield pending

    def _complete(self, found: LoggedException) -> Iterator[LoggedException]:
        """Yield an exception, or keep it pending when its message may continue."""
        if _continuation(found.raised.message):
            self._open = found
        else:
            yield found

    def _is_exception(self, raised: re.Match[str]) -> bool:
        """Return whether a match has the name of an exception, unlike "INFO: starting" of another writer."""
        name = raised["type"]
        return name in self._types or bool(_CLASS.search(name)) or bool(raised["module"] and name[0].isupper())


def _continuation(message: str) -> re.Pattern[str] | None:
    """Return the pattern of a line that continues a message, None where the message is complete."""
    if not message:
        return _ANY
    last = message.rpartition("\n")[2]
    return next((line for before, line in _MORE if before.search(last)), None) if len(message) < MESSAGE_SIZE else None
