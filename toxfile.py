"""The names of the lines, and the end of tox at a signal. tox.ini has the rest."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
from collections.abc import Iterable
from types import FrameType

from tox.plugin import impl

if sys.version_info < (3, 10):  # noqa: UP036  (before imports that need it; tox itself runs on older ones)
    raise SystemExit(
        f"Megatrix needs Python 3.10 or later; this tox runs on {'.'.join(map(str, sys.version_info[:3]))}\n"
        "  fix: pip install uv && uvx --python 3.12 tox run -e nightly"
    )

from matrix.ground.catalog.loading import load
from matrix.ground.errors import MatrixError
from matrix.prove.planning.catalog_lines import lines
from matrix.prove.provision.indexes import site_environment
from matrix.read import kernel

os.environ.update(site_environment())  # for tox-uv, where it is installed
os.environ.setdefault("MEGATRIX_TOX", "tox" if shutil.which("tox") else f"{sys.executable} -m tox")
os.environ[kernel.PARENT] = str(os.getpid())  # its commands end with it


def interrupted(number: int, frame: FrameType | None) -> None:
    """Stop as at Ctrl-C, and exit with its status: tox's own, 1, would be a red verdict's."""
    atexit.register(lambda: (sys.stdout.flush(), os._exit(130)))
    raise KeyboardInterrupt


for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is not signal.SIG_IGN or number is signal.SIGINT:  # nohup; a shell's `&`
        signal.signal(number, interrupted)


@impl
def tox_extend_envs() -> Iterable[str]:
    """Return the names of the lines."""
    try:
        return tuple(lines(load(read=())))
    except MatrixError as error:
        raise SystemExit(str(error)) from None
