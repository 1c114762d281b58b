"""`megatrix check` on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.ask.check import environment
from matrix.ask.check.job_site import JobSite
from matrix.cli.check import start
from matrix.cli.main import main
from matrix.prove.provision.project import ROOT
from tests.founding import MASK, MPI, SAVE
from tests.schemas import items_of, validator
from tests.unit.ask.check.machines import BARE, NGC

BREAKING = "mcore=0.8.0 torch=2.4.1"
FINE = "mcore=0.16.1 torch=2.9.1 te=2.10.0"


@pytest.fixture(autouse=True)
def empty_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRIX_OUT", str(tmp_path / "out"))


def on(monkeypatch: pytest.MonkeyPatch, host: JobSite) -> None:
    """Let this environment and machine be `host`."""
    monkeypatch.setattr(environment, "job_site", lambda environ, variables, interpreter: host)
    monkeypatch.setattr(environment, "own_python", lambda further: host.python)


@pytest.mark.parametrize(("stack", "status"), [(BREAKING, 1), (FINE, 0), ("torch=2.4.1", 0), ("mcore=9.9.9", 3)])
def test_exit_status_is_1_for_a_known_break(stack: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *stack.split()]) == status
    assert ("WILL BREAK:" in capsys.readouterr().out) is (status == 1)


NOT_CHECKED = "none of torch, megatron-core and Transformer Engine: nothing was checked"
FORMATS = {
    "": (NOT_CHECKED,),
    "--brief": (NOT_CHECKED,),
    "--all": (NOT_CHECKED,),
    "--json": ('"answer": "nothing-checked"', '"breaks": false'),
    "--format=github": ("::warning ", "title=nothing-checked%3A ", NOT_CHECKED),
    "--format=sarif": ('"ruleId": "nothing-checked"', '"level": "none"', NOT_CHECKED),
    "--format=markdown": ("| not checked | nothing-checked | ", NOT_CHECKED),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("text", ["", "numpy==1.26.4\n", "sphinx>=7\n"])
def test_nothing_checked_is_no_all_clear(
    text: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file without a word of Megatron's stack, and of an environment (no text) without any of its packages."""
    on(monkeypatch, BARE)
    (tmp_path / "requirements.txt").write_text(text)
    words = ["check", *filter(None, [format]), *([str(tmp_path / "requirements.txt")] if text else [])]
    status, printed = main(words), " ".join(capsys.readouterr().out.split())
    assert status == 3
    assert [part for part in FORMATS[format] if part not in printed] == []
    assert "known to break" not in printed
    assert (main([*words, "--allow-unknown"]), main([*words, "--require", "torch"])) == (0, 3)


def test_file_that_states_nothing_fails_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job without versions is checked: its options are, and what its versions decide is unknown."""
    texts = {
        "docs.txt": "sphinx>=7\n",
        "requirements.txt": "torch==2.9.0\n",
        "job.sh": "torchrun pretrain_gpt.py --bf16\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    docs, fine, job = (str(tmp_path / name) for name in texts)
    assert (main(["check", docs]), main(["check", docs, fine]), main(["check", job])) == (3, 0, 3)
    assert f"{docs}: the input names {NOT_CHECKED}" in " ".join(capsys.readouterr().out.split())


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", BREAKING]) == 1
    (found,) = items_of(capsys.readouterr().out, "check")
    assert (found["breaks"], found["failures"][0]["failure"]) == (True, SAVE)
    assert found["stack"]["sources"]["megatron-core"] == "command line"


@pytest.mark.parametrize(
    "arguments",
    [[BREAKING], [FINE, "--launcher", "torchrun"], ["base=ngc-24.10 driver=450"], ["mcore=0.16.1 te=1.3.0"], []],
)
def test_json_fits_the_published_schema(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, NGC)
    main(["check", "--json", *arguments])
    assert len(items_of(capsys.readouterr().out, "check")) == 1


def test_this_environment_is_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It runs under torchrun, in an image, on GPUs."""
    on(monkeypatch, NGC)
    assert main(["check", "--json"]) == 0
    (found,) = items_of(capsys.readouterr().out, "check")
    assert (found["stack"]["components"]["base"], found["stack"]["components"]["driver"]) == ("ngc-24.07", "535.129.03")
    (overlap,) = [one for one in found["failures"] if one["failure"] == MPI]
    assert (overlap["standing"], overlap["certain"]) == ("breaks with these options", False)
    assert overlap["prove"] == f'megatrix run --here --select "failure=={MPI}"'
    assert found["machine"]["cuda"]["compat"] is True


