"""`megatrix check` in the workflows of users: GitHub's action, the hook of pre-commit, Slurm's task prolog."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from matrix.cli.main import parser
from matrix.prove.provision.project import ROOT

BREAKING = "torch==2.4.1\nmegatron-core==0.8.0\n"
FINE = "torch==2.9.1\nmegatron-core==0.16.1\n"


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    """Return an environment in which `megatrix` is this checkout's, and the programs of `tmp_path`/bin come first."""
    program(tmp_path / "bin" / "megatrix", f'exec "{sys.executable}" -m matrix "$@"')
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "MEGATRIX_OUT": str(tmp_path / "out"), **more}


@pytest.mark.parametrize(
    ("text", "fail", "status", "answer"),
    [
        (BREAKING, "true", 1, "breaks"),
        (FINE, "true", 0, "none-known"),
        (f"{FINE}mamba-ssm==2.2.2\n", "false", 0, "unknown"),
        ("numpy==1.26.4\n", "true", 3, "nothing-checked"),
        ("", "true", 2, ""),
    ],
)
def test_action_annotates_and_sums_up(tmp_path: Path, text: str, fail: str, status: int, answer: str) -> None:
    """Its shell is that of GitHub; only the installation is replaced. No text, no file: a mistake."""
    (step,) = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    if text:
        (tmp_path / "requirements.txt").write_text(text)
    place = tmp_path / "temp" / "megatrix" / "bin"
    install = f'mkdir -p "{place}" && cd "{place}" && cp "{tmp_path}/bin/megatrix" . && ln -s /bin/true pip'
    install += f' && ln -s "{sys.executable}" python'
    program(tmp_path / "bin" / "python3", install)
    files = {"GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary", "SARIF": "log.sarif"}
    more = {name: str(tmp_path / file) for name, file in files.items()}
    inputs = {"WHAT": "requirements*.txt driver=535", "OPTIONS": "--upgrade mcore", "FAIL": fail}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env=environ(tmp_path, RUNNER_TEMP=str(tmp_path / "temp"), GITHUB_ACTION_PATH=str(ROOT), **more, **inputs),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    if answer:
        breaks = str(answer == "breaks").lower()
        assert ("::error file=requirements.txt,line=1," in done.stdout) is (answer == "breaks")
        assert ("::warning file=requirements.txt,line=3,title=unknown" in done.stdout) is (answer == "unknown")
        assert ("title=nothing-checked" in done.stdout) is (answer == "nothing-checked")
        assert "::notice title=megatrix check::megatron-core" in done.stdout
        assert (tmp_path / "output").read_text() == f"breaks={breaks}\nanswer={answer}\n"
        assert "| failure | what |" in (tmp_path / "summary").read_text()
        assert '"version": "2.1.0"' in (tmp_path / "log.sarif").read_text()


def test_action_passes_no_input_into_its_script() -> None:
    """An input with shell syntax would be executed."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (step,) = action["runs"]["steps"]
    assert "${{" not in step["run"]
    assert {one.split(".")[1].split()[0] for one in step["env"].values()} == set(action["inputs"])


def test_hook_names_the_files_that_are_read() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    words = hook["entry"].split()[1:]
    assert parser(words).parse_args([*words, "requirements.txt"]).what == ["requirements.txt"]
    read = ["requirements.txt", "a/requirements-gpu.in", "uv.lock", "pylock.gpu.toml", "Dockerfile", "poetry.lock",
            "docker/a.Dockerfile", "Containerfile.te", "environment.yml", "jobs/train.sbatch"]  # fmt: skip
    other = ["notes.txt", "build.sh", "package.lock", "dockerfiles/readme.md", "config.yml"]
    assert [name for name in [*read, *other] if re.search(hook["files"], name)] == read


SCRIPT = """\
#!/bin/bash
pip install torch==2.4.1 megatron-core==0.8.0
srun python pretrain_gpt.py --save x --use-dist-ckpt
"""


@pytest.mark.parametrize(
    ("script", "more", "printed"),
    [
        (SCRIPT, {}, True),
        (SCRIPT, {"SLURM_PROCID": "1"}, False),
        (SCRIPT.replace("0.8.0", "0.9.0"), {}, False),
        ("", {}, False),
    ],
)
def test_task_prolog_prints_known_breaks(tmp_path: Path, script: str, more: dict[str, str], printed: bool) -> None:
    """An interactive job has no script. Slurm prints lines with "print"; it is not needed here."""
    (tmp_path / "script").write_text(script)
    copy = f'[ -s "{tmp_path}/script" ] && [ "$*" = "write batch_script 7 $4" ] && cp "{tmp_path}/script" "$4"'
    program(tmp_path / "bin" / "scontrol", copy)
    variables = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "TMPDIR": str(tmp_path), **more}
    done = subprocess.run(
        [ROOT / "docs" / "ci" / "task-prolog.sh"], env=environ(tmp_path, **variables), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in lines if not line.startswith("print ")] == []
    assert any("WILL BREAK: " in line for line in lines) is printed
    assert {one.name for one in tmp_path.iterdir()} == {"bin", "script"}
