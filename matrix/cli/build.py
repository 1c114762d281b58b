"""`megatrix build`."""

from __future__ import annotations

import argparse
from typing import Any

from matrix.catalog import loading
from matrix.cli import COMMANDS
from matrix.provision import building
from matrix.provision.images import Builder


def add_parser(commands: Any) -> None:
    """Add the command to what argparse's add_subparsers returned."""
    parser = commands.add_parser("build", help=COMMANDS["build"], description=COMMANDS["build"])
    parser.add_argument("image", metavar="IMAGE", help="debian-13; with --mcore or --te a registry's, too: ngc-24.07")
    parser.add_argument("--mcore", default="", metavar="VERSION", help="lay this release of megatron-core over it")
    parser.add_argument("--te", default="", metavar="VERSION", help="lay this release of Transformer Engine over it")
    parser.add_argument("--mirror", default="", metavar="URL", help="where Debian's packages come from")
    parser.set_defaults(command=build_command)


def build_command(parsed: argparse.Namespace) -> int:
    """Build the image and print its tag and its digest."""
    wish = building.build_request(loading.load(), parsed.image, parsed.mcore, parsed.te, parsed.mirror)
    digest = building.build(wish, Builder(lambda text: print(text, flush=True)), parsed.mirror)
    print(f"{wish.tag} {digest}")
    return 0
