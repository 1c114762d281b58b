"""Lines of a log of any size, in any encoding, packed or not, in bounded memory.

A log is read in blocks. Only the lines near a trigger are separated: of a training log, a few in a million.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import BinaryIO, Final

from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.tracebacks import HEADER, RICH_HEADER

CHUNK: Final = 2**20  # bytes per read, and at most of one step of unpacking
LINE: Final = 65_536  # characters kept of a line: a JSON line holds a whole traceback
PROBED: Final = 4_096  # bytes examined for the encoding where there is no byte order mark
BEFORE: Final = 65_536  # characters before a trigger that are read: the frames above an exception
AFTER: Final = 65_536  # characters after a trigger that are read: the stack below a crash's first line
SHORTEST: Final = 8  # characters of a word that are searched for when its beginning is left out
FREQUENT: Final = frozenset(" etaoinsrhldcumfpgb0123456789|:.-/")  # characters of the lines of a training
OCCASIONAL: Final = frozenset("kvwxyzEFGLOPTU(),=_[]")  # characters of some of these lines

_GZIP: Final = b"\x1f\x8b\x08"
_GZIP_ONLY: Final = 31  # zlib's word for the format
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's mark, which is its prefix
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# In JSON, a text is between quotes, and \\n and \\" are written out.
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)\\?(?:"|$)')
_WRITTEN_OUT: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
# Prefixes that launchers and log collectors add to each line: a rank (torchrun, mpirun, srun, Ray), a time, a level.
_BEFORE: Final = re.compile(
    r"(?P<rank>\[(?:rank|default)\d+\]: ?|\[\d+,\d+\]<std(?:out|err)>: ?|\d{1,6}: "
    r"|\([^\s()]{1,200} pid=\d+(?:, ip=[\w.:]+)?\) ?)"
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:? ?(?:std(?:out|err) [FP] )?"
    r"(?:\[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\]?:? )?"
)
# Ray's, behind a line.
_REPEATED: Final = re.compile(r" \[repeated \d{1,19}x across cluster\](?: \(Ray deduplicates.{0,512})?$")
_PREFIX: Final = 200  # longest prefix of a traceback's first line that is then removed from the other lines, characters
_HEAD: Final = re.compile(rf"{re.escape(HEADER)}|{RICH_HEADER.pattern}")
_FRAME: Final = re.compile(r'(?P<prefix>.{0,200}?\S.{0,200}?)(?: \s)?File "[^"]{1,500}", line \d{1,9}, in \S+ {0,200}$')
_END: Final = re.compile(r"(\r\n|\n|\r)")


def texts(file: BinaryIO) -> Iterator[str]:
    """Yield the text of a binary file, decoded and, if it is gzip, unpacked. Raises MatrixError on damaged gzip."""
    return decoded(unpacked(iter(lambda: file.read(CHUNK), b"")))


def unpacked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Unpack gzip, of one or several members; other bytes are unchanged. A cut file ends where it is cut."""
    remaining = iter(chunks)
    head = b""
    for chunk in remaining:
        head += chunk
        if len(head) >= len(_GZIP):
            break
    return _gunzipped(chain([head], remaining)) if head.startswith(_GZIP) else chain([head] if head else [], remaining)


def _gunzipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=_GZIP_ONLY)
    try:
        for chunk in chunks:
            data = chunk
            while data:
                if member.eof:
                    member = zlib.decompressobj(wbits=_GZIP_ONLY)
                yield member.decompress(data, CHUNK)
                data = member.unused_data.lstrip(b"\0") if member.eof else member.unconsumed_tail
        yield member.flush()
    except zlib.error as error:
        raise MatrixError(
            "this gzip file is damaged", got=error, expected="gzip, or plain text", fix="copy the log again"
        ) from None


def decoded(chunks: Iterable[bytes]) -> Iterator[str]:
    """Decode chunk by chunk; undecodable bytes become U+FFFD."""
    decoder: codecs.IncrementalDecoder | None = None
    for chunk in chunks:
        if decoder is None:
            decoder = codecs.getincrementaldecoder(encoding_of(chunk))("replace")
        yield decoder.decode(chunk)
    if decoder is not None:
        yield decoder.decode(b"", final=True)


def encoding_of(start: bytes) -> str:
    """Return the encoding of a log that starts with these bytes: by its mark, UTF-16 also by its zeros, else UTF-8."""
    for mark, name in _MARKS:
        if start.startswith(mark):
            return name
    probe = start[:PROBED]
    for name, zero_byte in (("utf-16-le", 1), ("utf-16-be", 0)):
        half = probe[zero_byte::2]
        if len(half) > 1 and half.count(0) > 0.9 * len(half) and probe[1 - zero_byte :: 2].count(0) < 0.1 * len(half):
            return name
    return "utf-8"


