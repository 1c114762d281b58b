"""Masking where a text enters: of the environment's values that must not leak, and of what looks like a secret.

Values are those of variables named like secrets, and passwords in URLs. Formats and names: ground/verdicts/text.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.verdicts.outcome import Outcome
from matrix.ground.verdicts.text import MASKED, mask, url_user

SHORTEST: Final = 7  # characters of a masked value; shorter ones ("1", "true", "none") occur in every text
LONGEST: Final = 4_096  # characters masked of a value; the rest of a longer one is not
# Bytes of a line, or of an unfinished private key, that are searched at once; a secret across two parts is not found.
# The largest key in use (RSA, 16384 bits) has 12.7 KB.
LONGEST_LINE: Final = 2**16

_NAME: Final = re.compile(
    r"(TOKEN|KEY|JWT|SECRET|PASSWORD|PASSWD|PASSPHRASE|SSHPASS|CREDENTIAL|COOKIE|SESSION_?ID|WEBHOOK|AUTHORIZATION|OAUTH"
    r"|CONNECTION_STRING|CONFIG_DATA|(?<![A-Z])(PASS|PWD|PAT|AUTH|BEARER))S?\d*(_|$)",
    re.IGNORECASE,
)
_SHELL: Final = ("PWD", "OLDPWD")  # the shell's folders
_PLACE: Final = re.compile(r"_(FILE|PATH|DIR|FOLDER|SOCK)$", re.IGNORECASE)  # names of paths, existing or not


def values(*environs: Mapping[str, str], given: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the values in these environments (default: this process's) that look like secrets, longest first.

    `given` are added: those of the process that started this one, whose environment may hold more.
    """
    secrets = {
        secret[:LONGEST]
        for environ in environs or (os.environ,)
        for name, value in environ.items()
        for secret in (*([value] if _is_secret(name, value) else []), *_passwords(value))
        if len(secret) >= SHORTEST
    }
    return tuple(sorted(secrets | {*given}, key=lambda value: (-len(value), value)))


def _is_secret(name: str, value: str) -> bool:
    """Return whether a variable holds a secret. A path is none, and shows the reader where a run searched."""
    if not _NAME.search(name) or name in _SHELL:
        return False
    return not (value.startswith("/") and (_PLACE.search(name) or os.path.exists(value)))  # noqa: PTH110  (any text)


def _passwords(value: str) -> Iterator[str]:
    """Yield what precedes the @ of each URL in a value: USER:PASSWORD, the password alone, and both decoded."""
    for match in url_user().finditer(value) if "://" in value else ():  # as in PIP_EXTRA_INDEX_URL
        user = match[0].removeprefix(match[1])
        for text in (user, unquote(user)):
            yield text
            yield text.partition(":")[2]


class Masker:
    """Masks secrets in a stream of bytes, whatever its chunks: by value, then line by line by format and name.

    A possible start of a value, an unfinished line and an unfinished private key are held until the next chunk.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = [secret.encode(errors="surrogateescape") for secret in secrets]
        self._any = _any_of(self._secrets)
        self._first = _any_of([secret[:1] for secret in self._secrets])
        self._longest = max(map(len, self._secrets), default=0)
        self._held = b""
        self._lines = bytearray()

    def take(self, chunk: bytes) -> bytes:
        """Return the bytes that can be written after this chunk."""
        begun = len(self._lines)
        self._lines += self._without_values(chunk)
        ready, end = b"", self._lines.rfind(b"\n", begun) + 1
        key = self._lines.rfind(b"-----BEGIN ", 0, end)
        if key >= 0 and self._lines.find(b"-----END ", key, end) < 0:
            end = self._lines.rfind(b"\n", 0, key) + 1
        if end:
            ready, self._lines = _formatted(self._lines[:end]), self._lines[end:]
        while len(self._lines) > LONGEST_LINE:
            ready, self._lines = ready + _formatted(self._lines[:LONGEST_LINE]), self._lines[LONGEST_LINE:]
        return ready

    def raw(self) -> bytes:
        """Return the bytes still held, of which only values are masked, if anything."""
        pending, self._held, self._lines = bytes(self._lines) + self._held, b"", bytearray()
        return pending

    def rest(self) -> bytes:
        """Return the bytes still held; call it after the last chunk."""
        return _formatted(self.raw())

    def _without_values(self, chunk: bytes) -> bytes:
        if not self._secrets:
            return chunk
        text = self._any.sub(MASKED.encode(), self._held + chunk)
        offset = next(
            (
                candidate.start()
                for candidate in self._first.finditer(text, max(0, len(text) - self._longest + 1))
                if any(secret.startswith(text[candidate.start() :]) for secret in self._secrets)
            ),
            len(text),
        )
        self._held = text[offset:]
        return text[:offset]


def mask_file(path: Path) -> None:
    """Mask the secrets of this environment in a file, if it exists."""
    if not path.is_file():
        return
    masker, content, masked = Masker(values()), path.read_bytes(), bytearray()
    for start in range(0, len(content), 2**20):
        masked += masker.take(content[start : start + 2**20])
    masked += masker.rest()
    if masked != content:
        path.write_bytes(masked)


def bare(text: str, secrets: Sequence[str]) -> str:
    """Return a text with these secrets masked, and all that look like secrets."""
    return mask(re.sub("|".join(map(re.escape, secrets)), MASKED, text) if secrets else text)


def bare_bytes(content: bytes, secrets: Sequence[str]) -> bytes:
    """Return bytes, of any encoding, with these secrets masked, and all that look like secrets."""
    return bare(content.decode(errors="surrogateescape"), secrets).encode(errors="surrogateescape")


def _formatted(lines: bytes | bytearray) -> bytes:
    """Return lines of a stream with all that looks like a secret masked; they are not the beginning of a text."""
    return mask("\0" + lines.decode(errors="surrogateescape"))[1:].encode(errors="surrogateescape")


def masked_outcome(outcome: Outcome, secrets: Sequence[str]) -> Outcome:
    """Return an outcome with its secrets masked, these and what looks like one, but not in its kind and its lacks."""
    plain = encode(outcome)
    return decode(Outcome, _masked(plain, secrets) | {name: plain[name] for name in ("kind", "lacks")})


def _masked(value: Any, secrets: Sequence[str]) -> Any:
    """Return plain data with its secrets masked."""
    if isinstance(value, str):
        return bare(value, secrets)
    if isinstance(value, dict):
        return {name: _masked(item, secrets) for name, item in value.items()}
    return [_masked(item, secrets) for item in value] if isinstance(value, list) else value


def _any_of(secrets: Sequence[bytes]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(map(re.escape, secrets)) or rb"(?!)")
