"""How tests/history_facts.py reads sources and commit messages; what it makes: read/history/test_index.py."""

from __future__ import annotations

import pytest

from tests.history_facts import Message, key, read_source


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ('raise ValueError(f"size {n} of {m}")', "size {} of {}"),
        ('raise ValueError("a %s" % name)', "a {}"),
        ('raise ValueError("a {x} b".format(x=1))', "a {} b"),
        ('assert size, "size " + name', "size {}"),
        ('warnings.warn("old")', "old"),
        ("raise ValueError(size)", None),
    ],
)
def test_messages_of_statements(statement: str, message: str | None) -> None:
    assert read_source(f"def load():\n    {statement}\n").messages == ((("load", message),) if message else ())


def test_unreadable_source_has_no_functions() -> None:
    assert set(read_source("def load(:\n").labels) == {""}


def test_merge_is_named_by_what_it_merged() -> None:
    merge = Message((), 1, "Merge branch 'x' into 'main'", "Fix the load\n\nCloses #48\n\nSee merge request a/b!3")
    assert (merge.title, merge.numbers) == ("Fix the load", [48])
    assert Message((), 1, "Fix (#12)", "Fixes other/repo#7, github.com/NVIDIA/Megatron-LM/issues/9").numbers == [9, 12]


def test_cherry_pick_has_the_key_of_its_commit() -> None:
    assert key("cp: `Fix load (1234)` into `core_r0.16.0` (#1240)") == key("Fix load (#1234)")
