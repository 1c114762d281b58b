"""The command line: output, errors and exit statuses."""

from __future__ import annotations

import importlib
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from matrix import __version__
from matrix.catalog import loading
from matrix.catalog.codec import decode
from matrix.catalog.failure import Level
from matrix.catalog.machine import PythonEnvironment
from matrix.catalog.stack import MCORE
from matrix.cli import COMMANDS, Command, places
from matrix.cli.catalog import ACTIONS
from matrix.cli.main import EPILOG, main
from matrix.cli.usage import statuses
from matrix.errors import ExitStatus, MatrixError
from matrix.planning.covering import pairwise
from matrix.planning.night import everything, night
from matrix.provision import host, installed, project
from matrix.provision.project import ROOT
from matrix.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.verdicts.planned import Planned
from matrix.verdicts.record import Record
from tests.schemas import items_of
from tests.unit import catalogs
from tests.unit.catalogs import case, clause, failure, stack
from tests.unit.engines import HOST, FakeEngine
from tests.unit.terminals import words

ENTRY = failure(
    "save-breaks",
    affected=(clause(mcore="<0.9", torch=">=2.4"),),
    works=(clause(mcore=">=0.9"), clause(torch="<2.4")),
    case=(case("tp2", (Level.CPU, Level.GPU)), case("pp2")),
)
KNOWN = catalogs.catalog(ENTRY, stacks=(stack("save-breaks", "torch-2.4.0", "0.8.0rc0"),))
NIGHT = night(KNOWN, pairwise)
CELL = "torch-2.4.0/mcore-0.8.0/te-none/driver-none"
KEY = f"{CELL} save-breaks tp2 cpu"
STRANGE = Outcome(OutcomeKind.RAISED, "rank 0 raised: KeyError", 0, chain=(Raised("KeyError", "'loss'"),))


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None) -> None:
    """Set the small catalog, a host without GPUs and an output folder of this test."""
    monkeypatch.setattr(loading, "load", lambda: KNOWN)
    monkeypatch.setattr(host, "look", lambda: HOST)
    monkeypatch.setenv("MEGATRIX_OUT", str(tmp_path / "out"))
    monkeypatch.setenv("TOX_WORK_DIR", str(tmp_path / "tox"))
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """A fake engine in place of tox; a test may change its outcomes."""
    made = FakeEngine(KNOWN)
    monkeypatch.setattr(places, "Tox", lambda *_, **__: made)
    return made


