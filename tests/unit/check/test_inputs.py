"""Files as people have them, written after public examples: each with its findings, stated beforehand."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from matrix.catalog.codec import decode
from matrix.catalog.folders import roots
from matrix.catalog.loading import preflight_options
from matrix.catalog.schema import read_toml
from matrix.catalog.stack import ABSENT, MCORE, TE, TORCH, UNKNOWN
from matrix.check.answer import CheckResult, Standing
from matrix.check.checking import Question, check
from matrix.check.declaring import declared_stack, read
from matrix.check.examine import Assumed, assume
from matrix.check.user_stack import parse_text
from tests.unit.catalogs import real

INPUTS = Path(__file__).with_name("inputs")
FACTS = INPUTS / "expected.toml"


@dataclass(frozen=True)
class Expected:
    """An item of expected.toml."""

    file: str
    versions: tuple[str, ...]
    certain: tuple[str, ...] = ()
    others: Mapping[str, Standing] = field(default_factory=dict)
    workaround: str = ""
    text: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


EXPECTED = {
    one.file: one for item in read_toml(FACTS)["input"] for one in [decode(Expected, item, str(FACTS))]
}  # fmt: skip


def checked(expected: Expected) -> CheckResult:
    said = parse_text(real(), expected.text) if expected.text else []
    stack, jobs = declared_stack(real(), read([str(INPUTS / expected.file)]), said)
    assumed = assume(expected.options, preflight_options(roots())) if expected.options else Assumed()
    return check(real(), stack, Question(jobs, assumed=assumed), {})


@pytest.mark.parametrize("name", EXPECTED)
def test_file_alone_names_what_breaks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is executed."""
    monkeypatch.setattr(subprocess, "Popen", None)
    expected = EXPECTED[name]

    result = checked(expected)

    stated = result.stack.stack
    shown = {name: "none" if stated[name] in (ABSENT, UNKNOWN) else stated[name] for name in (TORCH, MCORE, TE)}
    assert tuple(shown.values()) == expected.versions
    assert sorted(one.failure.id for one in result.failures if one.certain) == sorted(expected.certain)
    found = {str(one.failure.id): one.standing for one in result.failures}
    assert {id: found[id] for id in expected.others} == expected.others
    assert any(expected.workaround in each.text for one in result.failures for each in one.workarounds)
    for one in result.failures:
        texts = [each.text for each in one.workarounds]
        assert not [text for text in texts if any(other.startswith(f"{text} ") for other in texts)]
    named = [source for _, _, source in result.stack.named]
    assert all(source.startswith((str(INPUTS), "in ", "command line", "absent")) for source in named)


def test_there_are_twelve_inputs() -> None:
    assert {path.name for path in INPUTS.iterdir()} == {*EXPECTED, FACTS.name}
    assert len(EXPECTED) >= 12
