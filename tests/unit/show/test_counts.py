"""One number is one number: every place that counts failures, or a night's verdicts, shows the same."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from matrix.ask.check.checking import Question, check
from matrix.ask.check.rulings import BREAKS
from matrix.ask.check.user_stack import build, parse_text
from matrix.ground.catalog.stack import MCORE
from matrix.ground.verdicts.record import Verdict
from matrix.prove.authoring.overview import by_topic
from matrix.prove.store.stored_run import Night
from matrix.show import known, page, site
from matrix.show.check_text import render
from matrix.show.run_summary import Changes, job_summary, summary
from tests import readme_facts
from tests.unit.catalogs import few
from tests.unit.show.samples import cell, record, stack_map
from tests.unit.terminals import piped

KNOWN, GATE = "dcp-assertion", "tiny-gpt-trains"
CATALOG = few(KNOWN, GATE, "te-norm-shape", "cpu-offload-pinned", "cpu-offload-args", "te-torch-abi")
BUILD = next(version for failure in CATALOG.failures for version in failure.builds(MCORE) if "+" in version)
HERE = check(CATALOG, build(CATALOG, parse_text(CATALOG, "mcore=0.17.1")), Question(), {})


def verdicts() -> Night:
    """Return a night with every verdict, and with results of no core, a known build, a local one, a private failure."""
    every = [record(verdict, failure=KNOWN, where=cell(mcore=f"0.{n}.0")) for n, verdict in enumerate(Verdict, start=6)]
    absent = record(Verdict.HOLDS, failure="te-torch-abi", where=cell(mcore="none"))
    build = record(Verdict.REPRODUCED, failure=KNOWN, where=cell(mcore=BUILD))
    local = record(Verdict.HOLDS, failure=KNOWN, where=cell(mcore="0.9.0rc0+feedbee"))
    return Night("1-night", (*every, absent, build, local, record(Verdict.HOLDS, failure="private-entry")))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("site")
    shown = stack_map(CATALOG, *site.published(CATALOG, verdicts().records))
    site.write_site(folder, shown, verdicts())
    night = page.page(verdicts(), Changes("", (), ()), {}, shown)
    return {"night": night, **{str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.glob("*.*")}}


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, pattern
    return int(found[1])


def listed() -> dict[str, int]:
    """Return the number in the head of each topic that `megatrix catalog list` prints."""
    heads = {topic: piped(*known.topic_table(topic, entries)) for topic, entries in by_topic(CATALOG).items()}
    return {str(topic.id): number(r"\((\d+)\)\. ", head) for topic, head in heads.items()}


def test_every_place_counts_the_same_failures(files: dict[str, str]) -> None:
    """A gate is no failure: it has a group of its own wherever entries are listed."""
    pattern, topics = r"(\d+) known failures", listed()
    gates, rest = topics.pop("gates"), piped(*render(HERE)).partition("other failures: ")[2]
    breaking = [one for one in HERE.failures if one.standing in BREAKS]
    counted = {
        "README": number(pattern, readme_facts.numbers(CATALOG)),
        "first page": number(pattern, files["index.html"]),
        "list of pages": number(r"Failures \((\d+)\)", files["all.html"]),
        "catalog list": sum(topics.values()),
        "check": sum(map(int, re.findall(r"(\d+) (?:unknown|known to work|not reached)", rest))) + len(breaking),
        "page of the night": number(r"of (\d+) known failures tested", files["night"]),
    }
    assert set(counted.values()) == {len(CATALOG.known_failures)}, counted
    assert gates == number(r"Gates \((\d+)\)", files["all.html"]) == len(CATALOG.failures) - len(CATALOG.known_failures)
    assert gates == 1


def test_every_place_counts_the_same_verdicts(files: dict[str, str]) -> None:
    """The site, too, although it has no record of a local build or of a private failure: it states how many."""
    expected = Counter(record.verdict for record in verdicts().records)
    first, terminal = files["index.html"], piped(*summary(verdicts().records))
    marks = {
        name: int(count)
        for name, count in re.findall(r"([a-z-]+)</span> <b>(\d+)</b>", files["night"].partition('id="legend"')[0])
    }
    for verdict, count in expected.items():
        assert marks[verdict.value] == count, verdict
        assert f"{count} {verdict.value}" in first.partition("results of 1-night:")[2]
        assert f"| {verdict.value} | {count} |" in job_summary(verdicts(), Changes("", (), ()))
        assert re.search(rf"\b{count} {verdict.value}\b", terminal)
    assert "; 2 of them, of failures, bases or builds that the catalog lacks, on no page." in first


def test_site_shows_builds_that_the_catalog_names() -> None:
    """Also those of a cell without megatron-core; of a local build none."""
    shown = {str(record.cell.stack[MCORE]) for record in site.published(CATALOG, verdicts().records)}
    assert {BUILD, "none"} <= shown
    assert "0.9.0rc0+feedbee" not in shown
