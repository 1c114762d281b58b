"""Run a command on a disk of its own, which is full after some lines of its output; then again with free space.

    unshare --map-root-user --mount python -m tests.real.full_disk FOLDER LINES COMMAND...

Prints the status, the output and the errors of both runs as JSON. FOLDER gets a tmpfs of SIZE in this namespace alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

SIZE: Final = "16m"  # a bisection of 20 commits writes 0.4 MB


def fill(path: Path) -> None:
    """Write a file until the disk has no byte left."""
    with path.open("wb", buffering=0) as filler:
        for size in (2**20, 2**12, 1):
            with suppress(OSError):
                while True:
                    filler.write(b"\0" * size)


def main(folder: Path, lines: int, command: list[str]) -> list[tuple[int, str, str]]:
    """Return the status, the output and the errors of the run on the disk that fills, and of the next one."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], check=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        shown = "".join(process.stderr.readline() for _ in range(lines))
        fill(folder / "filler")
        out, err = process.communicate()
    (folder / "filler").unlink()
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    return [(process.returncode, out, shown + err), (again.returncode, again.stdout, again.stderr)]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])))
