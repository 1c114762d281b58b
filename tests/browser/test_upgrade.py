"""The upgrade map and the comparison of stacks in a real browser: pointer, keyboard, lock files, same answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest

from matrix.ask.check.checking import Question, check
from matrix.ask.check.rulings import Standing
from matrix.ask.check.table import Choice
from matrix.ask.check.transition import Transition
from matrix.ask.check.user_stack import UserStack, build, parse_text
from matrix.ground.catalog.stack import WRITER, known_component
from matrix.ground.catalog.versions import is_version, parse
from matrix.prove.store.paths import Paths
from matrix.show.stack_map import NEWEST
from tests.browser.chromium import Browser
from tests.founding import BEHIND_MPI, MASK, SAVE
from tests.unit.ask.check.test_table import random_choices
from tests.unit.catalogs import real

STANDINGS = tuple(Standing)
CELL = """(row, mcore) => {
  const table = document.getElementById("map-table");
  const place = [...table.tHead.rows[0].cells].findIndex((each) => each.textContent === mcore);
  return [...table.rows].find((each) => each.cells[0].textContent === row).cells[place];
}"""
PAIR = "document.getElementById('pair').textContent"
ANSWER = "document.querySelector('#answer .verdict')"
LOOK = """(choices) => choices.map((choice) => ({
  standing: Object.fromEntries(stacks.standing(choice).map((one) =>
    [one.entry.id, [stacks.data.standings[one.rank], one.certain, one.reason, one.needs]])),
  clashes: stacks.clashes(choice),
  unread: stacks.unread(choice),
  calls: stacks.calls(choice),
}))"""
DROP = """(name, text) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  const notes = document.getElementById("notes");
  const done = new Promise((resolve) =>
    new MutationObserver(() => notes.textContent && resolve(notes.innerText)).observe(notes, { childList: true }));
  const drop = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.getElementById("ask").dispatchEvent(drop);
  return done;
}"""
CHOSEN = """(() => stacks.read(stacks.url.get("from")).choice)()"""
COMPARE = """async (pairs) => {
  const answers = [];
  for (const [from, to] of pairs) {
    const changed = new Promise((done) => addEventListener("hashchange", done, { once: true }));
    stacks.url.set({ from: stacks.words(from), to: stacks.words(to) });
    await changed;
    const moved = {};
    for (const box of document.querySelectorAll("#answer [data-group]"))
      for (const each of box.querySelectorAll("li > a, li.calls code"))
        (moved[box.dataset.group] ||= []).push(each.textContent);
    answers.push({ moved, stated: document.querySelector("#answer .verdict").dataset.answer });
  }
  return answers;
}"""


def opened(browser: Browser, site: Paths, page: str = "upgrade.html", **asked: str) -> None:
    browser.width(1500)
    browser.open((site.out / page).as_uri() + (f"#{urlencode(asked)}" if asked else ""))
    browser.js("ready.then(() => true)")


def cell(row: str, mcore: str) -> str:
    return f"({CELL})({json.dumps(row)}, {json.dumps(mcore)})"


def stack(choice: Choice) -> UserStack:
    return build(real(), parse_text(real(), " ".join(choice.values())))


def hover(browser: Browser, row: str, mcore: str) -> str:
    """Return what the panel shows for a pair under the pointer."""
    browser.js(f"{cell(row, mcore)}.dispatchEvent(new MouseEvent('mouseover', {{bubbles: true}}))")
    return str(browser.js(PAIR))


def test_hover_shows_failure_option_and_workaround(browser: Browser, site: Paths) -> None:
    opened(browser, site, map="all")
    shown = hover(browser, "ngc-25.06", "0.8.0")
    assert "ngc-25.06, megatron-core 0.8.0" in shown
    assert f"will break: {SAVE}" in shown
    assert "with --save and --use-dist-ckpt" in shown
    assert "workaround: " in shown
    assert "seen since 29 January 2026" in shown
    assert 'megatrix check "base=ngc-25.06 mcore=0.8.0"' in shown
    assert browser.errors() == []


def test_hover_shows_calls_with_error_and_site(browser: Browser, site: Paths) -> None:
    """A break that level contract finds and that no entry states."""
    opened(browser, site, map="all")
    shown = hover(browser, "ngc-25.04", "0.16.1")
    assert "breaks with these options: a call into Transformer Engine" in shown
    assert "with --use-megatron-fsdp and --fp8-param-gather" in shown
    error = "TypeError: cast_master_weights_to_fp8() takes 4 positional arguments but 5 were given"
    assert f"{error} at megatron/core/distributed/fsdp/src/megatron_fsdp/mixed_precision.py:" in shown
    assert browser.errors() == []


def test_click_keeps_the_pair_in_the_url(browser: Browser, site: Paths) -> None:
    """Escape and Back both let it go."""
    opened(browser, site, map="all")
    leaves: tuple[Callable[[], None], ...] = (lambda: key(browser, "Escape"), lambda: went_back(browser))
    for leave in leaves:
        settled(browser, f"{cell('ngc-25.06', '0.8.0')}.click()")
        assert "ngc-25.06, megatron-core 0.8.0" in hover(browser, "ngc-25.06", "0.14.0")
        assert parse_qs(browser.js("location.hash.slice(1)"))["cell"] == ["base=ngc-25.06 mcore=0.8.0"]
        browser.js(f"{cell('ngc-25.06', '0.8.0')}.focus()")
        leave()
        settled(browser)
        assert "ngc-25.06, megatron-core 0.14.0" in hover(browser, "ngc-25.06", "0.14.0")
    link = browser.js("document.querySelector('#pair a').href")
    assert parse_qs(link.partition("#")[2])["from"] == ["base=ngc-25.06 mcore=0.14.0"]


def settled(browser: Browser, action: str = "") -> None:
    """Run an action and wait until the page shows what the URL then asks: 3 s at most, where the URL stays."""
    wait = "addEventListener('hashchange', () => setTimeout(done), { once: true }); setTimeout(done, 3000);"
    browser.js(f"(async () => {{ const shown = new Promise((done) => {{ {wait} }}); {action}; await shown; }})()")


def went_back(browser: Browser) -> None:
    browser.js("history.back()")


def key(browser: Browser, name: str) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.send("Input.dispatchKeyEvent", type=kind, key=name, code=name)


def test_arrow_keys_reach_every_cell(browser: Browser, site: Paths) -> None:
    """One cell is in the tab order; the panel, a live region, follows the focus. The newest release is the first."""
    opened(browser, site, map="all")
    assert browser.js("document.querySelectorAll('#map-table [tabindex=\"0\"]').length") == 1
    browser.js(f"{cell('ngc-25.06', '0.8.0')}.focus()")
    key(browser, "ArrowLeft")
    assert "ngc-25.06, megatron-core 0.9.0" in browser.js(PAIR)
    key(browser, "ArrowUp")
    assert "ngc-25.07, megatron-core 0.9.0" in browser.js(PAIR)
    key(browser, "Home")
    assert f"ngc-25.07, megatron-core {real().megatron_core[-1].version}" in browser.js(PAIR)
    assert browser.js("document.querySelectorAll('#map-table [tabindex=\"0\"]').length") == 1
    assert browser.js("document.getElementById('pair').getAttribute('aria-live')") == "polite"


def test_map_shows_one_failure_alone(browser: Browser, site: Paths) -> None:
    opened(browser, site, map="all", failure=SAVE)
    assert browser.js("document.getElementById('map-failure').selectedOptions[0].text") == SAVE
    assert browser.js(f"{cell('ngc-25.06', '0.8.0')}.className") == "breaks"
    assert browser.js(f"{cell('ngc-25.06', '0.14.0')}.className") == "read"
    opened(browser, site, failure="no-such-failure")
    assert "no failure of the catalog" in browser.js("document.getElementById('everywhere').textContent")


def test_map_begins_with_the_newest(browser: Browser, site: Paths) -> None:
    """12 rows and columns; no break that needs an option is coloured, no green that was not read or run."""
    opened(browser, site)
    map = json.loads(
        browser.js("JSON.stringify([...document.querySelectorAll('#map-table td')].map((one) => one.className))")
    )
    assert len(map) == NEWEST * NEWEST
    assert {marks.split()[0] for marks in map} <= {"clash", "breaks", "unknown", "read", "twin", "run"}
    assert (
        browser.js("document.querySelector('#map-table thead').innerText.split(/\\s+/)[1]")
        == real().megatron_core[-1].version
    )
    settled(browser, "document.getElementById('map-all').click()")
    assert browser.js("document.querySelectorAll('#map-table td').length") > 10 * NEWEST * NEWEST
    assert parse_qs(browser.js("location.hash.slice(1)"))["map"] == ["all"]


AMBER = "[...document.querySelectorAll('#map-table td.options')].length"


def test_ticked_uses_colour_breaks_that_need_them(browser: Browser, site: Paths) -> None:
    """With the boxes in the URL; what breaks in nearly every pair is one line and colours nothing."""
    opened(browser, site, map="all")
    assert browser.js(AMBER) == 0
    settled(browser, "document.querySelector('#uses input[value=tp-comm]').click()")
    assert browser.js(AMBER) > 0
    assert browser.js(f"{cell('ngc-24.07', '0.14.0')}.className").startswith("options")
    assert browser.js(f"{cell('ngc-26.04', '0.14.0')}.className") == "read"
    assert parse_qs(browser.js("location.hash.slice(1)"))["use"] == ["tp-comm"]
    opened(browser, site, use="context-parallel")
    assert f"in nearly every pair: {MASK}" in browser.js("document.getElementById('everywhere').textContent")
    assert browser.js("document.querySelector('#uses input[value=context-parallel]').checked")


def test_night_supports_and_contradicts_the_map(browser: Browser, site: Paths) -> None:
    """The dot of a twin's result, and the frame of a red case."""
    opened(browser, site, map="all")
    assert "at-cpu" in browser.js(f"{cell('ngc-24.07', '0.8.0')}.className")
    assert "surprise" in browser.js(f"{cell('torch 2.4.1', '0.14.0')}.className")


