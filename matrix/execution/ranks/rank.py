"""The work of one rank, inside its own process: set up, import the target, call it, report."""

from __future__ import annotations

import faulthandler
import importlib
import importlib.metadata
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from matrix.catalog.folders import load_module
from matrix.errors import MatrixError
from matrix.execution.ranks.chain import chain_of
from matrix.execution.ranks.limits import impose
from matrix.kit.rank import LackError, Rank

VALUE: Final = 2**20  # bytes of JSON that a body may return; a digest and a loss curve take under 10 kB
PREFERRED_VICTIM: Final = "500"  # oom_score_adj, -1000..1000: when memory runs out a rank goes, not its supervisor


def resume(fds: tuple[int, int, int]) -> None:
    """Go on in a new interpreter: `fds` are the task, the result pipe and the stacks pipe."""
    for fd in fds:
        os.set_inheritable(fd, False)
    task, result, stacks = fds
    with os.fdopen(task, encoding="utf-8") as paper:
        order = json.load(paper)
    work(order, result, stacks)


def work(order: Mapping[str, Any], result: int, stacks: int) -> None:
    """Call the target; write {"value": ...}, {"raised": [...]} or {"lacks": ...} to `result`; raise what it raised."""
    sys.argv[:] = [order["target"]]  # not the owner's: megatron's argument parser would take pytest's options
    # New ones: those that came with the fork buffer for, and seek in, what the server's stdout was. By lines: a rank
    # that crashes does not flush.
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", 1, "utf-8", errors="backslashreplace", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, "utf-8", errors="backslashreplace", closefd=False)  # type: ignore[misc]
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    Path("/proc/self/oom_score_adj").write_text(PREFERRED_VICTIM, encoding="ascii")
    # No core files: one of a process with CUDA is tens of GB, written before anybody learns that the rank died.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    rank = Rank(
        order["rank"], order["world_size"], order["device"], order["init_method"], workdir=Path(order["workdir"]),
        stand_ins=order["stand_ins"], clones=order["clones"],
    )  # fmt: skip
    try:
        impose(order)
        refuse_contradiction(order["overlays"], order["preloaded"])
        sys.modules.update(dict.fromkeys(order["hidden"]))  # None is Python's own "not there"
        body = imported(order["target"])
        report = encode_value(body(rank, **order["kwargs"]), order["target"])
    except LackError as lack:
        _send(result, json.dumps({"lacks": str(lack)}))
        return
    except SystemExit:
        raise  # a body that leaves has not returned; its status tells how it left
    except BaseException as error:  # torch's CheckpointException is no Exception
        _send(result, json.dumps({"raised": [asdict(raised) for raised in chain_of(error)]}))
        raise
    _send(result, report)


def imported(target: str) -> Callable[..., Any]:
    """Return the function that a job's target names. Raises ImportError or AttributeError."""
    module, _, function = target.rpartition(":")
    path = Path(module)
    made = load_module(path.parent, path.stem) if path.suffix == ".py" else importlib.import_module(module)
    body: Callable[..., Any] = getattr(made, function)
    return body


def encode_value(value: Any, target: str) -> str:
    """Return the report of a body that returned `value`. Raises MatrixError when it is no JSON, or too much of it."""
    try:
        report = json.dumps({"value": value})
    except (TypeError, ValueError) as error:
        raise MatrixError(f"{target} returned what JSON cannot hold", got=error, expected="JSON or None") from error
    if len(report) > VALUE:
        raise MatrixError(f"{target} returned too much", got=f"{len(report)} bytes", expected=f"at most {VALUE}")
    return report


def refuse_contradiction(overlays: Sequence[str], preloaded: Sequence[str]) -> None:
    """Raise MatrixError when an overlay brings a preloaded package in another version: it would not be used.

    Local version parts are not compared: torch 2.4.0 calls itself 2.4.0+cu121, its wheel does not.
    """
    for name in sorted({module.partition(".")[0] for module in preloaded} & sys.modules.keys()):
        loaded = str(getattr(sys.modules[name], "__version__", ""))
        for overlay in overlays:
            for distribution in importlib.metadata.distributions(name=name, path=[overlay]):
                if distribution.version.partition("+")[0] != loaded.partition("+")[0]:
                    raise MatrixError(
                        f"the overlay brings {name}, which is preloaded in another version",
                        where=overlay,
                        got=distribution.version,
                        expected=loaded,
                        fix="leave it out of the overlay, or run the job with fresh=True",
                    )


def _send(pipe: int, line: str) -> None:
    rest = line.encode() + b"\n"
    while rest:
        rest = rest[os.write(pipe, rest) :]
