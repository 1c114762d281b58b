"""The requests that the options of plan and run make."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from matrix.cli import case_options, places
from matrix.cli.main import main
from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.catalog.machine import Machine, PythonEnvironment
from matrix.ground.errors import MatrixError
from matrix.prove.authoring.claims import SWAPPED
from matrix.prove.planning.case_request import CaseRequest
from matrix.prove.provision import host
from matrix.prove.provision.host import LocalSite
from matrix.prove.store.paths import NIGHT as NIGHT_LABEL
from matrix.read.machine import installed
from tests.schemas import items_of
from tests.unit.cli.small_night import KEY, KNOWN
from tests.unit.engines import FakeEngine

pytestmark = pytest.mark.usefixtures("small_cli")


@pytest.mark.parametrize("level", ["cpu", "gpu"])
def test_a_reported_stack_can_be_selected(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The case may need another machine: the pasted command may come from one."""
    key = f"torch-2.4.0/mcore-0.8.0rc0/te-none/driver-none save-breaks tp2 {level}"
    assert main(["plan", "--json", "--case", key]) == 0
    assert [key] == [one["key"] for one in items_of(capsys.readouterr().out, "plan")]


@pytest.mark.parametrize(("given", "expected"), [([], "works"), (["--expect", "broken"], "broken")])
def test_a_source_tree_is_expected_to_work(
    tmp_path: Path, given: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    core = tmp_path / "megatron" / "core"
    core.mkdir(parents=True)
    (core / "package_info.py").write_text("MAJOR = 0\nMINOR = 8\nPATCH = 0\nPRE_RELEASE = ''\n")
    (core / "__init__.py").touch()
    assert main(["plan", "--json", "--mcore", str(tmp_path), *given]) == 0
    planned = items_of(capsys.readouterr().out, "plan")
    assert ({expected}, {str(tmp_path)}) == (
        {str(line["expectation"]) for line in planned},
        {str(line["source"]) for line in planned},
    )


def test_a_release_has_the_expectations_of_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", "--mcore", "0.8.0"]) == 0
    assert {"works", "broken"} == {one["expectation"] for one in items_of(capsys.readouterr().out, "plan")}


def test_resume_with_a_selection_is_refused(engine: FakeEngine) -> None:
    main(["run", "--case", KEY])
    try:
        status = main(["run", "--resume", "--select", "case==pp2"])
    except SystemExit as error:
        status = int(error.code or 0)
    assert status == 2


def test_here_plans_the_installed_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    packages = {"torch": "2.4.0", "megatron-core": "0.8.0"}
    monkeypatch.setattr(installed, "current", lambda: PythonEnvironment("3.10.13", packages))
    assert main(["plan", "--here", "--json"]) == 0
    cells = {one["key"].partition(" ")[0] for one in items_of(capsys.readouterr().out, "plan")}
    assert cells == {"host/mcore-0.8.0/te-none/driver-none"}


@pytest.mark.parametrize("other", ["--mcore 0.8.0", "--within base==host", "--engine slurm", "--resume"])
def test_here_with_another_selection_is_refused(
    other: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(places, "engine_of", lambda *_: (FakeEngine(KNOWN), None))
    assert main(["run", "--here", *other.split()]) == 2
    assert "leave one out" in (printed := capsys.readouterr().err) or "there is no run yet" in printed


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "1e400", "525601"])
def test_time_limit_is_above_zero_and_finite(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--time-limit", minutes]) == 2
    assert "no such --time-limit" in capsys.readouterr().err


def test_a_repeated_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--case", KEY, "--case", KEY]) == 2
    assert "a case is named twice" in capsys.readouterr().err


def test_an_unknown_base_is_refused_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--select", "base==torch-2.4.9"]) == 2
    assert "did you mean torch-2.4.0" in capsys.readouterr().err


def parsed(*arguments: str) -> argparse.Namespace:
    return case_options.parser_of("run").parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "request_"),
    [
        ([], CaseRequest((Level.CONTRACT, Level.CPU))),
        (["--level", "gpu", "--level", "cpu"], CaseRequest((Level.GPU, Level.CPU))),
        (["--engine", "slurm"], CaseRequest(tuple(Level), on_cluster=True)),
        (["--select", "case==tp2"], CaseRequest((Level.CONTRACT, Level.CPU), select="case==tp2")),
        (["--smoke"], CaseRequest((Level.CONTRACT, Level.CPU), smoke=1_000)),
        (["--smoke=1"], CaseRequest((Level.CONTRACT, Level.CPU), smoke=1)),
        (["--case", "a", "--case", "b"], CaseRequest((Level.CONTRACT, Level.CPU), keys=("a", "b"))),
        (
            ["--mcore", "x", "--writer", "y", "--compile", "--expect", "broken"],
            CaseRequest(
                (Level.CONTRACT, Level.CPU),
                sources={"source": "x", "writer_source": "y"},
                compiled=True,
                expect=Expectation.BROKEN,
            ),
        ),
    ],
)
def test_options_make_the_request(arguments: list[str], request_: CaseRequest) -> None:
    assert case_options.request_of(parsed(*arguments)) == request_