class Triggers:
    """Words to be found in a text, any of them; with an empty word, everywhere.

    Words that share a rare character are found by one expression that begins with it, so that 500 words take little
    more time than ten. Where a text lacks the character, the expression is left out: to look for one character is
    thirty times faster than to look for a word. A word of frequent characters alone is found by str.find.

    Of each of the `choices`, one text is enough: none is searched for where a word is part of one.
    """

    def __init__(self, words: Iterable[str], choices: Iterable[Sequence[str]] = ()) -> None:
        required = set(words)
        open_choices = [texts for texts in choices if not any(word in text for word in required for text in texts)]
        apart: list[str] = []
        for word in sorted(required.union(map(_rarest, open_choices)), key=lambda word: (len(word), word)):
            if not any(shorter in word for shorter in apart):
                apart.append(word)
        self._everywhere = "" in apart
        by_character, frequent = _by_rare_character([] if self._everywhere else apart)
        self._searches: list[Callable[[str, int], int]] = [partial(_find, word) for word in frequent]
        for start, ends in by_character.items():
            self._searches.append(partial(_search, start, re.compile(f"{re.escape(start)}(?={_tree(ends)})")))

    def found(self, text: str) -> bool:
        """Return whether a text has one of the words."""
        return self._everywhere or any(search(text, 0) >= 0 for search in self._searches)

    def places(self, text: str, start: int) -> list[int]:
        """Return places of words from `start` on, in order; of places closer than AFTER / 2, one is enough."""
        if self._everywhere:
            return list(range(start, len(text), AFTER))
        offsets: list[int] = []
        for search in self._searches:
            offset = search(text, start)
            while offset >= 0:
                offsets.append(offset)
                offset = search(text, offset + AFTER // 2)
        return sorted(offsets)


def _find(word: str, text: str, start: int) -> int:
    return text.find(word, start)


def _search(character: str, pattern: re.Pattern[str], text: str, start: int) -> int:
    place = text.find(character, start)
    word = pattern.search(text, place) if place >= 0 else None
    return word.start() if word else -1


def _rarest(texts: Sequence[str]) -> str:
    """Return the text with the rarest character, of several the longest: a search for it takes the least time."""

    def rarity(text: str) -> tuple[bool, bool, int]:
        characters = set(_starts(text)) - FREQUENT
        return bool(characters - OCCASIONAL), bool(characters), len(text)

    return max(texts, key=rarity)


def _starts(word: str) -> str:
    """Return the characters of a word that an expression may begin with."""
    return word[: max(len(word) - SHORTEST, 0) + 1]


def _by_rare_character(words: Iterable[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the ends of words by the rare character before them, few characters in all, and the words without one."""
    remaining = set(words)
    groups: dict[str, list[str]] = {}
    while remaining:
        ends: dict[str, dict[str, str]] = {}  # character -> word -> the word from there on
        for word in sorted(remaining):
            for index, character in enumerate(_starts(word)):
                if character not in FREQUENT:
                    ends.setdefault(character, {}).setdefault(word, word[index + 1 :])
        if not ends:
            break
        start = max(ends, key=lambda one: (one not in OCCASIONAL, len(ends[one]), one))
        groups[start] = list(ends[start].values())
        remaining -= set(ends[start])
    return groups, sorted(remaining)


def _tree(words: Iterable[str]) -> str:
    """Return an expression that matches any of the words, with common beginnings joined."""
    by_start: dict[str, list[str]] = {}
    for word in sorted(words):
        if not word:
            return ""
        by_start.setdefault(word[0], []).append(word[1:])
    parts = [re.escape(start) + _tree(ends) for start, ends in by_start.items()]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


class Excerpts:
    """The lines of a log near a trigger, with their numbers (1-based, as editors count).

    A carriage return also ends a line (progress bars), but does not increase the number. At most LINE characters of a
    line are kept; colours and other escape sequences are removed. Once exhausted, `lines` is the count of lines of the
    whole log, and `is_cut` states whether its last line has no end.
    """

    def __init__(self, chunks: Iterable[str], triggers: Triggers) -> None:
        self._chunks, self._triggers = chunks, triggers
        self.lines, self.is_cut = 0, False
        self._number = 1  # of the first line of `_before`, or of the next block
        self._before = ""  # the end of the last block, where no line was near a trigger
        self._near = 0  # characters of the next block that are near a trigger of the last one

    def __iter__(self) -> Iterator[tuple[int, str]]:
        line_start = ""
        for chunk in self._chunks:
            whole = line_start + chunk
            # A \r at the end may be half of a \r\n.
            end = max(whole.rfind("\n"), whole.rfind("\r", 0, len(whole) - 1)) + 1
            line_start = whole[end:] if end else whole[:LINE]
            yield from self._block(whole[:end])
        yield from self._block(line_start)
        self.is_cut = bool(line_start) and not line_start.endswith("\r")
        self.lines = self._number + self._before.count("\n") - (not line_start)

    def _block(self, block: str) -> Iterator[tuple[int, str]]:
        if "\x1b" in block:
            block = _ESCAPE.sub("", block)
        text, done = self._before + block, 0
        for start, end in self._zones(text, len(self._before)):
            self._number += text.count("\n", done, start)
            for line, ended in split(text[start:end]):
                yield self._number, line
                self._number += ended
            done = end
        tail = max(done, text.rfind("\n", done, max(len(text) - BEFORE, done)) + 1)
        self._number += text.count("\n", done, tail)
        self._before = text[tail:]

    def _zones(self, text: str, new: int) -> list[tuple[int, int]]:
        """Return start and end of the parts near a trigger, apart and in whole lines; the text from `new` on is new."""
        zones = [[new, new + self._near]] if self._near else []
        for offset in self._triggers.places(text, new):
            line = text.rfind("\n", 0, offset) + 1
            start = min(text.find("\n", max(offset - BEFORE, 0) - 1, line) + 1 or line, line) if offset > BEFORE else 0
            if zones and start <= zones[-1][1]:
                zones[-1][1] = offset + AFTER
            else:
                zones.append([start, offset + AFTER])
        self._near = max(zones[-1][1] - len(text), 0) if zones else 0
        whole = [(start, text.find("\n", end - 1) + 1 or len(text)) for start, end in zones]
        return [(max(start, whole[offset - 1][1] if offset else 0), end) for offset, (start, end) in enumerate(whole)]


def split(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line of a text, at most LINE characters of it, and whether its end increases the line number."""
    if "\r" not in text:
        *lines, remainder = text.split("\n")
        for line in lines:
            yield line[:LINE], True
        if remainder:
            yield remainder[:LINE], False
        return
    parts = _END.split(text)
    for line, end in zip(parts[::2], [*parts[1::2], ""], strict=True):
        if line or end:
            yield line[:LINE], end not in ("\r", "")


class Prefixes:
    """Removes what launchers and log collectors add to lines, and learns the prefixes of this log."""

    def __init__(self) -> None:
        self._shapes: deque[re.Pattern[str]] = deque(maxlen=16)

    def split(self, line: str) -> tuple[str, str]:
        """Return the rank tags of a line, "" if it has none, and the line without them and without its time."""
        tags = ""
        while line[:1] in "[(0123456789" and (prefix := _BEFORE.match(line)) and prefix.end():
            tags += (prefix["rank"] or "").strip()
            line = line[prefix.end() :]
        return tags, _REPEATED.sub("", line) if "across cluster]" in line else line

    def without(self, text: str) -> str:
        """Return a line without the prefix that the first line of a traceback had, or its first frame without one."""
        if HEADER[:-1] in text[: _PREFIX + len(HEADER)] and (head := _HEAD.search(text)) and head.start():
            self._learn(text[: head.start()].removesuffix("Original "))
        line = self._stripped(text)
        if line is text and 'File "' in text and (frame := _FRAME.match(text)):
            self._learn(frame["prefix"])
            line = self._stripped(text)
        return line

    def _learn(self, prefix: str) -> None:
        shape = re.compile(re.sub(r"\d+", r"\\d+", re.escape(prefix)))
        if prefix and shape not in self._shapes:
            self._shapes.append(shape)

    def _stripped(self, text: str) -> str:
        prefixes = (prefix for shape in self._shapes if (prefix := shape.match(text)))
        return next((text[prefix.end() :] for prefix in prefixes), text)


def quoted_lines(line: str) -> list[str]:
    """Return the lines of the texts that a line of a JSON log holds, or the line itself.

    A line with a traceback in quotes, its line ends written out, counts as one, whatever is around it. Of a JSON
    object, texts that hold no line end and no colon are left out: keys, levels, names.
    """
    is_object = line.lstrip().startswith("{")
    if not is_object and not (HEADER[:-1] in line and "\\n" in line):
        return [line]
    texts = [part for part in _QUOTED.findall(line) if "\\n" in part or (is_object and ": " in part)]
    return [inner for part in texts for inner, _ in split(_read_escapes(part))] or [line]


def _read_escapes(text: str) -> str:
    """Replace the escapes of JSON; two of them may make one character beyond U+FFFF."""
    plain = _WRITTEN_OUT.sub(lambda one: chr(int(one[1], 16)) if one[1] else _CONTROLS.get(one[2], one[2]), text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
