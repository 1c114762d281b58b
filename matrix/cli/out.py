"""The option that names the output folder."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from matrix.store.paths import OUT


def add_out(
    parser: argparse.ArgumentParser, text: str = "output folder (default: $MEGATRIX_OUT, or reports/out)"
) -> None:
    """Add --out: $MEGATRIX_OUT, or reports/out in the current folder."""
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("MEGATRIX_OUT", OUT)), help=text)
