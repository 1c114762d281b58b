from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.provision.commands import NOT_STARTED, TIMED_OUT, CommandResult, redacted, run
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

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", f"sh -c 'trap \"\" INT; echo $$ > {tmp_path}/child; sleep 60' & wait"])
    assert ended(int(pids[0]))


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