def test_machine_without_packages_is_not_called_safe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, BARE)
    assert main(["check"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("the stack has none of torch, megatron-core and Transformer Engine: nothing was checked\n")
    assert "  no       GPU " in out


def test_damaged_history_is_only_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "history.sqlite").write_text("no database")
    assert main(["check", BREAKING, "--out", str(tmp_path)]) == 1
    assert "no history: " in capsys.readouterr().err


def test_files_and_text_make_one_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Dockerfile").write_text("FROM nvcr.io/nvidia/pytorch:24.07-py3\n")
    assert main(["check", "--json", str(tmp_path / "Dockerfile"), "mcore=0.8.0"]) == 1
    stack = items_of(capsys.readouterr().out, "check")[0]["stack"]
    assert (stack["components"]["base"], stack["components"]["megatron-core"]) == ("ngc-24.07", "0.8.0")
    assert stack["sources"]["base"] == f"{tmp_path / 'Dockerfile'}:1"


def test_options_give_the_memory_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--seq-length", "131072", "--ranks-per-host", "8", "--host-memory", "880G", "--shm", "64G"]
    assert main(["check", FINE, *options]) == 1
    out = capsys.readouterr().out
    assert f"WILL BREAK: {MASK}:" in out
    assert "    peak of a worker                               128 GiB         9 MiB" in out
    assert main(["check", FINE, *options, "--seq-length", "32768"]) == 0
    assert f"not reached, 41448 tokens fit (/dev/shm is the limit): {MASK}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mcre=1"], "did you mean mcore"),
        (["--json", "--", "true"], "stdout belongs to the command"),
        (["--launcher", "torchrn"], "did you mean torchrun"),
        (["no/such/Dockerfile"], "the file can't be read"),
        (["mcore=0.8.0", "--", "true"], "a command is checked in this environment"),
        (["--checkpoint", "/no/such/folder"], "not a checkpoint"),
        (["--python", "/no/such/python"], "can't be started"),
        (["mcore=0.16.1", "--brief", "--all"], "not allowed with argument --brief"),
    ],
)
def test_mistake_exits_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("core", "status"), [("0.19.0", 0), ("0.18.0", 1)])
def test_checkpoint_is_held_against_the_stack(
    core: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    assert main(["check", f"mcore={core}", "--checkpoint", str(tmp_path), "--json"]) == status
    (found,) = items_of(capsys.readouterr().out, "check")
    assert found["checkpoint"]["wrote"] == ">=0.19.0"
    assert [one["text"].startswith(f"megatron-core {core} can't read") for one in found["clashes"]] == [True] * status


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "matrix", "check", *arguments],
        cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def breaking_clone(tmp_path: Path) -> str:
    """Return a folder with a Megatron-LM whose mask drops documents if two flags are given."""
    info = tmp_path / environment.PACKAGE_INFO
    info.parent.mkdir(parents=True)
    info.write_text("MAJOR = 0\nMINOR = 9\nPATCH = 0\nPRE_RELEASE = ''\n")
    return str(tmp_path)


FLAGS = ("--no-create-attention-mask-in-dataloader", "--reset-attention-mask")
ECHO = (sys.executable, "-c", "import sys; print('started', len(sys.argv)); sys.exit(7)", "pretrain_gpt.py")


def test_command_without_a_known_break_is_started() -> None:
    """Its output and exit status are its own; the answer is on stderr."""
    done = run("--", *ECHO, "--seq-length", "64")
    assert (done.returncode, done.stdout) == (7, "started 4\n")
    assert "nothing was checked" in done.stderr


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (None, 127),
        ("#!/no/such/interpreter\n", 127),
        ("no first line for the kernel\n", 126),
        (Path.mkdir, 126),
        (lambda path: path.write_text("#!/bin/sh\n"), 126),
    ],
    ids=["missing", "interpreter", "no-format", "folder", "not-executable"],
)
def test_command_that_cannot_start_is_reported(tmp_path: Path, content: object, status: int) -> None:
    """The status is that of env(1), timeout(1) and a shell."""
    program = tmp_path / "program"
    if isinstance(content, str):
        program.write_text(content)
        program.chmod(0o755)
    elif callable(content):
        content(program)
    done = run("--", str(program))
    assert (done.returncode, done.stdout) == (status, "")
    assert f"can't be started\n  got:      {program}: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("words", "status"), [([""], 127), (["true", "x" * 2**18], 126)], ids=["empty", "long"])
