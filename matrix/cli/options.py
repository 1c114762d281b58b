"""Command-line options that preflights declare."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from matrix.kit.options import Option


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add the options; values stay text, which matrix.kit.options.read parses."""
    for one in options:
        parser.add_argument(
            f"--{one.name}", metavar=one.metavar, help=one.help or None, default=one.default, required=one.required
        )


def given(parsed: argparse.Namespace, options: Iterable[Option]) -> dict[str, str | None]:
    """Return the text given for each option, by option name."""
    return {one.name: getattr(parsed, one.name.replace("-", "_")) for one in options}
