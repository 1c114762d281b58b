"""The declarations of several files as one."""

from __future__ import annotations

import pytest

from matrix.catalog.place import Place
from matrix.check.files.declared import Declared, ImageUse, Pin, UserCommand, pin, total

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
        (
            ("Transformer_Engine", "1.9.0", FIRST),
            Pin("transformer-engine", "1.9.0", "Transformer_Engine==1.9.0", FIRST),
        ),
        (("torch", "", FIRST), Pin("torch", "", "torch", FIRST)),
        (("torch", "", FIRST, "torch>=2.4"), Pin("torch", "", "torch>=2.4", FIRST)),
    ],
)
def test_a_pin_has_a_canonical_name(arguments: tuple[str, str, Place], expected: Pin) -> None:
    assert pin(*arguments) == expected
