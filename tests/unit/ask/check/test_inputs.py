"""Files as people have them, written after public examples: each with its findings, stated beforehand."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from matrix.ask.check.answer import CheckResult
from matrix.ask.check.checking import Question, check
from matrix.ask.check.declaring import declared_stack, read
from matrix.ask.check.examine import Assumed, assume
from matrix.ask.check.rulings import Standing
from matrix.ask.check.user_stack import parse_text
from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.loading import preflight_options
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.stack import ABSENT, MCORE, TE, TORCH, UNKNOWN
from tests.unit.catalogs import real

INPUTS = Path(__file__).with_name("inputs")
FACTS = INPUTS / "expected.toml"


@dataclass(frozen=True)
class Expected:
    """An item of expected.toml."""

    file: str
    status: int
    versions: tuple[str, ...] = ("none", "none", "none")
    certain: tuple[str, ...] = ()
    others: Mapping[str, Standing] = field(default_factory=dict)
    workaround: str = ""
    text: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    launcher: str = ""
    processes: int | None = None
    unread: tuple[str, ...] = ()


EXPECTED = {item["file"]: decode(Expected, item, str(FACTS)) for item in read_toml(FACTS)["input"]}
PARTS = frozenset(  # files that others name
    {"bridge.toml", "bridge.lock", "model-args.sh", "constraints-swift.txt", "drawn/requirements_common.txt"}
)
NAMES = sorted(EXPECTED)


def checked(expected: Expected) -> CheckResult:
    said = parse_text(real(), expected.text) if expected.text else []
    stack, jobs = declared_stack(real(), read([str(INPUTS / expected.file)]), said)
    assumed = assume(expected.options, preflight_options()) if expected.options else Assumed()
    return check(real(), stack, Question(jobs, assumed=assumed), {})


@pytest.mark.parametrize("name", NAMES)
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
    assert not expected.workaround or any(
        expected.workaround in each.text for one in result.failures for each in one.workarounds
    )
    for one in result.failures:
        texts = [each.text for each in one.workarounds]
        assert not [text for text in texts if any(other.startswith(f"{text} ") for other in texts)]
    named = [source for _, _, source in result.stack.named]
    assert all(source.startswith((str(INPUTS), "in ", "command line", "absent")) for source in named)


@pytest.mark.parametrize("name", NAMES)
def test_file_states_jobs_and_what_is_unknown(name: str) -> None:
    expected = EXPECTED[name]

    result = checked(expected)

    given = {key: value for job in result.jobs if job.arguments for key, value in job.arguments.given.items()}
    shown = {name: "on" if value is True else value or "off" for name, value in given.items()}
    assert {name: shown.get(name) for name in expected.arguments} == expected.arguments
    environ = {key: value for job in result.jobs for key, value in job.environ.items()}
    assert {name: environ.get(name) for name in expected.environ} == expected.environ
    assert not expected.launcher or expected.launcher in {job.world.launcher.value for job in result.jobs}
    assert expected.processes is None or expected.processes in {job.size for job in result.jobs}
    texts = [f"{item.kind.value}: {item.text}" for item in result.unknown]
    assert [name for name in expected.unread if not any(name in text for text in texts)] == []
    assert len(texts) == len(expected.unread), texts
    assert result.answer.status() == expected.status, texts


def test_every_input_has_an_expectation() -> None:
    paths = {str(path.relative_to(INPUTS)) for path in INPUTS.rglob("*") if path.is_file()}
    assert paths == {*EXPECTED, FACTS.name, "unreadable.toml", *PARTS}
    assert len([name for name in EXPECTED if not name.startswith("unread/")]) >= 40
    assert len([name for name, one in EXPECTED.items() if name.startswith("unread/") and one.status == 3]) >= 15
