"""Files that others wrote are opened as regular files of a limited size, in one function."""

from __future__ import annotations

import ast
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from matrix.ground.catalog.regular_file import (
    UnreadableError,
    open_regular,
    read_regular,
    read_regular_text,
    within_limits,
)
from matrix.ground.errors import MatrixError
from matrix.prove.provision.project import ROOT

KMSG: Final = Path("/proc/kmsg")
# The other places that open files to read, each with the number of them and why the content is not foreign.
OWN: Final = {
    "matrix/cli/usage.py": (1, "the texts of a command of this package"),
    "matrix/prove/execution/ranks/overlay_server.py": (
        2,
        "a file of this project or of a failure; the FIFO that it made",
    ),
    "matrix/prove/execution/ranks/rank_group.py": (1, "the FIFO that this process made"),
    "matrix/prove/execution/ranks/rank_main.py": (2, "the FIFO that the process of the ranks made; counts of a cgroup"),
    "matrix/cli/main.py": (1, "the null device, in place of a closed stream"),
    "matrix/prove/provision/bundle_folder.py": (
        2,
        "a bundle of this package; start.py has no more than Python",
    ),
    "matrix/read/elf/python_site.py": (5, "names of files, which LimitedDistribution reads within the limits"),
    "matrix/prove/parity/points.py": (2, "the journal of this process; the kit's own code"),
    "matrix/ground/catalog/regular_file.py": (1, "the function"),
    "matrix/ask/check/environment.py": (1, "a script of this package"),
    "matrix/cli/results.py": (1, "the summary that this process wrote"),
    "matrix/prove/execution/gpus.py": (3, "claims and their pipes: opened without following links, and checked there"),
    "matrix/prove/execution/inside.py": (1, "a log that this process wrote"),
    "matrix/prove/execution/ranks/shared_gpu.py": (3, "logs in a folder of this process; the kernel's files"),
    "matrix/prove/execution/ranks/supervisor.py": (1, "the kernel's files"),
    "matrix/prove/execution/ranks/descendants.py": (2, "the kernel's files"),
    "matrix/prove/execution/ranks/forkserver.py": (1, "a pipe that this process made"),
    "matrix/prove/execution/ranks/mpirun.py": (1, "the null device"),
    "matrix/prove/execution/ranks/rank_process.py": (4, "the kernel's files; logs that this process's ranks wrote"),
    "matrix/prove/execution/slurm/queue.py": (1, "what the tasks of this run wrote"),
    "matrix/prove/execution/slurm/task.py": (2, "what the submitting process and the steps of this run wrote"),
    "matrix/kit/gpt.py": (1, "in a rank: what another rank of this case wrote"),
    "matrix/kit/gpt_dataset.py": (1, "the kernel's files"),
    "matrix/kit/te_extension.py": (1, "in a rank: a module of the package that the rank imports"),
    "matrix/kit/userbuffers.py": (1, "in a rank: a module of the package that the rank imports"),
    "matrix/prove/provision/te_wheels.py": (6, "/proc/meminfo; sources of this package, and what this process built"),
    "matrix/prove/execution/ranks/forkserver_child.py": (1, "the kernel's files"),
    "matrix/prove/provision/thin_wheels.py": (5, "wheels that a bundle has downloaded into its own folder"),
    "matrix/read/history/index.py": (1, "an index of this package"),
    "matrix/read/machine/hardware.py": (3, "the kernel's files"),
    "matrix/read/machine/cuda.py": (1, "the kernel's files"),
    "matrix/prove/provision/project.py": (6, "this package, its copy, what uv installed; a folder, for its lock"),
    "matrix/prove/bisection/stack_comparison.py": (1, "the mark of its own run"),
    "matrix/prove/store/history.py": (1, "the tables of this package"),
    "matrix/show/document.py": (1, "templates of this package"),
    "matrix/prove/store/paths.py": (1, "a folder, to make its names durable"),
    "matrix/read/scratch.py": (2, "the kernel's files, and a lock that may not be a link"),
    "matrix/prove/store/secrets.py": (1, "logs and pages that this process wrote"),
}


def test_content_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc\xff")
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "empty").touch()

    assert read_regular(tmp_path / "link", largest=4) == b"abc\xff"
    assert read_regular_text(path) == "abc\ufffd"
    assert read_regular(tmp_path / "empty") == b""
    with open_regular(path) as file:
        assert file.read(2) == b"ab"
    with pytest.raises(UnicodeDecodeError):
        read_regular_text(path, errors="strict")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def make_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1_000_001)


