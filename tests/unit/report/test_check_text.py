"""The answer of `megatrix check`, in a pipe and on narrow terminals."""

from __future__ import annotations

import pytest

from matrix.catalog.place import Place
from matrix.check.answer import CheckResult
from matrix.check.checking import Question, check
from matrix.check.files.declared import UserCommand
from matrix.check.training_job import job_of
from matrix.check.user_stack import build, parse_text
from matrix.report.check_text import render, summary
from tests.founding import MPI, SAVE
from tests.unit.catalogs import real
from tests.unit.terminals import piped, shown


def checked(text: str, words: str = "") -> CheckResult:
    jobs = (job_of(UserCommand(tuple(words.split()), Place("job.sh", 3))),) if words else ()
    return check(real(), build(real(), parse_text(real(), text)), Question(jobs), {})


def test_break_has_evidence_workaround_and_proof() -> None:
    lines = piped(*render(checked("mcore=0.8.0 torch=2.4.1"))).splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith(f"WILL BREAK: {SAVE}: "))
    assert lines[at + 1].startswith("  why:        measured with 0.7.0 and 0.8.0 on torch 2.4.0")
    assert "  workaround: megatron-core 0.9.0 instead of 0.8.0" in lines
    assert any(line.startswith(f'  prove it: megatrix run --select "failure=={SAVE} and ') for line in lines)


def test_every_version_has_its_source() -> None:
    assert piped(*render(checked("base=ngc-24.07 mcore=0.8.0"))).startswith(
        "container           ngc-24.07           command line\n"
        "torch               2.4.0a0+3bcc3cddb5  in ngc-24.07\n"
        "megatron-core       0.8.0               command line\n"
    )


def test_options_that_a_command_lacks_are_one_line() -> None:
    out = piped(*render(checked("mcore=0.8.0 torch=2.4.1 te=1.9.0", "torchrun pretrain_gpt.py --bf16")))
    assert "BREAKS WITH OPTIONS that the command does not give:\n" in out
    assert f"{MPI}: " not in out.split("BREAKS WITH OPTIONS")[0]
    assert "only with --tp-comm-overlap" in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "mcore=0.8.0 torch=2.4.1 te=1.9.0 driver=535 sm=9.0",
            "1 known break in this stack; 4 more with certain options",
        ),
        ("base=ngc-24.07", "nothing is known to break in this stack; "),
        (
            "torch=none mcore=none te=none",
            "the stack has none of torch, megatron-core and Transformer Engine: nothing was",
        ),
    ],
)
def test_sum_names_what_is_open(text: str, expected: str) -> None:
    assert summary(checked(text)).startswith(expected)
    missing = summary(checked("base=ngc-24.07"))
    assert missing.endswith("more with some versions of what is not named; not named: megatron-core")


@pytest.mark.parametrize("width", [60, 80])
def test_narrow_terminal_wraps_all_but_commands(width: int) -> None:
    out = shown(*render(checked("mcore=0.8.0 torch=2.4.1 te=1.9.0")), width=width)
    wide = [line for line in out.splitlines() if len(line) > width and "megatrix " not in line]
    assert [line for line in wide if len(line.split()) > 2] == []


def test_calls_have_error_site_and_workaround() -> None:
    lines = piped(*render(checked("mcore=0.16.1 te=1.3.0 torch=2.9.1"))).splitlines()
    at = lines.index(
        "BREAKS WITH THESE OPTIONS: with --position-embedding-type == rope (a call into Transformer Engine)"
    )
    assert lines[at + 1].startswith("  TypeError:  apply_rotary_pos_emb() got an unexpected keyword argument")
    assert lines[at + 1].endswith(" fused_apply_rotary_pos_emb")
    assert lines[at + 2] == "  workaround: add --no-rope-fusion"


def test_call_that_a_job_reaches_counts() -> None:
    result = checked(
        "mcore=0.19.2 te=2.17.0 torch=2.9.1", "torchrun pretrain_gpt.py --moe-flex-dispatcher-backend ncclep"
    )
    assert (
        "WILL BREAK: reached by --moe-flex-dispatcher-backend == ncclep (a call into Transformer Engine) (job.sh:3)\n"
        in piped(*render(result))
    )
    assert summary(result).startswith("1 known break in this stack")
