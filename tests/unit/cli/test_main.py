"""The command line: output, errors and exit statuses."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any
from unittest.mock import Mock

import pytest

from matrix import __version__
from matrix.cli import COMMANDS, Command
from matrix.cli.main import main, parser
from matrix.cli.usage import described, statuses
from matrix.ground.errors import ExitStatus
from matrix.prove.provision import project
from matrix.prove.provision.project import ROOT
from tests.schemas import items_of
from tests.unit.cli.small_night import CELL, ENTRY, KEY, NIGHT, STRANGE
from tests.unit.engines import FakeEngine
from tests.unit.terminals import words

pytestmark = pytest.mark.usefixtures("small_cli")


ACTIONS = {f"catalog {name}": Command(**one) for name, one in described("catalog").parts.items()}


@pytest.mark.parametrize(("command", "stated"), [*((name, described(name)) for name in COMMANDS), *ACTIONS.items()])
def test_every_command_has_help(command: str, stated: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with each exit status, the examples and a document that exists."""
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert (caught.value.code, f"usage: megatrix {command} " in shown) == (0, True)
    assert stated.text in " ".join(shown.split())
    ends, _, last = shown.partition("\nexit status:\n")[2].partition("\nexamples:\n")
    named = {int(status): text for status, text in re.findall(r"^  (\d+) +(.+(?:\n   .+)*)", ends, re.MULTILINE)}
    assert {status: " ".join(text.split()) for status, text in named.items()} == statuses(stated)
    examples = "".join(f"    megatrix {example}\n" for example in stated.examples)
    assert (last, (ROOT / stated.document).is_file()) == (f"{examples}\nmore: {stated.document}\n", True)


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
        ("check --json torch-2.4/mcore-0.8.0/te-none/driver-none", "no such base"),
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


JSON_LINES = {
    "bisect": "bisect --json",  # an error is JSON, too
    "check": "check mcore=0.8.0 torch=2.4.1 --json",
    "compare": "compare torch-2.4.1 no-such-base --json -- true",
    "contract": "contract --consumer megatron-core --mcore 0.8.0 --te 1.9.0 --json",
    "fit": "fit --offline --json torch=2.9.1",
    "show": "show te=2.11 --json",
    "match": "match no-such.log --json",
    "parity": "parity --layout tp=3 --json",
    "plan": "plan --json",
    "report": "report --json",
    "run": "run --select mcore==0.8.0 --json",
}


def test_defect_of_megatrix_exits_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Python's own status of an exception is 1: "something breaks" to a gate."""
    monkeypatch.setattr("matrix.cli.main.parser", Mock(side_effect=ValueError("not a signature")))

    assert main(["fit"]) == ExitStatus.MISTAKE
    printed = capsys.readouterr().err
    assert "ValueError: not a signature" in printed
    assert "megatrix: a defect of megatrix: ValueError" in printed


def test_json_lines_have_every_command_with_json() -> None:
    def options(parser: argparse.ArgumentParser) -> set[str]:
        parts = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        return {*parser._option_string_actions}.union(*(options(part) for parts in parts for part in parts.values()))

    assert {name for name in COMMANDS if "--json" in options(parser([name]))} == JSON_LINES.keys()


@pytest.mark.parametrize("line", [*JSON_LINES.values(), "--help", "plan --stats", "chek --json"])
def test_reader_that_has_exited_is_no_error(
    line: str, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `head`, with output of any length: what is left is written when the interpreter ends."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with suppress(SystemExit):
            main(line.split())
        monkeypatch.undo()
    assert "BrokenPipe" not in capsys.readouterr().err


def test_reader_that_has_exited_keeps_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["check", "mcore=0.8.0", "torch=2.4.1", "--json"]) == ExitStatus.BAD


def test_characters_that_stdout_lacks_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "caf\u00e9.txt"
    path.write_text("-r missing.txt")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed := io.BytesIO(), encoding="ascii"))
    assert main(["check", str(path)]) != ExitStatus.MISTAKE
    assert rb"caf\xe9.txt" in printed.getvalue()


