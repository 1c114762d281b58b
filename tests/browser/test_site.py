"""The pages of the static site in a real browser: widths, axe, keyboard, size, no request, the questions people ask."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlencode

import pytest

from matrix.prove.store.stored_run import Night
from matrix.show.site import write_site
from tests.browser.chromium import Browser
from tests.browser.test_pages import violations
from tests.founding import MPI, PINNED, SAVE
from tests.unit.catalogs import real
from tests.unit.show.samples import stack_map

ASKED = urlencode({"from": "base=ngc-25.11 mcore=0.16.1", "to": "base=ngc-25.11 mcore=0.17.1", "use": "fp8,experts"})
PAGES = {
    "first": "index.html",
    "answer": f"index.html#{ASKED}",
    "unlisted": "index.html#from=mcore%3D0.99.0",
    "failure": f"failures/{MPI}.html",
    "all": "all.html",
}
READY = "typeof ready === 'undefined' ? true : ready.then(() => true)"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    write_site(folder, stack_map(real()), Night("", ()))
    return folder


def opened(browser: Browser, published: Path, page: str) -> None:
    name, _, fragment = page.partition("#")
    browser.open((published / name).as_uri() + (f"#{fragment}" if fragment else ""))
    browser.js(READY)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1500, "light"), (1500, "dark")])
def test_page_fits_and_axe_is_silent(browser: Browser, published: Path, name: str, width: int, scheme: str) -> None:
    browser.width(width)
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    opened(browser, published, PAGES[name])
    if folder := os.environ.get("MEGATRIX_SCREENSHOTS"):
        browser.screenshot(Path(folder) / f"site-{name}-{width}-{scheme}.png")
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert violations(browser) == []
    browser.send("Emulation.setEmulatedMedia", features=[])
    assert browser.errors() == []


@pytest.mark.parametrize("name", ["first", "answer", "unlisted"])
def test_answer_is_on_a_phones_first_screen(browser: Browser, published: Path, name: str) -> None:
    """The rest of the form is folded there, and opens; a driver that is named is shown in any case."""
    browser.width(400, 800)
    opened(browser, published, PAGES[name])
    assert browser.js("document.querySelector('#answer .verdict').getBoundingClientRect().bottom") < 800
    shown = "['#search', '#uses', '#from-driver'].map((one) => document.querySelector(one).checkVisibility())"
    assert browser.js(shown) == [False, False, False]
    browser.js("document.querySelector('#rest > summary').click()")
    assert browser.js(shown) == [True, True, True]
    opened(browser, published, "index.html#from=base%3Dngc-25.11+mcore%3D0.16.1+driver%3D550")
    assert browser.js(shown) == [False, False, True]
    browser.width(1500)
    opened(browser, published, PAGES[name])
    assert browser.js(shown) == [True, True, True]


def test_first_page_is_small_and_fetches_nothing(browser: Browser, published: Path) -> None:
    assert (published / "index.html").stat().st_size < 300_000
    browser.send("Network.enable")
    opened(browser, published, "index.html")
    sent = [event["params"] for event in browser.events if event.get("method") == "Network.requestWillBeSent"]
    browser.send("Network.disable")
    requested = {params["request"]["url"] for params in sent} - {"about:blank"}
    assert requested == {(published / "index.html").as_uri()}


def test_keyboard_alone_reaches_an_answer(browser: Browser, published: Path) -> None:
    """Tab to the release, type another, Enter; Tab to a newer version, Enter."""
    opened(browser, published, "index.html#from=base%3Dngc-25.11+mcore%3D0.17.1")
    for _ in range(20):
        press(browser, "Tab")
        if browser.js("document.activeElement.id") == "from-mcore":
            break
    browser.send("Input.insertText", text="0.16.1")
    press(browser, "Enter")
    press(browser, "Tab")
    browser.js("new Promise((done) => setTimeout(done, 500))")
    assert browser.js("stacks.url.get('from')") == "base=ngc-25.11 mcore=0.16.1"
    for _ in range(40):
        press(browser, "Tab")
        if browser.js("document.activeElement.textContent.includes('0.17.1')"):
            break
    press(browser, "Enter")
    browser.js("new Promise((done) => setTimeout(done, 500))")
    assert browser.js("document.querySelector('#answer .verdict').dataset.answer") == "no"
    assert PINNED in browser.js("document.querySelector('#answer .verdict').textContent")


def press(browser: Browser, name: str) -> None:
    codes = {"Tab": 9, "Enter": 13}
    text = {"text": "\r"} if name == "Enter" else {}
    for kind in ("keyDown", "keyUp"):
        more = text if kind == "keyDown" else {}
        browser.send(
            "Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=codes[name], **more
        )


@pytest.mark.parametrize(
    ("question", "answer", "text"),
    [
        ({"from": "base=ngc-26.02 mcore=0.17.1", "to": "base=ngc-26.02 te=2.19.0 mcore=0.17.1"}, "yes", "2.19.0"),
        ({"from": "base=ngc-25.11 mcore=0.16.1", "to": "base=ngc-25.11 mcore=0.17.1"}, "no", PINNED),
        ({"from": "base=nemo-25.07 mcore=0.17.1", "want": "none"}, "unknown", "nemo-25.07"),
        ({"from": "base=ngc-25.06 mcore=0.8.0", "want": "none"}, "no", SAVE),
        ({"from": "base=ngc-25.06 mcore=0.14.0", "want": "none"}, "yes", "Nothing"),
        ({"from": "base=ngc-25.09 mcore=0.16.1", "to": "base=ngc-26.02 mcore=0.18.2"}, "", "ngc-26.02"),
    ],
)
def test_question_has_its_answer(
    browser: Browser, published: Path, question: dict[str, str], answer: str, text: str
) -> None:
    opened(browser, published, f"index.html#{urlencode(question)}")
    line = "document.querySelector('#answer .verdict')"
    assert browser.js(f"{line}.dataset.answer") == answer or not answer
    assert text in browser.js(f"{line}.textContent")
