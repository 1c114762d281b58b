"""What the run command prints, and how it exits."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from matrix.cli.main import main, parser
from matrix.cli.run import Screen, command_line
from matrix.ground.catalog import loading
from matrix.ground.catalog.codec import decode
from matrix.ground.errors import ExitStatus, MatrixError
from matrix.ground.verdicts.outcome import Outcome
from matrix.ground.verdicts.record import Verdict
from matrix.prove.authoring.claims import SWAPPED
from tests.schemas import items_of
from tests.unit.cli.small_night import KEY, STRANGE
from tests.unit.engines import FakeEngine
from tests.unit.show.samples import cell, record
from tests.unit.terminals import piped, shown, words

pytestmark = pytest.mark.usefixtures("small_cli")


def test_interrupt_with_json_is_json(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.limit, engine.status = 1, KeyboardInterrupt()
    assert main(["run", "--json", "--select", "mcore==0.8.0"]) == ExitStatus.INTERRUPTED
    (error,) = items_of(capsys.readouterr().out, "error")
    assert error["what"].startswith("interrupted; continue with: ")


def test_a_green_run_exits_with_0(engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--select", "mcore==0.8.0 and torch>=2.4"]) == 0
    printed = capsys.readouterr().out
    assert "[4/4] save-breaks" in printed
    assert f"page: {tmp_path / 'out' / 'desk' / 'index.html'}" in printed
    assert len(engine.ran) == 4


def test_quiet_run_prints_its_verdict_alone(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-q", "--select", "mcore==0.8.0 and torch>=2.4"]) == 0
    assert capsys.readouterr() == ("GREEN: nothing is red in 4 cases; 4 ran, 0 unavailable, 0 not reached\n", "")


def test_a_red_run_exits_with_1(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.ends = lambda item: STRANGE
    assert main(["run", "--case", KEY]) == 1
    assert f"megatrix run --case '{KEY}'" in capsys.readouterr().out


def test_run_json_has_each_record(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json", "--case", KEY]) == 0
    (line,) = items_of(capsys.readouterr().out, "records")
    assert (line["cell"]["id"], line["case"], line["verdict"]) == (KEY.split()[0], "tp2", "reproduced")


def test_a_resumed_run_reaches_the_remaining_cases(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The interrupted run exits with 1; no case runs twice."""
    engine.limit, engine.status = 1, 137
    assert main(["run", "--select", "mcore==0.8.0"]) == 1
    (folder,) = (tmp_path / "out" / "runs").iterdir()
    assert "megatrix: 5 of 6 cases were not reached: the engine ended with 137" in capsys.readouterr().err
    engine.limit = None
    engine.status = 0
    assert main(["run", "--resume", folder.name]) == 0
    assert 6 == len(set(engine.ran)) == len(engine.ran)


