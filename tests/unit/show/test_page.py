"""The page of a night: complete, self-contained, safe, valid HTML."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.cli.run import Screen
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import DECIDED, WRITER_MCORE, Stack
from matrix.ground.verdicts.outcome import Raised
from matrix.ground.verdicts.planned import Reason, ReasonKind
from matrix.ground.verdicts.record import Record, Verdict
from matrix.ground.verdicts.trend import PastResult
from matrix.prove.store.paths import page_name
from matrix.prove.store.stored_run import Night
from matrix.show.findings import night_junit
from matrix.show.page import grids, page
from matrix.show.run_summary import Changes, changes, summary
from tests.profiles import tries
from tests.unit.catalogs import catalog, clause, failure
from tests.unit.show.samples import cell, changed, night, record, stack_map
from tests.unit.terminals import piped

NO_CHANGES = Changes("", (), ())
# The failures of night(); one without a rule is a gate, which is not counted.
KNOWN = ("cut-offload-args", "dud-assertion", "long-samples", "tx-overlap")
MAP = stack_map(catalog(*(failure(id, affected=(clause(mcore="<0.9"),)) for id in KNOWN)))
VOID = {"meta", "input", "br", "link"}


class Document(HTMLParser):
    """A parsed page: elements, attributes, texts. Unbalanced elements fail the test."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, each, value in self.attributes if each == name]


def made(records: list[Record], since: Changes = NO_CHANGES, levels: dict[str, frozenset[Level]] | None = None) -> str:
    when = ("2026-01-31T02:00:00.000Z", "2026-01-31T02:11:00.000Z")
    return page(Night("a", tuple(records), *when), since, levels or {}, MAP)


def test_elements_are_balanced_and_ids_unique() -> None:
    document = Document(made(night()))
    ids = document.values("id")
    assert document.open == []
    assert len(ids) == len(set(ids))


def test_every_link_has_a_target() -> None:
    """Targets are ids of the page, the pages of failures and cells, and upgrade.html."""
    html = made(night())
    document = Document(html)
    pages = {f"failures/{each.failure}.html" for each in night()} | {
        f"cells/{page_name(each.cell.id)}" for each in night()
    }
    assert {link.removeprefix("#") for link in document.values("href")} <= {
        *document.values("id"),
        *re.findall(r'<tr id="(case-\d+)"', html),
        *pages,
        "upgrade.html",
        "upgrade.html#map",
    }


def test_bisection_pages_are_linked() -> None:
    assert 'href="bisections/cut-offload-args.html"' in page(Night("a", ()), NO_CHANGES, {}, MAP, ["cut-offload-args"])
    assert "Bisections" not in page(Night("a", ()), NO_CHANGES, {}, MAP)


def test_page_fetches_nothing_and_its_policy_forbids_it() -> None:
    html = made(night())
    document = Document(html)
    assert document.values("src") == []
    assert document.tags["link"] == 0
    (policy,) = (value for value in document.values("content") if "default-src" in value)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_every_planned_case_has_a_row() -> None:
    records = night()
    html, later = made(records).split('<script type="text/html" id="later">')
    rows = re.findall(r'<tr id="case-\d+" data-verdict="([a-z-]+)"', html + later)
    assert rows == [each.verdict.value for each in records]
    assert (html + later).count("<tr id=") - later.count("<tr id=") == 100


def test_hostile_later_case_stays_in_its_element() -> None:
    """The rows past the first 100 are the text of a script element that does not run."""
    records = [record(case=f"case-{n}") for n in range(100)]
    clean, hostile = (made([*records, poisoned(record(), text)]) for text in ("text", "</script><!--<script>x"))
    assert Document(hostile).tags == Document(clean).tags
    assert hostile.count("</script") == clean.count("</script")


def test_every_red_case_has_command_and_reason() -> None:
    text = "".join(Document(made(night())).text)
    for red in (each for each in night() if each.verdict.colour == "red"):
        assert red.reproduce in text
    assert "matches failure dud-write-item" in text


