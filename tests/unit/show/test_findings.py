"""Any text in any format: no command, element, markup or terminal code of its own."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.cli.command_options import FINDING_FORMATS
from matrix.show.findings import FORMATS, Findings
from tests.profiles import tries
from tests.unit.show.finding_samples import hostile

TEXTS = ["a\n::error::b", "100%", "| a | `b` <script> @c", "\x1b[31m\x07", "\ud800", "]]>", "", "\x00"]


def well_formed(name: str, text: str) -> None:
    """Assert that the format has one finding, in one piece."""
    written = FORMATS[name](hostile(text))
    written.encode()
    assert "\x1b" not in written
    if name == "sarif":
        assert len(json.loads(written)["runs"][0]["results"]) == 1
    elif name == "junit":
        assert len(ET.fromstring(written).findall("testsuite/testcase")) == 1
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
    assert tuple(FORMATS) == FINDING_FORMATS
