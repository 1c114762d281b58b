"""The pages in a real browser: loading, filters, links to red cases, commands that run."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from matrix.cli.main import main
from matrix.prove.store.paths import Paths, page_name
from tests.browser.chromium import Browser
from tests.founding import SAVE
from tests.unit.engines import FakeEngine

RED_CELL = "torch-2.4.1/mcore-0.14.0/te-none/driver-none"
PAGES = (
    "index.html",
    "upgrade.html#from=base%3Dngc-24.07+mcore%3D0.8.0&to=base%3Dngc-25.06+mcore%3D0.12.0",
    f"failures/{SAVE}.html",
    f"cells/{page_name(RED_CELL)}",
)
NAMES = ("night", "upgrade", "failure", "cell")
WIDTHS = (400, 1600)
FILL = """(name, text) => {
  const field = document.getElementById("filter-" + name);
  field.value = text;
  field.dispatchEvent(new Event("input"));
}"""


def url(site: Paths, page: str = "index.html") -> str:
    name, _, place = page.partition("#")
    return (site.out / name).as_uri() + (f"#{place}" if place else "")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_page_opens_without_errors(browser: Browser, site: Paths, page: str) -> None:
    browser.open(url(site, page))
    assert browser.errors() == []
    assert browser.js("document.documentElement.classList.contains('scripted')") is True


def test_filters_narrow_the_cases(browser: Browser, site: Paths) -> None:
    browser.open(url(site))
    shown = "document.querySelectorAll('#cases tbody tr:not([hidden])').length"

    assert browser.js(shown) == 100
    browser.js("document.getElementById('more').click()")
    assert browser.js(shown) == 134
    assert browser.js("document.querySelector('.more').hidden") is True
    browser.js(f"({FILL})('verdict', 'red')")
    assert browser.js(shown) == 15
    browser.js(f"({FILL})('text', 'torch-2.13.0 mcore-0.12')")
    assert browser.js(shown) == 3
    assert browser.js("document.getElementById('shown').value") == "3 of 134 cases"
    for name in ("text", "verdict"):
        browser.js(f"({FILL})('{name}', '')")
    browser.js(f"({FILL})('te', '1.8.0+37280ec')")
    assert browser.js(shown) == 12
    browser.js(f"({FILL})('mcore', '0.9.0')")
    assert browser.js(shown) == 3
    assert browser.errors() == []


def test_night_fits_on_three_screens(browser: Browser, site: Paths) -> None:
    """With 15 red cases; a link to a section opens what is folded there."""
    browser.width(1500, 900)
    browser.open(url(site))
    assert browser.js("document.documentElement.scrollHeight") <= 3 * 900
    assert browser.js("document.getElementById('cases').open") is False
    browser.js("document.querySelector('nav a[href=\"#cases\"]').click()")
    browser.js("new Promise((done) => setTimeout(done, 100))")
    assert browser.js("document.getElementById('cases').open") is True
    assert browser.errors() == []


def test_link_to_a_later_case_shows_it(browser: Browser, site: Paths) -> None:
    """Only the first 100 cases are elements at first."""
    browser.open(url(site))
    assert browser.js("document.querySelectorAll('#cases tbody tr').length") == 100
    browser.open(url(site, "index.html#case-120"))
    assert browser.js("document.getElementById('case-120').offsetParent !== null") is True
    assert browser.errors() == []


def test_red_grid_cell_leads_to_reason_and_command(browser: Browser, site: Paths) -> None:
    """Two clicks: the cell of the grid opens the case, a link there opens the page of the cell."""
    browser.open(url(site))
    browser.js("document.querySelector('.grid td a[aria-label*=\"torch-2.4.1, mcore 0.14.0\"]').click()")
    opened = "document.querySelector('details.member:target')"

    assert browser.js(f"{opened}.open") is True
    assert "default_planner.py" in browser.js(f"{opened}.innerText")
    assert "megatrix run" in browser.js(f"{opened}.querySelector('.paste code').textContent")
    link = browser.js(f"{opened}.querySelector('a[href^=\"cells/\"]').href")
    browser.open(link)
    assert "regressed" in browser.js("document.querySelector('h2').innerText")
    assert browser.errors() == []


def test_copied_command_runs_the_red_case(
    browser: Browser, command: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run"]) == 1
    browser.open(url(Paths(tmp_path / "out")))
    key = browser.js("document.querySelector('#cases tr[data-colour=red] button[data-copy]').dataset.copy")
    browser.js("document.querySelector('#cases tr[data-colour=red] button[data-copy]').click()")
    line = browser.js("new Promise((done) => setTimeout(() => navigator.clipboard.readText().then(done), 100))")
    command.ran.clear()

    program, *arguments = shlex.split(line)
    assert (line, program) == (key, "megatrix")
    assert main(arguments) == 1
    assert len(command.ran) == 1
    assert command.ran[0] in line


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_page_fits_its_width(browser: Browser, site: Paths, page: str, width: int) -> None:
    browser.width(width)
    browser.open(url(site, page))
    if folder := os.environ.get("MEGATRIX_SCREENSHOTS"):
        browser.screenshot(Path(folder) / f"{NAMES[PAGES.index(page)]}-{width}.png")
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.js("parseFloat(getComputedStyle(document.body).fontSize)") >= 14


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(browser: Browser, site: Paths, page: str, width: int, scheme: str) -> None:
    browser.width(width)
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(url(site, page))
    serious = [violation for violation in violations(browser) if violation[1] in ("serious", "critical")]
    browser.send("Emulation.setEmulatedMedia", features=[])
    assert serious == []


@cache
def axe() -> str:
    """Return the script of axe-core, which npm fetches; a site's proxy or mirror is npm's own configuration."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-save", "--no-audit", "--no-fund"]
        subprocess.run(["npm", "install", "--prefix", folder, *options, "axe-core@4"], check=True)
        return Path(folder, "node_modules", "axe-core", "axe.min.js").read_text("utf-8")


def violations(browser: Browser) -> list[tuple[str, str, list[str]]]:
    """Return the rule, the impact and the first elements of each violation that axe finds on the open page."""
    browser.js(axe() + ";1")
    found = browser.js("axe.run(document, {resultTypes: ['violations']}).then((result) => result.violations)")
    return [(rule["id"], rule["impact"], [node["html"][:150] for node in rule["nodes"][:3]]) for rule in found]
