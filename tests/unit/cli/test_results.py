"""The newest run of an output folder, and the summary of a run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.cli.results import add_step_summary, most_with, newest, print_summary
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.record import Verdict
from matrix.prove.store.paths import BISECTION, Paths
from matrix.prove.store.stored_run import Night, write_plan
from tests.unit.show.samples import record

NIGHT, DESK, ROUND = (f"2026013{day}T020000000000Z-{label}" for day, label in enumerate(("night", "desk", BISECTION)))


@pytest.mark.parametrize(
    ("runs", "label", "expected"),
    [
        ((NIGHT, DESK), "night", NIGHT),
        ((NIGHT, DESK), "", DESK),
        ((DESK,), "night", DESK),
        ((DESK, ROUND), "", DESK),
    ],
)
def test_label_comes_before_newer_runs(runs: tuple[str, ...], label: str, expected: str, tmp_path: Path) -> None:
    for run in runs:
        write_plan(Paths(tmp_path).run(run), [])
    assert newest(tmp_path, label) == expected


def test_folder_of_bisections_has_no_run(tmp_path: Path) -> None:
    write_plan(Paths(tmp_path).run(ROUND), [])
    with pytest.raises(MatrixError, match="there is no run yet"):
        newest(tmp_path)


def test_summary_ends_with_its_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(Night(NIGHT, (record(),)), tmp_path)
    *_, headline, pages = capsys.readouterr().out.splitlines()
    assert headline.startswith("GREEN: nothing is red in 1 case")
    assert pages == f"page: {tmp_path / 'index.html'}  junit: {tmp_path / 'junit.xml'}"


def test_step_summary_is_the_one_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text("before\n")
    summary = Paths(tmp_path).pages(NIGHT).summary
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text("green")
    add_step_summary(tmp_path, NIGHT)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    add_step_summary(tmp_path, NIGHT)
    assert (tmp_path / "page.md").read_text() == "before\ngreen"


def test_a_step_summary_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    with pytest.raises(MatrixError, match=re.escape(str(tmp_path))):
        add_step_summary(tmp_path, NIGHT)


@pytest.mark.parametrize(
    ("reasons", "lines"),
    [
        (("needs a clone of megatron-lm: megatrix sources fetch",) * 2, ["2 more cases need: megatrix sources fetch"]),
        (
            (
                "needs mpirun (Debian, Ubuntu: apt-get install openmpi-bin); none on PATH",
                "needs a compiled Transformer Engine 1.9.0: no nvcc builds it here; fix: install CUDA's toolkit 12",
                "needs a compiled Transformer Engine 2.0.0: no nvcc builds it here; fix: install CUDA's toolkit 12",
            ),
            ["2 more cases need: install CUDA's toolkit 12"],
        ),
        (("needs 8 GPUs; host has 1",), []),
    ],
)
def test_remedy_of_most_cases_is_named(reasons: tuple[str, ...], lines: list[str]) -> None:
    unavailable = [record(Verdict.UNAVAILABLE) for _ in reasons]
    records = [
        replace(one, outcome=replace(one.outcome, reason=why)) for one, why in zip(unavailable, reasons, strict=True)
    ]
    assert most_with(records) == lines
