"""`megatrix explain`."""

from __future__ import annotations

import argparse
from functools import cache
from typing import Any

from matrix.catalog import loading
from matrix.catalog.failure import Level
from matrix.catalog.model import HOST
from matrix.check.calls import breaking_calls
from matrix.cli import places
from matrix.cli.case_options import environment_cases
from matrix.cli.usage import add_command
from matrix.errors import ExitStatus
from matrix.execution.engine import offer_of
from matrix.planning import cell_explanation, covering, night
from matrix.provision import configuration, host
from matrix.report import check_text, explanation
from matrix.report.json_object import json_object
from matrix.report.terminal import show


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "explain")
    cell = "a cell id, such as torch-2.4.0/mcore-0.8.0/te-none/driver-none; host/... is in this environment"
    parser.add_argument("cell", metavar="CELL", help=cell)
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/schema/explain.json)")
    parser.set_defaults(command=explain_command)


def explain_command(parsed: argparse.Namespace) -> int:
    """Print what the catalog expects in the cell."""
    catalog, cases = loading.load(), None
    configuration.load()
    if parsed.cell.startswith(f"{HOST}/"):
        catalog, cases = environment_cases(catalog)
    machine, engines = host.look(), places.engines(catalog, 1)
    offer = cache(lambda base: offer_of(catalog, engines, base))
    explained = cell_explanation.explain(
        catalog,
        parsed.cell,
        night.night(catalog, covering.pairwise, tuple(Level)) if cases is None else cases,
        lambda case: str(machine.lack(catalog, case, offer(case.cell.base)) or ""),
    )
    calls, problems = breaking_calls(catalog, explained.cell.stack, ())
    problem = "; ".join(problems.values())
    if parsed.json:
        listed = [finding for group in calls for finding in group.to_json()]
        print(json_object("explain/1", [{**explained.to_json(), "calls": listed, "calls_problem": problem}]))
    else:
        show(*explanation.render(explained), "", *check_text.calls(calls, problem))
    return ExitStatus.GOOD
