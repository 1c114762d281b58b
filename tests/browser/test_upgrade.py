"""The upgrade map and the comparison of stacks in a real browser: pointer, keyboard, lock files, same answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import pytest

from matrix.catalog.stack import MCORE, UNKNOWN, known_component
from matrix.catalog.versions import is_version, parse
from matrix.check.answer import BreakingCalls, CheckResult, Standing
from matrix.check.calls import breaking_calls
from matrix.check.checking import Question, check
from matrix.check.table import Choice, move
from matrix.check.user_stack import UserStack, build, parse_text
from matrix.store.paths import Paths
from tests.browser.chromium import Browser
from tests.founding import SAVE
from tests.unit.catalogs import real
from tests.unit.check.test_table import random_choices

STANDINGS = tuple(Standing)
CELL = """(row, mcore) => {
  const table = document.getElementById("map-table");
  const place = [...table.tHead.rows[0].cells].findIndex((each) => each.textContent === mcore);
  return [...table.rows].find((each) => each.cells[0].firstChild.textContent === row).cells[place];
}"""
PAIR = "document.getElementById('pair').innerText"
LOOK = """(choices) => choices.map((choice) => ({
  standing: Object.fromEntries(stacks.standing(choice).map((one) =>
    [one.entry.id, [stacks.data.standings[one.rank], one.certain, one.reason, one.needs]])),
  clashes: stacks.clashes(choice),
  unread: stacks.unread(choice),
  calls: stacks.calls(choice),
}))"""
DROP = """(side, name, text) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  const box = document.getElementById(side);
  box.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
  return new Promise((done) => {
    const notes = document.getElementById(side + "-notes");
    const look = () => notes.textContent ? done(notes.innerText) : requestAnimationFrame(look);
    look();
  });
}"""
CHOSEN = """Object.fromEntries(["base", "te", "mcore"].map((axis) =>
  [axis, document.getElementById("to-" + axis).value]))"""
COMPARE = """(pairs) => pairs.map((pair) => {
  for (const [place, side] of ["from", "to"].entries())
    for (const axis of stacks.axes) document.getElementById(`${side}-${axis}`).value = pair[place][axis] || "";
  document.getElementById("to-mcore").dispatchEvent(new Event("change"));
  const found = (title) => [...title.nextElementSibling.querySelectorAll("li > a, li.calls code")];
  const lists = [...document.querySelectorAll("#answer h2")].filter((one) => one.nextElementSibling.matches("section"));
  return {
    moved: Object.fromEntries(lists.filter((one) => found(one).length).map((one) =>
      [one.textContent.split(":")[0], found(one).map((each) => each.textContent)])),
  };
})"""


def opened(browser: Browser, site: Paths, page: str = "upgrade.html", **sides: str) -> None:
    browser.width(1500)
    browser.open((site.out / page).as_uri() + (f"#{urlencode(sides)}" if sides else ""))


def cell(row: str, mcore: str) -> str:
    return f"({CELL})({json.dumps(row)}, {json.dumps(mcore)})"


def stack(choice: Choice) -> UserStack:
    return build(real(), parse_text(real(), " ".join(choice.values())))


@pytest.mark.parametrize("page", ["index.html", "upgrade.html"])
def test_hover_shows_failure_option_and_workaround(browser: Browser, site: Paths, page: str) -> None:
    opened(browser, site, page)
    browser.js(f"{cell('ngc-25.06', '0.8.0')}.dispatchEvent(new MouseEvent('mouseover', {{bubbles: true}}))")
    shown = browser.js(PAIR)
    assert "ngc-25.06, megatron-core 0.8.0" in shown
    assert f"will break: {SAVE}" in shown
    assert "with --save and --use-dist-ckpt" in shown
    assert "workaround: " in shown
    assert "seen since 2026-01-" in shown
    assert 'megatrix check "base=ngc-25.06 mcore=0.8.0"' in shown
    assert browser.errors() == []


def test_hover_shows_calls_with_error_and_site(browser: Browser, site: Paths) -> None:
    """A break that level contract finds and that no entry states; the table behind the map has it, too."""
    opened(browser, site, "index.html")
    browser.js(f"{cell('ngc-25.04', '0.16.1')}.dispatchEvent(new MouseEvent('mouseover', {{bubbles: true}}))")
    shown = browser.js(PAIR)
    assert "breaks with these options: a call into Transformer Engine" in shown
    assert "with --use-megatron-fsdp and --fp8-param-gather" in shown
    error = "TypeError: cast_master_weights_to_fp8() takes 4 positional arguments but 5 were given"
    assert f"{error} at megatron/core/distributed/fsdp/src/megatron_fsdp/mixed_precision.py:" in shown
    assert error in browser.js("[...document.querySelectorAll('details tr')].map((one) => one.textContent).join()")
    assert browser.errors() == []


def test_click_keeps_the_pair_until_escape(browser: Browser, site: Paths) -> None:
    opened(browser, site, "index.html")
    browser.js(f"{cell('ngc-25.06', '0.8.0')}.click()")
    other = cell("ngc-25.06", "0.14.0")
    browser.js(f"{other}.dispatchEvent(new MouseEvent('mouseover', {{bubbles: true}}))")
    assert "ngc-25.06, megatron-core 0.8.0" in browser.js(PAIR)
    link = browser.js("document.querySelector('#pair p:last-child a').href")
    assert link.endswith("upgrade.html#to=base%3Dngc-25.06%20mcore%3D0.8.0")
    browser.js(f"{cell('ngc-25.06', '0.8.0')}.focus()")
    key(browser, "Escape")
    browser.js(f"{other}.dispatchEvent(new MouseEvent('mouseover', {{bubbles: true}}))")
    assert "ngc-25.06, megatron-core 0.14.0" in browser.js(PAIR)


def key(browser: Browser, name: str) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.send("Input.dispatchKeyEvent", type=kind, key=name, code=name)


def test_arrow_keys_reach_every_cell(browser: Browser, site: Paths) -> None:
    """One cell is in the tab order; the panel, a live region, follows the focus."""
    opened(browser, site, "index.html")
    assert browser.js("document.querySelectorAll('#map-table [tabindex=\"0\"]').length") == 1
    browser.js(f"{cell('ngc-25.06', '0.8.0')}.focus()")
    key(browser, "ArrowRight")
    assert "ngc-25.06, megatron-core 0.9.0" in browser.js(PAIR)
    key(browser, "ArrowUp")
    assert "ngc-25.07, megatron-core 0.9.0" in browser.js(PAIR)
    key(browser, "End")
    assert f"ngc-25.07, megatron-core {real().megatron_core[-1].version}" in browser.js(PAIR)
    assert browser.js("document.querySelectorAll('#map-table [tabindex=\"0\"]').length") == 1
    assert browser.js("document.getElementById('pair').getAttribute('aria-live')") == "polite"


def test_map_shows_one_failure_alone(browser: Browser, site: Paths) -> None:
    opened(browser, site)
    place = [str(one.id) for one in real().failures].index(SAVE)
    browser.js(f"(() => {{ const one = document.getElementById('map-failure'); one.value = '{place}';"
               "one.dispatchEvent(new Event('change')); })()")  # fmt: skip
    assert browser.js(f"{cell('ngc-25.06', '0.8.0')}.className") == "will"
    assert browser.js(f"{cell('ngc-25.06', '0.14.0')}.className") == "untested"


def test_night_supports_and_contradicts_the_map(browser: Browser, site: Paths) -> None:
    """The dot of a twin's result, and the frame of a red case."""
    opened(browser, site)
    assert "at-cpu" in browser.js(f"{cell('ngc-24.07', '0.8.0')}.className")
    assert "surprise" in browser.js(f"{cell('torch 2.4.1', '0.14.0')}.className")


