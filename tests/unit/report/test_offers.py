"""The last lines of a night: what would make more cases run, with the command and the gain."""

from __future__ import annotations

from dataclasses import replace

from matrix.report.offers import offers
from matrix.verdicts.outcome import Outcome, OutcomeKind
from matrix.verdicts.reason import Kind, Lack
from matrix.verdicts.record import Record, Verdict
from tests.unit.report.samples import record

CORE, ENGINE = (Lack(Kind.CLONE, "needs a clone", name) for name in ("megatron-lm", "transformer-engine"))
IMAGE = Lack(Kind.BASE, "debian-13 is not built yet: megatrix build debian-13", "debian-13")
GPUS = Lack(Kind.GPUS, "needs 8 GPUs; host has 0")
SIZES = {"megatron-lm": 54, "transformer-engine": 23}


def lacking(*lacks: Lack) -> Record:
    return replace(record(Verdict.UNAVAILABLE), outcome=Outcome(OutcomeKind.UNAVAILABLE, "needs more", lacks=lacks))


def test_each_unavailable_case_counts_once() -> None:
    """The counts add up to that of the first line, also where a case lacks several things."""
    both = lacking(IMAGE, CORE)
    cases = [
        lacking(CORE),
        lacking(ENGINE),
        lacking(CORE, ENGINE),
        lacking(IMAGE),
        both,
        both,
        lacking(GPUS),
        lacking(),
    ]
    assert offers(cases, 20, "megatrix", SIZES) == [
        "8 of 20 cases are unavailable:",
        "  3 need clones",
        "  1 needs debian-13",
        "  2 need clones and debian-13",
        "  1: needs 8 GPUs; host has 0",
        "  1: needs more",
        "for clones: `megatrix sources fetch` (2 clones, about 77 MB)",
        "for debian-13: debian-13 is not built yet: megatrix build debian-13",
    ]


def test_one_clone_has_its_own_size() -> None:
    *_, line = offers([lacking(ENGINE)], 1, "tox run -e megatrix --", SIZES)
    assert line == "for clones: `tox run -e megatrix -- sources fetch` (1 clone, about 23 MB)"


def test_without_unavailable_cases_nothing_is_offered() -> None:
    assert offers([record()], 1, "megatrix", SIZES) == []


def test_lack_without_command_is_stated_with_the_others() -> None:
    """Nobody adds a GPU with a command."""
    assert offers([lacking(GPUS, CORE)], 2, "megatrix", SIZES)[1:] == [
        "  1: needs 8 GPUs; host has 0; clones",
    ]


def test_single_need_comes_before_several() -> None:
    """A case that lacks one thing runs after one command, however many others wait for two."""
    other = Lack(Kind.BASE, "another image", "zebra")
    _, first, *_ = offers([*[lacking(IMAGE, CORE)] * 3, lacking(other)], 4, "megatrix", SIZES)
    assert first == "  1 needs zebra"
