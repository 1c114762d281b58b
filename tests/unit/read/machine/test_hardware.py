"""What a machine has, from /proc and NVML."""

from __future__ import annotations

import json
import platform
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from matrix import PACKAGE
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, Nvml
from matrix.read.commands import run
from matrix.read.machine import hardware
from matrix.read.machine.hardware import Devices, look, query

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version:  gcc\n"


def written(proc: Path, version: str = DRIVER, gpus: tuple[str, ...] = ()) -> Path:
    """Write a /proc with a driver; return it."""
    (proc / "driver" / "nvidia" / "gpus").mkdir(parents=True)
    for address in gpus:
        (proc / "driver" / "nvidia" / "gpus" / address).mkdir()
    (proc / "driver" / "nvidia" / "version").write_text(version)
    return proc


def no_library() -> None:
    """Stand for hardware.management without NVML: return None."""


def test_memory_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       24000000 kB\nMemFree: 1 kB\n")
    assert look(tmp_path, no_library).memory == 24_000_000 * 1024


def unexpected() -> Nvml:
    raise AssertionError("NVML was queried")


def test_a_machine_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    assert look(tmp_path, no_library) == Machine("none", 0, architecture=platform.machine())


def test_gpus_and_driver_are_read_from_proc(tmp_path: Path) -> None:
    proc = written(tmp_path, gpus=("0000:17:00.0", "0000:65:00.0"))
    assert look(proc, unexpected) == Machine("535.129.03", 2, architecture=platform.machine())


def test_the_open_kernel_module_is_a_driver_too(tmp_path: Path) -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (dvs-builder)\n"
    assert look(written(tmp_path, version), unexpected).driver == "550.54.14"


@pytest.mark.parametrize("version", ["", "unknown\n"])
def test_without_proc_nvml_is_queried(tmp_path: Path, version: str) -> None:
    if version:
        (tmp_path / "driver" / "nvidia").mkdir(parents=True)
        (tmp_path / "driver" / "nvidia" / "version").write_text(version)
    nvml = Nvml("470.161.03", "11.4", (Gpu("A800", links=8, up=8), Gpu("A800", links=8, up=8)))
    assert look(tmp_path, lambda: nvml) == Machine("470.161.03", 2, nvml=nvml, architecture=platform.machine())


def test_a_crashed_nvml_is_a_host_without_gpus(tmp_path: Path) -> None:
    nvml = Nvml(problem="nvmlInit crashed: SIGSEGV")
    assert look(tmp_path, lambda: nvml) == Machine("none", 0, nvml=nvml, architecture=platform.machine())


CUDA = Cuda("12.4", "/usr/lib/libcuda.so.550.54.14", (Gpu("H100", "9.0", 80, multicast=True),))
NVML = Nvml("550.54.14", "12.4", (Gpu("H100", links=18, up=18),))
IN_INIT = Cuda("12.4", "/usr/lib/libcuda.so.550.54.14", asking="cuInit")


def line(facts: Nvml | Cuda) -> str:
    """Return the line that the process of a library prints."""
    return json.dumps({"nvml" if isinstance(facts, Nvml) else "cuda": asdict(facts)})


def printing(folder: Path, *facts: Nvml | Cuda, then: str = "") -> str:
    """Write an interpreter that prints the facts of libraries and then runs `then`; return its path."""
    path = folder / "python"
    (folder / "output").write_text("output of a library\n" + "".join(line(one) + "\n" for one in facts))
    path.write_text(f"#!/bin/sh\ncat '{folder / 'output'}'\n{then}\n")
    path.chmod(0o755)
    return str(path)


def test_the_facts_of_both_libraries_are_returned(tmp_path: Path) -> None:
    assert query(python=printing(tmp_path, Nvml(asking="nvmlInit"), NVML, IN_INIT, CUDA)) == Devices(NVML, CUDA)


