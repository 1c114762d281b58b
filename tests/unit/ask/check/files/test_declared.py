"""The declarations of several files as one."""

from __future__ import annotations

import pytest

from matrix.ask.check.files.declared import (
    FIXES,
    MOST,
    Declared,
    ImageUse,
    Statement,
    UnreadKind,
    UserCommand,
    not_read,
    pin,
    require_at_most,
    total,
)
from matrix.ground.catalog.stack import UNKNOWN, Place
from matrix.ground.errors import MatrixError

FIRST, SECOND = Place("requirements.txt", 1), Place("train.sh", 7)
LOCK = Declared((pin("torch", "2.4.1", FIRST),), notes=("requirements.txt:3: not read",), complete=True)
SCRIPT = Declared(
    images=(ImageUse("nvcr.io/nvidia/pytorch:24.07-py3", SECOND),), commands=(UserCommand(("torchrun",), SECOND),)
)


def test_total_keeps_all_in_order() -> None:
    later = Declared((pin("torch", "2.5.1", SECOND),), notes=("train.sh:9: not read",))
    whole = total([LOCK, SCRIPT, later])
    assert whole.pins == (*LOCK.pins, *later.pins)
    assert (whole.images, whole.commands) == (SCRIPT.images, SCRIPT.commands)
    assert whole.notes == ("requirements.txt:3: not read", "train.sh:9: not read")


@pytest.mark.parametrize(
    ("parts", "complete"), [((), False), ((SCRIPT,), False), ((LOCK, SCRIPT), True), ((SCRIPT, LOCK), True)]
)
def test_one_lock_file_completes_the_stack(parts: tuple[Declared, ...], complete: bool) -> None:
    assert total(parts).complete is complete


def test_sum_of_two_is_their_total() -> None:
    assert total((LOCK, SCRIPT)) == LOCK + SCRIPT
    assert total(()) == Declared()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("Flash_Attn", "2.8.3", FIRST), Statement("flash-attn", "2.8.3", FIRST)),
        (("torch", "", FIRST, ">=2.4"), Statement("torch", UNKNOWN, FIRST, ">=2.4")),
        (("torch", "latest", FIRST), Statement("torch", UNKNOWN, FIRST)),
    ],
)
def test_a_pin_has_a_canonical_name(arguments: tuple[str, str, Place], expected: Statement) -> None:
    assert pin(*arguments) == expected


def test_unread_parts_are_added_up() -> None:
    parts = [not_read(UnreadKind.FILE, name, FIRST) for name in ("a.txt", "b.txt")]
    assert [str(unread) for unread in total(parts).unread] == ["requirements.txt:1: a.txt", "requirements.txt:1: b.txt"]


@pytest.mark.parametrize(("fix", "expected"), [("", FIXES[UnreadKind.FILE]), ("add it", "add it")])
def test_unread_part_has_a_fix(fix: str, expected: str) -> None:
    (unread,) = not_read(UnreadKind.FILE, "a.txt", FIRST, fix).unread
    assert unread.to_json() == {"kind": "file", "text": "a.txt", "source": "requirements.txt:1", "fix": expected}


def test_a_longer_file_is_refused() -> None:
    require_at_most(MOST, MOST, "commands", "train.sh")
    with pytest.raises(MatrixError, match="too many commands") as caught:
        require_at_most(MOST, MOST + 1, "commands", "train.sh")
    assert (caught.value.where, caught.value.got) == ("train.sh", "5,001 or more")
