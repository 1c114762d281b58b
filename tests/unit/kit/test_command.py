"""A command of the user's own in a rank: how it ends, what it prints and finds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from matrix.kit import command
from matrix.kit.command import METRIC, RUNS, CommandError, Repeats, number_in
from matrix.kit.rank import LackError, Rank
from matrix.prove.execution.ranks.rank_main import chain_of

PROJECT = Path(command.__file__).parents[2]
BODY = """\
import json, sys
from pathlib import Path
from matrix.kit import command
from matrix.kit.rank import Rank
workdir, words = sys.argv[1], json.loads(sys.argv[2])
command.run(Rank(0, 1, "cuda", "", Path(workdir)), words, workdir)
"""


def rank(folder: Path, **given: Any) -> Rank:
    return Rank(0, 1, "cuda", "", folder, **given)


def python(folder: Path, code: str, **given: Any) -> Any:
    return command.run(rank(folder, **given), ["python", "-c", code], str(folder))


@pytest.fixture(autouse=True)
def cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH of a rank at level cpu."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))


def test_a_command_that_succeeds_returns(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its Python is the cell's, its standard input is empty, its output goes to the rank's log."""
    assert python(tmp_path, "import sys; print(sys.prefix, repr(sys.stdin.read()), sys.stdout.isatty())") is None
    assert capfd.readouterr().out == f"{sys.prefix} '' False\n"


def test_a_traceback_is_raised_again(tmp_path: Path) -> None:
    script = tmp_path / "save.py"
    script.write_text(
        "def save():\n    raise KeyError('loss')\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    save()\n"
    )
    with pytest.raises(CommandError, match="status 1") as caught:
        command.run(rank(tmp_path), ["python", "save.py"], str(tmp_path))
    first, last = chain_of(caught.value)

    assert (first.type, first.message, last.type) == ("KeyError", "'loss'", "CommandError")
    assert [(Path(frame.file).name, frame.line, frame.function) for frame in first.frames[-1:]] == [
        ("save.py", 2, "save")
    ]


def test_torchs_prefix_is_left_out() -> None:
    """A rank of a process group prints it before each line."""
    lines = [
        "Traceback (most recent call last):",
        '  File "/x/a.py", line 3, in save',
        "    assert False",
        "AssertionError",
    ]
    (found,) = command.last_printed([f"[rank0]: {line}" for line in lines])

    assert (found.type, found.frames[-1].function) == ("AssertionError", "save")


def test_a_status_without_traceback_is_kept(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        command.run(rank(tmp_path), ["sh", "-c", "echo no space; exit 7"], str(tmp_path))
    assert caught.value.code == 7


def test_a_signal_is_repeated(tmp_path: Path) -> None:
    """The rank's own stack is not printed: it would count as a second crash."""
    code = "import faulthandler, os; os.kill(os.getpid(), 11)"
    words = json.dumps(["python", "-c", code])
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", BODY, str(tmp_path), words], capture_output=True, text=True,
        cwd=PROJECT,
    )  # fmt: skip

    assert ended.returncode == -signal.SIGSEGV
    assert (ended.stdout + ended.stderr).count("Fatal Python error: Segmentation fault") == 1


def test_a_missing_command_is_a_lack(tmp_path: Path) -> None:
    for word in ("no-such-command", "./no-such-script"):
        with pytest.raises(LackError, match=f"can't be started: {word}"):
            command.run(rank(tmp_path), [word], str(tmp_path), shared=True)


