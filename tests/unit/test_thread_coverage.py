"""How answers to public threads are judged and counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matrix.ground.catalog.loading import load
from tests import thread_coverage
from tests.thread_coverage import Answer, Expected, Named, Row, Thread

THREAD = Thread("owner/name", 7, "HANG", "a log", "te=2.1.0")
JUDGED = {
    "nothing named": ((), Expected(("a",)), Answer.NOTHING),
    "the expected one": (("a",), Expected(("a", "b")), Answer.RIGHT),
    "one of two is wrong": (("a", "c"), Expected(("a", "b")), Answer.WRONG),
    "none was expected": (("a",), Expected(out_of_reach="no message"), Answer.WRONG),
    "a topic of the class": (("hangs/a",), None, Answer.RIGHT),
    "another topic": (("data/a",), None, Answer.WRONG),
}


@pytest.mark.parametrize("name", JUDGED)
def test_named_failures_are_judged(name: str) -> None:
    names, expected, answer = JUDGED[name]
    named = [Named(id, id.partition("/")[0]) for id in names]
    assert thread_coverage.judged(THREAD, named, expected) is answer


def test_check_is_right_with_one_expected_failure() -> None:
    assert thread_coverage.checked(["a", "c"], Expected(("a",))) is Answer.RIGHT
    assert thread_coverage.checked(["c"], Expected(("a",))) is Answer.NOTHING
    assert thread_coverage.checked(["a"], None) is Answer.NOTHING


def test_table_counts_each_thread_once() -> None:
    rows = [
        Row(THREAD, Answer.RIGHT, Answer.RIGHT, (Named("a", "hangs"),)),
        Row(THREAD, Answer.WRONG, Answer.ABSENT, (Named("c", "data"),)),
        Row(THREAD, Answer.ABSENT, Answer.NOTHING, ()),
    ]
    *_, hangs, everything = thread_coverage.table(rows).splitlines()
    assert hangs.split() == ["HANG", "3", "2", "1", "1", "0", "2", "1", "1", "1"]
    assert everything.split()[1:] == hangs.split()[1:]
    text = thread_coverage.report(rows, {THREAD.id: Expected(out_of_reach="no message")})
    assert "owner/name#7: c" in text
    assert "owner/name#7 (HANG): no message" in text


@pytest.mark.parametrize("path", thread_coverage.THREADS, ids=lambda path: path.stem)
def test_each_class_has_topics_of_the_catalog(path: Path) -> None:
    threads = thread_coverage.read(path)
    topics = {topic.id for topic in load().topics}
    assert {thread.cls for thread in threads} <= thread_coverage.TOPICS.keys()
    assert {topic for names in thread_coverage.TOPICS.values() for topic in names} <= topics
    assert thread_coverage.expectations(path).keys() == {thread.id for thread in threads}


def test_a_known_log_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the real commands, from a file without expectations."""
    log = """  File "/x/transformer_engine/pytorch/module/base.py", line 700, in set_extra_state\nKeyError: 'recipe'"""
    item = {"repo": "owner/name", "num": 7, "cls": "CKPT", "log": log, "stack": "te=2.1.0"}
    path = tmp_path / "threads.json"
    path.write_text(json.dumps([item, {**item, "cls": "HANG"}]))
    assert thread_coverage.main([str(path)]) == 1
    *_, everything = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert everything.split()[:5] == ["all", "2", "2", "1", "1"]
