"""Lines of a log of any size in any encoding, in bounded memory."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

CHUNK: Final = 2**20  # bytes per read
LINE: Final = 4_096  # characters kept of a line; the longest message in a signature of the catalog has 200
PROBED: Final = 4_096  # bytes examined for the encoding where there is no byte order mark

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's mark, which is its prefix
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_END: Final = re.compile(r"(\r\n|\n|\r)")


def numbered(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield line number (1-based, as editors count) and text of each line of a binary file."""
    return split(decoded(iter(lambda: file.read(CHUNK), b"")))


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
    for name, place in (("utf-16-le", 1), ("utf-16-be", 0)):
        half = probe[place::2]
        if len(half) > 1 and half.count(0) > 0.9 * len(half) and probe[1 - place :: 2].count(0) < 0.1 * len(half):
            return name
    return "utf-8"


def split(chunks: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, at most LINE characters of it.

    A carriage return also ends a line (progress bars), but does not increase the number.
    """
    number, held, rest = 1, "", ""
    for chunk in chunks:
        whole = rest + chunk
        rest = "\r" if whole.endswith("\r") else ""  # possibly half of a \r\n
        parts = _END.split(whole.removesuffix("\r") if rest else whole)
        for text, end in zip(parts[::2], [*parts[1::2], ""], strict=True):
            held += text[: LINE - len(held)]
            if end:
                yield number, held
                held = ""
                number += end != "\r"
    if held:
        yield number, held