def test_a_machine_with_a_gpu_requests_every_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "look", lambda: LocalSite(Machine("535.129.03", 1)))
    assert case_options.request_of(parsed()).levels == tuple(Level)


@pytest.mark.parametrize(
    ("arguments", "limit_s"), [([], None), (["--time-limit", "1.5"], 90.0), (["-n", "1", "--jobs", "1"], None)]
)
def test_time_limit_is_in_minutes(arguments: list[str], limit_s: float | None) -> None:
    assert case_options.checked_limit(parsed(*arguments)) == limit_s


@pytest.mark.parametrize("arguments", [["--jobs", "0"], ["-n", "0"], ["-n", "-1"]])
def test_at_least_one_runs_at_a_time(arguments: list[str]) -> None:
    with pytest.raises(MatrixError, match=f"{arguments[0]} must be at least 1"):
        case_options.checked_limit(parsed(*arguments))


@pytest.mark.parametrize(
    ("arguments", "label", "folder"),
    [
        ([], NIGHT_LABEL, ""),
        (["--level", "cpu"], "part", ""),
        (["--within", "base==torch-2.4.0"], "part", ""),
        (["--smoke"], "part", ""),
        (["--select", "case==tp2"], "select", ""),
        (["--case", KEY], "case", ""),
        (["--break", "save-breaks"], "break", "broken-on-purpose"),
    ],
)
def test_only_a_whole_night_is_labelled_night(arguments: list[str], label: str, folder: str, tmp_path: Path) -> None:
    request = case_options.requested(KNOWN, parsed(*arguments, "--out", str(tmp_path)))
    assert (request.label, request.out, request.cache) == (label, tmp_path / folder, label != "break")


def test_break_swaps_expectations_of_one_failure(tmp_path: Path) -> None:
    words = ("--select", "torch==2.4.0", "--out", str(tmp_path))
    usual, swapped = (
        {item.key: item.expectation for item in case_options.requested(KNOWN, parsed(*words, *further)).planned}
        for further in ((), ("--break", "save-breaks"))
    )
    assert set(usual.values()) == {Expectation.BROKEN, Expectation.WORKS}
    assert swapped == {key: SWAPPED[expectation] for key, expectation in usual.items()}
    with pytest.raises(MatrixError, match="did you mean save-breaks"):
        case_options.requested(KNOWN, parsed("--case", KEY, "--break", "save-break"))


@pytest.mark.parametrize(
    "option", ["--select=x", "--within=x", "--smoke", "--case=x", "--mcore=x", "--level=cpu", "--here"]
)
def test_a_resumed_run_keeps_its_plan(option: str) -> None:
    with pytest.raises(MatrixError, match="a resumed run keeps its plan"):
        case_options.resumed(parsed("--resume", "20260101", option))


@pytest.mark.parametrize(("words", "variable"), [((), None), (("--mps",), "1")])
def test_mps_reaches_the_processes_of_the_run(tmp_path: Path, words: tuple[str, ...], variable: str | None) -> None:
    request = case_options.requested(KNOWN, parsed("--case", KEY, "--out", str(tmp_path), *words))
    assert request.environ.get("MEGATRIX_MPS") == variable
