"""The table of kinds of failure, and its checks."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from matrix.cli import COMMANDS
from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.kinds import KindTable, filled, kind_table
from matrix.ground.errors import MatrixError
from tests.unit.catalogs import real

SIGN = {"message": "^it failed in (?P<place>\\w+)"}
KIND = {"id": "a", "title": "t", "topic": "data", "means": "m", "sign": [SIGN]}
PACKAGE = {"title": "t", "modules": ["m"], "install": "pip install m", "source": "s"}
ROW = {"group": "place", "pattern": "lib", "means": "m", "source": "s"}


def table(*kinds: dict[str, Any], **rows: list[dict[str, Any]]) -> KindTable:
    empty: dict[str, Any] = {name: [] for name in ("package", "fact")}
    return decode(KindTable, {**empty, **rows, "kind": [*kinds], "topics": ["data", "loading"]}, "kinds.toml")


@pytest.mark.parametrize(
    ("kinds", "rows", "part"),
    [
        ([KIND, KIND], {}, "two kinds with one id"),
        ([{**KIND, "topic": "dta"}], {}, "did you mean data?"),
        ([{**KIND, "sign": []}], {}, "a kind without a sign"),
        ([{**KIND, "sign": [{}]}], {}, "a sign is of an exception or of the log's text"),
        ([{**KIND, "sign": [{**SIGN, "log": "it failed in"}]}], {}, "split it into two signs"),
        ([{**KIND, "sign": [{"exception": ["KeyError"]}]}], {}, "every exception of a class would show this kind"),
        (
            [{**KIND, "sign": [{"log": "\\w+ (a|b)", "anywhere": True}]}],
            {},
            "this pattern would be searched everywhere",
        ),
        ([{**KIND, "sign": [{"message": "(a+)+b"}]}], {}, "exponential time"),
        ([{**KIND, "facts": ["at {plce}"]}], {}, "did you mean place?"),
        ([{**KIND, "next": ["show {other}"]}], {}, "no pattern of this kind has the group"),
        ([KIND], {"fact": [{**ROW, "source": ""}]}, "a row without a source"),
        ([KIND], {"fact": [{**ROW, "group": "plce"}]}, "did you mean place?"),
        ([KIND], {"package": [PACKAGE | {"stack": "all"}]}, "not a use"),
        ([{**KIND, "mean": ""}], {}, "did you mean"),
    ],
)
def test_damaged_table_is_refused(kinds: list[dict[str, Any]], rows: dict[str, Any], part: str) -> None:
    with pytest.raises(MatrixError) as refused:
        table(*kinds, **rows)
    assert part in str(refused.value)
    assert str(refused.value).startswith("kinds.toml")


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
