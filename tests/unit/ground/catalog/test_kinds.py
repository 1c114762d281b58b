"""The table of kinds of failure, and its checks."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from matrix.cli import COMMANDS
from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.kinds import AXIS, VERSIONS, FailureKind, KindTable, filled, groups_in, kind_table
from matrix.ground.catalog.schema import LITERAL, longest_text
from matrix.ground.errors import MatrixError
from tests.unit.catalogs import captured_by, real

USED = {AXIS, VERSIONS}  # groups that no pattern captures


@pytest.mark.parametrize("keys", [{"mean": ""}, {"sign": [{"message": "(a+)+b"}]}])
def test_damaged_table_is_refused(keys: dict[str, Any]) -> None:
    kind = {"id": "a", "title": "t", "topic": "data", "means": "m", "sign": []}
    with pytest.raises(MatrixError, match=r"^kinds\.toml"):
        decode(KindTable, {"kind": [{**kind, **keys}], "package": [], "fact": []}, "kinds.toml")


def test_kinds_have_ids_and_topics() -> None:
    ids = [kind.id for kind in kind_table().kind]
    assert len(set(ids)) == len(ids)
    assert {kind.topic for kind in kind_table().kind} <= {topic.id for topic in real().topics}


@pytest.mark.parametrize("kind", kind_table().kind, ids=lambda kind: str(kind.id))
def test_each_sign_shows_its_kind(kind: FailureKind) -> None:
    """A sign is of an exception, of which the class alone is too little, or of the log's text."""
    assert kind.sign
    for sign in kind.sign:
        assert bool(sign.message or sign.function) is not bool(sign.log), sign
        assert not (sign.log and sign.exception), sign
        assert not sign.anywhere or len(longest_text(sign.log or "")) >= LITERAL, "it is searched in whole logs"


@pytest.mark.parametrize("kind", kind_table().kind, ids=lambda kind: str(kind.id))
def test_groups_of_texts_are_captured(kind: FailureKind) -> None:
    captured = captured_by(kind) | USED | {row.group for row in kind_table().beside}
    assert [text for text in (*kind.facts, *kind.next) if not groups_in(text) <= captured] == []


def test_rows_are_used_and_have_sources() -> None:
    table = kind_table()
    captured = USED | {row.group for row in table.beside}.union(*map(captured_by, table.kind))
    assert {fact.group for fact in table.fact} <= captured
    assert {package.stack for package in table.package} <= {"", "names", "frames"}
    sources = [row.source for rows in (table.package, table.fact, table.clue, table.beside) for row in rows]
    assert all(sources)


def test_texts_without_their_groups_are_left_out() -> None:
    assert filled(["at {place}", "in {other}", "always"], {"place": "x"}) == ["at x", "always"]


def test_package_is_that_of_the_longest_name() -> None:
    packages = kind_table()
    titles = [
        row.title if (row := packages.package_of(name)) else "" for name in ("megatron.core.a", "megatron.training")
    ]
    assert titles == ["megatron-core", "Megatron-LM's training code"]
    assert packages.package_of("megatronic") is None


def test_every_kind_has_meaning_and_commands() -> None:
    kinds = kind_table().kind
    assert len(kinds) > 20
    assert [kind.id for kind in kinds if not (kind.means and kind.next)] == []


def test_commands_can_be_pasted() -> None:
    table = kind_table()
    lines = [line for kind in table.kind for line in kind.next] + [package.install for package in table.package]
    lines += [fact.install for fact in table.fact]
    words = [shlex.split(line, comments=True) for line in lines]  # raises ValueError for an open quotation mark
    assert {line[1] for line in words if line[:1] == ["megatrix"]} <= set(COMMANDS)
    assert [line for line in lines if "\n" in line] == []


def test_no_kind_has_the_id_of_a_failure() -> None:
    assert {kind.id for kind in kind_table().kind} & {failure.id for failure in real().failures} == set()
