"""The summary in the terminal: complete, within its width, escaped."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.catalog.failure import Level
from matrix.report.summary import Progress, colour_wanted, summary
from matrix.verdicts.outcome import Raised
from matrix.verdicts.record import Verdict
from tests.profiles import tries
from tests.unit.report.samples import cell, night, record


def test_every_red_case_has_its_command() -> None:
    lines = [line.strip() for line in summary(night()).splitlines()]
    reds = [each for each in night() if each.verdict.colour == "red"]
    assert all(red.reproduce in lines for red in reds)


def test_red_cases_come_first_and_headline_last() -> None:
    blocks = summary(night()).split("\n\n")
    assert re.match("VANISHED|REGRESSED|UNEXPLAINED", blocks[0])
    assert blocks[-1].splitlines()[-1] == "RED: 15 of 134 cases are red; 9 unavailable, 3 not reached"


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


def test_driver_is_not_shown_below_level_gpu() -> None:
    resolved = {"host driver": "535.129.03"}
    records = [record(verdict, resolved=resolved) for verdict in (Verdict.HOLDS, Verdict.REGRESSED)]
    assert "host driver" not in summary(records)


def test_missing_results_are_one_line_per_reason() -> None:
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


@pytest.mark.parametrize("width", [40, 80, 120])
def test_only_commands_are_wider_than_the_terminal(width: int) -> None:
    wide = [line for line in summary(night(), width=width).splitlines() if len(line) > width]
    assert all(line.lstrip().startswith("megatrix run") for line in wide)


def test_cases_are_counted_if_columns_do_not_fit() -> None:
    assert "1 regressed, 2 holds" in summary(night(), width=50)


def test_colour_leaves_the_text_unchanged() -> None:
    plain, coloured = summary(night()), summary(night(), colour=True)
    assert "\x1b" not in plain
    assert plain != coloured
    assert plain == re.sub(r"\x1b\[[0-9;]*m", "", coloured)


@tries(50)
@given(st.text(st.characters()))
def test_messages_are_escaped_for_the_terminal(message: str) -> None:
    red = record(Verdict.UNEXPLAINED)
    outcome = replace(red.outcome, chain=(Raised(message, message),), reason=message)
    text = summary([replace(red, outcome=outcome, notes=(message,), reproduce=message)])
    assert all(char == "\n" or char.isprintable() for char in text)


def test_night_without_cases_is_incomplete() -> None:
    assert summary([]) == "INCOMPLETE: none of 0 cases ran; 0 unavailable, 0 not reached\n"


def test_progress_counts_and_names_the_case() -> None:
    progress = Progress(24)
    lines = [progress.line(record(Verdict.REPRODUCED)) for _ in range(3)]
    assert lines[2] == "[ 3/24] dud-assertion tp2 cpu torch-2.4.0/mcore-0.8.0 reproduced 1.1 s"


def test_progress_shows_reason_of_a_red_case() -> None:
    first, *rest = Progress(1).line(record(Verdict.UNEXPLAINED)).splitlines()
    assert first.endswith("unexplained 1.1 s")
    assert "_write_item() missing" in " ".join(rest)


def test_progress_names_the_run_of_a_cached_verdict() -> None:
    assert Progress(1).line(record(cached_from="a")).endswith("holds from a")


def test_long_cell_is_cut_and_verdict_kept() -> None:
    line = Progress(1).line(record(where=cell("ngc-24.03", "0.7.0", "1.9.0.dev0+f9dd37f", "470.161.03")))
    assert len(line) == 80
    assert line.endswith("... holds 1.1 s")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "wanted"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colour_requires_a_terminal_and_no_opt_out(stream: io.StringIO, environ: dict[str, str], wanted: bool) -> None:
    assert colour_wanted(stream, environ) is wanted


def test_remaining_time_is_shown_once_enough_ran() -> None:
    now = iter([0.0, *(60.0 * n for n in range(5, 13))])
    progress = Progress(12, clock=lambda: next(now))
    lines = [progress.line(record(Verdict.UNAVAILABLE))]  # did not run, so it does not count
    lines += [progress.line(record()) for _ in range(11)]

    assert not any("to go" in line for line in lines[:5])
    assert lines[5].endswith("holds 1.1 s, 6 min to go")
    assert lines[10].endswith("holds 1.1 s, 60 s to go")
    assert lines[11].endswith("holds 1.1 s")


def test_no_remaining_time_without_a_clock() -> None:
    progress = Progress(12)
    assert not any("to go" in progress.line(record()) for _ in range(12))


def test_running_cases_are_one_line_that_fits() -> None:
    progress, one = Progress(2, width=40), record()
    progress.begin(one.key)
    progress.begin("torch-2.4.0/mcore-0.9.0/te-none/driver-none dud-assertion pp2 cpu")
    assert progress.now().startswith("now: torch-2.4.0")
    assert len(progress.now()) < 40
    progress.line(one)
    assert one.case not in progress.now().replace("pp2", "")
    progress.line(record(case="pp2", where=cell(mcore="0.9.0")))
    assert progress.now() == ""
