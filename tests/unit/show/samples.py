"""Records of a night: cells of the catalog's first failures, every verdict. Bisections with one text everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from matrix.ask.check.table import build_table
from matrix.ground.catalog.codec import encode
from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import MCORE, TORCH, Cell
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised, RankEnd
from matrix.ground.verdicts.planned import Planned, Reason, ReasonKind
from matrix.ground.verdicts.record import Record, Verdict
from matrix.ground.verdicts.trend import NO_PASTS, Pasts
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.result_summary import (
    AttributionSummary,
    BisectionSummary,
    ChangePoint,
    Cost,
    MixtureSummary,
    ProbeSummary,
)
from matrix.prove.bisection.search import ResultKind
from matrix.prove.planning.rerun import PlanEntry
from matrix.show import stack_map as maps
from matrix.show.stack_map import StackMap
from tests.unit import catalogs

MCORES = (
    "0.7.0", "0.8.0", "0.9.0", "0.10.0", "0.11.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1",
)  # fmt: skip
TORCHES = ("2.3.1", "2.4.0", "2.4.1", "2.13.0")
CHECKPOINT = "/env/lib/python3.10/site-packages/torch/distributed/checkpoint/"
ASSERTION = (
    Raised(
        "AssertionError",
        "",
        (
            Frame("/overlay/megatron/core/dist_checkpointing/serialization.py", 381, "save"),
            Frame("/overlay/megatron/core/dist_checkpointing/strategies/torch.py", 627, "async_save"),
            Frame(CHECKPOINT + "default_planner.py", 389, "create_default_global_save_plan"),
        ),
    ),
    Raised("CheckpointException", "ranks:dict_keys([0])", (Frame(CHECKPOINT + "utils.py", 185, "reduce_scatter"),)),
)
WRITE_ITEM = (
    Raised(
        "TypeError",
        "_write_item() missing 2 required positional arguments: 'storage_key' and 'serialization_format'",
        (
            Frame(
                "/overlay/megatron/core/dist_checkpointing/strategies/filesystem_async.py", 298, "write_preloaded_data"
            ),
        ),
    ),
)
BOUNDARY = Reason(ReasonKind.BOUNDARY, "mcore 0.8.0 broken | 0.9.0 works")
LOG = (
    "\x1b[33mWARNING\x1b[0m: no CUDA <device> & none asked for\n"
    "HF_TOKEN=hunter2-secret\n"
    + "\n".join(f"iteration {n}: loss 4.6{n}" for n in range(5))
    + "\n<script>alert('log')</script>\n" + "x" * 3000 + "\nTraceback (most recent call last):\n"
)  # fmt: skip


def cell(base: str = "torch-2.4.0", mcore: str = "0.8.0", te: str = "none", driver: str = "none") -> Cell:
    torch = base.removeprefix("torch-") if base.startswith("torch-") else "2.4.0a0+3bcc3cddb5"
    return catalogs.cell(base, torch=torch, mcore=mcore, te=te, driver=driver)


def record(
    verdict: Verdict = Verdict.HOLDS,
    *,
    where: Cell | None = None,
    case: str = "tp2",
    failure: str = "dud-assertion",
    level: Level = Level.CPU,
    **further: Any,
) -> Record:
    """Return a record whose outcome and expectation match its verdict."""
    where = where or cell()
    kind, expectation, chain = {
        Verdict.REPRODUCED: (OutcomeKind.RAISED, Expectation.BROKEN, ASSERTION),
        Verdict.HOLDS: (OutcomeKind.PASSED, Expectation.WORKS, ()),
        Verdict.LEARNED: (OutcomeKind.PASSED, Expectation.UNKNOWN, ()),
        Verdict.VANISHED: (OutcomeKind.PASSED, Expectation.BROKEN, ()),
        Verdict.REGRESSED: (OutcomeKind.RAISED, Expectation.WORKS, ASSERTION),
        Verdict.UNEXPLAINED: (OutcomeKind.RAISED, Expectation.WORKS, WRITE_ITEM),
        Verdict.UNAVAILABLE: (OutcomeKind.UNAVAILABLE, Expectation.BROKEN, ()),
        Verdict.NOT_REACHED: (OutcomeKind.NOT_REACHED, Expectation.WORKS, ()),
    }[verdict]
    reason = {Verdict.UNAVAILABLE: "needs 8 GPUs; host has 0", Verdict.NOT_REACHED: "never started"}.get(verdict, "")
    ranks = tuple(
        RankEnd(rank, 1, chain if rank == 0 else (), stopped=rank > 0, seconds=1.1, log=f"runs/a/logs/rank-{rank}.log")
        for rank in range(2 if chain else 0)
    )
    outcome = Outcome(
        kind, reason, rank=0 if chain else None, chain=chain, evidence=LOG if chain else "", seconds=1.1, ranks=ranks
    )
    made = Record(
        Planned(where, failure, case, level, expectation, why=(BOUNDARY,)),
        verdict=verdict,
        outcome=outcome,
        signature="save-assertion" if verdict in (Verdict.REPRODUCED, Verdict.REGRESSED) else None,
        reproduce=f"megatrix run --select '{where.id} {failure} {case} {level.value}'",
        resolved={name: str(where.stack[name]) for name in (TORCH, MCORE)},
        content=f"{where.id} {failure} {case} {level.value}",
        run="a",
        started="2026-01-31T02:00:00.000Z",
    )
    return changed(made, **further)


def changed(result: Record, **values: Any) -> Record:
    """Return the record with other values of its fields, or of its planned case."""
    own = {field.name for field in fields(Record)}
    planned_values = {name: values.pop(name) for name in [*values] if name not in own}
    return replace(result, planned=replace(result.planned, **planned_values), **values)


def planned(result: Record) -> Mapping[str, Any]:
    """Return the case as plan.json stores it."""
    return encode(PlanEntry(replace(result.planned, notes=result.notes), result.reproduce))  # type: ignore[no-any-return]


def night() -> list[Record]:
    """Return a night with every verdict."""
    records = []
    for torch in TORCHES:
        new = torch == "2.13.0"
        for mcore in MCORES:
            for case in ("tp2", "pp2", "world1"):
                where = cell(f"torch-{torch}", mcore)
                verdict = Verdict.REPRODUCED if mcore in MCORES[:2] and torch != "2.3.1" else Verdict.HOLDS
                further: dict[str, Any] = {}
                if new and mcore == "0.7.0":
                    verdict = Verdict.LEARNED
                elif new and mcore in MCORES[2:6]:
                    verdict, further = Verdict.UNEXPLAINED, {"other": "dud-write-item"}
                elif torch == "2.4.1" and mcore == "0.8.0" and case == "pp2":
                    verdict = Verdict.VANISHED
                elif torch == "2.4.1" and mcore == "0.14.0" and case == "tp2":
                    verdict = Verdict.REGRESSED
                elif torch == "2.4.1" and mcore == "0.16.1":
                    verdict = Verdict.NOT_REACHED
                records.append(record(verdict, where=where, case=case, **further))
    twin = "twin: torch 2.4.0 and TE 1.8.0 from PyPI stand for ngc-24.07"
    for mcore in MCORES[:4]:
        where = cell("ngc-24.07", mcore, "1.8.0+37280ec", "535")
        records.append(
            record(
                Verdict.REPRODUCED if mcore in MCORES[:2] else Verdict.HOLDS,
                where=where,
                failure="cut-offload-args",
                case="five-arguments",
                level=Level.CONTRACT,
                notes=(twin,),
            )
        )
        for case in ("tp2", "pp2"):
            records.append(record(Verdict.UNAVAILABLE, where=where, case=case, level=Level.GPU, notes=(twin,)))
    where = cell("ngc-24.03", "0.7.0", "1.9.0.dev0+f9dd37f", "470.161.03")
    records.append(record(Verdict.UNAVAILABLE, where=where, failure="tx-overlap", case="userbuffers", level=Level.GPU))
    where = cell("host", "0.12.3", "2.1.0", "550.54.15")
    hung = Outcome(OutcomeKind.HUNG, "no end after 120 s", rank=1, evidence=LOG, seconds=121.4, ranks=(
        RankEnd(0, -15, stopped=True, seconds=121.0, log="runs/a/logs/rank-0.log"),
        RankEnd(1, None, stopped=True, seconds=121.4, log="runs/a/logs/rank-1.log",
                stacks='Thread 0x7f (most recent call first):\n  File "ring.py", line 12 in wait <barrier>'),
    ), attempts=("hung after 120 s in the fork-server",))  # fmt: skip
    records.append(record(Verdict.UNEXPLAINED, where=where, failure="long-samples", case="cp4-131072", outcome=hung))
    return records


def stack_map(known: Catalog, *records: Record, pasts: Pasts = NO_PASTS) -> StackMap:
    """Return the upgrade map of a catalog and a night."""
    table = catalogs.real_table() if known is catalogs.real() else build_table(known)
    return maps.stack_map(known, table, records, pasts)


def bisection(text: str) -> BisectionSummary:
    """Return a bisection with every result and `text` in every field."""
    probes = tuple(
        ProbeSummary(text, text, seen, {seen: 1}, text, text, (text,), 1.0, text, {text: text}) for seen in ProbeResult
    )
    change = ChangePoint(
        text, ResultKind.FIRST_BAD, 0.95, text, text, "mcore", {text: text}, text, (text,), ((text, text),),
        probes, Cost(5, 4, 3, 2, 1.5), (text,),
    )  # fmt: skip
    return BisectionSummary(text, text, text, Level.CPU, {text: change})


def attribution(text: str) -> BisectionSummary:
    """Return an attribution with every result and `text` in every field."""
    mixtures = tuple(MixtureSummary(text, (), seen, text, text) for seen in ProbeResult)
    attributed = AttributionSummary((), {text: (text, text)}, mixtures, 3, 2.0, (text,))
    return replace(bisection(text), attribution=attributed)