def test_page_agrees_with_check_on_random_stacks(browser: Browser, site: Paths) -> None:
    """200 stacks: each failure's standing, certainty, evidence and needs, each call, and what excludes each other."""
    opened(browser, site)
    choices = random_choices(2020, 200)
    for choice, found in zip(choices, browser.js(f"({LOOK})({json.dumps(choices)})"), strict=True):
        result = check(real(), stack(choice), Question(), {})
        assert found["clashes"] == [one.text for one in result.clashes], choice
        assert found["unread"] == [one.text for one in result.stack.unread], choice
        assert found["standing"] == {
            one.failure.id: [one.standing.value, one.certain, one.reason, one.needs] for one in result.failures
        }, choice
        assert found["calls"]["problem"] == result.calls_problem, choice
        assert [(STANDINGS[one["rank"]], one["certain"], one["needs"], one["flags"], one["findings"])
                for one in found["calls"]["groups"]] == [
            (one.standing, one.certain, one.needs, [*one.flags],
             [[f"{each.raised.type}: {each.message}", str(each.call_site)] for each in one.findings])
            for one in result.calls
        ], choice  # fmt: skip


def compared(browser: Browser, pairs: Sequence[tuple[Choice, Choice]]) -> list[dict[str, Any]]:
    """Return what the page shows for each pair of stacks: ids by group."""
    found: list[dict[str, Any]] = browser.js(f"({COMPARE})({json.dumps(pairs)})")
    return found