def test_help_imports_no_command() -> None:
    """A command's modules are imported only for that command."""
    text = "import sys; from matrix.cli.main import parser; parser(['--help']).format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = {name for name in done.stdout.split() if name.partition(".")[0] == "matrix"}
    assert ours == {
        "matrix",
        "matrix.cli",
        "matrix.cli.main",
        "matrix.cli.usage",
        "matrix.ground",
        "matrix.ground.errors",
    }


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
    [[], ["paln"], ["plan", "--selct", "x"], ["run", "--jobs", "two"], ["plan", "--level", "cpux"], ["compare"],
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
        (["check", "torch-2.4.0/mcore-0.8.0"], ["not a cell id", "BASE/mcore-VERSION"]),
        (["check", CELL.replace("torch-2.4.0", "torch-2.4")], ["no such base", "did you mean torch-2.4.0"]),
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


def test_cell_is_checked_as_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", CELL]) == 1
    assert f"{CELL}\n" == capsys.readouterr().out.splitlines(keepends=True)[0]
    assert main(["check", "--json", CELL]) == 1
    (explained,) = items_of(capsys.readouterr().out, "cell")
    assert (explained["cell"], explained["failures"][0]["expectation"]) == (CELL, "broken")


def test_cell_lists_the_calls_that_break(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of `check` and of the upgrade map."""
    cell = "torch-2.4.0/mcore-0.9.0/te-1.5.0/driver-none"
    assert main(["check", cell]) == 0
    assert "with --tp-comm-overlap" in capsys.readouterr().out
    assert main(["check", "--json", cell]) == 0
    (explained,) = items_of(capsys.readouterr().out, "cell")
    assert {one["needs"] for one in explained["calls"]} == {
        "with --enable-cuda-graph",
        "with --tp-comm-overlap",
        "with --use-distributed-optimizer, when Apex is not installed",
    }


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
    assert main(["check", "\x1b]0;title\x07"]) == 2
    assert "\\x1b]0;title" in (printed := capsys.readouterr().err)
    assert "\x1b" not in printed


def test_settings_are_checked_first(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(project, "home", lambda: tmp_path)
    (tmp_path / "megatrix.toml").write_text("[source]\nmegatron-lm = 'x'\n")
    for command in (["plan"], ["check", CELL], ["run"], ["run", "--case", KEY]):
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
    printed = items_of(capsys.readouterr().out, "records")
    keys = [f"{one['cell']['id']} {one['failure']} {one['case']} {one['level']}" for one in printed]
    assert keys == [item.key for item in NIGHT]
    assert main(["report"]) == 1
    assert "page: " in capsys.readouterr().out


def test_match_of_a_known_failure_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text(
        'Traceback (most recent call last):\n  File "megatron/a.py", line 1, in f\nTypeError: save-breaks broke\n'
    )

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


def test_a_report_needs_no_history(engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is kept as it is."""
    main(["run"])
    history = tmp_path / "out" / "history.sqlite"
    history.write_bytes(b"no database at all, and long enough to be looked at" * 100)

    assert main(["report"]) == 0
    assert "the history can't be used; the file is kept as it is" in capsys.readouterr().err
    assert history.read_bytes().startswith(b"no database at all")


@pytest.mark.parametrize("option", [["--partition", "gpu"], ["--sbatch=--account=me"]])
def test_slurm_options_require_the_slurm_engine(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *option]) == 2
    assert "--engine slurm with them" in capsys.readouterr().err


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


def test_ending_process_collects_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The interpreter's last collection visits what is not frozen; a caller of main() in a process keeps its own."""
    frozen = Mock()
    monkeypatch.setattr("gc.freeze", frozen)
    main(["check", "torch=2.9.1"])
    assert not frozen.called
    monkeypatch.setattr(sys, "argv", ["megatrix", "check", "torch=2.9.1"])
    main()
    assert frozen.called
    assert "nothing is known to break" in capsys.readouterr().out


STREAMS = "standard output can't be written"


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        ("check torch=2.4.0 > /dev/full", 2, STREAMS),
        ("catalog export --schema > /dev/full", 2, STREAMS),
        ("check torch=2.4.0 >&-", 2, "standard output is closed"),
        ("match - <&-", 2, "standard input is closed"),
        ("check torch=2.4.0 2>&- >/dev/null", 0, ""),
        ("fit --constraints /dev/full", 2, STREAMS),
    ],
)
def test_streams_that_fail_exit_with_2(line: str, status: int, text: str) -> None:
    command = f"{sys.executable} -m matrix {line}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("megatrix: ")) == (status, status // 2)
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_a_command_with_130(number: int) -> None:
    command = [sys.executable, "-m", "matrix", "match", "-"]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stderr"), subprocess.PIPE)
    usual = partial(signal.signal, number, signal.SIG_DFL)  # as in a shell: under nohup, SIGHUP is ignored
    with subprocess.Popen(command, cwd=ROOT, **pipes, text=True, preexec_fn=usual) as process:
        assert process.stdin
        assert process.stderr
        while not catches(process.pid, number):
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(30) == 130
        assert process.stderr.read() == "megatrix: interrupted\n"


def test_interrupted_import_prints_no_traceback() -> None:
    code = """
        import os, runpy, signal, sys
        class Interrupting:
            def find_spec(self, name, *rest):
                if name == "matrix.cli.main":
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupting())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        runpy.run_module("matrix", run_name="__main__")
    """
    command = [sys.executable, "-c", dedent(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    mask = re.search(r"SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(mask and int(mask[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    "words",
    [
        ["x\n::error::PWN"],
        ["match", "x\n::error::PWN"],
        ["report", "--out", "x\n::error::PWN"],
        ["plan", "--select", "x\n::error::PWN"],
        ["check", "--python", "x\n::error::PWN"],
        ["plan", "--level", "x\n::error::PWN"],
        ["check", "--x\n::error::PWN"],
        ["check", "--format", "x\n::error::PWN"],
        ["contract", "x\n::error::PWN"],
        ["bisect", "x\n::error::PWN"],
        ["run", "--bundle", "x\n::error::PWN"],
        ["catalog", "new", "x\n::error::PWN"],
        ["sources", "fetch", "x\n::error::PWN"],
        ["surface", "record", "x\n::error::PWN"],
    ],
)
def test_no_error_commands_ci(words: list[str], capsys: pytest.CaptureFixture[str], handlers: None) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert not re.search(r"(?m)^\s*::", printed.err + printed.out)
    assert "\\n::error::PWN" in printed.err or ": :error" in printed.err
