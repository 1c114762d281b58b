"""The HTML document around every page: no network; only its own style and script may run.

Untrusted text passes through `escape` (HTML) and `one_line`, `head` or `tail` (control characters, secrets, size). The
content security policy blocks any markup that gets through.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from matrix.report.markup import escape, marks

_HERE = Path(__file__).parent


def document(title: str, body: str, *, script: str = "page.js") -> str:
    """Return a whole page. `title` is text, `body` HTML; `script` is a file name in this folder, "" for none."""
    style = (_HERE / "page.css").read_text("utf-8")
    code = "".join((_HERE / name).read_text("utf-8") for name in ("copy.js", script)) if script else ""
    allowed = f"style-src {_digest(style)};{f' script-src {_digest(code)};' if script else ''}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; {allowed} base-uri 'none'">
<title>{escape(title)}</title>
<style>{style}</style></head><body>{marks()}<main>
{body}
</main>{f"<script>{code}</script>" if script else ""}</body></html>
"""


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