@pytest.mark.parametrize(
    ("then", "end"),
    [
        ("kill -SEGV $$", "crashed: SIGSEGV"),
        ("exit 3", "ended with status 3"),
        ("exec sleep 60", "did not return in 1 s"),
    ],
)
def test_a_hanging_driver_keeps_the_earlier_facts(tmp_path: Path, then: str, end: str) -> None:
    found = query(python=printing(tmp_path, NVML, IN_INIT, then=then), seconds=1)
    assert found == Devices(NVML, Cuda("12.4", CUDA.library, problem=f"cuInit {end}"))


def test_a_process_stuck_in_the_kernel_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL does not end it; the test replaces kill() and ends the process itself."""
    held: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: held.append(process))
    monkeypatch.setattr(hardware, "GONE_S", 0.1)
    found = query(python=printing(tmp_path, NVML, IN_INIT, then="exec sleep 600"), seconds=1)
    assert found.cuda.problem == "cuInit did not return in 1 s"
    for process in held:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ("echo SyntaxError; exit 1", "ended with status 1: SyntaxError"),
        ("", "status 0: output of a library"),
        ("printf '[%.0s' $(seq 100000)", "status 0: [[["),
        ("""echo '{"cuda": {"gpus": 5}, "nvml": {"gpus": [], "x": 1}}'""", 'status 0: {"cuda"'),
    ],
)
def test_an_interpreter_without_facts_is_reported(tmp_path: Path, then: str, message: str) -> None:
    found = query(python=printing(tmp_path, then=then))
    assert message in found.nvml.problem == found.cuda.problem
    assert found.nvml.silent
    assert found.cuda.silent


def test_a_missing_interpreter_is_reported(tmp_path: Path) -> None:
    found = query(python=str(tmp_path / "python")).cuda
    assert found.problem.endswith("can't be started: No such file or directory")
    assert found.silent


def test_a_relative_interpreter_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printing(tmp_path, NVML, CUDA)
    monkeypatch.chdir(tmp_path)
    assert query(python="./python") == Devices(NVML, CUDA)


def test_this_interpreter_reports_both_libraries() -> None:
    """On any machine: each library has GPUs or a reason."""
    found = query(python=sys.executable)
    assert all(one.gpus or one.problem for one in (found.nvml, found.cuda))
    assert all(not one.asking for one in (found.nvml, found.cuda))


def test_an_interpreter_without_packages_works(tmp_path: Path) -> None:
    """The environment of a job may lack `packaging`."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    found = query(python=str(bare))
    assert not found.nvml.silent, found.nvml.problem
    assert not found.cuda.silent, found.cuda.problem


def test_without_the_library_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "there", lambda: "libnvidia-ml.so.1: cannot open shared object file")
    monkeypatch.setattr(hardware, "query", lambda *_: pytest.fail("a process was started"))
    hardware.management.cache_clear()
    assert hardware.management() is None
    hardware.management.cache_clear()


