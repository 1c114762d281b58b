"""Bad inputs of `megatrix check`: a clear answer, no traceback, and nothing is executed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matrix.ask.check.declaring import declared_stack, read_file
from matrix.cli.main import main
from matrix.ground.errors import MatrixError
from tests.unit.catalogs import real

HARM = "touch harm; $(touch harm); `touch harm`"
DEEP = "[" * 50_000


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(65 * 2**20)


# Name, content or what makes it, exit status, a part of what is printed.
FILES: list[tuple[str, str | bytes | Callable[[Path], object], int, str]] = [
    ("missing.txt", lambda path: None, 2, "No such file"),
    ("folder.lock", Path.mkdir, 2, "a folder"),
    ("pipe.txt", os.mkfifo, 2, "a FIFO"),
    ("huge.txt", huge, 3, "a file of 68,157,440 bytes"),
    ("loop.txt", lambda path: path.symlink_to(path), 2, "Too many levels"),
    ("binary.txt", b"\x7fELF\0\0\0", 3, "a binary file"),
    ("image.Dockerfile", b"\x89PNG\0", 3, "a binary file"),
    ("prose", "hello there", 3, "not a file that declares a stack"),
    ("uv.lock", "[[", 3, "not TOML"),
    ("poetry.lock", f"a = {DEEP}", 3, "not TOML"),
    ("pylock.toml", "a = " + "9" * 5_000, 3, "not TOML"),
    ("Pipfile.lock", DEEP, 3, "not JSON"),
    ("environment.yml", "dependencies: [a", 3, "not YAML"),
    ("environment.yaml", f"dependencies: {DEEP}", 3, "not YAML"),
    ("run.yaml", "a: !!python/object/apply:os.system ['touch harm']", 3, "not YAML"),
    ("cycle.yaml", "a: &a {seq_length: 8, b: *a}", 3, "a kind of YAML that is not read"),
    ("empty.txt", "", 3, "nothing was checked"),
    ("empty.sh", "", 3, "nothing was checked"),
    ("Dockerfile", "", 3, "nothing was checked"),
    ("uv.lock", "", 3, "a lock without packages"),
    ("requirements.txt", "-r requirements.txt\ntorch==2.4.1", 0, "includes"),
    ("requirements.txt", "-r /no/such/file.txt", 3, "is missing"),
    ("requirements.txt", "torch==99.99\nmegatron-core==99", 3, "is newer than every release"),
    ("requirements.txt", "megatron-core==0.8.7", 3, "is no release that this catalog knows"),
    ("requirements.txt", "torch==2.4.1\ntorch==2.5.1", 0, "the later one counts"),
    ("requirements.txt", "torch==not-a-version", 3, "not a requirement"),
    ("requirements.txt", "torch==2.4.1; python_version < '2'", 3, "nothing was checked"),
    ("requirements.txt", "torch==2.4.1; nonsense == 'x'", 3, "not a requirement"),
    ("requirements.txt", "torch[all,none]==2.4.1+weird.local", 0, "2.4.1+weird.local"),
    ("requirements.txt", "torch @ git+https://x.invalid/torch.git@v2.4.1", 0, "2.4.1"),
    ("requirements.txt", "torch @ file:///no/such/torch-2.4.1-py3-none-any.whl", 0, "2.4.1"),
    ("requirements.txt", "git+ssh://[", 3, "not a requirement"),
    ("requirements.txt", "torch==2.4.*,!=2.4.0", 3, "no exact version of torch is stated (!=2.4.0,==2.4.*)"),
    ("requirements.txt", f"x; {'(' * 5_000}", 3, "not a requirement"),
    ("requirements.txt", "\u202etorch==2.4.1\x1b[31m", 3, "\\u202e"),
    ("requirements.txt", "torch==2.4.1\r\nmegatron-core==0.9.0\r\n", 0, "0.9.0"),
    ("latin.txt", b"torch==2.4.1\n# \xe9\xff\n", 0, "2.4.1"),
    ("Dockerfile", "FROM registry.invalid/unknown:1", 3, "does not know the image"),
    ("Dockerfile", "FROM $NOWHERE", 3, "does not know the image"),
    ("Dockerfile", f"FROM nvcr.io/nvidia/pytorch:24.07-py3\nRUN {HARM}", 0, "ngc-24.07"),
    ("Dockerfile", "FROM a AS a\nFROM a AS a\nFROM a", 3, "does not know the image"),
    ("train.sh", f"{HARM}\ntorchrun pretrain_gpt.py --seq-length $(touch harm)", 3, "no version is stated"),
    ("train.sh", "X=$X$X\n" * 200 + 'torchrun pretrain_gpt.py "$X"', 3, "no version is stated"),
    ("train.sh", "torchrun pretrain_gpt.py --nproc_per_node 9999999999999999999", 3, "no version is stated"),
    ("train.sh", "torchrun --nproc_per_node 8 pretrain_gpt.py --seq-length 128k", 3, "no version is stated"),
    ("train.sh", "torchrun --nproc_per_node 8 pretrain_gpt.py --seq-length -1", 3, "no version is stated"),
    ("train.sh", "source train.sh\n. ./train.sh\nbash train.sh", 3, "nothing was checked"),
    ("train.sh", "echo 'open", 3, "nothing was checked"),
    ("train.sh", "a=(" * 20_000, 3, "nothing was checked"),
    ("train.sh", "bash " * 3_000, 3, "the script bash is missing"),
    ("train.sh", "a\n" * 1_000_000, 3, "too many characters"),
    ("train.sh", "a\n" * 6_000, 3, "too many commands"),
    ("train.sh", "a=(x x)\n" + "a=(${a[@]} ${a[@]})\n" * 30, 3, "too many characters in the words of one command"),
    ("Dockerfile", f"FROM a\nRUN {DEEP}", 3, "does not know the image"),
    ("Dockerfile", f"FROM a\nCOPY {'[' * 900}{']' * 900}", 3, "does not know the image"),
    ("Dockerfile", "RUN a\n" * 300_000, 3, "too many characters"),
    ("Dockerfile", "FROM a\n" * 6_000, 3, "too many instructions"),
    ("requirements.txt", "a\n" * 60_000, 3, "too many requirements"),
    ("uv.lock", ".".join("a" * 5_000) + " = 1", 3, "a key nested too deep"),
    ("uv.lock", 'x = { "a"' + '."a"' * 5_000 + " = 1 }", 3, "a key nested too deep"),
]


@pytest.mark.parametrize(
    ("name", "content", "status", "expected"), FILES, ids=[f"{n}-{one[0]}" for n, one in enumerate(FILES)]
)
def test_bad_file_gets_a_clear_answer(
    name: str,
    content: str | bytes | Callable[[Path], object],
    status: int,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)
    path = tmp_path / name
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    assert main(["check", str(path)]) == status

    printed = capsys.readouterr()
    assert expected in printed.out + printed.err
    assert "Traceback" not in printed.out + printed.err
    assert "\x1b" not in printed.out + printed.err
    assert {one.name for one in tmp_path.iterdir()} <= {name}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mcore=" + "9" * 5_000], "not a version"),
        (["x" * 5_000], "not a stack"),
        (["\0"], "not a stack"),
        (["torch=2.4.1", ""], "an empty word"),
        (["torch-2.3.9"], "did you mean torch-2.3.1"),
        (["-"], "write it into a file: COMMAND > requirements.txt"),
        (["a=b=c"], "no such component"),
        (["base=/etc/passwd"], "no such base"),
        (["torch=2.4.1", "torch=2.4.2"], "named twice"),
        (["--seq-length", "9" * 400], "at most 15 digits"),
    ],
)
def test_bad_words_get_a_clear_answer(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["check", *words])
    printed = capsys.readouterr()
    assert (status, expected in printed.err) == (2, True)


NAMES = ("requirements.txt", "uv.lock", "Dockerfile", "job.sh", "Pipfile.lock", "pyproject.toml", "x.yaml")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=st.sampled_from(NAMES), content=st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_any_content_is_read_or_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    try:
        stack, _ = declared_stack(real(), read_file(tmp_path / name))
    except MatrixError:
        return
    json.dumps(stack.to_json())
