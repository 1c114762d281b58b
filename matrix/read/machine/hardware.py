"""What this machine has: driver, GPUs, memory and its limits, and what the kernel killed; without torch.

NVML and the user-mode driver are queried in a process each: a driver that hangs or crashes is reported as such. No
process that will fork may call cuInit: CUDA does not work in its children. That process runs any Python >= 3.9, with or
without packages: this module imports the standard library only, and modules of this project that need no more. Both
libraries are bound by ctypes, a dozen functions that take and return numbers and texts. Of NVML, codes and functions
are from nvml.h, and have been there since 2018 (R410).
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from matrix import PACKAGE
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, Nvml
from matrix.read.commands import python_module
from matrix.read.kernel import die_with_parent
from matrix.read.machine import cuda
from matrix.read.machine.cuda import dotted

LIBRARY: Final = "libnvidia-ml.so.1"
TEXT_BYTES: Final = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE; the driver's version takes 80
# Hints by the text of nvmlErrorString.
HINTS: Final = {
    "Driver/library version mismatch": "the driver was updated while its kernel module was loaded; reload it or reboot",
    "Driver Not Loaded": "the kernel module is not loaded: modprobe nvidia, then see dmesg",
}
MOST_LINKS: Final = 36  # NVML_NVLINK_MAX_LINKS; 18 up to Hopper


def there(library: Callable[[str], Any] = ctypes.CDLL) -> str:
    """Return why the library can't be loaded, "" if it can. Loading takes under 1 ms and does not access the driver."""
    try:
        library(LIBRARY)
    except OSError as error:
        return str(error)  # the text names the library
    return ""


def look_nvml(library: Callable[[str], Any] = ctypes.CDLL) -> Iterator[Nvml]:
    """Query NVML; `library` loads it. Yields the facts so far before each call that may hang, then all."""
    if problem := there(library):
        yield Nvml(problem=problem)
        return
    yield Nvml(asking="nvmlInit")
    driver = library(LIBRARY)
    driver.nvmlErrorString.restype = ctypes.c_char_p
    if code := driver.nvmlInit_v2():
        yield Nvml(problem=f"nvmlInit returned {_name(driver, code)}")
        return
    text, number, count = ctypes.create_string_buffer(TEXT_BYTES), ctypes.c_int(), ctypes.c_uint()
    report = Nvml()
    if not driver.nvmlSystemGetDriverVersion(text, TEXT_BYTES):
        report = replace(report, driver=text.value.decode())
    if not driver.nvmlSystemGetCudaDriverVersion(ctypes.byref(number)):
        report = replace(report, cuda=dotted(number.value))
    yield replace(report, asking="nvmlDeviceGetCount")
    if code := driver.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        yield replace(report, problem=f"nvmlDeviceGetCount returned {_name(driver, code)}")
        return
    yield replace(report, gpus=tuple(_gpu(driver, index) for index in range(count.value)))


def _gpu(driver: Any, index: int) -> Gpu:
    device, active = ctypes.c_void_p(), ctypes.c_int()
    name = ctypes.create_string_buffer(TEXT_BYTES)
    if code := driver.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
        return Gpu(problem=_name(driver, code))
    driver.nvmlDeviceGetName(device, name, TEXT_BYTES)
    # The call fails for a link that the GPU does not have.
    up = [
        bool(active.value)
        for link in range(MOST_LINKS)
        if not driver.nvmlDeviceGetNvLinkState(device, link, ctypes.byref(active))
    ]
    return Gpu(name.value.decode(), links=len(up), up=sum(up))


def _name(driver: Any, code: int) -> str:
    text = (driver.nvmlErrorString(code) or str(code).encode()).decode()
    return f"{text}: {HINTS[text]}" if text in HINTS else text


