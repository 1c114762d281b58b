"""The questions of a draft, and their answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.authoring.questions import answered, questions
from matrix.authoring.skeleton import create
from matrix.catalog.schema import read_toml

DRAFT = """id = "one"
title = "TODO: the symptom"
topic = "options"  # TODO
references = []  # TODO: reports
# TODO stays in a comment

[[affected]]
mcore = ">=0.0"  # TODO: where it breaks
reason = "run with ..."
"""


def test_each_todo_is_one_question() -> None:
    assert [str(question) for question in questions(DRAFT)] == [
        "title (the symptom)",
        'topic ["options"]',
        "references (reports) [[]]",
        'affected.mcore (where it breaks) [">=0.0"]',
    ]


@pytest.mark.parametrize(
    ("key", "answer", "line"),
    [
        ("title", 'It "breaks" \\ é', 'title = "It \\"breaks\\" \\\\ é"'),
        ("title", "", 'title = "TODO: the symptom"'),
        ("title", "=", 'title = "TODO: the symptom"'),
        ("topic", "=", 'topic = "options"'),
        ("topic", " ", 'topic = "options"  # TODO'),
        ("topic", "data", 'topic = "data"'),
        ("references", "a/b#1, c/d#2", 'references = ["a/b#1", "c/d#2"]'),
        ("mcore", "<0.9", 'mcore = "<0.9"'),
    ],
)
def test_answer_replaces_its_line_alone(key: str, answer: str, line: str) -> None:
    (question,) = (question for question in questions(DRAFT) if question.key == key)
    lines = answered(DRAFT, question, answer.strip()).splitlines()
    assert lines[question.line] == line
    assert sum(new != old for new, old in zip(lines, DRAFT.splitlines(), strict=True)) <= 1


@pytest.mark.parametrize("contract", [False, True])
def test_answers_to_all_leave_no_todo_value(tmp_path: Path, contract: bool) -> None:
    path = create("one", tmp_path, contract=contract) / "failure.toml"
    text = path.read_text()
    while question := next(questions(text), None):
        text = answered(text, question, "x")
    path.write_text(text)
    assert read_toml(path)["title"] == "x"


@pytest.mark.parametrize(
    ("side", "word", "others"),
    [("breaks", "before", ["broken", "fixed"]), ("fixed", "fixed", ["broken", "before"])],
)
def test_missing_side_takes_its_rule_along(tmp_path: Path, side: str, word: str, others: list[str]) -> None:
    path = create("one", tmp_path, contract=False) / "failure.toml"
    text = path.read_text()
    (question,) = (question for question in questions(text) if question.key == side)
    path.write_text(answered(text, question, "-"))
    entry = read_toml(path)
    assert entry["boundary"]["mcore"].keys() == {"breaks", "fixed"} - {side}
    assert [rule["mcore"] for rule in (*entry["affected"], *entry["works"])] == others
