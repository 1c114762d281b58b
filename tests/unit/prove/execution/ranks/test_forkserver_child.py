"""The forkserver's own code ends with its owner; a pooled rank ends as an interpreter does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.prove.execution.ranks.forkserver_child import REQUEST
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.supervisor import Supervisor
from matrix.prove.provision.project import ROOT


def test_forkserver_ends_if_its_owner_died_at_start(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    os.mkfifo(tmp_path / "ranks" / "lifeline")  # without a reader
    request: dict[str, object] = {
        "lifeline": str(tmp_path / "ranks" / "lifeline"),
        "path": [],
        "modules": [],
    }
    done = subprocess.run(
        [sys.executable, "-c", "import matrix.prove.execution.ranks.forkserver_child"],
        env={**os.environ, REQUEST: json.dumps(request), "PYTHONPATH": str(ROOT)},
        timeout=60.0,
    )
    assert done.returncode == 1
    assert not (tmp_path / "ranks").exists()


# What a body does last. Each of them is run pooled and in an interpreter of its own.
ENDS = """
    pass
    import sys; sys.stdout.close()
    import sys; sys.stderr.close()
    import sys; sys.stdout.close(); sys.stderr.close()
    import sys; sys.stdout = None
    import sys; sys.stderr = None
    import sys; sys.stdout = sys.stderr = None
    import sys; del sys.stdout
    import sys; del sys.stderr
    import sys; del sys.stdout; del sys.stderr
    import sys; sys.stdout = 5
    import sys; sys.stderr = 5
    import sys; sys.stdout.write("no newline"); sys.stdout.detach()
    import sys; sys.stdout.write("no newline")
    import io, sys; sys.stdout = io.StringIO()
    import os, sys; sys.stdout.write("lost"); os.close(1)
    import os, sys; sys.stderr.write("lost"); os.close(2)
    import os; os.close(1); os.close(2)
    raise SystemExit
    raise SystemExit(None)
    raise SystemExit(0)
    raise SystemExit(3)
    raise SystemExit(-1)
    raise SystemExit(256)
    raise SystemExit(300)
    raise SystemExit(2**40 + 3)
    raise SystemExit(2**80)
    raise SystemExit(True)
    raise SystemExit("a message")
    raise SystemExit(1.5)
    raise SystemExit((1, 2))
    import sys; sys.stderr = None; raise SystemExit("a message")
    import sys; del sys.stderr; raise SystemExit("a message")
    import sys; sys.stderr.close(); raise SystemExit("a message")
    import sys; sys.stdout.close(); raise SystemExit(3)
    raise ValueError("a message")
    import sys; sys.stderr = None; raise ValueError("a message")
    import sys; sys.stdout.close(); raise ValueError("a message")
    import sys; sys.excepthook = lambda *error: print("own hook")
    import sys; sys.excepthook = lambda *error: print("own hook"); raise ValueError("a message")
    import sys; sys.excepthook = lambda *error: sys.exit(7); raise ValueError("a message")
    raise KeyboardInterrupt
    import atexit; atexit.register(print, "at exit")
    import atexit; atexit.register(print, "first"); atexit.register(print, "second")
    import atexit; atexit.register(lambda: 1 / 0)
    import atexit, sys; atexit.register(lambda: sys.exit(4))
    import atexit, os; atexit.register(lambda: os._exit(4))
    import atexit, sys; atexit.register(lambda: sys.stdout.close())
    import atexit; atexit.register(print, "at exit"); raise SystemExit(3)
    import atexit; atexit.register(print, "at exit"); raise ValueError("a message")
    import atexit, threading; atexit.register(print, "at exit"); threading.Thread(target=print, args=("t",)).start()
    import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    import threading; threading.Thread(target=lambda: 1 / 0).start()
    import os, threading; threading.Thread(target=lambda: os._exit(5)).start()
    import sys, threading; threading.Thread(target=lambda: sys.exit(5)).start()
    import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    import threading; threading._shutdown = lambda: print("own shutdown")
    import os; os._exit(0)
    import os; os._exit(9)
    import os; os.abort()
    import os, signal; os.kill(os.getpid(), signal.SIGTERM)
    import os, signal; os.kill(os.getpid(), signal.SIGINT)
    import multiprocessing; p = multiprocessing.Process(target=print, args=("child",)); p.start()
    import multiprocessing, time; multiprocessing.Process(target=time.sleep, args=(600,), daemon=True).start()
    import multiprocessing.util as util; util.Finalize(None, print, args=("finalizer",), exitpriority=0)
    import concurrent.futures as futures; futures.ThreadPoolExecutor().submit(print, "pool")
    import weakref; weakref.finalize(weakref.WeakSet, print, "weak")
"""


@pytest.mark.parametrize("source", [line.strip() for line in ENDS.strip().splitlines()])
def test_pooled_rank_ends_as_an_interpreter(
    supervisor: Supervisor, job: Callable[..., RankJob], source: str, tmp_path: Path
) -> None:
    """The outcome, the exit status and the log are those of a fresh interpreter."""
    if "2**80" in source and sys.version_info >= (3, 13):
        pytest.skip("Python 3.13 itself prints a SystemError of threading's shutdown then")
    ends = []
    for fresh in (False, True):
        run = job("run_source", world_size=1, fresh=fresh, log_dir=tmp_path / str(fresh), kwargs={"source": source})
        outcome = supervisor.run(run)
        (rank,) = outcome.ranks
        ends.append((outcome.kind, rank.exit_code, outcome.signal, logged(rank.log)))
    assert ends[0] == ends[1]


def logged(log: str) -> list[str]:
    """Return the lines of a log without the frames of tracebacks and the addresses of objects."""
    text = re.sub(r"0x[0-9a-f]+", "0x", Path(log).read_text("utf-8"))
    return [line for line in text.splitlines() if not re.match(r" +(File |[^ ])| +[\^~]+$", line)]


def test_threads_are_of_the_innermost_module(tmp_path: Path) -> None:
    """Also one that is started before a further import; a name of FORKED_WITHOUT is none that is left."""
    start = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name={!r}).start()\n"
    (tmp_path / "outer.py").write_text(start.format("a") + "import inner\n" + start.format("b"))
    (tmp_path / "inner.py").write_text(start.format("c"))
    code = """
import sys
from matrix.prove.execution.ranks import forkserver_child as child
sys.path.insert(0, sys.argv[1])
watch = child.ThreadWatch()
watch.during(lambda: child.import_all(["outer"], required=True))
names = child.ThreadWatch._threads()
print(watch.left)
child.FORKED_WITHOUT = (*names.values(),)
print(watch.left or "none")
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["outer: a, inner: c, outer: b", "none"], done.stderr
