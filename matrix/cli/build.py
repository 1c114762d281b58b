"""`megatrix build`."""

from __future__ import annotations

import argparse

from matrix.ground.catalog import loading
from matrix.ground.errors import ExitStatus
from matrix.prove.execution import interrupt
from matrix.prove.provision.image_builds import Builder, build, build_request


def build_command(parsed: argparse.Namespace) -> int:
    """Build the image and print its tag and digest."""
    interrupt.once()
    request = build_request(loading.load(), parsed.image, parsed.mcore, parsed.te, parsed.mirror)
    digest = build(request, Builder(lambda text: print(text, flush=True)), parsed.mirror)
    print(f"{request.tag} {digest}")
    return ExitStatus.GOOD
