"""The speed of `megatrix check`, beside `python -c pass`.

    python bench/bench_check.py [REPEATS]

Goals: this environment in 1 s, a lock file in 0.5 s. Each command runs in a process of its own, with compiled modules
as an installation has them. The least of the repeats counts: wall and processor time, in seconds, and the ratio of the
processor times, which depends least on the load of this machine.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INPUTS = ROOT / "tests" / "unit" / "ask" / "check" / "inputs"
PASS = ("-c", "pass")
CHECKS = {
    "python -c pass": PASS,
    "check": ("-m", "matrix", "check"),
    "check uv.lock": ("-m", "matrix", "check", str(INPUTS / "uv.lock")),
    "check pylock.toml": ("-m", "matrix", "check", str(INPUTS / "pylock.toml")),
    "check uv.lock --json": ("-m", "matrix", "check", "--json", str(INPUTS / "uv.lock")),
    "check Dockerfile": ("-m", "matrix", "check", str(INPUTS / "Dockerfile.save")),
    "check mask.sbatch": ("-m", "matrix", "check", str(INPUTS / "mask.sbatch")),
    'check "mcore=0.8.0 torch=2.4.1"': ("-m", "matrix", "check", "mcore=0.8.0 torch=2.4.1"),
}


def least(arguments: tuple[str, ...], repeats: int, environ: dict[str, str]) -> tuple[float, float]:
    """Return the least wall and processor time of a command."""
    found = []
    for _ in range(repeats + 1):  # the first one compiles
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, check=False)
        wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append((wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    walls, processors = zip(*found[1:], strict=True)
    return min(walls), min(processors)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as cache:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ |= {"PYTHONPYCACHEPREFIX": cache, "MEGATRIX_OUT": str(Path(cache) / "out")}
        print(f"{'':34}{'wall':>7}{'processor':>11}{'ratio':>7}")
        base = 0.0
        for name, arguments in CHECKS.items():
            wall, processor = least(arguments, repeats, environ)
            base = base or processor
            print(f"{name:34}{wall:7.2f}{processor:11.2f}{processor / base:7.0f}")


if __name__ == "__main__":
    main()