def test_red_banner_counts_cases_without_result() -> None:
    banner = made(night()).partition('<div class="banner red">')[2]
    red = "15 of 134 cases are red</h1><span>122 ran, 9 unavailable, 3 not reached; 3 of 4 known failures tested<"
    assert red in banner


def test_night_without_red_has_a_green_banner() -> None:
    assert '<div class="banner green">' in made([record(), record(Verdict.UNAVAILABLE, case="pp2")])


def test_grid_cell_shows_one_verdict_and_its_share() -> None:
    html = made([record(case="tp2"), record(Verdict.REGRESSED, case="pp2"), record(case="world1")])
    (title,) = (value for value in Document(html).values("title") if "mcore 0.8.0" in value)
    assert title == "torch-2.4.0, mcore 0.8.0: tp2 holds, pp2 regressed, world1 holds"
    assert '<span class="mixed">1 of 3</span>' in html


def test_each_grid_names_levels_never_run() -> None:
    html = made(
        [record(), record(Verdict.UNAVAILABLE, level=Level.GPU)], levels={"dud-assertion": frozenset([Level.CPU])}
    )
    assert html.count('<table class="grid">') == 2
    assert html.count("; never run at level gpu on this machine") == 2


def rows(html: str) -> list[str]:
    """Return the failures of the page in order, with " open" where the grids are shown."""
    found = re.findall(r'<details class="card failure"( open)?><summary><h3>([\w-]+)</h3>', html)
    return [f"{name}{shown}" for shown, name in found]


def test_red_failures_come_first_and_open() -> None:
    cases = [record(failure="calm"), record(Verdict.REGRESSED, failure="loud"), record(failure="other")]
    assert rows(made(cases)) == ["loud open", "calm", "other"]


def test_the_failure_that_changed_last_comes_first() -> None:
    calm, changed = record(failure="calm"), record(failure="moved")
    past = [
        PastResult(1, "monday", Verdict.REGRESSED, 1.0, "x", False),
        PastResult(2, "now", Verdict.HOLDS, 1.0, "y", False),
    ]
    html = page(Night("now", (calm, changed)), NO_CHANGES, {}, MAP, (), {changed.key: past})
    assert rows(html) == ["moved", "calm"]
    assert "last change in now" in html


def test_a_failure_without_result_is_not_tested() -> None:
    html = made([record(), record(Verdict.UNAVAILABLE, failure="long-samples")])
    assert "1 ran, 1 unavailable, 0 not reached; 1 of 4 known failures tested" in html
    assert html.count('<span class="soft">not tested</span>') == 1


def test_one_failure_is_counted_as_one() -> None:
    assert "<summary>1 failure, not red</summary>" in made([record()])
    assert "<summary>2 failures, none of them red</summary>" in made([record(), record(failure="calm")])


def test_changes_come_before_red_cases() -> None:
    case = record(Verdict.REGRESSED)
    html = made([case], changes([case], {case.key: PastResult(1, "yesterday", Verdict.HOLDS)}))
    assert 0 < html.index("since yesterday") < html.index('id="reds"')
    assert '<span class="level new">new</span>' in html


def test_newly_red_causes_come_first() -> None:
    old, new = record(Verdict.UNEXPLAINED), record(Verdict.VANISHED, where=cell(mcore="0.7.0"))
    before = {old.key: PastResult(1, "a", Verdict.UNEXPLAINED), new.key: PastResult(1, "a", Verdict.REPRODUCED)}
    html = made([old, new], changes([old, new], before))
    assert html.index("<h3>vanished") < html.index("<h3>unexplained")


def test_cause_of_many_cases_shows_few_logs() -> None:
    """Every case still has its command."""
    reds = [record(Verdict.UNEXPLAINED, where=cell(mcore=f"0.9.{n}")) for n in range(70)]
    html = made(reds)
    assert "dud-assertion</a> in 70 cases</h3>" in html
    assert html.count("<h4>end of the log") == 5
    assert html.count('<div class="paste">') == 71


def test_secrets_in_a_log_are_masked() -> None:
    html = made([record(Verdict.UNEXPLAINED)])
    assert "hunter2" not in html
    assert "HF_TOKEN=[masked]" in html


