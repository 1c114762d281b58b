"""Ranks whose imports another process holds: what they share, and when they import by themselves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.prove.execution.ranks.overlay_server import KEPT
from matrix.prove.execution.ranks.supervisor import Supervisor

# A stand-in of megatron-core, which notes its imports in a file.
CORE = """
import os, sys
with open({count!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")
print("imported by", os.environ.get("RANK"), sys.modules.get("transformer_engine", "visible"))
"""
BODY = """
def body(rank):
    import megatron.core
    import os, subprocess, sys
    if {daemon}:
        os.environ["PATH"] = os.defpath
        subprocess.Popen(["sleep", "3600"], start_new_session=True)
    return os.getppid(), sys.path, os.environ.get("SET"), os.environ.get("USER")
"""
THREAD = "import threading\ntimer = threading.Timer(60, print)\ntimer.daemon = True\ntimer.start()"
Run = Callable[..., Outcome]


@pytest.fixture
def run(supervisor: Supervisor, job: Any, tmp_path: Path) -> Iterator[Run]:
    """Yield a function that runs a job on an overlay whose megatron-core ends with `text`.

    Afterwards the supervisor of all tests holds no server, which others would take for a process that a rank left.
    """

    def start(text: str = "", overlay: str = "overlay", *, daemon: bool = False, **changes: Any) -> Outcome:
        package = tmp_path / overlay / "megatron" / "core"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(CORE.format(count=str(tmp_path / "count")) + text, encoding="utf-8")
        (tmp_path / "case.py").write_text(BODY.format(daemon=daemon), encoding="utf-8")
        return supervisor.run(job(f"{tmp_path / 'case.py'}:body", path=(str(tmp_path / overlay),), **changes))

    yield start
    supervisor.__exit__(None, None, None)


def imports(folder: Path) -> int:
    return len((folder / "count").read_text(encoding="utf-8").splitlines())


def parents(outcome: Outcome) -> set[Any]:
    assert outcome.kind is OutcomeKind.PASSED, outcome.reason
    return {end.value[0] for end in outcome.ranks}


def test_jobs_of_an_overlay_share_its_imports(run: Run, supervisor: Supervisor, tmp_path: Path) -> None:
    outcomes = [run(), run()]
    assert imports(tmp_path) == 1
    (server,) = parents(outcomes[0]) | parents(outcomes[1])
    assert server in supervisor._overlays.pids
    assert [outcome.attempts for outcome in outcomes] == [(), ()]


def test_output_of_the_imports_is_in_each_log(run: Run, tmp_path: Path) -> None:
    run(hidden=("transformer_engine",))
    for rank in range(2):
        assert (tmp_path / "logs" / f"rank-{rank}.log").read_text() == "imported by None None\n"


def test_ranks_have_the_sys_path_of_the_imports(run: Run, tmp_path: Path) -> None:
    """As setuptools changes it, which megatron-core >= 0.14 imports."""
    own, changed = (run(text).ranks[1].value[1] for text in ("import threading\n" + THREAD, ""))
    assert changed == own
    outcome = run("sys.path.append('/elsewhere')", "another")
    assert outcome.ranks[0].value[2] is None
    assert outcome.ranks[1].value[1] == [str(tmp_path / "another"), *own[1:], "/elsewhere"]
    assert outcome.attempts == ()


def test_ranks_have_the_variables_of_the_imports(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As torch.compile sets some."""
    monkeypatch.setenv("USER", "someone")
    outcome = run("os.environ['SET'] = '1'; del os.environ['USER']")
    assert [end.value[2:] for end in outcome.ranks] == [["1", None]] * 2
    assert (imports(tmp_path), outcome.attempts) == (1, ())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise RuntimeError('no GPU')", "fail"),
        (THREAD, "they leave a thread (megatron.core: Thread-1) beforehand"),
        ("from matrix.read.machine import cuda\ncuda.initialised = lambda: True", "start CUDA"),
        ("os.environ['SET'] = os.environ['TORCH_EXTENSIONS_DIR']", "a folder of the process"),
        ("if 'RANK' not in os.environ: os._exit(7)", "end the process"),
        ("import time\nif 'RANK' not in os.environ: time.sleep(60)", "take as long as the case may"),
    ],
)
def test_other_imports_are_each_ranks_own(
    run: Run, supervisor: Supervisor, tmp_path: Path, text: str, reason: str
) -> None:
    outcome = run(text, deadline_s=5.0)
    assert imports(tmp_path) == 3
    assert reason in outcome.attempts[0]
    if reason == "fail":
        assert (outcome.kind, outcome.ranks[0].chain[-1].message) == (OutcomeKind.RAISED, "no GPU")
        assert "RuntimeError: no GPU" in (tmp_path / "logs" / "rank-0.log").read_text()
    else:
        assert parents(outcome) == {supervisor._server.pid}


def test_least_recently_used_server_ends(run: Run, supervisor: Supervisor) -> None:
    first, *others = [parents(run(overlay=f"overlay-{number}")).pop() for number in range(KEPT + 1)]
    assert supervisor._overlays.pids == set(others)
    assert not Path(f"/proc/{first}").exists()
    assert len(list(supervisor._server.folder.glob("overlay-*"))) == KEPT


def test_killed_server_is_started_again(run: Run, supervisor: Supervisor, tmp_path: Path) -> None:
    (server,) = parents(run())
    os.kill(server, signal.SIGKILL)
    while Path(f"/proc/{server}").exists():
        time.sleep(0.01)
    assert parents(run()).isdisjoint({server, supervisor._server.pid})
    assert imports(tmp_path) == 2


def test_what_a_rank_leaves_ends_and_servers_stay(run: Run, supervisor: Supervisor, job: Any) -> None:
    outcome = run(daemon=True)
    assert outcome.leftovers == 2
    supervisor.run(job("nothing"))  # a job of the forkserver itself
    assert parents(run()) == parents(outcome)


def test_servers_end_with_their_forkserver(run: Run, supervisor: Supervisor) -> None:
    (server,) = parents(run())
    supervisor.__exit__(None, None, None)
    assert not Path(f"/proc/{server}").exists()
    assert supervisor._overlays.pids == set()


def test_servers_die_with_a_killed_forkserver(run: Run, supervisor: Supervisor) -> None:
    (server,) = parents(run())
    os.kill(supervisor._server.pid, signal.SIGKILL)
    while Path(f"/proc/{server}").exists():
        time.sleep(0.01)
    assert parents(run()).isdisjoint({server})