def test_page_agrees_with_check_on_random_stacks(browser: Browser, site: Paths) -> None:
    """200 stacks: each failure's standing, certainty, evidence and needs, each call, and what excludes each other."""
    opened(browser, site)
    choices = random_choices(2020, 200)
    for choice, found in zip(choices, browser.js(f"({LOOK})({json.dumps(choices)})"), strict=True):
        result = check(real(), stack(choice), Question(), {})
        assert found["clashes"] == [one.text for one in result.clashes], choice
        assert found["unread"] == [one.text for one in result.unknown], choice
        assert found["standing"] == {
            one.failure.id: [one.standing.value, one.certain, one.reason, one.needs] for one in result.failures
        }, choice
        assert found["calls"]["problem"] == result.calls_problem, choice
        assert [(STANDINGS[one["rank"]], one["certain"], one["needs"], one["flags"], one["findings"])
                for one in found["calls"]["groups"]] == [
            (one.standing, one.certain, one.needs, [*one.flags],
             [[f"{each.error}: {each.message}", str(each.call_site)] for each in one.findings])
            for one in result.calls
        ], choice  # fmt: skip


def compared(browser: Browser, pairs: Sequence[tuple[Choice, Choice]]) -> list[dict[str, Any]]:
    """Return what the page shows for each pair of stacks: the answer, and ids by group."""
    found: list[dict[str, Any]] = browser.js(f"({COMPARE})({json.dumps(pairs)})")
    return found


