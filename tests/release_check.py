"""Build sdist and wheel in dist/, check their metadata, and run two commands of the wheel in an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from matrix.prove.provision.indexes import pip_environment

ROOT: Final = Path(__file__).resolve().parents[1]


def main() -> int:
    """Return 0 if every step succeeds."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", "dist", ".")
    made = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "dist").iterdir())]
    run(sys.executable, "-m", "twine", "check", "--strict", *made)
    with tempfile.TemporaryDirectory() as folder:
        python, megatrix = (str(Path(folder, "bin", name)) for name in ("python", "megatrix"))
        run(sys.executable, "-m", "venv", folder)
        run(python, "-m", "pip", "install", "--quiet", *(name for name in made if name.endswith(".whl")))
        run(megatrix, "check", "--help")
        run(megatrix, "plan", "--stats")
    return 0


def run(*command: str) -> None:
    """Run a command in the checkout. Raises CalledProcessError where it fails."""
    subprocess.run(command, cwd=ROOT, env={**os.environ, **pip_environment()}, check=True)


if __name__ == "__main__":
    sys.exit(main())
