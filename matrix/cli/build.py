"""`megatrix build`."""

from __future__ import annotations

import argparse
from typing import Any

from matrix.cli.usage import add_command
from matrix.ground.catalog import loading
from matrix.ground.errors import ExitStatus
from matrix.prove.execution import interrupt
from matrix.prove.provision.image_builds import Builder, build, build_request


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "build")
    parser.set_defaults(command=build_command)


def build_command(parsed: argparse.Namespace) -> int:
    """Build the image and print its tag and digest."""
    interrupt.once()
    request = build_request(loading.load(), parsed.image, parsed.mcore, parsed.te, parsed.mirror)
    digest = build(request, Builder(lambda text: print(text, flush=True)), parsed.mirror)
    print(f"{request.tag} {digest}")
    return ExitStatus.GOOD
