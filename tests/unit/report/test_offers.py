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


def test_one_command_fetches_all_clones() -> None:
    records = [record(), lacking(CORE), lacking(ENGINE), lacking(CORE, ENGINE), lacking()]
    assert offers(records, "megatrix", SIZES) == [
        "3 of 5 cases are unavailable for want of clones: "
        "`megatrix sources fetch` (2 clones, about 77 MB) would run 3"
    ]  # fmt: skip


def test_one_clone_has_its_own_size() -> None:
    (line,) = offers([lacking(ENGINE)], "tox run -e megatrix --", SIZES)
    assert "`tox run -e megatrix -- sources fetch` (1 clone, about 23 MB) would run 1" in line


def test_each_gain_counts_after_the_offers_before() -> None:
    """The image alone runs 1 case, with the clones 3; the clones alone run 2."""
    both, alone = lacking(IMAGE, CORE), lacking(IMAGE)
    assert offers([lacking(CORE), lacking(CORE), both, both, alone], "megatrix", SIZES) == [
        "4 of 5 cases are unavailable for want of clones: `megatrix sources fetch` (1 clone, about 54 MB) would run 2",
        "3 of 5 cases are unavailable for want of debian-13 "
        "(debian-13 is not built yet: megatrix build debian-13), which would run 3 more",
    ]


def test_an_offer_without_own_gain_is_said() -> None:
    lines = offers([lacking(IMAGE, CORE)], "megatrix", SIZES)
    assert [line.rpartition(")")[2] for line in lines] == [" is needed as well", ", which would run 1"]


def test_nothing_to_add_offers_nothing() -> None:
    """Nobody adds a GPU with a command."""
    assert offers([record(), lacking(), lacking(GPUS), lacking(GPUS, CORE)], "megatrix", SIZES) == []


def test_single_need_comes_before_several() -> None:
    """A case that lacks one thing runs after one command, however many others wait for two."""
    waiting = [lacking(IMAGE, CORE)] * 3
    other = Lack(Kind.BASE, "another image", "zebra")
    first, *_ = offers([*waiting, lacking(other)], "megatrix", SIZES)
    assert first.startswith("1 of 4 cases are unavailable for want of zebra")
