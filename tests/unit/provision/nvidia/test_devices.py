"""Both libraries are asked in a process of its own, whatever becomes of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from matrix.provision.nvidia import devices, nvml
from matrix.provision.nvidia.cuda import Cuda, CudaDevice
from matrix.provision.nvidia.devices import Devices, ask
from matrix.provision.nvidia.nvml import Card, Nvml

CUDA = Cuda("12.4", "/usr/lib/libcuda.so.550.54.14", (CudaDevice("H100", "9.0", 80, multicast=True),))
NVML = Nvml("550.54.14", "12.4", (Card("H100", 18, 18),))
IN_INIT = Cuda("12.4", "/usr/lib/libcuda.so.550.54.14", asking="cuInit")


def line(told: Nvml | Cuda) -> str:
    """A line as a library's teller prints it."""
    return json.dumps({"nvml" if isinstance(told, Nvml) else "cuda": asdict(told)})


def speaker(folder: Path, *told: Nvml | Cuda, then: str = "") -> str:
    """An interpreter that prints what the libraries tell, and then does something else."""
    path = folder / "python"
    (folder / "told").write_text("a library says hello\n" + "".join(line(one) + "\n" for one in told))
    path.write_text(f"#!/bin/sh\ncat '{folder / 'told'}'\n{then}\n")
    path.chmod(0o755)
    return str(path)


def test_what_both_told_comes_back_as_it_was(tmp_path: Path) -> None:
    assert ask(python=speaker(tmp_path, Nvml(asking="nvmlInit"), NVML, IN_INIT, CUDA)) == Devices(NVML, CUDA)


@pytest.mark.parametrize(
    ("then", "became"),
    [
        ("kill -SEGV $$", "crashed: SIGSEGV"),
        ("exit 3", "ended with status 3"),
        ("exec sleep 60", "did not return in 1 s"),
    ],
)
def test_a_driver_that_does_not_return_is_told_with_what_was_known_before(
    tmp_path: Path, then: str, became: str
) -> None:
    told = ask(python=speaker(tmp_path, NVML, IN_INIT, then=then), seconds=1)
    assert told == Devices(NVML, Cuda("12.4", CUDA.library, problem=f"cuInit {became}"))


def test_a_process_that_is_held_in_the_kernel_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL does not end it; the stand-in is one that can't be killed, for the test to end it itself."""
    held: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: held.append(process))
    monkeypatch.setattr(devices, "GONE_S", 0.1)
    told = ask(python=speaker(tmp_path, NVML, IN_INIT, then="exec sleep 600"), seconds=1)
    assert told.cuda.problem == "cuInit did not return in 1 s"
    for process in held:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("then", "said"),
    [("echo SyntaxError; exit 1", "ended with status 1: SyntaxError"), ("", "status 0: a library says")],
)
def test_an_interpreter_that_tells_nothing_is_an_answer(tmp_path: Path, then: str, said: str) -> None:
    told = ask(python=speaker(tmp_path, then=then))
    assert said in told.nvml.problem == told.cuda.problem
    assert told.nvml.silent
    assert told.cuda.silent


def test_an_interpreter_that_is_not_there_is_an_answer(tmp_path: Path) -> None:
    told = ask(python=str(tmp_path / "python")).cuda
    assert told.problem.endswith("can't be started: No such file or directory")
    assert told.silent


def test_an_interpreter_is_found_from_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker(tmp_path, NVML, CUDA)
    monkeypatch.chdir(tmp_path)
    assert ask(python="./python") == Devices(NVML, CUDA)


def test_this_interpreter_answers_for_both_libraries() -> None:
    """Whatever this machine has: either something is known or there is a reason."""
    told = ask(python=sys.executable)
    assert all(one.gpus or one.problem for one in (told.nvml, told.cuda))
    assert all(not one.asking for one in (told.nvml, told.cuda))


def test_an_interpreter_without_packages_asks_too(tmp_path: Path) -> None:
    """A job's environment has what the job needs; `packaging` need not be in it."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    told = ask(python=str(bare))
    assert not told.nvml.silent, told.nvml.problem
    assert not told.cuda.silent, told.cuda.problem


def test_without_the_library_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "there", lambda: "libnvidia-ml.so.1: cannot open shared object file")
    monkeypatch.setattr(devices, "ask", lambda *_: pytest.fail("a process was started"))
    devices.management.cache_clear()
    assert devices.management() is None
    devices.management.cache_clear()


def test_nvml_is_asked_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []

    def answer(libraries: Sequence[str]) -> Devices:
        asked.append(libraries)
        return Devices(nvml=NVML)

    monkeypatch.setattr(nvml, "there", lambda: "")
    monkeypatch.setattr(devices, "ask", answer)
    devices.management.cache_clear()
    assert [devices.management(), devices.management()] == [NVML, NVML]
    assert asked == [("nvml",)]
    devices.management.cache_clear()
