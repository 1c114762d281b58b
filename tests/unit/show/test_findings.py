"""Any text in any format: no command, element, markup or terminal code of its own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ask.check.answer import CheckResult
from matrix.ask.check.checking import Question, check
from matrix.ask.check.files.declared import Statement, Unread, UnreadKind
from matrix.ask.check.rulings import Clash
from matrix.ask.check.user_stack import build
from matrix.cli.usage import texts
from matrix.ground.catalog.stack import MCORE, TE, TORCH, Place
from matrix.show.findings import FORMATS, Findings, Severity, line_of, of_check
from tests.founding import MASK, SAVE
from tests.profiles import tries
from tests.unit.catalogs import real
from tests.unit.show.finding_samples import hostile

TEXTS = ["a\n::error::b", "100%", "| a | `b` <script> @c", "\x1b[31m\x07", "\ud800", "]]>", "", "\x00"]


def well_formed(name: str, text: str) -> None:
    """Assert that the format has one finding, in one piece."""
    written = FORMATS[name](hostile(text))
    written.encode()
    assert "\x1b" not in written
    if name == "sarif":
        assert len(json.loads(written)["runs"][0]["results"]) == 1
    elif name == "github":
        assert [line[:8] for line in written.split("\n")] == ["::error ", "::notice", "::notice"]
    else:
        assert "<script>" not in written


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", FORMATS)
def test_text_can_not_inject(name: str, text: str) -> None:
    well_formed(name, text)


@tries(100)
@given(st.sampled_from(sorted(FORMATS)), st.text(st.characters()))
def test_any_text_is_well_formed(name: str, text: str) -> None:
    well_formed(name, text)


@pytest.mark.parametrize("name", FORMATS)
def test_no_findings_are_no_error(name: str) -> None:
    assert "error " not in FORMATS[name](Findings("megatrix check", (), ("nothing is known to break",)))


def test_every_format_is_a_command_line_choice() -> None:
    assert [*FORMATS] == texts("shared")["findings"]["--format"]["choices"]


def result(core: str = "0.8.0", *clashes: Clash) -> CheckResult:
    said = [
        Statement(TORCH, "2.4.1", Place("requirements.txt", 3)),
        Statement(MCORE, core, Place("requirements.txt", 4)),
    ]
    return replace(check(real(), build(real(), said), Question(), {}), clashes=clashes)


def findings(*clashes: Clash) -> Findings:
    return of_check([result("0.8.0", *clashes)], ())


def test_certain_break_is_an_error_at_its_version() -> None:
    (error,) = [finding for finding in findings().findings if finding.severity is Severity.ERROR]
    assert (error.topic.id, error.place) == (SAVE, Place("requirements.txt", 3))
    assert error.headline.startswith(f"{SAVE}: Saving a distributed checkpoint")
    assert error.topic.help.startswith("NVIDIA/Megatron-LM#1003")


def test_break_with_options_is_a_warning() -> None:
    (mask,) = [finding for finding in findings().findings if finding.topic.id == MASK]
    assert mask.severity is Severity.WARNING


def test_break_without_its_option_is_no_finding() -> None:
    answer = result()
    lacking = tuple(replace(failure, missing=True) for failure in answer.failures)
    assert of_check([replace(answer, failures=lacking, calls=())], ()).findings == ()


def test_summary_is_the_sentence_of_the_answer() -> None:
    assert findings().summary[0].startswith(f"1 known break: {SAVE}")


def test_clash_comes_first() -> None:
    clash = findings(Clash("too old", Place("a.txt", 5))).findings[0]
    assert (clash.topic.id, clash.message, clash.severity, clash.place) == (
        "stack", "too old", Severity.ERROR, Place("a.txt", 5)
    )  # fmt: skip


def test_call_is_at_the_line_of_the_engine() -> None:
    said = [
        Statement(TE, "1.3.0", Place("requirements.txt", 7)),
        Statement(MCORE, "0.16.1", Place("requirements.txt", 4)),
    ]
    listed = of_check([check(real(), build(real(), said), Question(), {})], ()).findings
    call = next(finding for finding in listed if "hybrid-context-parallel" in finding.message)
    assert (call.headline, call.place) == ("call: a call into Transformer Engine breaks", Place("requirements.txt", 7))
    assert "TEDotProductAttention.forward" in call.message


def test_stack_without_breaks_has_no_findings() -> None:
    nothing = of_check([replace(result(), failures=(), calls=())], ())
    assert (nothing.findings, nothing.summary) == (
        (), ("nothing is known to break in this stack; not named: Transformer Engine",)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "line"),
    [
        (Place("a/b", 3), Place("a/b", 3)),
        (Place("command line"), None),
        (Place("in ngc-24.07"), None),
        (None, None),
        (Place("uv.lock"), Place("uv.lock", 1)),
    ],
)
def test_place_is_a_file_and_a_line(stated: Place | None, line: Place | None) -> None:
    assert line_of(stated, ["uv.lock"]) == line


def test_unread_part_is_a_warning_at_its_line() -> None:
    item = Unread(UnreadKind.FILE, "gone.txt is missing", Place("requirements.txt", 2))
    answer = replace(result(), failures=(), calls=())
    (finding,) = of_check([replace(answer, unknown=(item,))], ()).findings
    assert (finding.topic.id, finding.severity, finding.place) == ("unknown", Severity.WARNING, item.place)
    assert finding.message.startswith("gone.txt is missing. To do: add the file")