def test_long_lines_are_cut() -> None:
    red = record(Verdict.UNEXPLAINED)
    huge = "x" * 5_000_000
    outcome = replace(red.outcome, evidence=huge, chain=(Raised("E", huge),), reason=huge)
    assert len(made([replace(red, outcome=outcome, notes=(huge,))])) < 60_000


HOSTILE = [
    "<script>alert(1)</script>", "</pre></section><img src=x onerror=alert(1)>", '" onmouseover="alert(1)', "'><b>",
    "<!-- ", "]]>", "&lt;", "\x1b]8;;http://x\x07", "\ud800", "\u202e", "\0",
]  # fmt: skip


@tries(30)
@given(st.sampled_from(HOSTILE) | st.text(st.characters()))
@pytest.mark.parametrize("verdict", [Verdict.UNEXPLAINED, Verdict.HOLDS, Verdict.UNAVAILABLE])
def test_no_text_becomes_markup(verdict: Verdict, text: str) -> None:
    """Hostile text in every field yields the elements that harmless text yields, and no control character."""
    html = made([poisoned(record(verdict), text)])
    html.encode("utf-8")
    document, harmless = Document(html), Document(made([poisoned(record(verdict), "text")]))
    assert document.open == []
    assert document.tags["script"] == 1
    assert document.tags["img"] == document.tags["b"] - harmless.tags["b"] == 0
    assert {name for _, name, _ in document.attributes} <= {name for _, name, _ in harmless.attributes} | {"title"}
    assert all(char in "\n\t" or char.isprintable() for char in html)


def poisoned(case: Record, text: str) -> Record:
    frame = replace(record(Verdict.REPRODUCED).outcome.chain[0].frames[0], file=text, function=text)
    outcome = replace(
        case.outcome,
        reason=text,
        evidence=text,
        signal=text,
        attempts=(text,),
        chain=(Raised(text, text, (frame,)),),
        ranks=tuple(replace(rank, log=text, stacks=text) for rank in case.outcome.ranks),
    )
    where = replace(case.cell, base=text, stack=Stack(dict.fromkeys(DECIDED, text)))
    return changed(
        case, cell=where, failure=text, case=text, outcome=outcome, signature=text, other=text, notes=(text,),
        why=(Reason(ReasonKind.PICKED, text),), resolved={text: text}, reproduce=text, cached_from=text,
    )  # fmt: skip


def test_secrets_are_masked_in_every_report() -> None:
    text = "HF_TOKEN=hunter2-secret"
    red = record(Verdict.UNEXPLAINED)
    outcome = replace(
        red.outcome,
        reason=text,
        evidence=text,
        attempts=(text,),
        chain=(Raised("E", text),),
        ranks=tuple(replace(rank, stacks=text) for rank in red.outcome.ranks),
    )
    red = changed(red, outcome=outcome, notes=(text,), why=(Reason(ReasonKind.PICKED, text),))
    current = Night("a", (red, changed(red, verdict=Verdict.UNAVAILABLE, case="pp2")))
    printed = piped(*summary(current.records)), piped(Screen(1).line(red))
    for text in (page(current, NO_CHANGES, {}, MAP), night_junit(current), *printed):
        assert "hunter2" not in text
        assert "[masked]" in text


def test_writers_are_rows_and_readers_columns() -> None:
    cells = [
        cell(mcore=reader).with_({WRITER_MCORE: writer})
        for writer in ("0.9.0", "0.8.0")
        for reader in ("0.9.0", "0.8.0")
    ]
    records = [record(where=one) for one in cells]
    (grid,) = grids(records, {one.key: "" for one in records}, {})
    assert grid.columns == ("0.8.0", "0.9.0")
    assert [axes for _, axes, _ in grid.rows] == ["writer-mcore 0.8.0", "writer-mcore 0.9.0"]


def test_packages_are_rows() -> None:
    records = [
        record(where=replace(cell().with_({"transformers": version}), packages=("transformers",)))
        for version in ("5.0", "4.57")
    ]
    (grid,) = grids(records, {one.key: "" for one in records}, {})
    assert [axes for _, axes, _ in grid.rows] == ["transformers 4.57", "transformers 5.0"]
