"""The options of preflights on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from matrix.kit.options import Option


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add the options; what is typed stays text, which matrix.kit.options.read reads."""
    for one in options:
        parser.add_argument(
            f"--{one.name}", metavar=one.metavar, help=one.help or None, default=one.default, required=one.required
        )


def given(parsed: argparse.Namespace, options: Iterable[Option]) -> dict[str, str | None]:
    """Return what was typed, by option."""
    return {one.name: getattr(parsed, one.name.replace("-", "_")) for one in options}
