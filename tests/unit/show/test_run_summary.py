"""The summary in the terminal: complete, within its width, escaped."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.failure import Level
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.record import Record, Verdict
from matrix.ground.verdicts.trend import PastResult
from matrix.show.run_summary import changes
from matrix.show.run_summary import summary as parts
from tests.profiles import tries
from tests.unit.show.samples import MCORES, cell, changed, night, record
from tests.unit.terminals import coloured, piped, shown


def summary(records: list[Record], width: int = 80) -> str:
    return shown(*parts(records), width=width)


def test_every_red_case_has_its_command() -> None:
    lines = [line.strip() for line in summary(night()).splitlines()]
    reds = [each for each in night() if each.verdict.colour == "red"]
    assert all(red.reproduce in lines for red in reds)


def test_red_cases_come_first_and_headline_last() -> None:
    blocks = summary(night()).split("\n\n")
    assert re.match("VANISHED|REGRESSED|UNEXPLAINED", blocks[0])
    assert blocks[-1].splitlines()[-1] == "RED: 15 of 134 cases are red; 122 ran, 9 unavailable, 3 not reached"


def test_shared_cause_is_printed_once() -> None:
    text = summary(night())
    assert text.count("storage_key") == 1
    assert "UNEXPLAINED dud-assertion x 12" in text


def test_red_case_on_gpus_names_both_drivers() -> None:
    drivers = {"host driver": "470.161.03", "user-mode driver": "555.42.06 (compat package of the image)"}
    red = record(Verdict.REGRESSED, level=Level.GPU, resolved={"torch": "2.4.0", **drivers})
    text = " ".join(summary([red]).split())
    assert "host driver 470.161.03, user-mode driver 555.42.06 (compat package of the image)" in text
    assert "driver" not in summary([record(Verdict.REGRESSED)]).replace("driver-none", "")


def test_drivers_are_counted() -> None:
    by_compat = {"host driver": "470.161.03", "user-mode driver": "555.42.06 (compat package of the image)"}
    native = {"host driver": "550.54.14", "user-mode driver": "550.54.14 (the host driver itself)"}
    records = [record(case=f"{n}", level=Level.GPU, resolved=by_compat if n < 2 else native) for n in range(5)]
    lines = summary([*records, record()], width=120).splitlines()
    assert "  host driver 470.161.03, user-mode driver 555.42.06 (compat package of the image) x 2" in lines
    assert "  host driver 550.54.14, user-mode driver 550.54.14 (the host driver itself) x 3" in lines


def test_ranks_that_share_a_gpu_are_named() -> None:
    """Their results are not those of separate GPUs."""
    sharing = {"ranks per GPU": "2", "backend": "nccl, shared", "NCCL": "2.32.3, preloaded"}
    shown = {"NCCL transport": "SHM/direct", "NCCL CTAs": "4", "MPS": "none"}
    own = record(case="own", level=Level.GPU, resolved={"backend": "nccl", "NCCL": "2.20.5"})
    lines = summary([record(level=Level.GPU, resolved=sharing | shown), own], width=140).splitlines()
    facts = "ranks per GPU 2, backend nccl, shared, NCCL 2.32.3, preloaded"
    expected = f"  {facts}, NCCL transport SHM/direct, NCCL CTAs 4, MPS none x 1"
    assert [line for line in lines if "backend" in line] == [expected]


def test_driver_is_not_shown_below_level_gpu() -> None:
    resolved = {"host driver": "535.129.03"}
    records = [record(verdict, resolved=resolved) for verdict in (Verdict.HOLDS, Verdict.REGRESSED)]
    assert "host driver" not in summary(records)


def test_missing_results_are_one_line_per_reason() -> None:
    outcome = Outcome(OutcomeKind.NOT_REACHED, "never started")
    lost = replace(record(Verdict.NOT_REACHED), outcome=outcome)
    assert "not-reached x 2: never started" in summary([record(), lost, lost])
    assert "unavailable x 9: needs 8 GPUs; host has 0" in summary(night())


def test_rows_differing_in_megatron_version_are_merged() -> None:
    assert re.search(r"torch-2\.4\.0/mcore-0\.9\.0\.\.0\.16\.1 \(8\) +holds +holds +holds\n", summary(night()))


def test_each_level_has_a_table() -> None:
    text = summary([record(), record(level=record().level.__class__.GPU)])
    assert "dud-assertion, level cpu" in text
    assert "dud-assertion, level gpu" in text


def test_case_not_planned_is_a_dash() -> None:
    text = summary([record(), record(case="pp2"), record(where=cell(mcore="0.9.0"))])
    assert re.search(r"mcore-0\.9\.0 +holds +-\n", text)


@pytest.mark.parametrize("width", [1, 16, 40, 80, 120])
def test_only_commands_and_cells_are_wider(width: int) -> None:
    lines = summary(night(), width=width).splitlines()
    wide = [line.strip() for line in lines if len(line) > max(width, 40)]
    assert all(line.startswith(("megatrix run", "torch-", "ngc-", "host/")) for line in wide)
    assert {red.reproduce for red in night() if red.verdict.colour == "red"} <= {line.strip() for line in lines}


def test_pipe_has_each_red_case_whole() -> None:
    """No line is wrapped, and nothing is cut: the cell with its Transformer Engine, the reason, the command."""
    where = cell("ngc-24.03", "0.9.0rc0+094d66b", "1.9.0.dev0+f9dd37f", "470.161.03")
    reds = [record(Verdict.UNEXPLAINED, where=where), record(Verdict.VANISHED, where=where, case="train-loop")]
    text = piped(*parts(reds))
    lines = text.splitlines()
    for red in reds:
        place = lines.index(f"  {where.id} {red.case} cpu")
        assert f"    {red.reproduce}" in lines[place:]
    assert "'storage_key' and 'serialization_format'" in text
    assert "\x1b" not in text


def test_cases_are_counted_if_columns_do_not_fit() -> None:
    assert "1 regressed, 2 holds" in summary(night(), width=50)


def test_colour_leaves_the_text_unchanged() -> None:
    plain, colours = summary(night()), coloured(*parts(night()))
    assert "\x1b" not in plain
    assert plain != colours
    assert plain == re.sub(r"\x1b\[[0-9;]*m", "", colours)


@tries(50)
@given(st.text(st.characters()))
def test_messages_are_escaped_for_the_terminal(message: str) -> None:
    red = record(Verdict.UNEXPLAINED)
    outcome = replace(red.outcome, chain=(Raised(message, message),), reason=message)
    text = summary([replace(red, outcome=outcome, notes=(message,), reproduce=message)])
    assert all(char == "\n" or char.isprintable() for char in text)


def test_night_without_cases_is_incomplete() -> None:
    assert summary([]) == "INCOMPLETE: none of 0 cases ran; 0 ran, 0 unavailable, 0 not reached\n"


CASE = record()
VERDICT = st.sampled_from(list(Verdict))


def test_no_changes_without_an_earlier_run() -> None:
    assert changes([CASE], {}).since == ""


def test_same_verdict_is_no_change() -> None:
    assert changes([CASE], {CASE.key: PastResult(1, "a", Verdict.HOLDS)}).groups == ()


@given(st.lists(st.tuples(st.none() | VERDICT, VERDICT), max_size=len(MCORES)))
def test_newly_red_comes_first_and_changes_appear_once(steps: list[tuple[Verdict | None, Verdict]]) -> None:
    cases = [changed(record(now), cell=cell(mcore=mcore)) for mcore, (_, now) in zip(MCORES, steps, strict=False)]
    before = {case.key: PastResult(1, "a", was) for case, (was, _) in zip(cases, steps, strict=True) if was}
    found = changes(cases, {**before, "another": PastResult(1, "a", Verdict.HOLDS)})
    keys = [each.key for group in found.groups for each in group.records]
    assert sorted(keys) == sorted(
        case.key for case, (was, now) in zip(cases, steps, strict=True) if (was or Verdict.NOT_REACHED) is not now
    )
    assert set(keys[: len(found.newly_red)]) == found.newly_red


@pytest.mark.parametrize(
    ("was", "now", "new"),
    [
        (Verdict.HOLDS, Verdict.REGRESSED, True),
        (Verdict.UNAVAILABLE, Verdict.UNEXPLAINED, True),
        (None, Verdict.VANISHED, True),
        (Verdict.REGRESSED, Verdict.UNEXPLAINED, False),
        (Verdict.REGRESSED, Verdict.HOLDS, False),
    ],
)
def test_newly_red_was_not_red_before(was: Verdict | None, now: Verdict, new: bool) -> None:
    case = record(now)
    before = {"another": PastResult(1, "a", Verdict.HOLDS)} | ({case.key: PastResult(1, "a", was)} if was else {})
    assert (case.key in changes([case], before).newly_red) is new


def test_case_of_latest_run_not_planned_is_dropped() -> None:
    before = {
        "old": PastResult(1, "a", Verdict.HOLDS),
        "gone": PastResult(2, "b", Verdict.HOLDS),
        CASE.key: PastResult(2, "b", Verdict.HOLDS),
    }
    found = changes([CASE], before)
    assert (found.since, found.dropped) == ("b", ("gone",))
