"""Shell completion: the script is read by a real bash."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from matrix.cli import COMMANDS
from matrix.cli.main import main
from tests.founding import CALL

ASK = """
source /dev/stdin
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"
_shtab_megatrix
echo "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script() -> str:
    pytest.importorskip("shtab", reason="an extra of the desk: megatrix[desk]")
    command = [sys.executable, "-m", "matrix", "completion", "bash"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("megatrix", ""), {*COMMANDS}),
        (("megatrix", "b"), {"bisect", "build", "bundle"}),
        (("megatrix", "check", "--up"), {"--upgrade"}),
        (("megatrix", "catalog", "ver"), {"verify"}),
        (("megatrix", "completion", "z"), {"zsh"}),
        (("megatrix", "bisect", CALL[:-2]), {CALL}),
        (("megatrix", "catalog", "verify", CALL[:-2]), {CALL}),
        (("megatrix", "show", CALL[:-2]), {CALL}),
        (("megatrix", "run", "--mcore", "0.19."), {"0.19.0", "0.19.1", "0.19.2"}),
        (("megatrix", "bisect", "--driver", "47"), {"470"}),
    ],
)
def test_bash_offers_commands_options_and_values(script: str, words: tuple[str, ...], offered: set[str]) -> None:
    answer = subprocess.run(
        ["bash", "-c", ASK, "ask", *words], input=script, capture_output=True, text=True, check=True
    )
    assert {*answer.stdout.split()} >= offered
    assert words[-1] == "" or {*answer.stdout.split()} == offered


def test_completion_without_shtab_names_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install shtab" in capsys.readouterr().err
