"""Sanitising of text from logs and exceptions before it reaches a terminal or a page.

Control characters become visible, secrets are masked, sizes are bounded. The result is plain text whose only control
characters are newline and tab; the caller escapes it for its format (HTML, XML).
"""

from __future__ import annotations

import builtins
import re
import types
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from matrix.ground import catalog
from matrix.ground.catalog.schema import read_toml

MASKED = "[masked]"

# Characters processed of a text: an exception message can be a whole printed tensor, a log one line of megabytes.
# Records keep at most 64 KiB of a log, so nothing of those is lost.
LOOKED_AT = 1 << 16
# Characters shown of one line of a log: about three wrapped lines on a wide page.
LINE = 500

# Colours are removed; every other escape sequence stays visible as text.
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_ODD = re.compile(r"[^ -~\n\t]")

# The name of a secret in a text. "token" must end the name (tokenizer, num_tokens and token_ids are frequent in these
# logs), and "key" alone counts only in capitals, as in environment variables.
_NAME = (
    r"(?:(?i:passw(?:or)?d|passphrase|sshpass|secret|credential|webhook|cookie|session_?id|connection_?string"
    r"|(?:config|auth)[_-]?data|(?:api|access|account|private|client|auth|signing|encryption)[_-]?key)[\w-]{0,20}"
    r"|(?i:token|jwt)(?![\w-])|_(?:KEY|PASS|PWD|PAT|AUTH|BEARER)(?![\w-]))"
)
_VALUE = r"(?:\[masked\]|(?:\\?\"[^\"\n]*\"?|\\?'[^'\n]*'?)+|[^\s,;&\"']+)"
NAMED_VALUE = re.compile(
    r"((?i:(?<![\w-])(?:(?:proxy-)?authorization|(?:set-)?cookie)[\"']?[ \t]*[=:][ \t]*))"  # a header
    r"(?:\[masked\](?=[\"']|$)|[^\n]+)"
    rf"|((?<![\w-])--[\w-]{{0,40}}?{_NAME}[ \t]+){_VALUE}"  # --name value
    # NAME=value, NAME: value, "NAME": "value", also within a JSON text, NAME => value, <name>value</
    rf"|({_NAME}\\?[\"']?[ \t]*(?:[=:]>?|:=|==|>(?=[^<\s]{{1,200}}</))[ \t]*){_VALUE}"
)
# Found in every text of NAMED_VALUE, and faster: one line of a log in twenty has it.
NAME_IN: Final = re.compile(
    r"[pPsScCwWaAtTkKjJbBdD](?i:assw|assp|shpass|ecret|redential|ebhook|ookie|ession|onnection|onfig|uth|ey|oken|wt|earer)"
    r"|_P(?:ASS|WD|AT)"
)
FORMATS: Final = Path(catalog.__file__).with_name("facts") / "secrets.toml"


@cache
def formats() -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return the formats of secrets: the words of which a text has one, and the pattern; its group is what stays."""
    return tuple(
        (tuple(row["words"]), f"({row['after']}){row['pattern']}" if "after" in row else rf"(?<![\w-]){row['pattern']}")
        for row in read_toml(FORMATS)["format"]
    )


@cache
def url_user() -> re.Pattern[str]:
    """Return the pattern of user and password in a URL, with what precedes them as its group."""
    return re.compile(next(pattern for words, pattern in formats() if words == ("://",)))


@lru_cache(maxsize=256)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(patterns) or "(?!)")


def visible(text: str) -> str:
    r"""Return the text with every unprintable character written out (``\x1b``, ``\u202e``) and colours dropped.

    Newline and tab stay; a carriage return becomes a newline, so that later text does not overwrite earlier text.
    Bytes that were not UTF-8 (surrogates of `surrogateescape`) are written as those bytes.
    """
    if text.isprintable():  # nearly every text: names, versions, one line
        return text
    text = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _ODD.sub(lambda found: found[0] if found[0].isprintable() else _written_out(ord(found[0])), text)


def _written_out(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def mask(text: str) -> str:
    """Replace every value that looks like a secret. False positives are accepted: no log line is worth a password.

    Formats come before names: the value of NAME= ends at a blank, a private key does not. A masked text stays as it is.
    """
    lower = text.lower()
    shaped = _any_of(tuple(pattern for words, pattern in formats() if any(word in lower for word in words)))
    lines = shaped.sub(_masked, text).split("\n")
    return "\n".join(NAMED_VALUE.sub(_masked, line) if NAME_IN.search(line) else line for line in lines)


def _masked(match: re.Match[str]) -> str:
    return (match[match.lastindex] if match.lastindex else "") + MASKED


def one_line(text: str, width: int = 200) -> str:
    """Return the text on one line of at most `width` characters, visible and masked."""
    return shorten(" ".join(mask(visible(text[:LOOKED_AT])).split()), width)


def shorten(text: str, width: int) -> str:
    """Cut to `width` characters, the last three of them dots."""
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."


def head(text: str, lines: int = 30) -> str:
    """Return the first lines, visible, masked and bounded, with a count of what is left out."""
    return _bounded(text, lines, end=False)


def tail(text: str, lines: int = 60) -> str:
    """Return the last lines, visible, masked and bounded, with a count of what is left out."""
    return _bounded(text, lines, end=True)


def _bounded(text: str, count: int, *, end: bool) -> str:
    beyond = max(len(text) - LOOKED_AT, 0)
    text = text[beyond:] if end else text[: len(text) - beyond]
    lines = mask(visible(text)).rstrip("\n").split("\n")
    left_out = max(len(lines) - count, 0)
    parts = lines[left_out:] if end else lines[: len(lines) - left_out]
    parts = [
        line if len(line) <= LINE else f"{line[:LINE]} [... {len(line) - LINE:,} more characters]" for line in parts
    ]
    counts = [f"{left_out:,} lines"] * bool(left_out) + [f"{beyond:,} characters"] * bool(beyond)
    if counts:
        parts.insert(0 if end else len(parts), f"[... {' and '.join(counts)} left out]")
    return "\n".join(parts)


_DOTTED: Final = re.compile(r"[\w.]+")
_OF_PACKAGE: Final = re.compile(r"\w[._]\w|[a-z][A-Z]")
_OF_PYTHON: Final = frozenset([*dir(builtins), *dir(types)])
# Names that programs without the stack print in the same messages: of PyTorch's data loader, allocator and builder of
# extensions, of setuptools, transformers, MPI and the standard library.
_OF_OTHERS: Final = re.compile(
    r"DataLoader|DefaultCPUAllocator|torch_\w*|_get_cuda_arch_flags|pkg_resources|additional_special_tokens"
    r"|P?MPI_\w+|mpi4py|popen_fork\.py|__\w+__"
)


def names_in(text: str) -> set[str]:
    """Return the names of a package in a text: `item.index.fqn`, not `NoneType`."""
    return {name for name in _DOTTED.findall(text) if _OF_PACKAGE.search(name)} - _OF_PYTHON


def is_of_stack(text: str) -> bool:
    """Return whether what a signature compares names something that programs without the stack do not print."""
    return any(not _OF_OTHERS.fullmatch(name) for name in names_in(text))
