"""The examples of all failures, and training logs built from them."""

from __future__ import annotations

import textwrap
from pathlib import Path

from matrix.ground.catalog.failure import Failure
from matrix.ground.catalog.folders import FAILURES
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.tracebacks import HEADER

CAUSE = "\nThe above exception was the direct cause of the following exception:\n"
MODULES = {"CheckpointException": "torch.distributed.checkpoint.api."}
KILLED_FROM_OUTSIDE = ("SIGTERM", "SIGKILL")

BEFORE = """\
W0704 08:02:20.000000 140 torch/distributed/run.py:779] Setting OMP_NUM_THREADS environment variable to be 1
INFO:megatron.core:using world size: 2, data-parallel size: 1
Exception ignored in: <generator object>: RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.
 [2024-07-04 08:02:25] iteration 10/ 500000 | consumed samples: 10 | lm loss: 1.046781E+01 | loss scale: 1.0 |
  0%|          | 0/10 [00:00<?, ?it/s]\r 10%|#         | 1/10 [00:00<00:01,  5.1it/s]\r
"""
SUMMARY = """\
W0704 08:02:29.000000 140 torch/distributed/elastic/multiprocessing/api.py:858] Sending process 4712 closing signal SIGTERM
E0704 08:02:29.000000 140 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 1) local_rank: 0 (pid: 4711) of binary: /usr/bin/python3
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/site-packages/torch/distributed/launcher/api.py", line 264, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
pretrain_gpt.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2024-07-04_08:02:29
  host      : node1
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 4711)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""  # noqa: E501  (as torchrun writes it)
PEER = """\
Traceback (most recent call last):
  File "/workspace/pretrain_gpt.py", line 250, in <module>
    pretrain(
  File "/site-packages/torch/distributed/distributed_c10d.py", line 4159, in barrier
    work.wait()
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:43251
"""

# An NCCL error as torch writes it, in four lines. {}: the error, torch's explanation, NCCL's last error.
NCCL = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/site-packages/torch/distributed/distributed_c10d.py", line 2219, in all_reduce
[rank1]:     work = group.allreduce([tensor], opts)
[rank1]: torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:275, {}, NCCL version 2.20.5
[rank1]: {}
[rank1]: Last error:
[rank1]: {}
"""


def examples(kind: str) -> list[Path]:
    """Return the example files of one kind (SHOWS, LOOK_ALIKES) of every failure."""
    return sorted(FAILURES.glob(f"*/examples/{kind}/*.json"))


def name(path: Path) -> str:
    """Return folder and file of an example, for the id of a parametrized test."""
    return f"{path.parents[2].name}/{path.stem}"


def failure_of(path: Path, failures: tuple[Failure, ...]) -> Failure:
    """Return the failure of an example."""
    return next(entry for entry in failures if entry.folder == path.parents[2])


def is_in_the_log(outcome: Outcome) -> bool:
    """Return whether the log is sufficient evidence: a log does not show whether a rank was killed from outside."""
    return outcome.kind is not OutcomeKind.PASSED and outcome.signal not in KILLED_FROM_OUTSIDE


def error_message(raised: Raised) -> str:
    """Return the lines of an exception below its traceback."""
    name = MODULES.get(raised.type, "") + raised.type
    return f"{name}: {raised.message}" if raised.message else name


def printed(raised: Raised) -> str:
    """Return an exception as Python prints it."""
    lines = [HEADER]
    for frame in raised.frames:
        lines += [f'  File "{frame.file}", line {frame.line}, in {frame.function}', f"    {frame.function}()"]
    return "\n".join([*lines, error_message(raised)]) + "\n"


def printed_by_pytest(raised: Raised, *, short: bool) -> str:
    """Return an exception as pytest prints it with --tb=short or --tb=long."""
    error = error_message(raised).split("\n")
    lines = ["_" * 30 + " test_train " + "_" * 30]
    for frame in raised.frames if short else ():
        lines += [f"{frame.file}:{frame.line}: in {frame.function}", f"    {frame.function}()"]
    for number, frame in enumerate(() if short else raised.frames):
        lines += ["", f"    def {frame.function}(self, *args):", ">       fail()", ""]
        if number < len(raised.frames) - 1:
            lines += [f"{frame.file}:{frame.line}: ", "_ " * 30]
    if short:
        return "\n".join([*lines, *(f"E   {line}" for line in error), ""])
    last = raised.frames[-1]
    return "\n".join(
        [*lines[:-1], *(f"E       {line}" for line in error), "", f"{last.file}:{last.line}: {raised.type}", ""]
    )


def printed_by_rich(raised: Raised, width: int) -> str:
    """Return an exception as Rich prints it on a console of `width` characters."""
    head = " Traceback (most recent call last) ".center(width - 2, "─")
    lines = [f"╭{head}╮"]
    for number, frame in enumerate(raised.frames):
        place = f"{frame.file}:{frame.line} in {frame.function}"
        inside = [*folded(place, width - 4), "", f"❱ {frame.line} {frame.function}()"[: width - 4]]
        lines += [f"│ {text:{width - 4}} │" for text in ([""] if number else []) + inside]
    return "\n".join([*lines, f"╰{'─' * (width - 2)}╯", *folded(error_message(raised), width), ""])


def folded(text: str, width: int) -> list[str]:
    """Wrap as Rich does: at spaces; a word that is longer than a line is cut."""
    return [line for part in text.split("\n") for line in textwrap.wrap(part, width, break_on_hyphens=False)]


def summary(exit_code: int | None) -> str:
    """Return torchrun's summary of a rank that ended with this status."""
    status = exit_code or 1
    return SUMMARY.replace("exitcode  : 1", f"exitcode  : {status}").replace("exitcode: 1", f"exitcode: {status}")


def log_of(outcome: Outcome) -> str:
    """Return the log of an outcome's rank: the traceback as Python prints it, or the log of a crash.

    An exception that quotes its cause in its message (CheckpointException, DataLoader's) is printed without the cause.
    """
    chain = list(outcome.chain)
    if chain and "Traceback (most recent call last)" in chain[-1].message:
        chain = chain[-1:]
    tracebacks = CAUSE.join(map(printed, chain))
    return BEFORE + (tracebacks or outcome.evidence)