def test_comparison_agrees_with_two_checks(browser: Browser, site: Paths) -> None:
    """200 random pairs of stacks: what is newly broken, still broken, fixed and no longer known."""
    opened(browser, site)
    choices = random_choices(7, 400)
    pairs = list(zip(choices[::2], choices[1::2], strict=True))
    for (before, after), shown in zip(pairs, compared(browser, pairs), strict=True):
        step = Transition(*(check(real(), stack(each), Question(), {}) for each in (before, after)))
        expected: dict[str, set[str]] = {}
        for part in step.parts:
            if part.name not in clashing(step):
                expected.setdefault(part.effect.value, set()).add(part.title if " " in part.name else part.name)
        assert {kind: {*ids} for kind, ids in shown["moved"].items() if ids} == expected, (before, after)
    assert browser.errors() == []


def clashing(step: Transition) -> set[str]:
    """Return the texts of parts that exclude each other: the page shows them apart."""
    return {clash.text for side in (step.before, step.after) for clash in side.clashes}


RESUME = """(pairs) => pairs.map(([before, after]) => stacks.resuming(before, after))"""


def test_page_knows_which_checkpoints_resume(browser: Browser, site: Paths) -> None:
    """200 random pairs: what each failure of a checkpoint expects where the second stack reads what the first wrote."""
    opened(browser, site)
    choices = random_choices(23, 400)
    pairs = list(zip(choices[::2], choices[1::2], strict=True))
    seen = set()
    for (before, after), shown in zip(pairs, browser.js(f"({RESUME})({json.dumps(pairs)})"), strict=True):
        old = stack(before).stack
        reader = stack(after).stack.with_({writer: old[component] for writer, component in WRITER.items()})
        expected: dict[str, list[str]] = {"broken": [], "works": [], "unknown": []}
        for one in real().failures:
            if WRITER.keys() & set(one.axes):
                expected[one.expectation(reader).value].append(str(one.id))
        assert shown == expected, (before, after)
        seen |= {kind for kind, ids in expected.items() if ids}
    assert seen == {"broken", "works", "unknown"}


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