def test_comparison_agrees_with_two_checks(browser: Browser, site: Paths) -> None:
    """200 random pairs of stacks: what is newly broken, still broken, fixed and no longer known."""
    opened(browser, site)
    choices = random_choices(7, 400)
    pairs = list(zip(choices[::2], choices[1::2], strict=True))
    for (before, after), shown in zip(pairs, compared(browser, pairs), strict=True):
        first, second = (check(real(), stack(each), Question(), {}) for each in (before, after))
        stood = {one.failure.id: one.standing for one in first.failures}
        expected: dict[str, list[str]] = {}
        for one in second.failures:
            expected.setdefault(move(stood[one.failure.id], one.standing).value, []).append(one.failure.id)
        expected.pop("no known break in either", None)
        old, new = errors(first), errors(second)
        _, problems = breaking_calls(real(), second.stack.stack, ())
        for error in new:
            expected.setdefault("still broken" if error in old else "newly broken", []).append(error)
        for call in first.calls:
            packages = call.findings[0].packages
            is_judged = packages[1] not in problems and UNKNOWN not in map(second.stack.stack.__getitem__, packages)
            gone = [error for error in errors_of(call) if error not in new]
            expected.setdefault("fixed" if is_judged else "no longer known", []).extend(gone)
        found = {kind: sorted(ids) for kind, ids in shown["moved"].items()}
        assert found == {kind: sorted(ids) for kind, ids in expected.items() if ids}, (before, after)
    assert browser.errors() == []


def errors(result: CheckResult) -> list[str]:
    """Return the exception of each call that breaks."""
    return [error for call in result.calls for error in errors_of(call)]


def errors_of(call: BreakingCalls) -> list[str]:
    return [f"{finding.raised.type}: {finding.message}" for finding in call.findings]


UPGRADE = "(choices) => choices.map((one) => ['mcore', 'te', 'base'].map((axis) => stacks.upgrade(one, axis)))"


def test_page_answers_as_check_upgrade_json(browser: Browser, site: Paths) -> None:
    """100 random stacks, each axis: all of `check --upgrade --json` but the sentence, which also names checkpoints."""
    opened(browser, site)
    choices = random_choices(11, 100)
    axes, answers = ("mcore", "te", "base"), set[str]()
    question = Question(upgrades=tuple(map(known_component, axes)))
    for choice, shown in zip(choices, browser.js(f"({UPGRADE})({json.dumps(choices)})"), strict=True):
        for upgrade, found in zip(check(real(), stack(choice), question, {}).upgrades, shown, strict=True):
            expected = upgrade.to_json()
            del expected["answer"]
            if is_version(upgrade.current):  # 2.12 of an image is the release 2.12.0
                expected["current"], found["current"] = parse(upgrade.current), parse(found["current"])
            assert found == expected, choice
            answers.add(upgrade.may_take_newest)
    assert answers == {"yes", "no", "unknown", ""}