def test_words_that_cannot_start_are_reported(
    words: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Linux accepts no word of 128 KiB or more."""
    assert start(words) == status
    assert "can't be started" in capsys.readouterr().err


def test_known_break_stops_the_command(breaking_clone: str) -> None:
    done = run("--", *ECHO, *FLAGS, PYTHONPATH=breaking_clone)
    assert (done.returncode, done.stdout) == (1, "")
    assert "SILENTLY DIFFERENT: " in done.stderr
    assert run("--warn", "--", *ECHO, *FLAGS, PYTHONPATH=breaking_clone).returncode == 7
    assert run("--", *ECHO, FLAGS[0], PYTHONPATH=breaking_clone).returncode == 7


def test_script_of_the_command_is_read(breaking_clone: str, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"F='{' '.join(FLAGS)}'\ntouch {tmp_path / 'started'}\npython pretrain_gpt.py $F\n")
    done = run("--", "bash", str(script), PYTHONPATH=breaking_clone)
    assert (done.returncode, (tmp_path / "started").exists()) == (1, False)
    assert f"{script}:3" in done.stderr


def test_two_stacks_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["mcore=0.8.0 torch=2.3.1 te=1.9.0", "--to", "mcore=0.8.0 torch=2.4.1 te=1.9.0"]
    assert main(["check", *words, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    validator("check-to").validate(found)
    new = {part["name"]: part["certain"] for part in found["items"] if part["effect"] == "newly breaks"}
    assert new[SAVE]
    assert main(["check", *words]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 newly breaks; ")
    assert len(lines[0]) <= 100
    assert "torch  2.3.1  2.4.1" in lines


JOB = "torchrun --nproc_per_node 8 pretrain_gpt.py --use-distributed-optimizer --ckpt-format torch_dist --save out\n"


def test_history_lists_repairs_the_options_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0150d73d27 changed a function that reads --ckpt-format, and is first in 0.16.0."""
    (tmp_path / "train.sh").write_text(JOB)
    words = ["check", "mcore=0.13.0 torch=2.7.1", str(tmp_path / "train.sh"), "--as-one", "--history"]
    assert main([*words, "--to", "mcore=0.17.1 torch=2.7.1", "--allow-unknown"]) in (0, 1)
    printed = capsys.readouterr().out.partition("HISTORY of megatron-core, 0.13.0 to 0.17.1\n")[2]
    assert "fixes and reverts that 0.13.0 lacks" in printed
    assert "0150d73d27 of 2025-12-02, a fix: " in printed
    assert "load_modelopt_checkpoint reads --ckpt-format" in printed
    assert main([*words, "--upgrade", "mcore", "--json"]) in (0, 1, 3)
    found = json.loads(capsys.readouterr().out)
    validator("check").validate(found)
    (between,) = found["history"]
    assert (between["component"], between["from"]) == ("megatron-core", "0.13.0")
    assert any(line.startswith("0150d73d27") for line in between["gained"])


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["mcore=0.13.0"], "--history compares two releases"),
        (["mcore=0.13.0 torch=2.7.1", "--to", "mcore=0.17.1 torch=2.7.1"], "to read options: no job is named"),
        (["mcore=0.13.0 torch=2.7.1", "--to", "mcore=9.9 torch=2.7.1"], "9.9 is not a release known up to 20"),
        (["mcore=0.17.1 torch=2.7.1", "--to", "mcore=0.19.2 torch=2.7.1"], "it counts as 0.19.0"),
    ],
)
def test_history_states_what_it_does_not_know(
    words: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", *words, "--history"])
    captured = capsys.readouterr()
    assert printed in captured.out + captured.err


def test_the_way_back_is_fixed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mcore=0.8.0 torch=2.4.1 te=1.9.0", "--to", "mcore=0.8.0 torch=2.3.1 te=1.9.0", "--all"]) == 0
    assert "FIXED: 2" in capsys.readouterr().out


def test_comparing_refuses_what_asks_about_one_stack(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "torch=2.4.1", "--to", "torch=2.5.1", "--upgrade", "te"]) == 2
    assert "--to compares two stacks" in capsys.readouterr().err
