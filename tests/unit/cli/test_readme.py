"""Every command of README.md runs, and prints what README.md shows; every example of --help runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from matrix.cli import COMMANDS, Command
from matrix.cli.main import main, parser, split_own_command
from matrix.cli.usage import described
from matrix.ground.errors import ExitStatus
from matrix.prove.provision.project import ROOT
from tests import readme_facts
from tests.founding import BEHIND_MPI

README = (ROOT / "README.md").read_text()
# What users have: a container that installs a breaking release, a job, a log, a fork.
FILES = {
    "Dockerfile": "FROM nvcr.io/nvidia/pytorch:24.07-py3\nRUN pip install megatron-core==0.8.0\n",
    "Dockerfile.new": "FROM nvcr.io/nvidia/pytorch:24.07-py3\nRUN pip install megatron-core==0.7.0\n",
    "requirements.txt": "megatron-core==0.8.0\n",
    "train.sbatch": "#!/bin/bash\nsrun torchrun --nproc_per_node 8 pretrain_gpt.py --save out --use-dist-ckpt\n",
    "rank0.log": "step 1\n",
    "rank1.log": "step 1\n",
    "train.log": 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    "TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'\n",
    "my-fork/train.py": "from megatron.core import parallel_state\n",
}
FIRST = 'check "mcore=0.8.0 torch=2.4.1"'
EXIT_STATUS = {
    FIRST: ExitStatus.BAD,
    readme_facts.COMMAND: ExitStatus.BAD,
    "check Dockerfile --to Dockerfile.new": ExitStatus.GOOD,  # both break alike
    "check Dockerfile requirements.txt": ExitStatus.BAD,
    "fit gpu=H100 driver=550 flash-attn --offline": ExitStatus.GOOD,
    "match train.log": ExitStatus.GOOD,
    "show NVIDIA/Megatron-LM#3912": ExitStatus.GOOD,
    f"bisect {BEHIND_MPI} --axis te --mcore 0.8.0 --good 1.9.0 --bad 1.8.0": ExitStatus.GOOD,
}
MAKES = {"compare torch-2.3.1 torch-2.4.1 -- python save.py"}  # environments: parsed, not run
ACTIONS = [Command(**action) for action in described("catalog").parts.values()]
EXAMPLES = {example for command in (*map(described, COMMANDS), *ACTIONS) for example in command.examples}
ANSWERED = ("check", "match", "fit gpu=H100", "contract --mcore", "bisect ub", "plan --select", "completion", "sources")


def test_readme_commands_are_all_tested() -> None:
    """Those that install something: tests/real/test_readme.py and, for the project's own tests, .ci/run."""
    code = [*re.findall(r"^    (?:- run: )?(.*)$", README, re.MULTILINE), *re.findall(r"`([^`\n]+)`", README)]
    code += re.findall(r'alt="(megatrix [^",]+),', README)
    shown = {
        part.partition("megatrix ")[2].strip()
        for line in code
        for part in line.split("&&")
        if re.match(r"\s*(uvx --from \. )?megatrix ", part)
    }
    assert shown == {*EXIT_STATUS, *MAKES}
    assert "run -e tests" in (ROOT / ".ci" / "run").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with the files of a user."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEGATRIX_OUT", str(tmp_path / "out"))
    monkeypatch.setenv("COLUMNS", "88")
    return tmp_path


@pytest.mark.parametrize("line", EXIT_STATUS)
def test_readme_command_runs(folder: Path, line: str, capsys: pytest.CaptureFixture[str], handlers: None) -> None:
    try:
        status = main(shlex.split(line))
    except SystemExit as ended:  # --help
        status = int(ended.code or 0)
    assert status == EXIT_STATUS[line]
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("line", sorted({*EXAMPLES, *MAKES}))
def test_example_of_help_works_as_printed(folder: Path, line: str, handlers: None) -> None:
    """Those that make, fetch or run something are parsed; so is a command of the user's own."""
    words, own = split_own_command(shlex.split(line))
    assert parser(words).parse_args(words)
    assert not any(word.isupper() for word in (*words, *own))  # FAILURE, DIR: a word to replace
    if line.startswith(ANSWERED) and line != "sources fetch":
        assert main(words) in (ExitStatus.GOOD, ExitStatus.BAD, ExitStatus.NOTHING)


QUIET = {
    FIRST: "1 known break",
    "check Dockerfile Dockerfile.new": "Dockerfile: 1 known break",
    "check Dockerfile --to Dockerfile.new": "nothing newly breaks",
    "match train.log": "known: ",
    "fit gpu=H100 driver=550 flash-attn --offline": "fits: ",
    "fit torch=2.4.0 te=2.19.0 --offline": "the wishes exclude each other: ",
}


@pytest.mark.parametrize(("line", "verdict"), QUIET.items())
def test_quiet_answer_is_the_first_line(
    folder: Path,
    line: str,
    verdict: str,
    capsys: pytest.CaptureFixture[str],
    handlers: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has one line for each stack, and the exit status of the whole answer."""
    monkeypatch.delenv("COLUMNS")
    status = main(shlex.split(line))
    whole = capsys.readouterr().out.splitlines()
    assert main([*shlex.split(line), "-q"]) == status
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(verdict)
    assert first in whole or others
    assert len(others) == line.startswith("check Dockerfile Dockerfile.new")


def test_environment_of_the_readme_is_ignored() -> None:
    """A checkout in which README's commands ran is clean."""
    names = re.findall(r"python3 -m venv (\S+)", (ROOT / "README.md").read_text())
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert names
    assert {f"{name}/" for name in names} <= {*ignored}
