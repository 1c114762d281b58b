"""One process of a base for several runs: it imports pytest and the session once, and forks for each run.

A bisection makes a run for each round of probes. A fork costs a third of a new pytest process: 0.9 s of processor.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from matrix.catalog.failure import Level
from matrix.catalog.folders import folder_name, roots
from matrix.catalog.loading import load
from matrix.errors import MatrixError
from matrix.execution.cache_key import code_of
from matrix.provision import kernel, project
from matrix.provision.commands import python_module
from matrix.store import scratch

STOP_S: Final = 4.0  # s after Ctrl-C, or at the end, for tox and pytest to stop their ranks and close their journals


class WarmPytest:
    """The process with this interpreter, which ends with this object; `environ` are its variables."""

    def __init__(self, python: Path, environ: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                python_module(python, __name__, folder=project.folder()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=project.folder(),
                env=following(environ),
                start_new_session=True,  # so that the terminal does not send a second SIGINT
            )
        self._end = weakref.finalize(self, _close, self._process)

    def run(self, arguments: Sequence[str], environ: Mapping[str, str], log: Path) -> int:
        """Run pytest over the failures with its output in `log`; return its status, another one if the process ended.

        A Ctrl-C is forwarded, and ends the process.
        """
        assert self._process.stdin
        assert self._process.stdout
        request = {"arguments": [*arguments], "environ": following(environ), "log": str(log.resolve())}
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            reply = self._process.stdout.readline()
        except BrokenPipeError:
            reply = b""
        except BaseException:
            stop(self._process)
            raise
        return int(reply) if reply else self._process.wait() or 1

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Return whether the process has ended, and runs nothing more."""
        return self._process.poll() is not None


def following(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process that ends with this one, and keeps its temporary files in its folder."""
    return {**environ, kernel.PARENT: str(os.getpid()), **scratch.environment()}


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process as Ctrl-C does, which tox forwards; STOP_S later kill its group."""
    process.send_signal(signal.SIGINT)
    _reap(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin:
        with suppress(BrokenPipeError):  # a request that it did not read
            process.stdin.close()
    _reap(process)
    if process.stdout:
        process.stdout.close()


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def serve() -> int:
    """Fork for each request on standard input, and write the status of its pytest."""
    import pytest  # noqa: F401  (imported for the forks, as the session is)

    from matrix.execution import session  # noqa: F401

    with suppress(MatrixError):  # a run reports it, if one of its own entries can't be read
        load()
    code_of(Level.CPU)
    gc.freeze()  # the forks' collections leave out what they share
    children = [0]

    def forward(number: int, frame: FrameType | None) -> None:
        if not children[-1]:
            raise SystemExit(128 + number)
        os.kill(children[-1], number)

    signal.signal(signal.SIGINT, forward)
    kernel.follow(os.environ)
    for line in sys.stdin:
        request = json.loads(line)
        children.append(os.fork())
        if not children[-1]:
            return _run(request["arguments"], request["environ"], request["log"])
        _, status = os.waitpid(children[-1], 0)
        children.append(0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    return 0


def _run(arguments: Sequence[str], environ: Mapping[str, str], log: str) -> int:
    """Run pytest in this fork, over the failures of the run's plan alone."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update({**environ, kernel.PARENT: str(os.getppid())})
    kernel.follow(os.environ)
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    import pytest

    from matrix.execution.session import planned_failures

    ids = sorted(planned_failures(Path(environ["MEGATRIX_RUN"])))
    folders = [str(folder) for root in roots() for id in ids if (folder := root / folder_name(id)).is_dir()]

    class Planned:
        @pytest.hookimpl(trylast=True)
        def pytest_configure(self, config: pytest.Config) -> None:
            config.args[:] = folders

    return pytest.main(["tests/failures", *arguments], plugins=[Planned()])


if __name__ == "__main__":
    sys.exit(serve())
