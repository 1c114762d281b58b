"""`megatrix fit`."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from typing import Any

from matrix.ask.fit.candidates import Recorded
from matrix.ask.fit.fit_answer import FittingSet, fit
from matrix.ask.fit.wishes import parse_wishes
from matrix.cli.command_options import add_json
from matrix.cli.usage import add_command
from matrix.ground.catalog import loading
from matrix.ground.catalog.distributions import read_builds, read_distributions
from matrix.ground.catalog.stack import PYTHON
from matrix.prove.provision.resolution import Resolution, resolve
from matrix.show.fit_text import constraints, render, to_json
from matrix.show.terminal import json_object, show


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "fit")
    parser.add_argument(
        "wants",
        metavar="WANT",
        nargs="*",
        help='a release, a range or a part of the machine: "torch=2.9.1", "te>=2.8", "mcore=newest", "flash-attn", '
        '"te=none", "gpu=H100", "driver=550", "cuda=12.8", "python=3.12". megatron-core, Transformer Engine and '
        "torch are chosen without a want, too",
    )
    parser.add_argument(
        "--for",
        dest="framework",
        metavar="FRAMEWORK",
        default="",
        help="a trainer whose declared ranges count, such as verl==0.9.1 or ms-swift[megatron]",
    )
    parser.add_argument("--constraints", type=Path, metavar="FILE", help="write the pins as a constraints file of pip")
    parser.add_argument("--offline", action="store_true", help="don't query the package index: recorded facts alone")
    parser.add_argument(
        "--machine",
        choices=("x86_64", "aarch64"),
        default=platform.machine(),
        help="architecture (default: this one's)",
    )
    add_json(parser, "fit")
    parser.set_defaults(command=fit_command)


def fit_command(parsed: argparse.Namespace) -> int:
    """Print the set that fits, or what conflicts; return the status of the verdict."""
    recorded = Recorded(loading.load(), read_distributions(), read_builds())
    wishes = parse_wishes(recorded.catalog, recorded.distributions, parsed.wants, parsed.framework, parsed.machine)
    resolutions: list[Resolution] = []

    def resolves(fitting: FittingSet) -> str:
        if parsed.offline:
            return ""
        resolutions.append(resolution(recorded, fitting))
        return resolutions[-1].problem if resolutions[-1].decided else ""

    answer = fit(recorded, wishes, resolves)
    resolved = resolutions[-1] if resolutions else None
    if answer.best and parsed.constraints:
        parsed.constraints.write_text(constraints(answer, resolved), encoding="utf-8")
    if parsed.json:
        print(json_object("fit/1", [to_json(answer, resolved)]))
    else:
        show(*render(answer, resolved, parsed.constraints))
    return answer.verdict.status


def resolution(recorded: Recorded, fitting: FittingSet) -> Resolution:
    """Return how the index resolves a set: its wheels, what built packages require, and what goes beside them."""
    requires = {row.package: row.requires for row in recorded.builds.source_build}
    wheels = [f"{each.package}=={each.version}" for each in fitting.installed if each.way == "wheel"]
    built = [text for each in fitting.installed if each.way != "wheel" for text in requires.get(each.package, ())]
    return resolve([*wheels, *built, *fitting.beside], fitting.versions[PYTHON])