ROOT: Final = PACKAGE.parent  # project folder, from which the process imports this module
LIBRARIES: Final[Mapping[str, Callable[[], Iterator[Any]]]] = {"nvml": look_nvml, "cuda": cuda.look}
KINDS: Final[Mapping[str, Any]] = {"nvml": Nvml, "cuda": Cuda}
# Seconds for a query: 0.1 s without a driver, one or two with one, about ten for eight GPUs without a persistence
# daemon.
ANSWER_S: Final = 30.0
MOST_PRINTED: Final = 2**24  # bytes; the facts have 2 kB
GONE_S: Final = 1.0  # seconds for a killed process to end; one that hangs in the kernel driver never does


@dataclass(frozen=True)
class Devices:
    """The facts of both libraries."""

    nvml: Nvml = field(default_factory=Nvml)
    cuda: Cuda = field(default_factory=Cuda)


def query(
    libraries: Iterable[str] = tuple(LIBRARIES), python: str = sys.executable, seconds: float = ANSWER_S
) -> Devices:
    """Query libraries, each in a process of `python` with this environment, at the same time.

    Where this Python can't load NVML, which has no effect on the driver, no process is started for it.
    """
    interpreter = str(Path(python).absolute()) if os.sep in python else python
    missing = there() if python == sys.executable else ""
    facts: dict[str, Any] = {"nvml": Nvml(problem=missing)} if missing else {}
    with ExitStack() as started:
        queried = [name for name in libraries if name not in facts]
        results = {name: started.enter_context(_querying(name, interpreter)) for name in queried}
        ends = time.monotonic() + seconds
        return Devices(**facts, **{name: result(ends) for name, result in results.items()})


@contextmanager
def _querying(library: str, python: str) -> Iterator[Callable[[float], Any]]:
    """Start the process that queries a library; yield a function that waits for its result until a time.monotonic()."""
    import tempfile  # not in the process of a library, which lasts 0.05 s

    begun = time.monotonic()
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(
                python_module(python, "matrix.read.machine.hardware", str(os.getpid()), library, folder=ROOT),
                cwd=ROOT if ROOT.is_dir() else ROOT.parent,  # a bundle's start.py imports this from a wheel
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C at the terminal must reach this process only
            )
        except OSError as error:
            problem = f"{python} can't be started: {error.strerror}"
            yield lambda ends: KINDS[library](problem=problem, silent=True)
            return

        def result(ends: float) -> Any:
            try:
                status = process.wait(max(ends - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                ended = f"did not return in {ends - begun:.0f} s"
            else:
                ended = f"crashed: {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            out.seek(0)
            lines = out.read().decode(errors="replace").splitlines()
            reply = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
            silent = KINDS[library](problem=f"{python} {ended}: {reply}", silent=True)
            return read(library, lines, ended) or silent

        try:
            yield result
        finally:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GONE_S)


def read(library: str, lines: Iterable[str], ended: str) -> Nvml | Cuda | None:
    """Return the last facts that `main` printed of a library; `ended` is how a call that did not return ended."""
    report = None
    for line in lines:
        try:
            facts = json.loads(line)[library]
            report = KINDS[library](**{**facts, "gpus": tuple(Gpu(**gpu) for gpu in facts["gpus"])})
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # output of a library
    return replace(report, problem=f"{report.asking} {ended}", asking="") if report and report.asking else report


@cache
def management() -> Nvml | None:
    """Query NVML, once per process; return None, without starting a process, where the library can't be loaded."""
    return None if there() else query(("nvml",)).nvml


@cache
def user_mode() -> Cuda:
    """Query the user-mode driver that ranks load, once per process, in another: none may fork after cuInit."""
    return query(("cuda",)).cuda


def main(parent: int, library: str) -> None:
    """Print the facts of a library: a line of JSON whenever more is known."""
    die_with_parent(parent)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_PRINTED, MOST_PRINTED))  # a library may print without end
    for facts in LIBRARIES[library]():
        sys.stdout.write(json.dumps({library: asdict(facts)}) + "\n")
        sys.stdout.flush()


