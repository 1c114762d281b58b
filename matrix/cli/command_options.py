"""The options that several commands have, and those that the preflights of failures declare."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.reach import JobOption
from matrix.ground.verdicts.trend import PastResult
from matrix.prove.store.paths import OUT, Paths
from matrix.show.terminal import warn

FINDING_FORMATS: Final = ("sarif", "github", "markdown", "junit")  # of matrix.show.findings


def add_out(
    parser: argparse.ArgumentParser, text: str = "output folder (default: $MEGATRIX_OUT, or reports/out)"
) -> None:
    """Add --out: $MEGATRIX_OUT, or reports/out in the current folder."""
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("MEGATRIX_OUT", OUT)), help=text)


def add_findings(parser: argparse.ArgumentParser, schema: str) -> None:
    """Add --json and --format, of which a command takes one: its own object, or findings for a CI service."""
    output = parser.add_mutually_exclusive_group()
    add_json(output, schema)
    output.add_argument("--format", choices=FINDING_FORMATS, help="print the findings for a CI service")


def add_json(parser: argparse._ActionsContainer, *schemas: str) -> None:
    """Add --json, which prints one of these schemas."""
    names = ", ".join(f"docs/schema/{schema}.json" if schema is schemas[0] else f"{schema}.json" for schema in schemas)
    parser.add_argument("--json", action="store_true", help=f"print one JSON object ({names})")


def taking(metavar: str, help: str, **further: Any) -> dict[str, Any]:
    """Return what argparse adds for an option with a value."""
    return {"metavar": metavar, "help": help, **further}


def add_options(parser: argparse.ArgumentParser, options: Iterable[JobOption]) -> None:
    """Add the options; values stay text, which JobOption reads."""
    for option in options:
        parser.add_argument(f"--{option.name}", metavar=option.metavar, help=option.help or None)


def given(parsed: argparse.Namespace, options: Iterable[JobOption]) -> dict[str, str | None]:
    """Return the text given for each option, by option name."""
    return {option.name: getattr(parsed, option.name.replace("-", "_")) for option in options}


def last_runs(out: Path) -> Mapping[str, tuple[PastResult, ...]]:
    """Return the last runs of each failure in an output folder; none without a history."""
    if not Paths(out).history.exists():  # sqlite3 takes 10 ms
        return {}
    from matrix.prove.store.history import last_runs

    return last_runs(Paths(out).history, warn)
