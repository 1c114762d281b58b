"""Sanitising of text from logs and exceptions before it reaches a terminal or a page.

Control characters become visible, secrets are masked, sizes are bounded. The result is plain text whose only control
characters are newline and tab; the caller escapes it for its format (HTML, XML).
"""

from __future__ import annotations

import re

MASKED = "[masked]"

# Characters processed of a text: an exception message can be a whole printed tensor, a log one line of megabytes.
# Records keep at most 64 KiB of a log, so nothing of those is lost.
LOOKED_AT = 1 << 16
# Characters shown of one line of a log: about three wrapped lines on a wide page.
LINE = 500

# Colours are removed; every other escape sequence stays visible as text.
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_ODD = re.compile(r"[^ -~\n\t]")

# The name of a secret. It starts at a word boundary and is bounded, so that a megabyte of letters takes linear time.
# "token" must end the name (tokenizer, num_tokens and token_ids are frequent in these logs), and "key" alone counts
# only in capitals, as in environment variables.
_NAME = (
    r"(?<![\w-])[\w-]{0,40}?(?:(?i:passw(?:or)?d|passphrase|secret|credential"
    r"|(?:api|access|private|auth|signing|encryption)[_-]?key)[\w-]{0,20}|(?i:token)(?![\w-])|_(?:KEY|PASS|PWD|PAT|AUTH|BEARER)(?![\w-]))"
)
_VALUE = r"(?:\"[^\"\n]*\"?|'[^'\n]*'?|[^\s,;&\"']+)"
_ASSIGNED = re.compile(rf"({_NAME}[\"']?[ \t]*[=:][ \t]*){_VALUE}")  # NAME=value, NAME: value, "NAME": "value"
_OPTION = re.compile(rf"(?<![\w-])(?=--\w)({_NAME}[ \t]+){_VALUE}")  # --name value
_HEADER = re.compile(r"(?i)((?<![\w-])(?:(?:proxy-)?authorization|(?:set-)?cookie)[\"']?[ \t]*[=:][ \t]*)[^\n]+")
# Secrets that are recognised by their format, whatever their name.
_SHAPED = re.compile(
    r"(?<=://)[^/\s@]{1,256}(?=@)"  # user:password@host
    r"|(?i:(?<=bearer )|(?<=bearer\t))(?=\S{0,200}\d|\S{20})[\w.~+/=-]{8,}"  # Bearer TOKEN, in a header or not
    r"|(?<![\w-])(?:gh[oprsu]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|hf_\w{16,}|nvapi-[\w-]{16,}|sk-[\w-]{16,}"
    r"|pypi-[\w-]{16,}|xox[a-z]-[\w-]{10,}|A[KS]IA[0-9A-Z]{12,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
)


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
    """Replace every value that looks like a secret. False positives are accepted: no log line is worth a password."""
    for pattern in (_HEADER, _OPTION, _ASSIGNED):
        text = pattern.sub(rf"\1{MASKED}", text)
    return _SHAPED.sub(MASKED, text)


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