CHIPS = "[...document.querySelectorAll('.chip')].map((one) => [one.textContent, one.className.split(' ')[1], one.href])"


@pytest.mark.parametrize("axis", ["mcore", "te", "base"])
def test_chips_are_the_newer_versions(browser: Browser, site: Paths, axis: str) -> None:
    """Newest first, each with its answer and a link that asks about it; the answer above is that of the newest."""
    choice = {"base": "base=ngc-25.04", "mcore": "mcore=0.12.0"}
    upgrade = check(real(), stack(choice), Question(upgrades=(known_component(axis),)), {}).upgrades[0]
    opened(browser, site, **{"from": " ".join(choice.values()), "want": axis})
    chips = browser.js(CHIPS)
    assert [text.split()[1] for text, _, _ in chips] == [step.version for step in reversed(upgrade.steps)]
    assert chips[0][1] == browser.js(f"{ANSWER}.dataset.answer") == upgrade.may_take_newest
    assert upgrade.best
    best = [upgrade.best.version] * (not upgrade.best.unknown)
    assert [text.split()[1] for text, _, _ in chips if text.endswith("best")] == best
    for (_, kind, link), step in zip(chips, reversed(upgrade.steps), strict=True):
        assert kind == ("no" if step.blocking else "unknown" if step.unknown else "yes")
        assert parse_qs(link.partition("#")[2])["to"][0].count(step.version) == 1
    assert browser.js("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.errors() == []


def test_newly_breaking_options_are_open(browser: Browser, site: Paths) -> None:
    """With boxes ticked, those that the ticked uses turn on; the answer counts them."""
    asked = {"from": "base=ngc-25.11 mcore=0.16.1", "to": "base=ngc-26.09 mcore=0.18.2"}
    shown = "[...document.querySelectorAll('#answer > h2')].map((one) => one.textContent)"
    opened(browser, site, **asked)
    assert any(text.startswith("Newly breaks with certain options: ") for text in browser.js(shown))
    assert browser.js(
        "document.querySelector('#uses').compareDocumentPosition(document.querySelector('#answer')) === 4"
    )
    opened(browser, site, use="fp8,experts,checkpoints,tp-comm,other", **asked)
    assert any(text.startswith("Newly breaks with what your jobs use: ") for text in browser.js(shown))
    assert browser.js(f"{ANSWER}.dataset.answer") == "no"


def test_two_whole_stacks_are_compared(browser: Browser, site: Paths) -> None:
    """The second one is typed; the command below is that of the terminal."""
    opened(browser, site, **{"from": "base=ngc-25.11 mcore=0.16.1", "want": "stack"})
    settled(browser, f"({FIELD})('to', 'base=ngc-25.11 mcore=0.17.1')")
    assert browser.js(f"{ANSWER}.dataset.answer") == "no"
    command = 'megatrix check "base=ngc-25.11 mcore=0.16.1" --to "base=ngc-25.11 mcore=0.17.1"'
    assert command in browser.js("document.querySelector('#answer').textContent")
    assert browser.errors() == []


@pytest.mark.parametrize(
    "text", ["#1025", "1025", "https://github.com/NVIDIA/Megatron-LM/issues/1025", str(MASK), "get_batch 131072"]
)
def test_search_finds_a_failure(browser: Browser, site: Paths, text: str) -> None:
    opened(browser, site)
    browser.js(f"({SEARCH})({json.dumps(text)})")
    assert MASK in browser.js("[...document.querySelectorAll('#found a')].map((one) => one.textContent)")
    assert browser.errors() == []


def test_search_takes_a_line_of_a_log(browser: Browser, site: Paths) -> None:
    line = "TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'"
    opened(browser, site)
    browser.js(f"({SEARCH})({json.dumps(f'[rank0]: {line}')})")
    assert browser.js("document.querySelector('#found a').textContent") == BEHIND_MPI
    browser.js(f"({SEARCH})('no such text anywhere')")
    assert "No failure of the catalog has it" in browser.js("document.querySelector('#found').textContent")


SEARCH = """(text) => {
  const box = document.getElementById("search");
  box.value = text;
  box.dispatchEvent(new Event("input"));
}"""
FIELD = """(id, text) => {
  const box = document.getElementById(id);
  box.focus();
  box.value = text;
  box.dispatchEvent(new Event("change"));
  box.blur();
}"""


@pytest.mark.parametrize(
    ("typed", "word"),
    [
        ("ngc-25.04", "base=ngc-25.04"),
        ("25.04", "base=ngc-25.04"),
        ("nvcr.io/nvidia/pytorch:25.04-py3", "base=ngc-25.04"),
        ("torch 2.9", "torch=2.9.0"),
        ("2.9.0", "torch=2.9.0"),
    ],
)
def test_field_takes_a_version_as_people_write_it(browser: Browser, site: Paths, typed: str, word: str) -> None:
    opened(browser, site)
    settled(browser, f"({FIELD})('from-base', {json.dumps(typed)})")
    assert browser.js(CHOSEN)["base"] == word
    assert browser.js("document.activeElement === document.body")


def test_unlisted_version_is_stated_and_kept(browser: Browser, site: Paths) -> None:
    """In a link, in a field, and after another field changed: never an all-clear."""
    ways: tuple[Callable[[], None], ...] = (
        lambda: opened(browser, site, **{"from": "base=ngc-25.04 mcore=0.99.0"}),
        lambda: settled(browser, f"({FIELD})('from-mcore', '0.99.0')"),
        lambda: settled(browser, f"({FIELD})('from-base', 'ngc-25.05')"),
    )
    for go in ways:
        go()
        assert browser.js(f"{ANSWER}.dataset.answer") == "unknown"
        assert 'megatrix check "mcore=0.99.0"' in browser.js("document.getElementById('notes').textContent")
        assert browser.js("document.getElementById('from-mcore').value") == "0.99.0"


def test_back_undoes_each_change(browser: Browser, site: Paths) -> None:
    opened(browser, site, **{"from": "base=ngc-25.04 mcore=0.12.0"})
    settled(browser, f"({FIELD})('from-mcore', '0.14.0')")
    choose = "const want = document.getElementById('want'); want.value = 'te'; want.dispatchEvent(new Event('change'))"
    settled(browser, choose)
    for mcore, want in (("0.14.0", "mcore"), ("0.12.0", "mcore")):
        settled(browser, "history.back()")
        shown = browser.js("[document.getElementById('from-mcore').value, document.getElementById('want').value]")
        assert shown == [mcore, want]


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


FILES: dict[str, tuple[str, Any]] = {
    "Dockerfile": (
        "FROM nvcr.io/nvidia/pytorch:25.04-py3\n"
        "RUN pip install megatron-core==0.12.0 \\\n    'transformer-engine[pytorch]==2.2.0'\n",
        {"base": "base=ngc-25.04", "te": "te=2.2.0", "mcore": "mcore=0.12.0"},
    ),
    "train.sbatch": (
        "#!/bin/bash\nsrun --container-image=nvcr.io#nvidia/pytorch:24.07-py3 bash -c "
        "'pip install megatron-core==0.8.0'\n",
        {"base": "base=ngc-24.07", "mcore": "mcore=0.8.0"},
    ),
}


@pytest.mark.parametrize("name", [*LOCKS, *FILES])
def test_dropped_file_names_the_stack(browser: Browser, site: Paths, name: str) -> None:
    text, chosen = (LOCKS | FILES)[name]
    opened(browser, site, want="none")
    notes = browser.js(f"({DROP})({json.dumps(name)}, {json.dumps(text)})")
    settled(browser)
    assert browser.js(CHOSEN) == {axis: word for axis, word in chosen.items() if word}, notes
    assert "megatrix check reads the whole file" in notes
    if chosen["mcore"] == "mcore=0.8.0":
        assert f"{Standing.WILL_BREAK.value}: {SAVE}" in browser.js("document.getElementById('answer').textContent")
    assert browser.errors() == []


def test_hostile_file_stays_text(browser: Browser, site: Paths) -> None:
    """Markup is shown, versions that are not listed are named with the command that accepts them."""
    opened(browser, site)
    text = "megatron-core==<img/src=x/onerror=document.title='hit'>\ntorch==9.9.9\nte>=1\n" + "a" * 100_000
    notes = browser.js(f"({DROP})('x', {json.dumps(text)})")
    assert "<img/src=x/onerror=" in notes
    assert 'megatrix check "torch=9.9.9"' in notes
    assert "te >=1: no exact version" in notes
    opened(browser, site, **{"from": "base=<img src=x> mcore=0.8.0"})
    assert "<img" in browser.js("document.getElementById('notes').textContent")
    assert browser.js("[document.title === 'hit', document.querySelectorAll('img').length]") == [False, 0]
    assert browser.errors() == []
