"""Parser for Python exceptions in a log: with their traceback, with a part of it, or with their last line alone.

Tracebacks may be those of Python, of pytest in its long and short style, and Rich's boxes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from matrix.ground.verdicts.outcome import Frame, Raised

HEADER: Final = "Traceback (most recent call last):"  # Python's own
_PYTEST_ERROR: Final = re.compile(r"^E( {2,99}| {0,99}$)(?P<text>.*)$")
_PYTEST_FRAME: Final = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d{1,9}): in (?P<function>\S.*)$")
_PYTEST_PLACE: Final = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d{1,9}): (?P<type>[^\W\d]\w*)?$")
_PYTEST_FUNCTION: Final = re.compile(r"^ {4}(?:async )?def (?P<name>\w+)\(")
_PYTEST_INSIDE: Final = (">", "_ _ ")  # the line that fails, and the line between two functions
PYTEST_SUMMARY: Final = re.compile(
    r"^(?:FAILED|ERROR) \S.{0,4000}? - (?P<text>(?:[^\W\d]\w{0,99}\.){0,20}[^\W\d]\w{0,99}: \S.*)$"
)

MOST: Final = 200  # frames kept of one traceback, and lines of one message

RICH_HEADER: Final = re.compile(r"[╭+][─-]+ Traceback \(most recent call last\) [─-]+[╮+]")
_RICH_LINE: Final = re.compile(r"^\s*[│|](?P<text>.*)[│|]\s*$")
_RICH_END: Final = re.compile(r"^\s*[╰+][─-]+[╯+]\s*$")
_RICH_FRAME: Final = re.compile(
    r"^(?:(?P<file>\S.*):(?P<line>\d{1,9}) in (?P<function>\S+)|in (?P<plain>\S+):(?P<number>\d{1,9}))$"
)


@dataclass(frozen=True)
class LoggedFrame(Frame):
    """A frame with the source line that is printed below it, "" where there is none."""

    source: str = field(default="", compare=False)


@dataclass(frozen=True)
class PytestError:
    """An error that pytest printed on `line`: its text, the frames, and the type where only pytest names it."""

    line: int
    text: str
    frames: tuple[Frame, ...]
    type: str = ""


@dataclass
class Pytest:
    """Reader of pytest's styles. Short: frames ("a.py:1: in f"), then the error. Long: the error, then its place."""

    frames: list[Frame] = field(default_factory=list)
    function: str = ""  # whose source was printed last
    error: list[str] = field(default_factory=list)
    line: int = 0

    def take(self, number: int, text: str) -> PytestError | None:
        """Process a line; return the error that is complete with it, or with the line before."""
        if text.startswith("E") and (part := _PYTEST_ERROR.match(text)):
            self.line = self.line if self.error else number
            del self.error[MOST:]
            self.error.append(part["text"])
            return None
        location = _PYTEST_PLACE.match(text) if ":" in text else None
        if self.error and not text.strip():
            return None  # the place may follow
        if location:
            self._add(location, self.function)
            return self._end(location["type"] or "") if self.error else None
        complete = self._end() if self.error else None
        if frame := _PYTEST_FRAME.match(text) if ": in " in text else None:
            self._add(frame, frame["function"])
        elif function := _PYTEST_FUNCTION.match(text):
            self.function = function["name"]
        elif text[:1].strip() and not text.startswith(_PYTEST_INSIDE):
            self.frames, self.function = [], ""
        return complete

    def close(self) -> PytestError | None:
        """Return the error of a log that ends with it."""
        return self._end() if self.error else None

    def _add(self, place: re.Match[str], function: str) -> None:
        self.frames.append(Frame(place["file"], int(place["line"]), function))
        del self.frames[:-MOST]

    def _end(self, type_name: str = "") -> PytestError:
        error = PytestError(self.line, "\n".join(self.error), tuple(self.frames), type_name)
        self.error, self.frames = [], []
        return error


@dataclass
class Rich:
    """Reader of one box of Rich; `width` is the console's, in characters."""

    width: int
    frames: list[Frame] = field(default_factory=list)
    _place: str | None = ""  # file, line and function, possibly on several lines; None below them

    def take(self, text: str) -> bool:
        """Process a line of the box; return whether the box ends with it."""
        if _RICH_END.match(text):
            return True
        if content := _RICH_LINE.match(text):
            part = content["text"][1:]
            if not part.strip():
                self._place = ""
            elif self._place is not None:
                self._place += part.strip() + " " * (not _is_full(part))
                if frame := _RICH_FRAME.match(self._place.strip()):
                    line, function = frame["line"] or frame["number"], frame["function"] or frame["plain"]
                    self.frames.append(Frame(frame["file"] or "", int(line), function))
                    self._place = None
        return False


def _is_full(part: str) -> bool:
    """Return whether a line fills its box (one space of padding): the rest of its last word is on the next line."""
    return len(part.rstrip()) >= len(part) - 1


