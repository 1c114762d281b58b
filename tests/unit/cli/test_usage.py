"""The help of commands, and errors of their arguments."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.cli import COMMANDS, Command
from matrix.cli.main import main
from matrix.cli.usage import Parser, add_options, described, statuses, texts, wrapped
from matrix.ground.catalog.reach import JobOption
from matrix.ground.errors import ExitStatus, MatrixError
from matrix.prove.provision.project import ROOT

pytestmark = pytest.mark.usefixtures("small_cli")


def test_exit_statuses_are_in_one_table() -> None:
    """docs/commands.md has the table; `megatrix --help` is short for it; commands have their statuses from the enum."""
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == list(ExitStatus)
    assert [int(one) for one in re.findall(r"(?:: |, )(\d+) ", texts("megatrix")["epilog"])] == list(ExitStatus)
    assert {status for command in map(described, COMMANDS) for status in statuses(command)} == set(ExitStatus)


def test_argument_after_options_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mcore=0.8.0", "--launcher", "srun", "torch=2.4.1"]) == ExitStatus.MISTAKE
    assert "got:      torch=2.4.1\n  fix:      give options after all arguments" in capsys.readouterr().err


def test_wrong_option_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--upgrad", "te", "--lancher", "srun"]) == ExitStatus.MISTAKE
    assert "got:      --lancher\n  fix:      did you mean --launcher" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("line", "wrapped_"),
    [
        ("one two three four", "one two\nthree four"),
        ("  0  one two three", "  0  one\n     two\n     three"),
        ("a-word-that-is-too-long x", "a-word-that-is-too-long\nx"),
        ("", ""),
    ],
)
def test_further_lines_start_below_the_text(line: str, wrapped_: str) -> None:
    assert wrapped(line, 10) == wrapped_


@given(st.lists(st.text("ab-", min_size=1, max_size=12), max_size=12), st.integers(8, 30))
def test_wrapping_keeps_every_word(parts: list[str], width: int) -> None:
    lines = wrapped(" ".join(parts), width).splitlines()
    assert " ".join(lines).split() == parts
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)


def test_statuses_without_a_meaning_are_left_out() -> None:
    command = Command("List.", "docs/x.md", (), "listed")
    assert statuses(command) == {
        ExitStatus.GOOD: "listed",
        ExitStatus.MISTAKE: "invalid input",
        ExitStatus.INTERRUPTED: "interrupted",
    }
    assert statuses(command._replace(bad="red", nothing="empty")).keys() == set(ExitStatus)


@pytest.mark.parametrize(
    ("arguments", "what", "fix"),
    [
        (["--colour=red"], "no such option of tool", "did you mean --color? `tool --help` describes them"),
        (["a", "b"], "an argument too many", "give options after all arguments; `tool --help` describes both"),
        (["--color"], "argument --color: expected one argument", "tool --help"),
    ],
)
def test_wrong_arguments_raise_with_a_fix(arguments: list[str], what: str, fix: str) -> None:
    parser = Parser("tool")
    parser.add_argument("word", nargs="?")
    parser.add_argument("--color")
    with pytest.raises(MatrixError) as caught:
        parser.parse_args(arguments)
    assert (caught.value.what, caught.value.fix) == (what, fix)


@pytest.mark.parametrize("name", ["json", "help", "launcher"])
def test_option_of_a_site_conflicts_with_none(name: str) -> None:
    """The preflight of a private entry may name an option that `check` has."""
    parser = Parser()
    parser.add_argument("--json")
    add_options(parser, [JobOption("launcher", "NAME")])

    with pytest.raises(MatrixError, match=f"two options of one name\n  got:      {name}"):
        add_options(parser, [JobOption(name, "NAME")])