@pytest.mark.parametrize("called", ["tox run -e megatrix --", ""])
def test_ctrl_c_exits_with_130_and_names_resume(
    called: str, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command is one that this user has, with the folder that this user gave; it works."""
    monkeypatch.setenv("MEGATRIX_COMMAND", called)
    monkeypatch.setenv("PATH", "")
    out = str(tmp_path / "a folder")
    engine.limit, engine.status = 1, KeyboardInterrupt()
    options = ["--no-cache", "--time-limit", "60", "--jobs", "7"]
    assert main(["run", "--select", "mcore==0.8.0", "--out", out, *options]) == 130
    hint = capsys.readouterr().err.removeprefix("megatrix: interrupted; continue with: ").rstrip("\n")
    assert hint.startswith(f"{called or 'python3 -m matrix'} run --resume 2")
    assert {"--no-cache", "--time-limit=60.0", "--jobs=7"} < {*shlex.split(hint)}
    engine.limit, engine.status = None, 0
    assert main(shlex.split(hint[hint.index("run --resume") :])) == 0
    assert 6 == len(set(engine.ran)) == len(engine.ran)


def test_interrupt_before_the_run_repeats_the_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a command line of any length."""
    monkeypatch.setenv("MEGATRIX_COMMAND", "python3 -m tox run -e megatrix --")
    monkeypatch.setattr(loading, "load", Mock(side_effect=KeyboardInterrupt))
    words = ["run", *(f"--case={KEY} {number}" for number in range(50)), "--no-cache"]
    assert main([*words, "--out", "reports/out"]) == 130
    hint = capsys.readouterr().err.removeprefix("megatrix: interrupted; continue with: ").rstrip("\n")
    assert hint == f"python3 -m tox run -e megatrix -- {shlex.join(words)}"


@pytest.mark.parametrize("command", [["run", "--resume"], ["report"]])
def test_newest_night_is_meant_before_newer_runs(command: list[str], engine: FakeEngine) -> None:
    """Without a night, the newest run is meant."""
    engine.ends = lambda item: STRANGE
    main(["run", "--case", KEY])
    assert main(command) == 1
    engine.ends = engine.as_expected
    main(["run"])
    engine.ends = lambda item: STRANGE
    main(["run", "--case", KEY, "--no-cache"])
    assert main(command) == 0


def test_run_in_which_nothing_ran_is_not_green(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "lacks", lambda base: "no podman")
    assert main(["run"]) == 3
    assert "INCOMPLETE: none of " in capsys.readouterr().out
    assert main(["report"]) == 3


def test_smoke_without_cases_is_not_green(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """No base of this catalog has a size."""
    assert main(["run", "--smoke"]) == 3
    assert "not every case of the smoke ran" in capsys.readouterr().err


def test_an_engine_error_exits_with_2(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.limit, engine.status = 0, MatrixError("uv is required", fix="pip install uv")
    assert main(["run", "--case", KEY]) == 2
    assert capsys.readouterr().err == "megatrix: uv is required\n  fix:      pip install uv\n"


def test_a_run_without_uv_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("matrix.prove.provision.indexes.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setattr("matrix.prove.provision.bases.Pythons.lack", lambda pythons, base: "")  # some lack Python 3.10
    assert (main(["run"]), main(["report"])) == (2, 2)
    printed = capsys.readouterr().err
    assert "uv is required" in printed
    assert "there is no run yet" in printed


def test_a_run_appends_its_github_job_summary(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "summary.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))

    main(["run"])
    assert page.read_text().startswith("before\n## Megatrix: green\n")


@pytest.mark.parametrize(
    ("variable", "on_path", "out", "line"),
    [
        ("", "/usr/bin/megatrix", "reports/out", "megatrix run --resume night"),
        ("", None, "reports/out", "python3 -m matrix run --resume night"),
        ("tox run -e megatrix --", None, "reports/out", "tox run -e megatrix -- run --resume night"),
        ("", None, "a folder", "python3 -m matrix run --resume night '--out=a folder'"),
    ],
)
def test_resume_line_is_a_command_of_this_user(
    variable: str, on_path: str | None, out: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: on_path)
    monkeypatch.setenv("MEGATRIX_COMMAND", variable)
    assert command_line(parser(["run"]).parse_args(["run", "--out", out]), "night") == line


def test_bundle_is_resumed_by_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """start.py names the bundle itself."""
    monkeypatch.setenv("MEGATRIX_COMMAND", "python3.12 /media/b/start.py")
    parsed = parser(["run"]).parse_args(["run", "--time-limit=9", "--bundle=/media/b", "--out=reports/out"])
    assert command_line(parsed, "night") == "python3.12 /media/b/start.py run --resume night --time-limit=9.0"


@pytest.mark.parametrize(("ends", "status"), [(None, 0), (STRANGE, 125)])
def test_exit_code_is_that_of_git_bisect(ends: Outcome | None, status: int, engine: FakeEngine) -> None:
    """Neither the failure nor a pass: the commit is skipped."""
    engine.ends = (lambda item: ends) if ends else (lambda item: decode(Outcome, {"kind": "passed"}))
    assert main(["run", "--exit-code", "--case", KEY]) == status


def test_a_broken_failure_turns_red(engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its run stays out of the nights."""
    usual = engine.as_expected
    engine.ends = lambda item: usual(replace(item, expectation=SWAPPED[item.expectation]))
    assert main(["run", "--break", "save-breaks", "--select", "torch==2.4.0"]) == 0
    assert "vanished" in (printed := capsys.readouterr().out)
    assert "regressed" in printed
    assert not (tmp_path / "out" / "runs").exists()
    assert (tmp_path / "out" / "broken-on-purpose" / "runs").is_dir()


def test_run_opens_with_the_unavailable_cases(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """In a few lines, with what they lack; then what runs, and the lines of the others count on."""
    assert main(["run", "--level", "cpu", "--level", "gpu", "--select", "mcore==0.8.0"]) == 0
    first, second, third, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("unavailable x 3: ")
    assert second.startswith("6 cases to run, 0 from the cache; expected: ")
    assert next(line for line in [third, *rest] if line.startswith("[")).startswith("[4/9] save-breaks")


LINE = ["run", "--line", "torch2.4.0"]
SHARE = [f"torch-2.4.0/mcore-{core}/te-none/driver-none save-breaks" for core in ("0.8.0", "0.9.0")]


def test_line_runs_its_share(engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The night's part of its base and both sides of what torch decides."""
    assert main(LINE) == 0
    printed = capsys.readouterr().out
    assert f"{len(engine.ran)} cases to run, 0 from the cache; expected: " in printed
    assert " GB of disk, made: torch-2.4.0" in printed
    assert {key.split("/")[0] for key in engine.ran} == {"torch-2.4.0"}
    assert {f"{cell} tp2 cpu" for cell in SHARE} <= {*engine.ran}
    assert [run.name.endswith("Z-torch2.4.0") for run in (tmp_path / "out" / "runs").iterdir()] == [True]


@pytest.mark.parametrize("words", [["-k", "nothing"], ["--lf"], ["--lf", "-k", "tp2"]])
def test_selection_of_nothing_is_no_green_run(engine: FakeEngine, words: list[str], tmp_path: Path) -> None:
    assert main([*LINE, *words]) == ExitStatus.MISTAKE
    assert not engine.ran


def test_last_red_cases_of_a_line_run_again(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of this line, not of a later run of another selection; when they are green there is none."""
    red = f"{SHARE[0]} pp2 cpu"
    engine.ends = lambda item: STRANGE if item.key == red else engine.as_expected(item)
    assert main(LINE) == ExitStatus.BAD
    engine.ends = engine.as_expected
    main(["run", "--case", KEY, "--no-cache"])
    engine.ran.clear()
    assert main([*LINE, "--lf"]) == 0
    assert engine.ran == [red]
    assert main([*LINE, "--lf"]) == ExitStatus.MISTAKE
    assert "no red case in the last run of torch2.4.0" in capsys.readouterr().err


def test_line_resumes_its_own_run(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.limit, engine.status = 1, 137
    assert main(LINE) == ExitStatus.BAD
    engine.limit, engine.status = None, 0
    assert main(["run", "--line", "torch2.3.1", "--resume"]) == ExitStatus.MISTAKE
    assert "no run of this line" in capsys.readouterr().err
    assert main([*LINE, "--resume"]) == 0
    assert len(engine.ran) == len({*engine.ran}) > 1


@pytest.mark.parametrize(
    ("option", "fix"), [("--pdb", "pytest tests/failures/ID"), ("-x", "--lf"), ("--maxfail=1", "--help")]
)
def test_options_of_pytest_name_what_replaces_them(option: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, option]) == ExitStatus.MISTAKE
    assert fix in capsys.readouterr().err


LONG = cell("ngc-24.03", "0.9.0rc0+094d66b", "1.9.0.dev0+f9dd37f", "470.161.03")
NAME = "ngc-24.03/mcore-0.9.0rc0+094d66b/te-1.9.0.dev0+f9dd37f/driver-470.161.03"


def test_line_counts_and_names_the_case() -> None:
    screen = Screen(24)
    lines = [piped(screen.line(record(Verdict.REPRODUCED))) for _ in range(3)]
    assert lines[2] == "[ 3/24] dud-assertion tp2 cpu torch-2.4.0/mcore-0.8.0 reproduced 1.1 s\n"


def test_line_of_a_red_case_has_the_reason() -> None:
    first, *rest = shown(Screen(1).line(record(Verdict.UNEXPLAINED))).splitlines()
    assert first.endswith("unexplained 1.1 s")
    assert "_write_item() missing" in " ".join(rest)


def test_line_names_the_run_of_a_cached_verdict() -> None:
    assert piped(Screen(1).line(record(cached_from="a"))).endswith("holds from a\n")


@pytest.mark.parametrize("width", [16, 40, 80, 120])
def test_cell_of_a_line_is_never_cut(width: int) -> None:
    line = shown(Screen(100).line(record(where=LONG)), width=width)
    assert NAME in line
    assert words(line) == f"[ 1/100] dud-assertion tp2 cpu {NAME} holds 1.1 s ".replace("[ ", "[  ").replace(
        "[  ", "[ "
    )
    assert max(map(len, line.splitlines())) <= max(width, len(NAME) + len("[  1/100] "))


def test_log_and_pipe_get_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(2).show(record())
    assert capsys.readouterr().out == "[1/2] dud-assertion tp2 cpu torch-2.4.0/mcore-0.8.0 holds 1.1 s\n"


def test_log_states_the_remaining_time_each_minute(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 30.0, 120.0, 120.0, 150.0])
    screen = Screen(10, lambda: next(times))
    screen.open([record(Verdict.UNAVAILABLE)] * 4)
    for _ in range(3):
        screen.show(record())
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "left" in line] == ["6 of 10 cases ended, about 4 minutes left"]
    assert printed[3] == "6 of 10 cases ended, about 4 minutes left"
