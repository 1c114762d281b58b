from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from matrix.prove.provision import te_wheels
from matrix.prove.provision.te_wheels import SOURCE, build_helper
from matrix.read.commands import CommandResult

PYTHON = Path("/env/bin/python")
FACTS = CommandResult(0, "/py/include\n.cpython-310-x86_64-linux-gnu.so\n/env/torch\n")


class Tools:
    """A runner that records every command; the result of the compiler is `compiled`."""

    def __init__(self, facts: CommandResult = FACTS, compiled: CommandResult | None = None) -> None:
        self.facts, self.compiled = facts, compiled or CommandResult(0)
        self.commands: list[list[str]] = []

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        self.commands.append(list(command))
        if "-o" in command:
            Path(command[-1]).write_bytes(b"made")
        return self.facts if command[0] == str(PYTHON) else self.compiled


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(te_wheels, "compiler", lambda: "/usr/bin/g++")
    source = tmp_path / SOURCE
    source.parent.mkdir(parents=True)
    source.write_text("#include <pybind11/pybind11.h>\nPYBIND11_MODULE(helpers_cpp, m) {}\n")
    return tmp_path


def test_the_helper_is_compiled_with_torchs_headers(tree: Path) -> None:
    tools = Tools()

    assert build_helper(tree, PYTHON, tools, tree / "kept") == ""

    command = tools.commands[-1]
    assert command[0] == "/usr/bin/g++"
    assert {"-I/py/include", "-I/env/torch/include"} <= set(command)
    assert command[-1] == str(tree / SOURCE.parent / "helpers_cpp.cpython-310-x86_64-linux-gnu.so")


def test_a_compiler_that_fails_is_a_note(tree: Path) -> None:
    note = build_helper(
        tree, PYTHON, Tools(compiled=CommandResult(1, err="fatal error: pybind11.h: No such file")), tree / "kept"
    )

    assert note == "no compiled dataset helper: fatal error: pybind11.h: No such file"


def test_a_machine_without_a_compiler_is_a_note(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(te_wheels, "compiler", lambda: None)

    assert "no C++ compiler" in build_helper(tree, PYTHON, Tools(), tree / "kept")


def test_a_failing_interpreter_is_a_note(tree: Path) -> None:
    assert "/env/bin/python fails" in build_helper(
        tree, PYTHON, Tools(facts=CommandResult(127, err="gone")), tree / "kept"
    )


def test_a_tree_without_the_source_is_a_note(tmp_path: Path) -> None:
    assert "helpers.cpp is not in this tree" in build_helper(tmp_path, PYTHON, Tools(), tmp_path / "kept")


def test_a_source_is_compiled_once_per_environment(tree: Path, tmp_path: Path) -> None:
    """Another source, or another environment, is compiled again."""
    kept = tmp_path / "kept"

    tools = Tools()
    target = tree / SOURCE.with_name("helpers_cpp.cpython-310-x86_64-linux-gnu.so")
    for _ in range(2):
        target.unlink(missing_ok=True)
        assert build_helper(tree, PYTHON, tools, kept) == ""
        assert target.read_bytes() == b"made"
    assert len([one for one in tools.commands if "-o" in one]) == 1

    (tree / SOURCE).write_text("// changed\nPYBIND11_MODULE(helpers_cpp, m) {}\n")
    build_helper(tree, PYTHON, tools, kept)
    build_helper(tree, PYTHON, Tools(CommandResult(0, FACTS.out.replace("/env/torch", "/other/torch"))), kept)
    assert len(list(kept.iterdir())) == 3
    assert len([one for one in tools.commands if "-o" in one]) == 2