FRAMES: Final = 200  # kept of one traceback, the innermost: Python prints 1,000 of a recursion at most
# Since the last frame of a traceback: unindented lines of other writers, and lines that are not empty, after which it
# is given up; lines among which an indented one is the frame's source.
FOREIGN_LINES: Final = 200
LINES: Final = 2_000
NEAR: Final = 4

# torch marks a traceback that it quotes in a message: "Original " before it (DataLoader), " (RANK 0)" after the header
# (checkpoints).
_HEADER: Final = re.compile(r"^\s*(Original )?Traceback \(most recent call last\):(?P<behind>.*)$")
_LINKS: Final = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d{1,9})(?:, in (?P<function>.*))?$')
_MARKS: Final = "^~ "  # below a source line, at the part that failed
_RAISED: Final = re.compile(r"^(?P<module>(?:[^\W\d]\w*\.)*)(?P<type>[^\W\d]\w*)(?P<colon>:(?: (?P<message>.*))?)?$")
_CLASS: Final = re.compile(r"(Error|Exception|Exit|Interrupt|Iteration|Warning|Failure|Expired|Timeout|Empty|Full)$")
# An exception without its traceback: at the start of a line, or behind the prefix of a log collector.
_ALONE: Final = re.compile(r"^(?:\S.{0,150}?[|\]]:? {1,4})?(?P<text>(?:[^\W\d]\w*\.)*(?P<type>[^\W\d]\w*): \S.*)$")
_NAMES: Final = ("Error", "Exception")  # ends of the names of exceptions that are looked for without a traceback
# torch's messages of several lines: a pattern of the message's last line, and one of a next line that belongs to it.
# NCCL's errors as in torch 2.4, the keys that a state dict lacks, and a message of the dynamic loader that was wrapped.
_MORE: Final = tuple(
    (re.compile(last), re.compile(line))
    for last, line in (
        (r"NCCL error in: ", r"nccl[A-Z]\w+: "),
        (r"^nccl[A-Z]\w+: ", r"Last error:$"),
        (r"^Last error:$", r"\S"),
        (r"\.so[\w.]*:$", r"\s*undefined symbol: "),
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
    torch is known to write: the end of any other message of several lines can't be detected. `alone`: it was printed
    without a traceback, so it may be a quote.
    """

    line: int
    chain: int
    raised: Raised
    alone: bool = False


class Tracebacks:
    """Reader of one rank's lines, in order. `types`: class names that are known to be exceptions.

    It reads the tracebacks of Python, also where the log begins within them, of pytest and of Rich.
    """

    def __init__(self, types: Collection[str] = ()) -> None:
        self._types = types
        self._names = [f"{name}: " for name in (*_NAMES, *(name for name in types if not name.endswith(_NAMES)))]
        self._frames: list[Frame] | None = None  # None outside of a traceback
        self._headed = False  # the traceback has its first line
        self._bare = False  # its last frame is not indented: a markup removed the indentation
        self._margin = ""  # spaces before all lines of a traceback without its first line
        self._foreign = self._lines = self._chain = 0
        self._linked = False
        self._open: LoggedException | None = None  # its message may continue on the next line
        self._above: LoggedException | None = None  # of the line above frames that have no first line
        self._width = self._printed = 0  # characters of Rich's console, and of the last line of the open message
        self._box: Rich | None = None
        self._pytest = Pytest()

    @property
    def innermost(self) -> Frame | None:
        """Return the last frame of a traceback whose exception is missing so far, None outside of one."""
        return self._frames[-1] if self._frames and not self._foreign and not self._above else None

    def take(self, number: int, text: str) -> Iterator[LoggedException]:
        """Process a line without its log's prefix; yield the exceptions that are complete with it."""
        if pending := self._open:
            self._open = None
            if message := self._continued(pending.raised.message, text):
                yield from self._complete(replace(pending, raised=replace(pending.raised, message=message)))
                return
            yield pending
        if self._box:
            if self._box.take(text):
                self._frames, self._width, self._box = self._box.frames, self._box.width, None
        elif HEADER[:-1] in text and (header := _HEADER.match(text) or RICH_HEADER.search(text)):
            quoted = header.re is _HEADER and (header[1] or header["behind"].strip())
            self._start([], linked=bool(quoted) or self._linked, headed=True)
            self._box = Rich(len(header[0])) if header.re is RICH_HEADER else None
        elif text.strip() in _LINKS:
            self._linked = True
        elif self._frames is not None:
            yield from self._within(self._frames, number, text)
        else:
            yield from self._outside(number, text)

    def close(self) -> Iterator[LoggedException]:
        """Yield the pending exception of a log that ends within its message; call it after the last line."""
        if pending := self._open:
            self._open = None
            yield pending
        yield from self._upside_down()
        if error := self._pytest.close():
            yield from self._of_pytest(error)

    def _upside_down(self) -> Iterator[LoggedException]:
        """Yield the exception above frames that no exception follows: people quote the error first."""
        if self._above and self._frames:
            self._chain += 1
            raised = replace(self._above.raised, frames=tuple(self._frames))
            yield replace(self._above, chain=self._chain, raised=raised, alone=False)
        self._frames = self._above = None

    def _start(self, frames: list[Frame], *, linked: bool, headed: bool, margin: str = "") -> None:
        self._chain += not linked
        self._frames, self._headed, self._margin, self._width = frames, headed, margin, 0
        self._above = None if headed else self._above
        self._foreign = self._lines = 0
        self._linked = False

    def _within(self, frames: list[Frame], number: int, text: str) -> Iterator[LoggedException]:
        self._lines += bool(text.strip())
        text = text.removeprefix(self._margin)
        if frame := _FRAME.match(text):
            frames.append(LoggedFrame(frame["file"], int(frame["line"]), (frame["function"] or "<module>").rstrip()))
            del frames[:-FRAMES]
            self._lines = self._foreign = 0
            self._bare = text.startswith("File")
        elif (raised := _RAISED.match(text)) and self._is_exception(raised):
            self._frames = None
            yield from self._found(number, raised, tuple(frames))
        elif frames and self._is_source(frames[-1], text):
            frames[-1] = LoggedFrame(frames[-1].file, frames[-1].line, frames[-1].function, text.strip())
        elif text[:1].strip() and self._lines > 1 and text.strip(_MARKS):  # no source line: indented, or below a frame
            self._foreign += 1
            # Without its first line, frames may be those of a printed stack, which no exception follows.
            if self._foreign > (FOREIGN_LINES if self._headed else 0):
                yield from self._upside_down()
        if self._lines > LINES:
            self._frames = None

    def _is_source(self, frame: Frame, text: str) -> bool:
        """Return whether a line below a frame is its source line."""
        is_missing = bool(text.strip(_MARKS)) and isinstance(frame, LoggedFrame) and not frame.source
        return is_missing and (self._lines <= NEAR if text[0] == " " else self._lines == 1 and self._bare)

    def _outside(self, number: int, text: str) -> Iterator[LoggedException]:
        if error := self._pytest.take(number, text):
            yield from self._of_pytest(error)
        if 'File "' in text and (frame := _FRAME.match(text)) and frame["function"]:
            outermost = LoggedFrame(frame["file"], int(frame["line"]), frame["function"].rstrip())
            margin = text[: max(text.index("File") - 2, 0)]
            self._start([outermost], linked=self._linked, headed=False, margin=margin)
            self._bare = text.startswith("File")
            return
        self._above = None
        if any(name in text for name in self._names) and (alone := PYTEST_SUMMARY.match(text) or _ALONE.match(text)):
            raised = _RAISED.match(alone["text"])
            if raised and raised["message"] and (raised["type"] in self._types or raised["type"].endswith(_NAMES)):
                self._chain += 1
                yield from self._found(number, raised, (), alone=True)

    def _of_pytest(self, error: PytestError) -> Iterator[LoggedException]:
        self._chain += 1
        raised = _RAISED.match(error.text.strip().partition("\n")[0])
        if raised and self._is_exception(raised):
            message = (raised["message"] or "") + error.text.strip()[raised.end() :]
            exception = Raised(raised["type"], message, error.frames)
        elif error.type:
            exception = Raised(error.type, error.text, error.frames)
        else:
            return
        yield LoggedException(error.line, self._chain, exception, alone=not error.frames)

    def _found(
        self, number: int, raised: re.Match[str], frames: tuple[Frame, ...], *, alone: bool = False
    ) -> Iterator[LoggedException]:
        message = (raised["message"] or "").rstrip()
        logged = LoggedException(number, self._chain, Raised(raised["type"], message, frames), alone)
        self._above = logged if alone else None
        self._printed = len(raised[0].rstrip())
        if raised["colon"]:
            yield from self._complete(logged)
        else:
            yield logged

    def _complete(self, found: LoggedException) -> Iterator[LoggedException]:
        """Yield an exception, or keep it pending when its message may continue."""
        if self._width or _continuation(found.raised.message):
            self._open = found
        else:
            yield found

    def _continued(self, message: str, text: str) -> str:
        """Return a message with its next line, "" where the line is not a part of it."""
        if self._width and text.strip() and self._printed + 1 + len(text.split()[0]) > self._width:
            self._printed = len(text.rstrip())
            return f"{message} {text.strip()}"
        self._width = 0
        continuation = _continuation(message)
        return f"{message}\n{text.rstrip()}" if continuation and continuation.match(text) else ""

    def _is_exception(self, raised: re.Match[str]) -> bool:
        """Return whether a match has the name of an exception, unlike "INFO: starting" of another writer."""
        name = raised["type"]
        return name in self._types or bool(_CLASS.search(name)) or bool(raised["module"] and name[0].isupper())


def _continuation(message: str) -> re.Pattern[str] | None:
    """Return the pattern of a line that continues a message, None where the message is complete."""
    if not message:
        return _ANY
    if len(message) >= MESSAGE_SIZE:
        return None
    line_end = message.rpartition("\n")[2]
    return next((line for start, line in _MORE if start.search(line_end)), None)
