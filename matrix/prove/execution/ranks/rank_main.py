"""The work of one rank, inside its own process: set up, import the target, call it, report."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import importlib.metadata
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.folders import load_module
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import GPU_MEMORY, MEMORY, SECONDS, Frame, Raised
from matrix.kit.rank import LackError, Rank, renew_threads
from matrix.read import kernel
from matrix.read.machine import cuda

MESSAGE: Final = 16_384  # characters of a message; a CheckpointException, which quotes each failed rank, had 1,000
FRAMES: Final = 100  # per exception; a failed save on megatron-core had 8
EXCEPTIONS: Final = 20  # per chain; a failed save on megatron-core had 2
VALUE: Final = 2**20  # largest JSON in bytes that a body may return; a digest and a loss curve take under 10 kB
READY: Final = '{"ready": true}'  # a line to `result`: the target is imported, and the rank waits at its gate
PREFERRED_VICTIM: Final = "500"  # oom_score_adj, -1000..1000: the kernel kills a rank first, not its supervisor


def resume(fds: tuple[int, int, int]) -> None:
    """Continue in a new interpreter: `fds` are the task, the result pipe and the stacks pipe."""
    for fd in fds:
        os.set_inheritable(fd, False)
    task, result, stacks = fds
    with os.fdopen(task, encoding="utf-8") as file:
        spec = json.load(file)
    work(spec, result, stacks)


def work(spec: Mapping[str, Any], result: int, stacks: int) -> None:
    """Call the target; write its value and what it used, what it raised or lacks to `result`; re-raise exceptions."""
    sys.argv[:] = [spec["target"]]  # not the owner's argv: megatron's argument parser would read pytest's options
    open_streams()
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    Path("/proc/self/oom_score_adj").write_text(PREFERRED_VICTIM, encoding="ascii")
    # No core files: that of a process with CUDA is tens of GB, and writing it delays the end of the rank.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    rank = decode(Rank, spec["rank"])
    try:
        impose(spec)
        refuse_contradiction(rank.overlays, spec["preloaded"])
        sys.modules.update(
            dict.fromkeys(rank.hidden, cast(ModuleType, None))
        )  # None makes the import raise ModuleNotFoundError
        for library in spec["libraries"]:
            preload(library)
        body = imported(spec["target"])
        renew_threads()
        if spec["nccl"]:
            prove_nccl(spec["nccl"])
        if spec["gate"]:
            pass_gate(Path(spec["gate"]), result)
        began = time.perf_counter()
        value = body(rank, **spec["kwargs"])
        report = encode_value(value, spec["target"], usage(time.perf_counter() - began))
    except LackError as lack:
        _send(result, json.dumps({"lacks": str(lack)}))
        return
    except SystemExit:
        raise  # the body has not returned; the exit status describes its end
    except BaseException as error:  # torch's CheckpointException does not derive from Exception
        _send(result, json.dumps({"raised": encode(chain_of(error))}))
        raise
    _send(result, report)


def open_streams() -> None:
    """Open stdout and stderr anew: the inherited ones belong to the stdout of the forkserver.

    They are line-buffered, because a rank that crashes does not flush.
    """
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", 1, "utf-8", errors="backslashreplace", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, "utf-8", errors="backslashreplace", closefd=False)  # type: ignore[misc]


def preload(library: str) -> None:
    """Load a library, to which the symbols of later ones resolve. Raises LackError where it can't be loaded."""
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as error:
        raise LackError(f"ranks share a GPU, and a library that they need can't be loaded: {error}") from None


def prove_nccl(expected: str) -> None:
    """Raise LackError unless torch loads this version of NCCL: torch.cuda.nccl.version() names that of its build."""
    importlib.import_module("torch")
    number = ctypes.c_int()
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOW | os.RTLD_NOLOAD)  # what this process has loaded
    except OSError:
        raise LackError(f"ranks share a GPU over NCCL {expected}, and torch here loads no libnccl.so.2") from None
    library.ncclGetVersion(ctypes.byref(number))
    loaded = f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
    if loaded != expected:
        raise LackError(f"ranks share a GPU over NCCL {expected}, and NCCL {loaded} is loaded")


def pass_gate(gate: Path, result: int) -> None:
    """Report that the rank is ready, then wait for its GPUs, and add their variables to its own.

    The driver reads CUDA_VISIBLE_DEVICES once, in cuInit. Raises MatrixError if that was called already.
    """
    if cuda.initialised():
        raise MatrixError(
            "a module of the case starts CUDA at its import, before the rank has its GPUs",
            fix="import torch, and what uses it, in the function",
        )
    _send(result, READY)
    with gate.open(encoding="utf-8") as grant:
        os.environ.update(json.loads(grant.readline()))


def impose(
    spec: Mapping[str, Any],
    *,
    set_limit: Callable[[int, tuple[int, int]], None] = resource.setrlimit,
    mount_shm: Callable[[int], None] = kernel.private_shm,
) -> None:
    """Set the memory limits of a rank spec on this process, so that no case exhausts the memory of the machine.

    Raises LackError if one can't be set: the body does not run, and the case is unavailable.
    """
    try:
        if spec["memory_group"]:
            (Path(spec["memory_group"]) / "cgroup.procs").write_text("0", encoding="ascii")  # 0: the writing process
    except OSError as error:
        raise LackError(f"a rank can't join a memory cgroup: {error}") from None
    try:
        if spec["shm"] is not None:
            mount_shm(spec["shm"])
    except OSError as error:
        raise LackError(f"a rank can't mount its own /dev/shm: {error}") from None
    try:
        if spec["address_space"] is not None:
            set_limit(resource.RLIMIT_AS, (spec["address_space"],) * 2)
    except (OSError, ValueError, OverflowError) as error:
        raise LackError(f"the address space (RLIMIT_AS) can't be limited: {error}") from None


