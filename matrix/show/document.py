"""The templates of the pages and how a value gets into them. No page uses the network; only its own script may run.

Every value that a template prints passes through `visible` and is escaped. Markup comes from templates and from a
failure's chart.py alone; the content security policy blocks any other that gets through. Texts of logs also pass
through `one_line`, `head` or `tail` (secrets, size). `prose` adds <code> to a text that is escaped already.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from matrix.ground.verdicts.record import SILENT
from matrix.ground.verdicts.text import head, one_line, tail, visible
from matrix.prove.store.paths import page_name
from matrix.show.words import MEANING, OF_RECORDS, WORST_FIRST

_FOLDER: Final = Path(__file__).parent / "templates"


def document(template: str, **values: Any) -> str:
    """Return a page. `template` is the name of a file in templates/."""
    return _ENVIRONMENT.get_template(template).render(values)


@dataclass(frozen=True)
class Inline:
    """The text of a style or script element, and its SHA-256 (base64) for the content security policy."""

    text: Markup
    digest: str


@cache
def inline(*names: str) -> Inline:
    """Return files of templates/ as the text of one element."""
    text = "".join((_FOLDER / name).read_text("utf-8") for name in names)
    return Inline(Markup(text), base64.b64encode(hashlib.sha256(text.encode()).digest()).decode())  # noqa: S704


def single_line(text: str) -> str:
    """Return the text on one line."""
    return " ".join(visible(text).split())


def prose(text: str) -> Markup:
    """Return a text of the catalog on one line, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(single_line(text)))))  # noqa: S704  (escaped before)


def _printed(value: object) -> str:
    if isinstance(value, Markup):
        return value
    text = str(value)
    return text if text.isprintable() else visible(text)  # a report prints a million values: call `visible` for few


_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(_FOLDER),
    autoescape=True,
    finalize=_printed,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_FILTERS: Final = (*OF_RECORDS, single_line, prose, head, one_line, tail, page_name)
_ENVIRONMENT.filters |= {function.__name__: function for function in _FILTERS}
_ENVIRONMENT.globals |= {"MEANING": MEANING, "SILENT": SILENT, "WORST_FIRST": WORST_FIRST, "inline": inline}
# In the order of the object: the scripts show the axes in it.
_ENVIRONMENT.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
