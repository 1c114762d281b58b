"""The templates: what they print is visible and escaped, and only their own style and script may run."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from matrix.ground.catalog.failure import Claim, Level, Workaround
from matrix.ground.verdicts.record import Verdict
from matrix.ground.verdicts.trend import PastResult
from matrix.prove.store.stored_run import Night
from matrix.show import document
from matrix.show.bisection import bisection_page
from matrix.show.failure_page import cell_page, failure_page
from matrix.show.site import upgrade_page
from tests.profiles import tries
from tests.unit.catalogs import catalog, clause
from tests.unit.show.samples import attribution, bisection, changed, record, stack_map
from tests.unit.show.test_failure_page import ENTRY
from tests.unit.show.test_page import HOSTILE, Document, poisoned

TEMPLATES = sorted((Path(document.__file__).parent / "templates").glob("*.j2"))


def every_page(text: str) -> dict[str, str]:
    """Return the pages besides index.html (test_page.py), with `text` in every field that they show."""
    one = poisoned(record(Verdict.UNEXPLAINED), text)
    one = changed(one, failure=ENTRY.id, cell=replace(record().cell, base=text))
    pasts = {one.key: [PastResult(n, text, verdict, 1.0, "a", False) for n, verdict in enumerate(Verdict)]}
    entry = replace(
        ENTRY, title=text, symptom=text, cause=text, fix=text, references=(text,), claim=Claim(text, text, text),
        workaround=(Workaround(text, text),), affected=(clause(mcore="<0.9", reason=text),),
    )  # fmt: skip
    known, levels = catalog(entry), {str(entry.id): frozenset({Level.CPU})}
    map = stack_map(known, one, pasts=pasts)
    return {
        "cell": cell_page(text, [one], known, pasts, lambda log: (log, text)),
        "failure": failure_page(entry, map, Night(text, (one,)), levels, pasts),
        "upgrade": upgrade_page(map),
        "bisection": bisection_page(bisection(text), text),
        "attribution": bisection_page(attribution(text), text),
    }


HARMLESS = {name: Document(html) for name, html in every_page("text").items()}


@tries(20)
@given(st.sampled_from(HOSTILE) | st.text(st.characters(), min_size=1).filter(str.strip))
def test_no_text_becomes_markup_on_any_page(text: str) -> None:
    """Hostile text yields the elements that harmless text yields, and no control character."""
    for name, html in every_page(text).items():
        document, harmless = Document(html), HARMLESS[name]
        assert document.open == []
        assert document.tags == harmless.tags
        assert {each for _, each, _ in document.attributes} == {each for _, each, _ in harmless.attributes}
        assert all(char in "\n\t" or char.isprintable() for char in html)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("where `ranks` is None,\nand `a`", "where <code>ranks</code> is None, and <code>a</code>"),
        ("`<b>` and `", "<code>&lt;b&gt;</code> and `"),
        ("none", "none"),
    ],
)
def test_backticks_become_code(text: str, shown: str) -> None:
    assert document.prose(text) == shown


def test_policy_allows_only_own_style_and_script() -> None:
    """Data in a script element needs no permission: it does not run."""
    for html in every_page("text").values():
        (policy,) = (value for value in Document(html).values("content") if "default-src" in value)
        own = re.findall(r"<(?:style|script)>(.*?)</(?:style|script)>", html, flags=re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in own]
        assert re.findall(r"'sha256-(.*?)'", policy) == digests
        assert len(digests) == len(re.findall(r"-src 'sha256", policy))


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_has_a_mark(verdict: Verdict) -> None:
    assert f'<symbol id="v-{verdict.value}" ' in failure_page(ENTRY, stack_map(catalog(ENTRY)), Night("", ()), {})


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_switches_escaping_off(template: Path) -> None:
    """`e` and `escape` escape a value before control characters in it become visible."""
    assert re.findall(r"\|\s*(?:safe|e|escape|forceescape)\b|autoescape", template.read_text("utf-8")) == []


def test_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        document.document("upgrade.html.j2", axes={"mcore": "megatron-core"}, site=True)
