from __future__ import annotations

import ast
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.provision import bases
from matrix.prove.provision.project import ROOT
from matrix.read import commands
from matrix.read.commands import NOT_STARTED, TIMED_OUT, CommandResult, python_code, python_module, redacted, run
from tests.unit.processes import ended


def test_a_result_has_status_and_both_streams() -> None:
    answer = run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"])

    assert answer == CommandResult(3, "out\n", "err\n")


def test_a_missing_tool_has_the_status_of_shells() -> None:
    assert run(["/nonexistent/tool"]).code == NOT_STARTED


def test_a_tool_is_stopped_on_timeout() -> None:
    assert run([sys.executable, "-c", "input_ = __import__('time').sleep(60)"], seconds=0.2).code == TIMED_OUT


def test_ctrl_c_ends_what_a_tool_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """debootstrap's children write into a folder that is then deleted."""
    os.mkfifo(tmp_path / "child")
    pids: list[str] = []

    def interrupted(*_: object, **__: object) -> None:
        pids.append((tmp_path / "child").read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "_printed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", f"sh -c 'trap \"\" INT; echo $$ > {tmp_path}/child; sleep 60' & wait"])
    assert ended(int(pids[0]))


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_endless_output_is_cut(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MOST", 2**20)
    result = run(["sh", "-c", f"yes {stream}"], seconds=60)
    assert (result.code, result.out, result.err) == (TIMED_OUT, "", "printed more than 1 MiB")


def test_undecodable_bytes_are_replaced() -> None:
    answer = run([sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'\\xff!')"])

    assert answer.out == "\N{REPLACEMENT CHARACTER}!"


def test_the_environment_replaces_the_inherited_one() -> None:
    assert run(["/usr/bin/env"], environment={"ONLY": "this"}).out == "ONLY=this\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:secret@host/simple", "https://***@host/simple"),
        ("https://token@host and http://a:b%40c@other/x", "https://***@host and http://***@other/x"),
        ("https://host/simple/pkg@1.0", "https://host/simple/pkg@1.0"),
        ("clone@main", "clone@main"),
    ],
)
def test_credentials_of_urls_are_removed(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_complaint_is_the_end_of_the_output() -> None:
    """It has at most 12 lines and no credentials."""
    lines = [f"line {number}" for number in range(50)] + ["asked https://u:p@host/"]

    assert CommandResult(1, err="\n".join(lines)).complaint.splitlines()[-2:] == ["line 49", "asked https://***@host/"]
    assert len(CommandResult(1, err="\n".join(lines)).complaint.splitlines()) == 12


def test_complaint_begins_with_the_error() -> None:
    err = "Downloaded numpy\nerror: Failed to download torch\n  cause: No space left on device\n"
    said = "error: Failed to download torch\n  cause: No space left on device"
    assert CommandResult(1, err=err).complaint == said


def test_a_failure_without_output_has_a_complaint() -> None:
    assert CommandResult(9).complaint == "exit status 9, nothing written"


MINORS = ("3.10", "3.11", "3.12", "3.13")
# Words "-c" and "-m" that are not options of a Python, by file.
OTHERS = {
    "matrix/read/git.py": 3,  # settings of git
    "matrix/prove/provision/clones.py": 1,  # settings of git
    "matrix/read/commands.py": 1,  # the one start
    "matrix/prove/provision/tools.py": 1,  # sh -c
    "matrix/prove/execution/plugin.py": 2,  # the line that people run, as text
}


@pytest.fixture(params=MINORS)
def python(request: pytest.FixtureRequest) -> str:
    try:
        return str(bases.find_python((request.param,)).path)
    except MatrixError as error:
        pytest.skip(str(error.what))


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, whose json and pytest stop the process."""
    (tmp_path / "here").mkdir()
    for name in ("json", "runpy", "sitecustomize"):
        (tmp_path / "here" / f"{name}.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path / "here"


@pytest.mark.parametrize("safe", ["", "1"], ids=["", "PYTHONSAFEPATH"])
def test_code_imports_nothing_of_the_current_folder(
    python: str, safe: str, hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONPATH counts, also its first folder where Python leaves the current one out by itself."""
    (hostile.parent / "json.py").write_text("print('from PYTHONPATH')")
    monkeypatch.setenv("PYTHONSAFEPATH", safe)
    code = "import json, runpy, sys; print(sys.argv)"
    assert run(python_code(python, code, "a")).out == "['-c', 'a']\n"
    monkeypatch.setenv("PYTHONPATH", str(hostile.parent))
    assert run(python_code(python, code, "a")).out == "from PYTHONPATH\n['-c', 'a']\n"


def test_module_imports_nothing_of_the_current_folder(python: str, hostile: Path) -> None:
    """It sees the arguments and the folder as with `python -m`, and its exit status counts."""
    folder = hostile.parent / "it's"
    folder.mkdir()
    (folder / "module.py").write_text(
        "import json, sys; print(sys.argv, __name__, sys.modules['__main__'].__spec__.name, sys.path[0]); sys.exit(5)"
    )
    ended = run(python_module(python, "module", "a", folder=folder))
    assert (ended.code, ended.out) == (5, f"{[str(folder / 'module.py'), 'a']} __main__ module {folder}\n")
    assert "No module named module" in run(python_module(python, "module")).err


def options(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the words of command lines that are options of a Python, and those that begin with this one's path."""
    compared = {id(one) for node in ast.walk(tree) if isinstance(node, ast.Compare) for one in node.comparators}
    for node in ast.walk(tree):
        if id(node) in compared or not isinstance(node, ast.List | ast.Tuple | ast.Call):
            continue
        words = node.args if isinstance(node, ast.Call) else node.elts
        yield from (one for one in words if isinstance(one, ast.Constant) and one.value in ("-c", "-m"))
        if (
            isinstance(node, ast.List)
            and words[1:]
            and ast.unparse(words[0]) in ("sys.executable", "str(sys.executable)")
        ):
            yield words[0]


@pytest.mark.parametrize(
    ("name", "options"),
    [("python3.9", []), ("python3.12", []), ("python3.13", ["-P"]), ("python3.14", ["-P"]), ("x", [])],
)
def test_newer_pythons_get_the_option_for_it(tmp_path: Path, name: str, options: list[str]) -> None:
    """As the target of a virtual environment's link. 3.13 imports linecache before the command runs."""
    (tmp_path / name).touch()
    (tmp_path / "python").symlink_to(tmp_path / name)
    command = python_code(tmp_path / "python", "pass")
    assert command[1 : command.index("-c")] == options


def test_every_python_is_started_by_one_function() -> None:
    """A new place uses python_code or python_module; a word that is no option of a Python is listed in OTHERS."""
    paths = [ROOT / "toxfile.py", *(ROOT / "matrix").rglob("*.py"), *(ROOT / "tests" / "failures").rglob("[!t]*.py")]
    counts = Counter({str(path.relative_to(ROOT)): len([*options(ast.parse(path.read_text()))]) for path in paths})
    assert {name: count for name, count in counts.items() if count} == OTHERS


@pytest.mark.parametrize("text", ['[python, "-m", "x"]', 'run(path, "-c", code)', "[sys.executable, script]"])
def test_other_starts_of_a_python_are_noticed(text: str) -> None:
    assert len([*options(ast.parse(text))]) == 1
