"""The run of all suites: what is counted, what is skipped and why, what is red, and what Ctrl-C leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from matrix.ground.errors import ExitStatus
from tests import nightly_checks
from tests.nightly_checks import Result, State, Suite, exit_status, judged, run_all, table

ROOT = Path(__file__).resolve().parents[2]
PYTEST = Suite("x", tuple, (1, 1))
COUNTED = Suite("x", tuple, (1, 1), counts=r"^\| all \| (\d+) \|")
NEW = Suite("x", tuple, (1, 1), counts=r"^\| all \| (\d+) \|", new="^new: ")
COMMAND = Suite("x", tuple, (1, 1), counts="")


def of_code(code: str, name: str = "x", **settings: object) -> Suite:
    """Return a suite that runs Python code."""
    return Suite(name, lambda: (sys.executable, "-c", code), (1, 1), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("suite", "status", "output", "expected"),
    [
        (PYTEST, 0, "=== 3 passed, 1 skipped in 1.20s ===\n", (State.GREEN, 4, 3, 0, "")),
        (PYTEST, 0, "== 3 passed in 1.20s ==\n=== 2 passed in 61.00s (0:01:01) ===\n", (State.GREEN, 5, 5, 0, "")),
        (PYTEST, 1, "=== 1 failed, 3 passed, 2 errors in 1.2s ===\n", (State.RED, 6, 3, 3, "")),
        (PYTEST, 5, "=== no tests ran in 0.01s ===\n", (State.RED, 1, 0, 1, "no test ran")),
        (PYTEST, 0, "=== 4 skipped in 0.01s ===\n", (State.RED, 5, 0, 1, "no test ran")),
        (PYTEST, 0, "", (State.RED, 1, 0, 1, "no test ran")),
        (PYTEST, 2, "=== 3 passed in 0.01s ===\n", (State.RED, 4, 3, 1, "exit status 2")),
        (PYTEST, 0, "SKIPPED [2] a.py:3: no tag\n=== 1 passed, 2 skipped in 1s ===\n",
         (State.GREEN, 3, 1, 0, "2 skipped: no tag")),
        (COUNTED, 0, "| all | 320 | 320 |\n", (State.GREEN, 320, 320, 0, "")),
        (COUNTED, 0, "| all | 65 |\n41 not run: package missing, 65 nothing named\n",
         (State.GREEN, 65, 65, 0, "41 not run: package missing")),
        (COUNTED, 1, "| all | 320 | 319 |\n", (State.RED, 320, 319, 1, "exit status 1")),
        (COUNTED, 0, "nothing\n", (State.RED, 1, 0, 1, "no test ran")),
        (Suite("x", tuple, (1, 1), counts=r"^Checking \S+: PASSED()"), 0, "Checking a.whl: \x1b[32mPASSED\x1b[0m\n" * 2,
         (State.GREEN, 2, 2, 0, "")),
        (NEW, 1, "| all | 3 |\nknown: a\n", (State.GREEN, 3, 3, 0, "")),
        (NEW, 1, "| all | 3 |\nknown: a\nnew: b\n", (State.RED, 3, 2, 1, "exit status 1")),
        (NEW, 2, "| all | 3 |\nknown: a\n", (State.RED, 3, 2, 1, "exit status 2")),
        (COMMAND, 0, "", (State.GREEN, 1, 1, 0, "")),
        (COMMAND, 1, "", (State.RED, 1, 0, 1, "exit status 1")),
    ],
)  # fmt: skip
def test_result_of_a_suite(suite: Suite, status: int, output: str, expected: tuple[object, ...]) -> None:
    result = judged(suite, status, output)
    assert (result.state, result.tests, result.passed, result.red, result.why) == expected


def test_failed_tests_are_named() -> None:
    result = judged(PYTEST, 1, "FAILED tests/a.py::b - boom\nERROR tests/c.py\n=== 1 failed, 1 error in 1s ===\n")
    assert "- x: tests/a.py::b - boom\n- x: tests/c.py" in table([result])


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ("green skipped", ExitStatus.GOOD),
        ("green red", ExitStatus.BAD),
        ("green not-reached", ExitStatus.BAD),
        ("skipped skipped", ExitStatus.NOTHING),
        ("", ExitStatus.NOTHING),
    ],
)
def test_exit_status(states: str, status: ExitStatus) -> None:
    assert exit_status([Result("x", State(name.replace("-", " "))) for name in states.split()]) is status


def test_missing_requirement_skips_with_its_reason(tmp_path: Path) -> None:
    suites = [of_code("print('=== 1 passed in 1s ===')"), of_code("", "y", requires=(lambda: "no chromium",))]
    green, skipped = run_all(suites, tmp_path, 1, lambda line: None)
    assert (green.state, skipped.state, skipped.why) == (State.GREEN, State.SKIPPED, "no chromium")
    assert not (tmp_path / "y.log").exists()


@pytest.mark.parametrize(("whole", "expected"), [(False, "short 1"), (True, "")])
def test_form_has_its_arguments_and_variables(tmp_path: Path, whole: bool, expected: str) -> None:
    code = "import os, sys; print(*sys.argv[1:], os.environ.get('MEGATRIX_REHEARSED', ''))"
    suite = of_code(code, counts="", short=lambda: ("short",), variables={"MEGATRIX_REHEARSED": "1"})
    run_all([suite], tmp_path, 1, lambda line: None, whole=whole)
    assert (tmp_path / "x.log").read_text().strip() == expected


def test_suite_after_the_limit_is_not_reached(tmp_path: Path) -> None:
    """The one that runs then is ended, by SIGINT first."""
    began = time.monotonic()
    slow = of_code("import time; time.sleep(60)")
    cut, never = run_all([slow, of_code("", "y")], tmp_path, 2 / 60, lambda line: None)
    assert time.monotonic() - began < 30
    assert (cut.state, cut.why, never.state, never.why) == (State.NOT_REACHED, "the time is over") * 2
    assert "KeyboardInterrupt" in (tmp_path / "x.log").read_text()


DRIVER = """
import sys, time
from pathlib import Path
from matrix.prove.execution import interrupt
from matrix.read import kernel
from tests.nightly_checks import Suite, exit_status, run_all, table
LEAVE = "import subprocess, sys, time; " \\
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); " \\
    "print(child.pid, flush=True); time.sleep(600)"
