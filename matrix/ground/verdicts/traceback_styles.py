"""Tracebacks that Python itself did not print: pytest's long and short style, and Rich's boxes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from matrix.ground.verdicts.outcome import Frame

HEADER: Final = "Traceback (most recent call last):"  # Python's own
_PYTEST_ERROR: Final = re.compile(r"^E( {2,}| *$)(?P<text>.*)$")
_PYTEST_FRAME: Final = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d{1,9}): in (?P<function>\S.*)$")
_PYTEST_PLACE: Final = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d{1,9}): (?P<type>[^\W\d]\w*)?$")
_PYTEST_FUNCTION: Final = re.compile(r"^ {4}(?:async )?def (?P<name>\w+)\(")
_PYTEST_INSIDE: Final = (">", "_ _ ")  # the line that fails, and the line between two functions
PYTEST_SUMMARY: Final = re.compile(r"^(?:FAILED|ERROR) \S.*? - (?P<text>(?:[^\W\d]\w*\.)*[^\W\d]\w*: \S.*)$")

MOST: Final = 200  # frames kept of one traceback, and lines of one message

RICH_HEADER: Final = re.compile(r"[╭+][─-]+ Traceback \(most recent call last\) [─-]+[╮+]")
_RICH_LINE: Final = re.compile(r"^\s*[│|](?P<text>.*)[│|]\s*$")
_RICH_END: Final = re.compile(r"^\s*[╰+][─-]+[╯+]\s*$")
_RICH_FRAME: Final = re.compile(
    r"^(?:(?P<file>\S.*):(?P<line>\d{1,9}) in (?P<function>\S+)|in (?P<plain>\S+):(?P<number>\d{1,9}))$"
)


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
