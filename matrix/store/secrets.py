"""Values of the environment that must not get out: known by the names of their variables, masked where text is kept.

What else looks like a secret, whatever its source, is masked where text is shown (matrix/verdicts/text.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from matrix.verdicts.outcome import Outcome, Raised

MASKED: Final = "[masked]"
SHORTEST: Final = 7  # characters of a value that is masked; a shorter one ("1", "true", "none") is in every text
LONGEST: Final = 4_096  # bytes of a value that is masked as a whole; of a longer one its beginning

_NAME: Final = re.compile(r"(TOKEN|KEY|JWT|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)S?(_|$)", re.IGNORECASE)


def values(*environs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of these variables that look like secrets, longest first; without any, of this process's."""
    found = {
        value[:LONGEST]
        for environ in environs or (os.environ,)
        for name, value in environ.items()
        # A file's name is no secret, and tells a reader where a run looked.
        if _NAME.search(name) and len(value) >= SHORTEST and not value.startswith("/")
    }
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


class Masker:
    """Masks secrets in a stream of bytes, also across its chunks; what may be the start of one waits for the next."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = [secret.encode(errors="surrogateescape") for secret in secrets]
        self._any = _any_of(self._secrets)
        self._first = _any_of([secret[:1] for secret in self._secrets])
        self._longest = max(map(len, self._secrets), default=0)
        self._held = b""

    def take(self, chunk: bytes) -> bytes:
        """Return what can be written now."""
        if not self._secrets:
            return chunk
        text = self._any.sub(MASKED.encode(), self._held + chunk)
        place = next(
            (
                found.start()
                for found in self._first.finditer(text, max(0, len(text) - self._longest + 1))
                if any(secret.startswith(text[found.start() :]) for secret in self._secrets)
            ),
            len(text),
        )
        self._held = text[place:]
        return text[:place]

    def rest(self) -> bytes:
        """Return what still waits; to be called at the end."""
        held, self._held = self._held, b""
        return held


def mask_file(path: Path) -> None:
    """Take the secrets of this environment out of a file that others wrote, if there is one."""
    told = path.read_bytes() if path.is_file() else b""
    without = bare_bytes(told, values())
    if without != told:
        path.write_bytes(without)


def bare(text: str, secrets: Sequence[str]) -> str:
    """Return a text without these secrets."""
    return re.sub("|".join(map(re.escape, secrets)), MASKED, text) if secrets else text


def bare_bytes(content: bytes, secrets: Sequence[str]) -> bytes:
    """Return what may be no text without these secrets."""
    masker = Masker(secrets)
    return masker.take(content) + masker.rest()


def hidden(outcome: Outcome, secrets: Sequence[str]) -> Outcome:
    """Return an outcome without these secrets: in what it says, in exceptions, logs, stacks and values."""
    if not secrets:
        return outcome

    def without(text: str) -> str:
        return bare(text, secrets)

    def told(chain: Sequence[Raised]) -> tuple[Raised, ...]:
        return tuple(replace(raised, message=without(raised.message)) for raised in chain)

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return without(value)
        if isinstance(value, Mapping):
            return {name: plain(one) for name, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    ranks = tuple(
        replace(rank, chain=told(rank.chain), value=plain(rank.value), stacks=without(rank.stacks))
        for rank in outcome.ranks
    )
    return replace(
        outcome,
        reason=without(outcome.reason),
        chain=told(outcome.chain),
        evidence=without(outcome.evidence),
        ranks=ranks,
        attempts=tuple(map(without, outcome.attempts)),
    )


def _any_of(secrets: Sequence[bytes]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(map(re.escape, secrets)) or rb"(?!)")
