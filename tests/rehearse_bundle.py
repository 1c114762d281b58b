"""Rehearse the cases of a bundle without a network, on a stand-in driver of one GPU, in the order of their value.

    python -m tests.rehearse_bundle BUNDLE PYTHON OUT [run --here --level gpu -n 2 ...]

PYTHON has the torch of the host. A virtual environment is made over it: its own is only read. Home and caches are new,
in the folder OUT; a second call with it keeps overlays and runs. Only the process that runs pytest reads the stand-ins
(tests.rehearsal.edge), and puts them into ranks. unshare makes the network namespace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matrix.prove.store import journal
from tests.image import standin

EDGE: Final = Path(__file__).with_name("rehearsal")
DRIVER, CUDA = "580.159.04", 13000
USUAL: Final = ("run", "--here", "--level", "gpu", "-n", "2")
# In each Python of the environment; only that of pytest has this argument.
PLUGIN: Final = (
    "import os, sys; 'tests/failures' in sys.orig_argv and os.environ.update(PYTEST_PLUGINS='rehearsal.edge')"
)
INSIDE: Final = 'ip link set lo up && exec "$@"'
DEADLINE_S: Final = "900"


def environment(python: str, folder: Path) -> Path:
    """Return the Python of a virtual environment with the packages of another, and the stand-ins."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    code = "import site; print(*site.getsitepackages(), sep='\\n')"
    below = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "host.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in below))
    (site / "rehearsal.pth").write_text(f"{site}/edge\n{PLUGIN}\n")
    (site / "edge").mkdir()
    (site / "edge/rehearsal").symlink_to(EDGE)
    return folder / "bin" / "python"


def main(bundle: str, python: str, out: str, *words: str) -> int:
    """Run start.py with these words; print the records by verdict, and return its exit status."""
    folder = Path(out).absolute()
    if not (folder / "home").is_dir():
        standin.driver(folder / "driver", DRIVER, CUDA, "-DGPUS=1")
        environment(python, folder / "host")
        (folder / "home").mkdir()
    executable = folder / "host" / "bin" / "python"
    environ = {
        "HOME": str(folder / "home"), "PATH": f"{executable.parent}{os.pathsep}{os.defpath}",
        "LD_LIBRARY_PATH": str(folder / "driver"), "MEGATRIX_DEADLINE": DEADLINE_S,
    }  # fmt: skip
    command: Sequence[str] = [str(executable), f"{Path(bundle).absolute()}/start.py", *(words or USUAL)]
    unshared = ["unshare", "--map-root-user", "--net", "sh", "-c", INSIDE, "sh", *command]
    status = subprocess.run(unshared, cwd=folder, env=environ, check=False).returncode
    records = [each for run in folder.glob("reports/out/runs/*") for each in journal.read(run).results.values()]
    print(
        *(f"{verdict.value}: {count}" for verdict, count in Counter(one.verdict for one in records).items()), sep="\n"
    )
    print(
        f"failures: {len({one.failure for one in records})}, seconds: {sum(one.outcome.seconds for one in records):.0f}"
    )
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