def test_missing_nvml_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each library takes 0.05 s."""
    queried, started = hardware._querying, list[str]()

    def start(name: str, python: str) -> Any:
        started.append(name)
        return queried(name, python)

    monkeypatch.setattr(hardware, "there", lambda: "libnvidia-ml.so.1: cannot open shared object file")
    monkeypatch.setattr(hardware, "_querying", start)
    assert query().nvml == Nvml(problem="libnvidia-ml.so.1: cannot open shared object file")
    assert started == ["cuda"]


def test_nvml_is_queried_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[Sequence[str]] = []

    def answer(libraries: Sequence[str]) -> Devices:
        queries.append(libraries)
        return Devices(nvml=NVML)

    monkeypatch.setattr(hardware, "there", lambda: "")
    monkeypatch.setattr(hardware, "query", answer)
    hardware.management.cache_clear()
    assert [hardware.management(), hardware.management()] == [NVML, NVML]
    assert queries == [("nvml",)]
    hardware.management.cache_clear()


LOST, MISMATCH, NO_LINK = 15, 18, 2
TEXTS = {LOST: b"GPU is lost", MISMATCH: b"Driver/library version mismatch"}


HINT = "the driver was updated while its kernel module was loaded; reload it or reboot"


class Library:
    """A fake libnvidia-ml.so.1. `links`: up or not, for each GPU; `refuses`: the error code of a function."""

    def __init__(self, *links: Sequence[bool], refuses: Mapping[str, int] | None = None, lost: int = -1) -> None:
        self.links, self.refuses, self.lost = links, refuses or {}, lost

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int | bytes | None:
            if name == "nvmlErrorString":
                return TEXTS.get(arguments[0])
            if name in self.refuses:
                return self.refuses[name]
            if name == "nvmlSystemGetDriverVersion":
                arguments[0].value = b"470.161.03"
            elif name == "nvmlSystemGetCudaDriverVersion":
                arguments[0]._obj.value = 11040
            elif name == "nvmlDeviceGetCount_v2":
                arguments[0]._obj.value = len(self.links)
            elif name == "nvmlDeviceGetHandleByIndex_v2":
                if arguments[0] == self.lost:
                    return LOST
                arguments[1]._obj.value = arguments[0] + 1
            elif name == "nvmlDeviceGetName":
                arguments[1].value = b"NVIDIA A800"
            elif name == "nvmlDeviceGetNvLinkState":
                links = self.links[arguments[0].value - 1]
                if arguments[1] >= len(links):
                    return NO_LINK
                arguments[2]._obj.value = links[arguments[1]]
            return 0

        return function


def last(library: Library) -> Nvml:
    """Return the facts after the last call."""
    *_, found = hardware.look_nvml(lambda name: library)
    return found


def test_driver_gpus_and_links_are_reported() -> None:
    found = last(Library([True] * 8, [True] * 7 + [False], []))
    cards = (Gpu("NVIDIA A800", links=8, up=8), Gpu("NVIDIA A800", links=8, up=7), Gpu("NVIDIA A800", links=0, up=0))
    assert found == Nvml("470.161.03", "11.4", cards)


def test_a_lost_gpu_has_a_problem() -> None:
    assert last(Library([True], [True], lost=1)).gpus == (Gpu("NVIDIA A800", links=1, up=1), Gpu(problem="GPU is lost"))


@pytest.mark.parametrize(
    ("refuses", "expected"),
    [
        ({"nvmlInit_v2": MISMATCH}, Nvml(problem=f"nvmlInit returned Driver/library version mismatch: {HINT}")),
        ({"nvmlInit_v2": 77}, Nvml(problem="nvmlInit returned 77")),
        (
            {"nvmlDeviceGetCount_v2": LOST},
            Nvml("470.161.03", "11.4", problem="nvmlDeviceGetCount returned GPU is lost"),
        ),
        ({"nvmlSystemGetDriverVersion": 999, "nvmlSystemGetCudaDriverVersion": 999}, Nvml()),
    ],
)
def test_an_error_code_is_reported(refuses: Mapping[str, int], expected: Nvml) -> None:
    assert last(Library(refuses=refuses)) == expected


def test_facts_are_yielded_before_a_blocking_call() -> None:
    yielded = [(found.asking, found.driver) for found in hardware.look_nvml(lambda name: Library())]
    assert yielded == [("nvmlInit", None), ("nvmlDeviceGetCount", "470.161.03"), ("", "470.161.03")]


def test_a_missing_library_is_reported() -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    (found,) = hardware.look_nvml(missing)
    assert found == Nvml(problem="libnvidia-ml.so.1: cannot open shared object file")


def test_driver_is_queried_from_a_wheel(tmp_path: Path) -> None:
    """A bundle's start.py imports this project from one: no process starts in a folder that is a file."""
    wheel = shutil.make_archive(str(tmp_path / "m"), "zip", PACKAGE.parent, "matrix/read") and tmp_path / "m.zip"
    with zipfile.ZipFile(wheel, "a") as archive:
        for path in [PACKAGE / "__init__.py", *PACKAGE.glob("ground/**/*.py")]:
            archive.write(path, path.relative_to(PACKAGE.parent))
    code = "from matrix.read.machine import hardware; print(hardware.query(('cuda',)).cuda.problem)"
    ended = run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(wheel)!r}); {code}"])
    assert "can't be started" not in ended.out
    assert "libcuda" in ended.out, ended.err
