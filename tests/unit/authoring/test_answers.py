"""Answers that an entry can have, and those that it can't."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.authoring.answers import check_answer, check_boundary, check_script
from matrix.authoring.questions import DraftQuestion
from matrix.authoring.skeleton import ask, create
from matrix.catalog.schema import read_toml
from matrix.errors import MatrixError
from tests.unit.catalogs import real


def asked(table: str, key: str, value: str = "") -> DraftQuestion:
    return DraftQuestion(0, table, key, value, "")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (asked("", "topic"), "options"),
        (asked("", "axes", '["base"]'), "base, mcore, te"),
        (asked("", "references", "[]"), "NVIDIA/Megatron-LM#1, a.b/c-d#22"),
        (asked("", "references", "[]"), "="),
        (asked("", "first_seen"), "2026-01"),
        (asked("", "title"), "Any text"),
        (asked("", "title"), ""),
        (asked("boundary.mcore", "breaks", '"0.0"'), "0.16.0"),
        (asked("boundary.mcore", "breaks", '"0.0"'), "-"),
        (asked("boundary.te", "fixed", '"0.0"'), "2.3.0"),
        (asked("night", "te", '["0.0"]'), "2.2.0, 2.3.0"),
        (asked("affected", "mcore", '">=0.0"'), ">=0.9,<0.12"),
        (asked("works", "mcore", '">=0.0"'), "fixed"),
        (asked("signature", "message"), "^a+$"),
        (asked("contract", "callee"), "\\.fp8$"),
        (asked("workaround", "text"), "another release"),
    ],
)
def test_right_answers_are_accepted(question: DraftQuestion, answer: str) -> None:
    check_answer(question, answer, real())


@pytest.mark.parametrize(
    ("question", "answer", "what", "fix"),
    [
        (asked("", "topic"), "option", "no such topic", "did you mean options"),
        (asked("", "axes", '["base"]'), "base, mcoer", "no such component", "did you mean mcore"),
        (asked("", "references", "[]"), "Megatron-LM 1003", "not a reference", ""),
        (asked("", "first_seen"), "January", "not a month", ""),
        (asked("boundary.mcore", "breaks", '"0.0"'), "0.16.7", "no such release of megatron-core", "did you mean 0.16"),
        (asked("boundary.mcore", "breaks", '"0.0"'), "=", "no such release of megatron-core", ""),
        (asked("boundary.te", "fixed", '"0.0"'), "two", "no such release of Transformer Engine", ""),
        (asked("night", "mcore", '["0.0"]'), "0.9.0, 9", "no such release of megatron-core", ""),
        (asked("affected", "mcore", '">=0.0"'), "0.9", "not a version range", ""),
        (asked("signature", "name", '"x"'), "a b", "not an id", ""),
        (asked("signature", "message"), "(a+)+$", "exponential", ""),
        (asked("contract", "callee"), "(", "not a regular expression", ""),
    ],
)
def test_wrong_answers_are_refused(question: DraftQuestion, answer: str, what: str, fix: str) -> None:
    with pytest.raises(MatrixError, match=what) as refused:
        check_answer(question, answer, real())
    assert refused.value.got is not None
    assert refused.value.expected
    assert (refused.value.fix or "").startswith(fix)


def test_boundary_in_the_wrong_order_is_refused() -> None:
    text = '[boundary.mcore]\nbreaks = "0.16.0"\nfixed = "0.12.0"'
    check_boundary(text + "  # TODO: the first release without it\n")
    with pytest.raises(MatrixError, match="ends before it begins"):
        check_boundary(text)


@pytest.mark.parametrize("lines", ["    import x", "    x = 1\n\n    return x", "    ..."])
def test_lines_of_a_function_are_python(lines: str) -> None:
    check_script(lines)
    with pytest.raises(MatrixError, match="not Python"):
        check_script(f"{lines} (")


def test_wrong_answer_is_asked_again(tmp_path: Path) -> None:
    folder = create("one", tmp_path, contract=False)
    replies = iter(["Odd", "option", "options"])
    prompts = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        if answer := next(replies, ""):
            return answer
        raise EOFError

    ask(folder, reply, real())
    assert read_toml(folder / "failure.toml")["topic"] == "options"
    assert "did you mean options" in prompts[2]
    assert prompts[2].endswith(prompts[1])


def test_script_is_asked_for_until_it_is_python(tmp_path: Path) -> None:
    folder = create("one", tmp_path, contract=False)
    (folder / "failure.toml").write_text('id = "one"\n')
    replies = iter(["import (", "", "import math", "return {}", ""])
    ask(folder, lambda _: next(replies), real())
    text = (folder / "reproduction.py").read_text()
    assert "    import math\n    return {}\n" in text
    assert "TODO" not in text


def test_no_lines_leave_the_template(tmp_path: Path) -> None:
    folder = create("one", tmp_path, contract=False)
    before = (folder / "reproduction.py").read_text()
    ask(folder, lambda _: "", real())
    assert (folder / "reproduction.py").read_text() == before


def test_interrupted_questions_keep_the_answers(tmp_path: Path) -> None:
    folder = create("one", tmp_path, contract=False)
    replies = iter(["Odd"])

    def reply(prompt: str) -> str:
        if answer := next(replies, ""):
            return answer
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(folder, reply, real())
    assert read_toml(folder / "failure.toml")["title"] == "Odd"