@pytest.mark.parametrize("read", [read_regular, open_regular])
@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda path: None, "No such file or directory"),
        (Path.mkdir, "a folder"),
        (os.mkfifo, "a FIFO"),
        (make_socket, "a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
        (lambda path: path.symlink_to(path.name), "Too many levels"),
        (lambda path: path.symlink_to("/proc/self/status"), "a file that the kernel generates"),
        (make_large, "a file of 1,000,001 bytes"),
    ],
    ids=["missing", "folder", "fifo", "socket", "device", "loop", "endless", "large"],
)
def test_refused_file_states_got_expected_fix(
    tmp_path: Path, make: Callable[[Path], object], got: str, read: Callable[..., object]
) -> None:
    path = tmp_path / "file"
    make(path)

    with pytest.raises(UnreadableError) as caught:
        read(path, what="the plan can't be read", largest=1_000_000, fix="start again")

    error = caught.value
    assert (error.what, error.where, error.fix) == ("the plan can't be read", str(path), "start again")
    assert error.expected == "a regular file of at most 1,000,000 bytes"
    assert got in str(error.got)


def test_name_with_nul_is_refused() -> None:
    with pytest.raises(UnreadableError, match=r"null (byte|character)"):
        read_regular(Path("a\0b"))


@pytest.mark.skipif(not os.access(KMSG, os.R_OK), reason="the kernel's messages can't be read by this user")
def test_kernel_messages_do_not_block() -> None:
    with pytest.raises(UnreadableError):
        read_regular(KMSG)


def test_growing_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "growing"
    path.write_bytes(b"12")
    grown = path.open("ab", buffering=0)
    original = os.fdopen

    def grow(descriptor: int, mode: str) -> object:
        grown.write(b"345")
        return original(descriptor, mode)

    monkeypatch.setattr("os.fdopen", grow)
    with grown, pytest.raises(UnreadableError, match="more than 4 bytes"):
        read_regular(path, largest=4)


def deep(level: int) -> int:
    return deep(level + 1)


def spin() -> None:
    while True:
        pass


def endless() -> None:
    while True:
        with within_limits("inner"):
            sum(range(1_000))


def test_deep_input_names_its_file() -> None:
    with pytest.raises(MatrixError, match="x: nested too deeply"), within_limits("x"):
        deep(0)


def test_slow_input_names_its_file() -> None:
    with pytest.raises(MatrixError, match="x: takes too long to read"), within_limits("x", 0.02):
        spin()


def test_time_of_an_inner_block_counts_outside() -> None:
    with pytest.raises(MatrixError, match="x: takes too long to read"), within_limits("x", 0.02):
        endless()


def test_limit_of_time_ends_with_its_block() -> None:
    handler = signal.getsignal(signal.SIGVTALRM)
    with within_limits("x"):
        pass
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    assert signal.getsignal(signal.SIGVTALRM) == handler


def test_thread_reads_without_a_limit_of_time() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: [within_limits("x").__enter__()]).result() == [None]


def reading(text: str) -> Iterator[str]:
    """Yield each call of a source that opens a file to read it."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        flags = ast.unparse(node)
        if name in ("read_text", "read_bytes"):
            yield flags
        elif name == "open" and flags.startswith("os.open"):
            if ("O_WRONLY" not in flags and "O_CREAT" not in flags) or "O_NOFOLLOW" in flags:
                yield flags
        elif name == "open":
            named = isinstance(node.func, ast.Attribute) and node.args and not isinstance(node.args[0], ast.Constant)
            if not named and not re.search(r"'[wax]b?\+?'", flags):  # events.open(cases) opens no file
                yield flags
        elif name == "ZipFile" and flags != "zipfile.ZipFile(file)":
            yield flags


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("path.read_text(encoding='utf-8')", 1),
        ("path.read_bytes()", 1),
        ("open(path)", 1),
        ("path.open('rb')", 1),
        ("os.open(path, os.O_RDONLY)", 1),
        ("zipfile.ZipFile(path)", 1),
        ("path.open('w', encoding='utf-8')", 0),
        ("os.open(path, os.O_WRONLY | os.O_CREAT)", 0),
        ("zipfile.ZipFile(file)", 0),
        ("read_regular(path)", 0),
    ],
)
def test_call_that_reads_is_found(text: str, expected: int) -> None:
    assert len([*reading(text)]) == expected


def test_foreign_files_are_opened_here_alone() -> None:
    counts = Counter(
        str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("matrix/**/*.py")) for _ in reading(path.read_text())
    )
    assert counts == {name: count for name, (count, _) in OWN.items()}
