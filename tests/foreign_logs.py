"""Run programs that fail and have nothing to do with training: `match` must name nothing in what they print.

    python -m tests.foreign_logs                        with this interpreter
    python -m tests.foreign_logs --python PATH ...      with others, such as those of bases with torch

A program whose package the interpreter does not have is counted as not run. Exit status 1: `match` named something, or
a program did not fail.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matrix.ground.catalog.schema import read_toml
from tests.thread_coverage import FOLDER, command

PROGRAMS: Final = FOLDER / "foreign.toml"
# Seconds for one program: torchrun with two ranks, the slowest, took 9 on two busy cores.
DEADLINE: Final = 120


@dataclass(frozen=True)
class Program:
    """A program in Python, and the package that it imports; "python" for none. Or commands of a shell, of a `tool`."""

    package: str
    code: str
    tool: str = ""


def programs() -> list[Program]:
    """Return the programs of foreign.toml."""
    content = read_toml(PROGRAMS)
    tools = content.pop("shell")
    commands = [Program("shell", code, tool) for tool, codes in tools.items() for code in codes]
    return [*(Program(package, item["code"]) for package, items in content.items() for item in items), *commands]


def can_run(python: Path, program: Program) -> bool:
    """Return whether there is what a program needs: the package of an interpreter, or a tool."""
    return bool(shutil.which(program.tool)) if program.tool else has_package(python, program.package)


def has_package(python: Path, package: str) -> bool:
    """Return whether an interpreter has a package."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return package == "python" or subprocess.run([python, "-c", code], check=False).returncode == 0


def log_of(python: Path, program: Program) -> tuple[int, str]:
    """Return the exit status of a program and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text(program.code + "\n")
        started = ["bash" if program.tool else python, script]
        with (script.parent / "log").open("w+b") as log:
            ended = subprocess.run(
                started, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=DEADLINE, check=False
            )
            log.seek(0)
            printed = log.read()
    return ended.returncode, printed.decode(errors="replace")


def names_in(log: str) -> list[str]:
    """Return what `match` names in a log: failures with their certainty, kinds, ranks that stand still."""
    with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
        file.write(log)
        file.flush()
        result = command("match", file.name, "--json")
    failures = [f"{item['confidence']} {item['failure']}" for item in result["items"]]
    kinds = [f"KIND {item['kind']}" for item in result.get("kinds", ())]
    return [*failures, *kinds, *(["STANDSTILL"] if result.get("standstills") else [])]


def defects(python: Path, program: Program) -> list[str]:
    """Return what is wrong with the answer to a program's log, or with the program."""
    status, log = log_of(python, program)
    if status == 0:
        return ["the program did not fail"]
    return names_in(log)


def main() -> int:
    """Run the programs and print what `match` names, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, action="append", help="an interpreter (default: this one)")
    interpreters = parser.parse_args().python or [Path(sys.executable)]
    counts: Counter[str] = Counter()
    for program in programs():
        python = next((path for path in interpreters if can_run(path, program)), None)
        if python is None:
            counts["not run: package missing"] += 1
            continue
        names = defects(python, program)
        counts["named or did not fail" if names else "nothing named"] += 1
        for name in names:
            print(f"{program.tool or program.package}: {name}\n    {program.code!r}")
    print(", ".join(f"{number} {what}" for what, number in sorted(counts.items())))
    return int(bool(counts["named or did not fail"]))


if __name__ == "__main__":
    sys.exit(main())
