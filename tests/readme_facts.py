"""The picture and the line of numbers at the top of README.md, from the catalog and from a command's real output.

    python -m tests.readme_facts

writes both; tests/unit/test_readme_facts.py compares them with what is there.
"""

from __future__ import annotations

import io
import re
import shlex
from typing import Final

from rich.console import Console
from rich.text import Text

from matrix.ask.check.checking import Question, check
from matrix.ask.check.user_stack import build, parse_text
from matrix.cli.check import named
from matrix.ground.catalog import loading
from matrix.ground.catalog.loading import night_of
from matrix.ground.catalog.model import Catalog
from matrix.prove.provision.project import ROOT
from matrix.show.check_text import brief
from matrix.show.known import size
from matrix.show.terminal import console, rendered

README: Final = ROOT / "README.md"
PICTURE: Final = ROOT / "docs" / "images" / "check.svg"
STACK: Final = ("base=ngc-25.09", "mcore=0.17.1")
COMMAND: Final = f"check {shlex.join(STACK)} --upgrade te --brief"
COLUMNS: Final = 92  # README's column is 100 characters of this size wide
LEVELS: Final = {"gpu": "on a GPU", "cpu": "on CPU ranks", "contract": "by reading both APIs"}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def picture(catalog: Catalog) -> str:
    """Return the command and its output as an SVG without fonts or anything else to load."""
    result = check(catalog, build(catalog, parse_text(catalog, " ".join(STACK))), Question(upgrades=named(["te"])), {})
    terminal = console(_Terminal(), {"COLUMNS": str(COLUMNS), "TERM": "xterm"})
    target = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    target.print(Text.from_ansi(f"$ megatrix {COMMAND}\n{rendered(terminal, *brief([result]))}".rstrip()))
    svg = target.export_svg(title="megatrix", unique_id="check")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def numbers(catalog: Catalog) -> str:
    """Return one line: the sizes of the catalog, and by which level its entries were reproduced last."""
    nights = [night for failure in catalog.known_failures if (night := night_of(failure))]
    counts = [{**night.reproduced, "gpu": sum(run.reproduced for run in night.run)} for night in nights]
    best = [next((level for level in LEVELS if count.get(level)), "") for count in counts]
    by_level = ", ".join(f"{best.count(level)} {text}" for level, text in LEVELS.items())
    releases = len((*catalog.megatron_core, *catalog.transformer_engine, *catalog.torch))
    date = max(night.date for night in nights)
    return (
        f"{size(catalog)}, {len(catalog.containers)} container images, {releases} releases of "
        f"megatron-core, Transformer Engine and torch. In the night of {date} or before, failures were reproduced: "
        f"{by_level}; {len(catalog.known_failures) - len(nights)} were not."
    )


if __name__ == "__main__":
    known = loading.load()
    PICTURE.write_text(picture(known), "utf-8")
    lines = README.read_text("utf-8").splitlines()
    lines[lines.index("<!-- numbers -->") + 1] = numbers(known)
    README.write_text("\n".join(lines) + "\n", "utf-8")