SHOWN_UPGRADE = """(axis) => {
  const card = document.querySelector(`#answer section.upgrade[data-axis="${axis}"]`);
  return {
    text: card.querySelector("p").innerText,
    rows: [...card.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)),
  };
}"""


def test_newer_versions_are_shown_and_taken(browser: Browser, site: Paths) -> None:
    """Of the stack From where there is no other, the newest first; the button takes one that nothing blocks."""
    opened(browser, site, **{"from": "torch=2.4.0 mcore=0.8.0"})
    upgrade = check(
        real(), stack({"base": "torch=2.4.0", "mcore": "mcore=0.8.0"}), Question(upgrades=(MCORE,)), {}
    ).upgrades[0]
    shown = browser.js(f"({SHOWN_UPGRADE})('mcore')")
    newest = upgrade.steps[-1].version
    assert shown["text"] == f"megatron-core 0.8.0: may I take {newest}, the newest? {upgrade.may_take_newest}"
    assert [(row[0], row[2]) for row in shown["rows"]] == [
        (step.version, ", ".join(step.blocking)) for step in reversed(upgrade.steps)
    ]
    assert upgrade.best
    browser.js("document.querySelector('#answer section.upgrade[data-axis=\"mcore\"] button').click()")
    assert browser.js(CHOSEN) == {"base": "torch=2.4.0", "te": "", "mcore": f"mcore={upgrade.best.version}"}
    assert browser.js("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.errors() == []


LOCKS: dict[str, tuple[str, Any]] = {
    "requirements.txt": (
        "torch==2.4.1 \\\n    --hash=sha256:00\nmegatron_core[dev]==0.8.0 ; python_version >= '3.10'  # pinned\n",
        {"base": "torch=2.4.1", "te": "", "mcore": "mcore=0.8.0"},
    ),
    "freeze.txt": (
        "torch==2.4.0a0+3bcc3cddb5.nv24.07\ntransformer-engine==1.8.0+37280ec\nmegatron-core==0.8.0\n",
        {"base": "base=ngc-24.07", "te": "te=1.8.0+37280ec", "mcore": "mcore=0.8.0"},
    ),
    "uv.lock": (
        'version = 1\n\n[[package]]\nname = "torch"\nversion = "2.4.1+cu121"\nsource = { registry = "x" }\n\n'
        '[[package]]\nname = "megatron-core"\nversion = "0.8.0"\ndependencies = [\n    { name = "torch" },\n]\n',
        {"base": "torch=2.4.1", "te": "te=none", "mcore": "mcore=0.8.0"},
    ),
}


@pytest.mark.parametrize("name", LOCKS)
def test_dropped_lock_file_names_the_stack(browser: Browser, site: Paths, name: str) -> None:
    text, chosen = LOCKS[name]
    opened(browser, site)
    notes = browser.js(f"({DROP})('to', {json.dumps(name)}, {json.dumps(text)})")
    assert browser.js(CHOSEN) == chosen, notes
    assert f"{Standing.WILL_BREAK.value}: {SAVE}" in browser.js("document.getElementById('answer').innerText")
    assert browser.errors() == []


def test_hostile_lock_file_stays_text(browser: Browser, site: Paths) -> None:
    """Markup is shown, versions that are not listed are named with the command that accepts them."""
    opened(browser, site)
    text = "megatron-core==<img/src=x/onerror=document.title='hit'>\ntorch==9.9.9\nte>=1\n" + "a" * 100_000
    notes = browser.js(f"({DROP})('to', 'x', {json.dumps(text)})")
    assert "<img/src=x/onerror=" in notes
    assert 'megatrix check "torch=9.9.9"' in notes
    assert "te >=1: no exact version" in notes
    assert browser.js("[document.title === 'hit', document.querySelectorAll('img').length]") == [False, 0]
    opened(browser, site, to="base=<img src=x> mcore=0.8.0")
    assert browser.js(CHOSEN)["base"] == ""
    assert browser.errors() == []