GREEN = "print('=== 1 passed in 1s ===')"
interrupt.once()
kernel.adopt_orphans()
suites = [
    Suite(name, lambda code=code: (sys.executable, "-c", code), (1, 1))
    for name, code in (("a", GREEN), ("b", LEAVE), ("c", GREEN))
]
results = run_all(suites, Path(sys.argv[1]), 10, lambda line: print(line, flush=True))
print(table(results))
sys.exit(exit_status(results))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_children_and_prints_the_table(tmp_path: Path, number: signal.Signals) -> None:
    """Also a process in a session of its own, as tests start them. SIGINT is ignored at the start, as after `&`."""
    line = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", DRIVER, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(line, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True)
    log = tmp_path / "b.log"
    while process.poll() is None and not (log.exists() and log.read_text().endswith("\n")):
        time.sleep(0.05)  # no event exists for a line in a log
    process.send_signal(number)
    printed = process.communicate(timeout=60)[0]
    assert process.returncode == ExitStatus.INTERRUPTED
    assert [line.split(" | ")[1] for line in printed.splitlines()[-3:]] == ["green", "not reached", "not reached"]
    assert not Path("/proc", log.read_text().split()[0]).exists()


ORPHAN = """
import subprocess, sys, time
from pathlib import Path
code = "import os; print(os.getpid(), flush=True)"
middle = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}])"
pid = subprocess.run([sys.executable, "-c", middle], capture_output=True, text=True).stdout.strip()
while Path("/proc", pid).exists():
    time.sleep(0.01)
print("=== 1 passed in 1s ===")
"""


def test_orphan_of_a_suite_is_reaped(tmp_path: Path) -> None:
    """A test of a suite may wait for that: the run of all suites adopts orphans, so it must reap them."""
    code = (
        "import sys; from pathlib import Path; from matrix.read import kernel; "
        "from tests.nightly_checks import Suite, run_all; kernel.adopt_orphans(); "
        f"suite = Suite('x', lambda: (sys.executable, '-c', {ORPHAN!r}), (1, 1)); "
        "print(run_all([suite], Path(sys.argv[1]), 0.3, lambda line: None)[0].state)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert printed.stdout == "State.GREEN\n", printed.stderr


@pytest.mark.parametrize("suites", [[], ["slurm", "browser"]])
def test_further_options_need_one_suite(suites: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        nightly_checks.main([*suites, "--", "-k", "kill"])
    assert "options of one suite alone: -k kill" in capsys.readouterr().err


def test_suite_gets_further_options(tmp_path: Path) -> None:
    suite = of_code(
        "import sys; print(*sys.argv[1:])", counts="", short=lambda: ("short",), unless=lambda: "no short form"
    )
    run_all([suite], tmp_path, 1, lambda line: None, ["-k", "kill"])
    assert (tmp_path / "x.log").read_text() == "-k kill\n"


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (nightly_checks.programs("sh"), ""),
        (nightly_checks.programs("sh", "no-such", package="it"), "no no-such on PATH: apt-get install it"),
        (nightly_checks.one_program("no-such-program", "sh"), ""),
        (nightly_checks.one_program("no-such-a", "no-such-b"), "no no-such-a or no-such-b on PATH"),
        (nightly_checks.variables("MEGATRIX_NO_SUCH"), "MEGATRIX_NO_SUCH must name clones"),
    ],
)  # fmt: skip
def test_requirements_are_looked_up(check: Callable[[], str], words: str) -> None:
    assert check() == words


def test_listing_states_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    def words(arguments: Sequence[str]) -> str:
        assert nightly_checks.main([*arguments, "--list"]) == ExitStatus.GOOD
        return capsys.readouterr().out

    assert "| interrupts | 60 | 60 | --all | `slow` has" in words(["interrupts"])
    assert "| interrupts | 60 | 60 | --all | runs |" in words(["interrupts", "--all"])