def imported(target: str) -> Callable[..., Any]:
    """Return the function that a job's target names. Raises ImportError or AttributeError."""
    module, _, function = target.rpartition(":")
    path = Path(module)
    imports = load_module(path.parent, path.stem) if path.suffix == ".py" else importlib.import_module(module)
    body: Callable[..., Any] = getattr(imports, function)
    return body


def usage(seconds: float, status: Path = Path("/proc/self/status")) -> dict[str, float]:
    """Return what a body used: its seconds, and the peaks that the kernel and torch report, in MiB."""
    used = {SECONDS: seconds}
    with suppress(Exception):  # some kernels report no peak
        used[MEMORY] = int(re.findall(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.M)[0]) / 2**10
    with suppress(Exception):  # what can't be measured changes no result
        card = sys.modules["torch"].cuda
        if card.is_initialized():
            used[GPU_MEMORY] = max(map(card.max_memory_allocated, range(card.device_count()))) / 2**20
    return used


def encode_value(value: Any, target: str, used: Mapping[str, float]) -> str:
    """Return the report of a body that returned `value`. Raises MatrixError if it is not JSON or too large."""
    try:
        report = json.dumps({"value": value, "used": used})
    except (TypeError, ValueError) as error:
        raise MatrixError(f"{target} returned a value that is not JSON", got=error, expected="JSON or None") from error
    if len(report) > VALUE:
        raise MatrixError(f"{target} returned too much", got=f"{len(report)} bytes", expected=f"at most {VALUE}")
    return report


def refuse_contradiction(overlays: Sequence[str], preloaded: Sequence[str]) -> None:
    """Raise MatrixError if an overlay has another version of a preloaded package, which ranks would not import.

    Local version parts are not compared: torch reports 2.4.0+cu121, its wheel 2.4.0.
    """
    for name in sorted({module.partition(".")[0] for module in preloaded} & sys.modules.keys()):
        loaded = str(getattr(sys.modules[name], "__version__", ""))
        for overlay in overlays:
            for distribution in importlib.metadata.distributions(name=name, path=[overlay]):
                if distribution.version.partition("+")[0] != loaded.partition("+")[0]:
                    raise MatrixError(
                        f"the overlay has {name}, which is preloaded in another version",
                        where=overlay,
                        got=distribution.version,
                        expected=loaded,
                        fix="leave it out of the overlay, or run the job with fresh=True",
                    )


def _send(pipe: int, line: str) -> None:
    unsent = line.encode() + b"\n"
    while unsent:
        unsent = unsent[os.write(pipe, unsent) :]


def chain_of(error: BaseException) -> tuple[Raised, ...]:
    """Return `error` and the exceptions that led to it, root cause first.

    Follows `__cause__`, `__context__` and, if present, `failures`: torch's CheckpointException stores there, for each
    failed rank, the exception and its stack in that rank.
    """
    chain = _collect(error, None, set())
    return tuple(chain if len(chain) <= EXCEPTIONS else chain[: EXCEPTIONS - 1] + chain[-1:])


def _collect(error: BaseException, stack: list[Frame] | None, seen: set[int]) -> list[Raised]:
    """Return the chain that ends with `error`; `stack` replaces a traceback of another process."""
    line: list[BaseException] = []  # from `error` to its root; iterative, because retries can make it thousands long
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        line.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    chain: list[Raised] = []
    for link in reversed(line):
        for failure, frames in _failures(link):
            chain += _collect(failure, frames, seen)
        walk = traceback.walk_tb(link.__traceback__)
        frames = [Frame(frame.f_code.co_filename, line or 0, frame.f_code.co_name) for frame, line in walk]
        frames = stack if stack and link is error else frames
        # The outermost and the innermost frames.
        frames = frames if len(frames) <= FRAMES else frames[: FRAMES // 2] + frames[-FRAMES // 2 :]
        chain.append(Raised(type(link).__name__, _message(link), tuple(frames)))
    return chain


def _failures(error: BaseException) -> list[tuple[BaseException, list[Frame]]]:
    """Return the values of `error.failures`, lowest rank first; [] if it does not map ranks to failures."""
    failures = getattr(error, "failures", None)
    if not isinstance(failures, Mapping):
        return []
    pairs = [failures[rank] for rank in sorted(failures, key=str)]
    return [
        (pair[0], _summary(pair[1]))
        for pair in pairs
        if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], BaseException)
    ]


def _summary(stack: Any) -> list[Frame]:
    if not isinstance(stack, traceback.StackSummary):
        return []
    return [Frame(frame.filename, frame.lineno or 0, frame.name) for frame in stack]


def _message(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception as unprintable:
        return f"<its message can't be formatted: {type(unprintable).__name__}>"
    return message if len(message) <= MESSAGE else message[: MESSAGE // 2] + " [...] " + message[-MESSAGE // 2 :]