COUNT: Final = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
COUNTS: Final = ("memory.oom_control", "memory.events")  # files of cgroup v1, v2
LIMITS: Final = ("memory.limit_in_bytes", "memory.max")  # files of cgroup v1, v2
AVAILABLE: Final = re.compile(r"^MemAvailable: +(\d+) kB$", re.MULTILINE)
MEMBERSHIP: Final = re.compile(r"^\d+:(memory|):(/.*)$", re.MULTILINE)


def oom_kills(root: Path = Path("/"), group: str = "") -> dict[str, int]:
    """Return the OOM kills by source, the nearest to a process in the cgroup `group`, or in this one's, first.

    The kernel counts a kill in the group of the process that it kills (v1 memory.oom_control, v2 memory.events),
    whatever limit was reached, and for the machine (/proc/vmstat), which others share.
    """
    sources = [Path(group) / name for name in COUNTS if group]
    for controller, top, group_folder in memberships(root):
        folder = group_folder if group_folder.is_dir() else top  # a container may see its own group as the root
        sources.append(folder / ("memory.oom_control" if controller else "memory.events"))
    sources.append(root / "proc/vmstat")
    return {str(source): int(count[1]) for source in sources if (count := COUNT.search(_text(source)))}


def rise(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Return the increase of the first source of both readings: those after it count other processes, too."""
    return next((count - before[source] for source, count in after.items() if source in before), 0)


def available(root: Path = Path("/")) -> int | None:
    """Return the bytes available on this machine without swapping, None if the kernel does not report them."""
    size = AVAILABLE.search(_text(root / "proc/meminfo"))
    return int(size[1]) * 1024 if size else None


def allowed(memory: int, root: Path = Path("/")) -> int | None:
    """Return the limit in bytes of this process's cgroup and its parents; None if it is `memory` or more.

    In a container its own group is the topmost visible one.
    """
    limits = []
    for _, top, folder in memberships(root):
        groups = (group for group in (folder, *folder.parents) if group.is_relative_to(top))
        limits += [text for group in groups for name in LIMITS if (text := _text(group / name).strip()).isdecimal()]
    least = min(map(int, limits), default=memory)
    return least if least < memory else None


def memberships(root: Path) -> list[tuple[str, Path, Path]]:
    """Return this process's memory cgroups: the controller ("" for v2), where it is mounted, the group's folder."""
    mounts = root / "sys/fs/cgroup"
    lines = MEMBERSHIP.findall(_text(root / "proc/self/cgroup"))
    return [(controller, mounts / controller, mounts / controller / path.lstrip("/")) for controller, path in lines]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # missing on this kernel, or not visible in this container
        return ""


def look(proc: Path = Path("/proc"), management: Callable[[], Nvml | None] = management) -> Machine:
    """Return this machine. `management` queries NVML where /proc has no driver: WSL, some containers.

    Neither torch nor NVML is required; an NVML that hangs costs ANSWER_S, once.
    """
    folder, meminfo = proc / "driver" / "nvidia" / "gpus", proc / "meminfo"
    driver, listed = driver_of(proc), len(list(folder.iterdir())) if folder.is_dir() else None
    nvml = management() if driver is None or listed is None else None
    memory = re.search(r"^MemTotal: +(\d+) kB$", meminfo.read_text(), re.MULTILINE) if meminfo.is_file() else None
    return Machine(
        driver=driver or (nvml and nvml.driver) or "none",  # NONE of catalog/versions.py, which needs packaging
        listed=listed if listed is not None else len(nvml.gpus) if nvml else 0,
        nvml=nvml,
        architecture=platform.machine(),
        memory=int(memory[1]) * 1024 if memory else None,
    )


def driver_of(proc: Path = Path("/proc")) -> str | None:
    """Return the kernel driver's version from /proc, None where it is missing."""
    version = proc / "driver" / "nvidia" / "version"
    text = version.read_text() if version.is_file() else ""
    match = re.search(r"Kernel Module[^\n]{0,512}?\s(\d{1,9}\.\d{1,9}(?:\.\d{1,9})?)\s", text)
    return match[1] if match else None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