@pytest.mark.parametrize(
    ("command", "described"), [*COMMANDS.items(), *((f"catalog {name}", one) for name, one in ACTIONS.items())]
)
def test_every_command_has_help(command: str, described: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with each exit status, the examples and a document that exists."""
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert (caught.value.code, f"usage: megatrix {command} " in shown) == (0, True)
    assert described.text in " ".join(shown.split())
    ends, _, last = shown.partition("\nexit status:\n")[2].partition("\nexamples:\n")
    named = {int(status): text for status, text in re.findall(r"^  (\d+) +(.+(?:\n   .+)*)", ends, re.MULTILINE)}
    assert {status: " ".join(text.split()) for status, text in named.items()} == statuses(described)
    examples = "".join(f"    megatrix {example}\n" for example in described.examples)
    assert (last, (ROOT / described.document).is_file()) == (f"{examples}\nmore: {described.document}\n", True)


def test_exit_statuses_are_in_one_table() -> None:
    """README.md has the table; `megatrix --help` is short for it; commands have their statuses from the enum."""
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == list(ExitStatus)
    assert [int(one) for one in re.findall(r"(?:: |, )(\d+) ", EPILOG)] == list(ExitStatus)
    assert {status for command in COMMANDS.values() for status in statuses(command)} == set(ExitStatus)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("plan --json --selct x", "no such option"),
        ("run --json --jobs two", "argument --jobs: invalid int value: 'two'"),
        ("chek --json", "no such command"),
        ("plan --json --select mcor==0.8.0", "unknown component or name"),
        ("report --json", "there is no run yet"),
        ("check --json mcre=1", "no such component"),
        ("match --json /no/such.log", "the log can't be read"),
        ("contract --json --against torch", "--against needs a consumer"),
        ("explain --json torch-2.4.0", "not a cell id"),
        ("sources --json list megatron", "no such source"),
        ("bisect --json", "nothing to bisect"),
    ],
)
def test_error_with_json_is_json(line: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On stdout, with the exit status of the error; stderr has the same as text."""
    assert main(line.split()) == ExitStatus.MISTAKE
    printed = capsys.readouterr()
    (error,) = items_of(printed.out, "error")
    assert error["what"].startswith(what)
    assert what in printed.err


def test_interrupt_with_json_is_json(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.limit, engine.status = 1, KeyboardInterrupt()
    assert main(["run", "--json", "--select", "mcore==0.8.0"]) == ExitStatus.INTERRUPTED
    (error,) = items_of(capsys.readouterr().out, "error")
    assert error["what"].startswith("interrupted; continue with: ")


def test_argument_after_options_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mcore=0.8.0", "--launcher", "srun", "torch=2.4.1"]) == ExitStatus.MISTAKE
    assert "got:      torch=2.4.1\n  fix:      give options after all arguments" in capsys.readouterr().err


def test_wrong_option_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--upgrad", "te", "--lancher", "srun"]) == ExitStatus.MISTAKE
    assert "got:      --lancher\n  fix:      did you mean --launcher" in capsys.readouterr().err


def test_help_imports_no_command() -> None:
    """A command's modules are imported only for that command."""
    text = "import sys; from matrix.cli.main import parser; parser(['--help']).format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = {name for name in done.stdout.split() if name.partition(".")[0] == "matrix"}
    assert ours == {"matrix", "matrix.cli", "matrix.cli.main", "matrix.cli.usage", "matrix.errors"}


@pytest.mark.parametrize("command", ["", *COMMANDS])
@pytest.mark.parametrize("width", [80, 120])
def test_help_fits_the_terminal(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only commands and a long word may be wider."""
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > width]
    assert [line for line in wide if not line.startswith("    megatrix ") and len(line.split()) > 1] == []


def test_json_does_not_import_rich() -> None:
    text = "import sys; from matrix.cli.main import main; main(['check', '--json', 'mcore=0.8.0']); "
    text += "print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert f"megatrix {__version__}\n" == capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [[], ["paln"], ["plan", "--selct", "x"], ["run", "--jobs", "two"], ["plan", "--level", "cpux"], ["explain"],
     ["plan", "--select", "a==b", "--case", "c"], ["run", "--expect", "green"]],
    ids=shlex.join,
)  # fmt: skip
def test_a_wrong_command_or_flag_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert re.match("megatrix: .+(\n.*)*\n  fix:      .*(--help|did you mean plan)", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "--case", KEY.replace("tp2", "tp3")], ["no such case", f"did you mean {KEY}"]),
        (["run", "--case", "nothing"], ["no such case", "CELL FAILURE CASE LEVEL"]),
        (["run", "--case", KEY.replace("torch-2.4.0", "torch-2.4")], ["no such base", "did you mean torch-2.4.0"]),
        (["plan", "--expect", "works"], ["--expect requires --mcore", "--mcore SOURCE with it"]),
        (["run", "--expect", "works", "--select", "case==tp2"], ["--expect requires --mcore"]),
        (["plan", "--select", "mcor==0.8.0"], ["unknown component or name", "did you mean mcore"]),
        (["plan", "--select", "mcore>=1"], ["the selection selects nothing"]),
        (["plan", "--mcore", "./no/such/folder"], ["no such source"]),
        (["explain", "torch-2.4.0"], ["not a cell id", "BASE/mcore-VERSION"]),
        (["explain", CELL.replace("torch-2.4.0", "torch-2.4")], ["no such base", "did you mean torch-2.4.0"]),
        (["report"], ["there is no run yet", "megatrix run makes one"]),
        (["report", "20260131"], ["no such run"]),
        (["run", "--resume"], ["there is no run yet"]),
        (["run", "--resume", "20260131"], ["no such run"]),
    ],
    ids=lambda value: shlex.join(value) if isinstance(value, list) else None,
)
def test_invalid_input_exits_with_2(
    arguments: list[str], words: list[str], engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert (printed.out, [word for word in ("megatrix: ", *words) if word not in printed.err]) == ("", [])
    assert engine.bases == []


def test_the_command_in_an_error_works(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "--select", "mcore>=1"])
    (proposed,) = re.findall(r"megatrix (plan .*) lists all", capsys.readouterr().err)
    assert main(shlex.split(proposed)) == 0


def test_the_plan_is_the_night_with_its_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [f"{item.key}  [{item.expectation.value}]" for item in NIGHT] == [one for one in printed if "  [" in one]
    assert "    stack of Some#1: as reported" in printed
    assert printed[-1] == f"{len(NIGHT)} cases in {len({item.cell.id for item in NIGHT})} cells"


def test_plan_json_has_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json"]) == 0
    assert [decode(Planned, one) for one in items_of(capsys.readouterr().out, "plan")] == NIGHT


@pytest.mark.parametrize(
    ("arguments", "holds"),
    [
        (["--select", "mcore==0.8.0"], lambda item: item.cell.stack[MCORE] == "0.8.0" and item.level is Level.CPU),
        (["--select", "level==gpu", "--level", "gpu"], lambda item: item.level is Level.GPU),
        (["--case", KEY], lambda item: item.key == KEY),
        (["--case", KEY.replace("cpu", "gpu")], lambda item: item.key == KEY.replace("cpu", "gpu")),
    ],
    ids=lambda value: shlex.join(value) if isinstance(value, list) else None,
)
def test_a_plan_selects_from_all_cells(arguments: list[str], holds: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", *arguments]) == 0
    every = [item.key for item in everything(KNOWN, tuple(Level)) if holds(item)]  # type: ignore[operator]
    chosen = [str(one["key"]) for one in items_of(capsys.readouterr().out, "plan")]
    assert every == [key for key in chosen if "0.8.0rc0" not in key]  # the stack of a report, not a release


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


def test_explain_prints_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", CELL]) == 0
    assert f"{CELL}\n" == capsys.readouterr().out.splitlines(keepends=True)[0]
    assert main(["explain", "--json", CELL]) == 0
    (explained,) = items_of(capsys.readouterr().out, "explain")
    assert (explained["cell"], explained["failures"][0]["expectation"]) == (CELL, "broken")


def test_explain_lists_the_calls_that_break(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of `check` and of the upgrade map."""
    cell = "torch-2.4.0/mcore-0.9.0/te-1.5.0/driver-none"
    assert main(["explain", cell]) == 0
    assert "with --tp-comm-overlap" in capsys.readouterr().out
    assert main(["explain", "--json", cell]) == 0
    (explained,) = items_of(capsys.readouterr().out, "explain")
    assert {one["needs"] for one in explained["calls"]} == {"with --tp-comm-overlap"}


def test_a_green_run_exits_with_0(engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--select", "mcore==0.8.0 and torch>=2.4"]) == 0
    printed = capsys.readouterr().out
    assert "[4/4] save-breaks" in printed
    assert f"page: {tmp_path / 'out' / 'desk' / 'index.html'}" in printed
    assert len(engine.ran) == 4


def test_a_red_run_exits_with_1(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.ends = lambda item: STRANGE
    assert main(["run", "--case", KEY]) == 1
    assert f"megatrix run --case '{KEY}'" in capsys.readouterr().out


def test_run_json_has_each_record(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json", "--case", KEY]) == 0
    (line,) = items_of(capsys.readouterr().out, "records")
    assert (decode(Record, line).key, line["verdict"]) == (KEY, "reproduced")


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
    assert main(["run", "--select", "mcore==0.8.0", "--out", out]) == 130
    hint = capsys.readouterr().err.removeprefix("megatrix: interrupted; continue with: ").rstrip("\n")
    assert hint.startswith(f"{called or 'python3 -m matrix'} run --resume 2")
    engine.limit, engine.status = None, 0
    assert main(shlex.split(hint[hint.index("run --resume") :])) == 0
    assert 6 == len(set(engine.ran)) == len(engine.ran)


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


@pytest.mark.parametrize("command", [["run", "--resume"], ["report"], ["catalog", "keep"]])
def test_unreadable_output_folder_exits_with_2(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For root, every folder is readable: the system's answer is replaced."""

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    monkeypatch.setattr(Path, "glob", lambda path, pattern: refuse(path))
    monkeypatch.setattr(Path, "is_file", refuse)
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_error_shows_no_escape_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "\x1b]0;title\x07"]) == 2
    assert "\\x1b]0;title" in (printed := capsys.readouterr().err)
    assert "\x1b" not in printed


def test_settings_are_checked_first(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(project, "home", lambda: tmp_path)
    (tmp_path / "megatrix.toml").write_text("[source]\nmegatron-lm = 'x'\n")
    for command in (["plan"], ["explain", CELL], ["run"], ["run", "--case", KEY]):
        assert main(command) == 2
        assert "megatrix.toml.source: unknown key" in capsys.readouterr().err
    assert engine.bases == []


@pytest.mark.parametrize("columns", ["0", "1", "5", "16", "80"])
def test_report_is_complete_at_any_width(
    columns: str, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.ends = lambda item: STRANGE
    main(["run"])
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["report"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"    megatrix run --case '{KEY}'" in lines
    assert "  torch-2.4.0/mcore-0.8.0 tp2 cpu" in lines


def test_report_rebuilds_the_report_of_a_run(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.ends = lambda item: STRANGE
    main(["run"])
    capsys.readouterr()
    assert main(["report", "--json"]) == 1
    records = (decode(Record, one) for one in items_of(capsys.readouterr().out, "records"))
    assert [record.key for record in records] == [item.key for item in NIGHT]
    assert main(["report"]) == 1
    assert "page: " in capsys.readouterr().out


def test_resume_with_a_selection_is_refused(engine: FakeEngine) -> None:
    main(["run", "--case", KEY])
    try:
        status = main(["run", "--resume", "--select", "case==pp2"])
    except SystemExit as error:
        status = int(error.code or 0)
    assert status == 2


def test_an_engine_error_exits_with_2(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.limit, engine.status = 0, MatrixError("tox is needed to run", fix="pip install tox")
    assert main(["run", "--case", KEY]) == 2
    assert capsys.readouterr().err == "megatrix: tox is needed to run\n  fix:      pip install tox\n"


def test_every_key_of_the_night_can_be_selected(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [item.key for item in NIGHT]
    assert main(["plan", "--json", *(word for key in keys for word in ("--case", key))]) == 0
    assert keys == [one["key"] for one in items_of(capsys.readouterr().out, "plan")]


def test_stats_count_the_night(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--stats", "--json"]) == 0
    (found,) = items_of(capsys.readouterr().out, "plan-stats")
    assert {one["failure"]: one["night"] for one in found["night"]} == {"save-breaks": len(NIGHT), "all": len(NIGHT)}
    assert found["here"]["planned"] == len(NIGHT)


def test_stats_of_a_selection_count_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--stats", "--json", "--select", "mcore==0.8.0 and torch==2.4.0", "--level", "cpu"]) == 0
    found = items_of(capsys.readouterr().out, "plan-stats")[0]["here"]
    assert found["planned"] == found["runs"] + sum(found["missing"].values())
    assert found["held"] == 0


def test_stats_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--stats"]) == 0
    text, here = capsys.readouterr().out.split("\n\n")
    heads, *rows = [line.split() for line in text.splitlines()]
    assert (heads[0], heads[-1]) == ("failure", "night")
    assert [(row[0], row[-1]) for row in rows] == [("save-breaks", str(len(NIGHT))), ("all", str(len(NIGHT)))]
    assert {len(row) for row in rows} == {len(heads)}
    assert here.startswith(f"{len(NIGHT)} planned, ")


def test_match_of_a_known_failure_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text('Traceback (most recent call last):\n  File "a.py", line 1, in f\nTypeError: save-breaks broke\n')

    assert main(["match", str(log)]) == 0
    assert "line 3: TypeError: save-breaks broke" in words(capsys.readouterr().out)


def test_match_without_a_known_failure_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"loss: 1.0\n\xff\n")))

    assert main(["match", "-", "--json"]) == 1
    assert items_of(capsys.readouterr().out, "match") == []


def test_match_of_a_missing_log_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["match", "/no/such.log"]) == 2
    assert "the log can't be read" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run --case", "report", "bisect"])
def test_a_file_as_output_folder_exits_with_2(
    command: str, engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    given = {"run --case": [KEY], "bisect": [ENTRY.id, "--axis", "torch", "--mcore", "0.8.0"]}
    assert main([*command.split(), *given.get(command, []), "--out", str(tmp_path / "file")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_without_tox_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert (main(["run"]), main(["report"])) == (2, 2)
    printed = capsys.readouterr().err
    assert "tox is needed to run" in printed
    assert "there is no run yet" in printed


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


@pytest.mark.parametrize("minutes", ["0", "-1", "nan"])
def test_time_limit_is_above_zero(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--time-limit", minutes]) == 2
    assert "--time-limit must be above 0" in capsys.readouterr().err


def test_a_run_appends_its_github_job_summary(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "summary.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))

    main(["run"])
    assert page.read_text().startswith("before\n## Megatrix: green\n")


def test_a_report_prints_an_issue_or_a_payload(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.ends = lambda item: STRANGE
    main(["run"])
    capsys.readouterr()

    assert main(["report", "--format", "issue"]) == 1
    assert capsys.readouterr().out.startswith("# Megatrix: newly red in ")
    main(["report", "--format", "webhook"])
    assert json.loads(capsys.readouterr().out)["text"].startswith("Megatrix RED: ")


def test_a_report_needs_no_history(engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is kept as it is."""
    main(["run"])
    history = tmp_path / "out" / "history.sqlite"
    history.write_bytes(b"no database at all, and long enough to be looked at" * 100)

    assert main(["report"]) == 0
    assert "the history can't be used; the file is kept as it is" in capsys.readouterr().err
    assert history.read_bytes().startswith(b"no database at all")


def test_a_repeated_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--case", KEY, "--case", KEY]) == 2
    assert "a case is named twice" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--partition", "gpu"], ["--sbatch=--account=me"]])
def test_slurm_options_require_the_slurm_engine(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *option]) == 2
    assert "--engine slurm with them" in capsys.readouterr().err


def test_an_unknown_base_is_refused_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--select", "base==torch-2.4.9"]) == 2
    assert "did you mean torch-2.4.0" in capsys.readouterr().err


def test_within_selects_from_the_night(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--within", "base==torch-2.4.0", "--json"]) == 0
    keys = [one["key"] for one in items_of(capsys.readouterr().out, "plan")]
    assert keys == [item.key for item in NIGHT if item.cell.base == "torch-2.4.0"] != []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("Error calling __set_name__")])
def test_interrupt_while_a_command_is_imported(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imports are most of the time of a short command. Before Python 3.12 the second one comes from a dataclass."""
    error.__cause__ = KeyboardInterrupt()
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=error))
    assert main(["check"]) == 130
    assert capsys.readouterr().err == "megatrix: interrupted\n"


def test_other_runtime_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=RuntimeError("a defect")))
    with pytest.raises(RuntimeError, match="a defect"):
        main(["check"])