def test_files_replace_a_missing_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As in an image, where the folder of the call is not mounted."""
    copies = tmp_path / "entry" / "files"
    (copies / "tools").mkdir(parents=True)
    (copies / "tools" / "save.py").write_text("print('saved')\n")
    (tmp_path / "mounted").mkdir()  # for a folder in it
    script, complete = ["tools/save.py"], ["-c", "print('complete')"]
    for name, words in {"absent": script, "mounted": script, "gone": complete}.items():
        workdir = tmp_path / f"work-{name}"
        workdir.mkdir()
        given = copies if words is script else tmp_path / "none"
        command.run(rank(workdir), ["python", *words], str(tmp_path / name), copies=given)
    assert capfd.readouterr().out == "saved\nsaved\ncomplete\n"


def test_output_after_the_end_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that outlives the command and keeps its output open; the supervisor ends it."""
    monkeypatch.setattr(command, "LEFT_S", 0.01)
    pids = tmp_path / "pid"
    command.run(rank(tmp_path), ["sh", "-c", f"sleep 600 & echo $! > {pids}"], str(tmp_path))
    os.kill(int(pids.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("pattern", "number"), [(r"time: ([\d.]+) ms", 2.5), (r"\d+\.\d+(?= ms)", 2.5), (r"loss ([\d.e-]+)", 0.001)]
)
def test_the_last_number_counts(pattern: str, number: float) -> None:
    assert number_in("time: 1.5 ms\nloss 1e-3\ntime: 2.5 ms\n", pattern) == number


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_number_of_a_diverged_run_has_a_name(text: str) -> None:
    assert number_in(f"loss {text}", "loss (.*)") == str(float(text))


@pytest.mark.parametrize("pattern", ["nothing", "(l)oss", "(x)?loss"])
def test_an_output_without_number_is_an_error(pattern: str) -> None:
    with pytest.raises(CommandError, match="matches"):
        number_in("loss 1", pattern)


def test_each_repeat_has_a_number(tmp_path: Path) -> None:
    words = ["python", "-c", "print('loss 2')"]
    given = Repeats(2, 2)
    assert command.run(rank(tmp_path), words, str(tmp_path), r"loss (\d)", given) == {METRIC: [2.0, 2.0]}


def test_a_command_is_repeated_until_it_fails(tmp_path: Path) -> None:
    """The third run fails; three that pass are counted."""
    script = "import os; open('n', 'a').write('x'); raise SystemExit(os.path.getsize('n') == 3)"
    words, given = ["python", "-c", script], Repeats(1, 9, 600)
    with pytest.raises(SystemExit):
        command.run(rank(tmp_path), words, str(tmp_path), repeats=given)
    assert (tmp_path / "files" / "n").read_text() == "xxx"
    (tmp_path / "work").mkdir()
    assert command.run(rank(tmp_path / "work"), ["true"], str(tmp_path), repeats=Repeats(1, 3, 600)) == {RUNS: 3}


def test_a_long_command_runs_once_in_a_rank() -> None:
    assert [Repeats(1, 9, 10.0).again(runs, took) for runs, took in ((1, 6.0), (1, 4.0), (4, 9.0), (9, 1.0))] == [
        False,
        True,
        False,
        False,
    ]
    assert Repeats(3, 3).again(2, 600.0)


def test_points_do_not_share_what_they_write(tmp_path: Path) -> None:
    """Each has a copy of the folder, as it was; with `shared` they have the folder itself."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "n").write_text("")
    words = ["python", "-c", "open('data/n', 'a').write('x'); open('new', 'w')"]
    for name in ("a", "b"):
        (tmp_path / ".work" / name).mkdir(parents=True)
        command.run(rank(tmp_path / ".work" / name), words, str(tmp_path))
        assert (tmp_path / ".work" / name / "files" / "data" / "n").read_text() == "x"
    assert (tmp_path / "data" / "n").read_text() == ""
    assert not (tmp_path / "new").exists()
    command.run(rank(tmp_path / ".work" / "a"), words, str(tmp_path), shared=True)
    assert (tmp_path / "data" / "n").read_text() == "x"


JUNIT = """<testsuites><testsuite>
<properties><property name="peak" value="12.5"/><property name="host" value="a"/></properties>
<testcase classname="t.test_a" name="test_one"/>
<testcase classname="t.test_a" name="test_two"><failure message="ValueError: width 6">def f(): ...
E   ValueError: width 6

t/test_a.py:7: ValueError</failure></testcase>
<testcase classname="t.test_a" name="test_three"><error type="builtins.KeyError" message="'x'"/></testcase>
<testcase name="test_four"><skipped message="needs a GPU"/></testcase>
</testsuite></testsuites>"""
WRITES = f"import sys; open('o.xml', 'w').write({JUNIT!r}); print('loss: 2.5'); sys.exit(int(sys.argv[1]))"


def results_of(folder: Path, status: str = "1", code: str = WRITES, **options: Any) -> Any:
    return command.run_tests(rank(folder), ["python", "-c", code, status], str(folder), "o.xml", **options)


def test_results_of_a_junit_file_are_returned(tmp_path: Path) -> None:
    """A failed test is no failure of the run. A number is printed, or is a property of the file."""
    returned = results_of(tmp_path, numbers={"loss": r"loss: (\S+)", "peak": "", "host": "", "none": "none: (.*)"})

    assert {name: test[0] for name, test in returned["tests"].items()} == {
        "t.test_a.test_one": "",
        "t.test_a.test_two": "failure",
        "t.test_a.test_three": "error",
        "test_four": "skipped",
    }
    assert returned["numbers"] == {"loss": 2.5, "peak": 12.5}


def test_status_without_a_failed_test_is_a_failure(tmp_path: Path) -> None:
    code = "import sys; open('o.xml', 'w').write('<testsuite><testcase name=\"a\"/></testsuite>'); sys.exit(3)"
    assert (
        results_of(tmp_path, code=code)["tests"]["exit status"][2]
        == "the command left with status 3, and no test failed"
    )


def test_an_earlier_junit_file_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "o.xml").write_text(JUNIT)

    with pytest.raises(CommandError, match=r"has not written o\.xml"):
        results_of(tmp_path, "0", "pass")


@pytest.mark.parametrize("text", ["", "<a>", "none"])
def test_what_is_no_junit_file_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"o\.xml is no file of JUnit"):
        results_of(tmp_path, code=f"open('o.xml', 'w').write({text!r})")


def test_one_test_decides_the_run(tmp_path: Path) -> None:
    def ends(test: str) -> None:
        command.run_test(rank(tmp_path / test), ["python", "-c", WRITES, "1"], str(tmp_path), junit="o.xml", test=test)

    for name in ("t.test_a.test_one", "t.test_a.test_two", "test_four", "missing"):
        (tmp_path / name).mkdir()
    ends("t.test_a.test_one")
    with pytest.raises(CommandError) as caught:
        ends("t.test_a.test_two")
    first = chain_of(caught.value)[0]
    assert (first.type, first.message) == ("ValueError", "width 6")
    with pytest.raises(LackError, match="needs a GPU"):
        ends("test_four")
    with pytest.raises(LackError, match="missing in the file"):
        ends("missing")


SUITE = {
    "a/test_a.py": "import pytest\n@pytest.mark.parametrize('n', ['x', 'y.z'])\ndef test_n(n): assert n == 'x'\n",
    "a/test_b.py": "class TestB:\n    def test_b(self): raise KeyError('b')\n",
    "a/test_broken.py": "import missing_module\n",
}


def results_of_pytest(folder: Path, *words: str, **options: Any) -> Any:
    for name, text in SUITE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--junitxml", "o.xml", *words)
    folder_of_rank = folder / f"rank-{len([*folder.iterdir()])}"
    folder_of_rank.mkdir()
    return command.run_tests(rank(folder_of_rank), [sys.executable, *words], str(folder), "o.xml", **options)


@pytest.mark.parametrize(
    "words",
    [("--continue-on-collection-errors",), ("a/test_a.py", "a/test_b.py"), ("a/test_b.py::TestB", "a/test_a.py")],
)
def test_pytest_runs_only_named_tests(words: tuple[str, ...], tmp_path: Path) -> None:
    """Files without a named test are not imported, however the command selects tests."""
    names = ["a.test_a.test_n[y.z]", "a.test_b.TestB.test_b"]
    returned = results_of_pytest(tmp_path, *words, only=names)

    assert (returned["tests"].keys(), returned["part"]) == ({*names}, True)


def test_a_file_that_does_not_load_runs_again(tmp_path: Path) -> None:
    returned = results_of_pytest(tmp_path, only=["a.test_broken"])

    assert {name: test[0] for name, test in returned["tests"].items()} == {"a.test_broken": "error"}


def test_no_named_test_is_no_failure(tmp_path: Path) -> None:
    returned = results_of_pytest(tmp_path, "a/test_a.py", only=["a.test_gone.test_gone"])

    assert returned == {"tests": {}, "numbers": {}, "part": True}


def test_another_runner_runs_whole(tmp_path: Path) -> None:
    """Its results show it; the names come from the file beside the reproduction."""
    (tmp_path / "again.json").write_text('["t.test_a.test_two"]')
    returned = results_of(tmp_path, again=tmp_path / "again.json")

    assert (len(returned["tests"]), "part" in returned) == (4, False)


@pytest.mark.parametrize(
    ("kind", "message", "text", "expected"),
    [
        ("", "ValueError: width 6", "", ("ValueError", "width 6")),
        ("", "pkg.errors.ShapeError: no", "", ("ShapeError", "no")),
        ("", "assert 1 == 2", "", ("AssertionError", "assert 1 == 2")),
        ("builtins.KeyError", "'x'", "", ("KeyError", "'x'")),
        ("ValueError", "a: b", "", ("ValueError", "a: b")),
        ("", "", "first\nlast line", ("failure", "last line")),
        (
            "",
            "",
            'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nOSError: no',
            ("OSError", "no"),
        ),
    ],
)
def test_exception_of_a_failed_test(kind: str, message: str, text: str, expected: tuple[str, str]) -> None:
    raised = command.raised_in(kind, message, text)

    assert (raised.type, raised.message) == expected
