"""`megatrix check CELL`."""

from __future__ import annotations

import argparse
from functools import cache
from typing import Final

from matrix.ask.check import checking
from matrix.ask.check.user_stack import UserStack
from matrix.cli import places
from matrix.cli.case_options import environment_cases
from matrix.ground.cases.machine_requirements import BaseOffer, Placement, place
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.model import HOST, Catalog
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution.engine import offer_of
from matrix.prove.planning import cell_explanation, night
from matrix.prove.provision import host
from matrix.show import check_text
from matrix.show.terminal import json_object, show

OTHERS: Final = ("own", "upgrade", "checkpoint", "format", "require", "loadable", "root", "python", "quiet")


def state_here(catalog: Catalog, planned: Planned, machine: host.LocalSite, offer: BaseOffer) -> str:
    """Return what this machine lacks for a case, or how its ranks share a GPU; "" where it runs on GPUs of its own."""
    if lack := machine.lack(catalog, planned, offer):
        return str(lack)
    case = catalog.failure(planned.failure).case_named(planned.case)
    placement = place(case, planned, machine.offers(planned.level), offer)
    return f"runs: {placement.note}" if isinstance(placement, Placement) and placement.note else ""


def check_cell(parsed: argparse.Namespace, cell: str) -> int:
    """Print what the catalog expects in a cell and which cases the night has there; return the status of its stack."""
    if given := [name for name in OTHERS if getattr(parsed, name)]:
        fix = "leave it out, or name the versions: megatrix check mcore=0.8.0 torch=2.4.1"
        raise MatrixError("a cell is a stack alone", got=f"--{given[0]}".replace("--own", "--"), fix=fix)
    catalog, cases = loading.load(), None
    settings = host.load_configuration()
    if cell.startswith(f"{HOST}/"):
        catalog, cases = environment_cases(catalog)
    machine, engines = host.look(), places.engines(catalog, 1)
    offer = cache(lambda base: offer_of(catalog, engines, base, settings))
    explained = cell_explanation.explain(
        catalog,
        cell,
        night.night(catalog, night.pairwise, tuple(Level)) if cases is None else cases,
        lambda case: state_here(catalog, case, machine, offer(case.cell.base)),
    )
    result = checking.check(catalog, UserStack(explained.cell.stack), checking.Question(), {})
    if parsed.json:
        listed = [finding for group in result.calls for finding in group.to_json()]
        answer = {**explained.to_json(), "calls": listed, "calls_problem": result.calls_problem}
        print(json_object("cell/1", [answer]))
    else:
        show(*check_text.explained_cell(explained), "", *check_text.calls(result.calls, result.calls_problem))
    return result.answer.status(allow_unknown=parsed.allow_unknown)
