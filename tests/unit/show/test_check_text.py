"""The answer of `megatrix check`, in a pipe and on narrow terminals."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ask.check.answer import CheckResult
from matrix.ask.check.checking import Question, check
from matrix.ask.check.files.declared import UserCommand
from matrix.ask.check.training_job import job_of
from matrix.ask.check.user_stack import build, parse_text
from matrix.ground.catalog.loading import NIGHT_FILE
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.stack import MCORE, TE, Place
from matrix.show.check_text import brief, headed, render, render_all, summary
from tests.founding import MASK, MPI, QUANTIZED_CALL, SAVE, SETUPTOOLS, TRANSFORMERS
from tests.profiles import tries
from tests.unit.catalogs import few, real
from tests.unit.terminals import coloured, piped, shown


def checked(text: str, words: str = "", catalog: Catalog | None = None) -> CheckResult:
    catalog = catalog or real()
    jobs = (job_of(UserCommand(tuple(words.split()), Place("job.sh", 3))),) if words else ()
    return check(catalog, build(catalog, parse_text(catalog, text)), Question(jobs), {})


def test_break_has_evidence_workaround_and_proof() -> None:
    lines = piped(*render(checked("mcore=0.8.0 torch=2.4.1"))).splitlines()
    assert lines[0].startswith(f"1 known break: {SAVE}; remedy: megatron-core 0.9.0 instead of 0.8.0")
    at = next(place for place, line in enumerate(lines) if line.startswith(f"WILL BREAK: {SAVE}: "))
    assert lines[at + 1].startswith("  why:        measured with 0.7.0 and 0.8.0 on torch 2.4.0")
    assert "  workaround: megatron-core 0.9.0 instead of 0.8.0" in lines
    assert any(line.startswith(f'  prove it: megatrix run --select "failure=={SAVE} and ') for line in lines)


def test_every_version_has_its_source() -> None:
    assert (
        piped(*render(checked("base=ngc-24.07 mcore=0.8.0")))
        .partition("\n\n")[2]
        .startswith(
            "container           ngc-24.07           command line\n"
            "torch               2.4.0a0+3bcc3cddb5  in ngc-24.07\n"
            "megatron-core       0.8.0               command line\n"
        )
    )


def test_conditions_and_options_of_a_job_are_apart() -> None:
    """A condition that no option decides concerns this job; an option that it does not give concerns another one."""
    result = checked("mcore=0.8.0 torch=2.4.1 te=1.9.0", "torchrun pretrain_gpt.py --bf16")
    folded = piped(*render(result))
    assert "\nBREAKS UNDER A CONDITION that the command does not show (3 of " in folded
    assert "BREAKS WITH OPTIONS" not in folded
    _, _, options = piped(*render(result, full=True)).partition("\nBREAKS WITH OPTIONS that the command does not give")
    assert re.search(rf"^  {MPI}: +only with --tp-comm-overlap$", options, re.MULTILINE)


def test_options_and_other_failures_are_folded() -> None:
    """The answer of a stack without a certain break fits a terminal; with --all nothing is left out."""
    result = checked("mcore=0.17.1 torch=2.9.0 te=2.10.0")
    folded, full = (piped(*render(result, full=each)) for each in (False, True))
    assert len(folded.splitlines()) < 20
    assert re.match(
        r"nothing is known to break in this stack\npossible: \d+ with certain options \([a-z0-9-]+, .*, \.\.\.\), "
        r"\d+ depending on versions that are not named \([a-z0-9-]+, .*, \.\.\.\); --all shows each\n",
        folded,
    )
    assert re.search(r"^other failures: .*\d+ known to work \(--all lists them\)$", folded, re.MULTILINE)
    assert [each.failure.id for each in result.failures if each.failure.id not in full] == []


@pytest.mark.parametrize(
    ("words", "colour"),
    [
        ("mcore=0.8.0 torch=2.4.1", "31"),
        ("torch=9.9.9", "33"),
        ("mcore=0.17.1 torch=2.9.0", "32"),
        ("torch=none mcore=none te=none", "33"),
    ],
)
def test_verdict_is_coloured_and_comes_first(words: str, colour: str) -> None:
    assert coloured(*render(checked(words))).startswith(f"\x1b[1;{colour}m")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "mcore=0.8.0 torch=2.4.1 te=1.9.0 driver=535 sm=9.0",
            f"1 known break: {SAVE}; remedy: megatron-core 0.9.0 instead of 0.8.0",
        ),
        (
            "mcore=0.8.0 torch=2.4.1 apex=1",
            f"1 known break: {SAVE}; UNKNOWN: 1 part of the input is not known",
        ),
        ("base=ngc-24.07", "nothing is known to break in this stack; not named: megatron-core"),
        (
            "base=ngc-25.04 driver=470",
            "1 known break: driver 470 is too old; not named: megatron-core",
        ),
        (
            "torch=none mcore=none te=none",
            "the stack has none of torch, megatron-core and Transformer Engine: nothing was checked",
        ),
        (
            "mcore=99",
            "UNKNOWN: 1 part of the input is not known; nothing else is known to break in this stack",
        ),
    ],
)
def test_headline_names_the_first_break_and_its_remedy(text: str, expected: str) -> None:
    assert summary(checked(text, catalog=few(SAVE, MASK, MPI, SETUPTOOLS))).startswith(expected)


@given(st.data())
@tries(50)
def test_headline_has_at_most_100_characters(data: st.DataObject) -> None:
    versions = {name: data.draw(st.sampled_from(real().releases(name))) for name in (MCORE, TE)}
    words = " ".join(f"{name}={version.version}" for name, version in versions.items())
    driver = data.draw(st.sampled_from(["", "driver=470", "apex=1"]))
    assert len(summary(checked(f"{words} torch={data.draw(st.sampled_from(['2.4.1', '2.9.0', '9']))} {driver}"))) <= 100


@pytest.mark.parametrize("width", [60, 80])
def test_narrow_terminal_wraps_all_but_commands(width: int) -> None:
    out = shown(*render(checked("mcore=0.8.0 torch=2.4.1 te=1.9.0")), width=width)
    wide = [line for line in out.splitlines() if len(line) > width and "megatrix " not in line]
    assert [line for line in wide if len(line.split()) > 2] == []


def test_calls_have_error_site_and_workaround() -> None:
    lines = piped(*render(checked("mcore=0.16.1 te=1.3.0 torch=2.9.1"), full=True)).splitlines()
    at = lines.index(
        "BREAKS WITH THESE OPTIONS: a call into Transformer Engine, with --position-embedding-type == rope"
    )
    assert lines[at + 1].startswith("  TypeError:  apply_rotary_pos_emb() got an unexpected keyword argument")
    assert lines[at + 1].endswith(" fused_apply_rotary_pos_emb")
    assert lines[at + 2] == "  workaround: add --no-rope-fusion"


def test_call_that_a_job_reaches_counts() -> None:
    result = checked(
        "mcore=0.19.2 te=2.17.0 torch=2.9.1", "torchrun pretrain_gpt.py --moe-flex-dispatcher-backend ncclep"
    )
    assert (
        "WILL BREAK: a call into Transformer Engine, reached by --moe-flex-dispatcher-backend == ncclep (job.sh:3)\n"
        in piped(*render(result))
    )
    assert summary(result).startswith("1 known break: calls into Transformer Engine")


def test_reason_of_a_break_does_not_deny_it() -> None:
    """initialize_ub is not called: Megatron-LM ends before it, with the error that is the break."""
    out = piped(*render(checked("mcore=0.15.0 te=2.7.0 torch=2.9.1", "torchrun pretrain_gpt.py --tp-comm-overlap")))
    explained = out.partition(f"WILL BREAK: {QUANTIZED_CALL}")[2].partition("WILL BREAK")[0]
    assert "Megatron-LM ends with that error before it (job.sh:3)" in explained
    assert "not reached" not in explained.partition("when:")[0]


def test_evidence_is_that_of_the_project() -> None:
    out = piped(*render(checked("mcore=0.8.0 torch=2.4.1")))
    recorded = read_toml(real().failure(SAVE).folder / NIGHT_FILE)
    times, date = recorded["reproduced"]["cpu"], recorded["date"]
    assert f"  evidence:   reproduced {times} times at level cpu in the project's night of {date}; on a GPU" in out
    assert "never run" not in out


def test_brief_is_a_line_for_each_break() -> None:
    result = checked("mcore=0.8.0 torch=2.4.1 te=1.9.0 flash-attn=2.8.3", catalog=few(SAVE, MPI))
    lines = piped(*brief([result])).splitlines()
    assert lines == [
        summary(result),
        f"WILL BREAK: {SAVE}: Saving a distributed checkpoint ends in an AssertionError in torch's save planner",
        "UNKNOWN: no rule or fact of the catalog judges flash-attn 2.8.3 (command line)",
    ]


def test_brief_names_the_package_that_is_called() -> None:
    lines = piped(*brief([checked("mcore=0.18.2 torch=2.4.1")])).splitlines()
    assert [line for line in lines if "calls into" in line] == [
        "WILL BREAK: calls into torch when megatron-core is imported"
    ]


def test_file_that_states_nothing_is_one_line() -> None:
    empty = replace(check(real(), build(real(), ()), Question(), {}), files=("docs.txt",))
    full = replace(checked("mcore=0.16.1 torch=2.9.1"), files=("a.txt", "b.txt"))
    lines = piped(*render_all([empty, full])).splitlines()
    assert (
        lines[0] == "docs.txt: the input names none of torch, megatron-core and Transformer Engine: nothing was checked"
    )
    assert "a.txt b.txt" in lines
    assert headed(full, [empty, full]) == f"a.txt and b.txt: {summary(full)}"
    assert headed(full, [full]) == summary(full)


def test_upgrade_has_a_line_for_each_version() -> None:
    result = check(
        real(), build(real(), parse_text(real(), "mcore=0.17.1 te=2.19.0")), Question(upgrades=(TE, MCORE)), {}
    )
    lines = piped(*render(result)).splitlines()
    at = next(
        place for place, line in enumerate(lines) if line.startswith("upgrade: Transformer Engine 2.20.2, the newest: ")
    )
    assert lines[at + 1] == "  2.20.2  no change"
    assert at == 2  # after the headline and what is possible
    assert any(re.fullmatch(rf"  0\.18\.0 - .*not known .*{TRANSFORMERS}.*", line) for line in lines)
