"""Every case of level gpu as a rehearsal, with each release of megatron-core for which it is planned."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.cases.machine_requirements import APART
from matrix.ground.catalog.distributions import nccl_sharing
from matrix.ground.catalog.failure import Case, CaseNeed, Expectation, Level
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.schema import Identifier
from matrix.ground.catalog.stack import MCORE, WRITER_TE
from matrix.ground.catalog.versions import parse, position
from matrix.ground.verdicts.outcome import OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.planning.case_request import cases_here, with_host
from matrix.prove.provision import host
from matrix.read.git import Repository
from tests.founding import OVERLAP
from tests.rehearsal.conftest import GPUS, MACHINES, Rehearsals, selection
from tests.rehearsal.sizes import small

FIRST = "GPU-01010101-0101-0101-0101-010101010101"  # the first GPU of the stand-in driver
OLDEST = parse("0.10.0")  # the first megatron-core whose userbuffers need no MPI, which this torch is built without
NEWEST = os.environ.get("MEGATRIX_REHEARSED") == "newest"  # each case with the newest release of each base alone
Key = tuple[str, str]  # the id of a failure, the name of a case
SMALL: dict[Key, Case] = {
    (failure.id, case.name): replace(small(case), name=Identifier(failure.id), deadline=0)
    for failure in load().failures
    for case in failure.case
    if Level.GPU in case.levels and not case.no_rehearsal  # an entry gives the reason for a case without one
}
CASES: dict[Key, Case] = {  # of those that differ only in what a rehearsal replaces, the first
    key: load().failure(key[0]).case_named(key[1])
    for place, (key, case) in enumerate(SMALL.items())
    if case not in list(SMALL.values())[:place]
}


def planned_cases(base: str) -> dict[Key, list[Planned]]:
    """Return the cases of level gpu that a base plans and has all packages of; none is built first."""
    machine = MACHINES[base]
    catalog = with_host(load(), machine.packages, machine.minor)
    cases: dict[Key, list[Planned]] = defaultdict(list)
    for item in cases_here(catalog, "host", machine.packages, [Level.GPU]):
        core = item.cell.stack.version(MCORE) or ""
        userbuffers_need_mpi = item.failure == OVERLAP and position(core) < OLDEST
        engine = item.cell.stack.version(WRITER_TE)
        if engine and engine != machine.packages["transformer-engine"]:
            continue  # no compiled one is beside the base's
        if (item.failure, item.case) in CASES and "+" not in core and not userbuffers_need_mpi:
            cases[item.failure, item.case].append(item)
    return cases


def tags() -> frozenset[str] | None:
    """Return the revisions that the clone of Megatron-LM names; None without a clone, for which cases are red."""
    clone = host.load_configuration().sources.get("megatron-lm")
    if clone is None:
        return None
    with Repository(clone) as repository:
        return frozenset(repository.refs())


def parameters(
    base: str, planned: Mapping[Key, Sequence[Planned]], tags: Collection[str] | None, *, newest: bool
) -> Iterator[Any]:
    """Yield the parameters of a base's tests: the cases to run, and as a skip each release whose tag the clone lacks.

    Upstream adds tags after a clone was made, and a mirror may lag behind: this tests the project, not the clone.
    """
    for key, items in planned.items():
        needs_tag = tags is not None and CaseNeed.MEGATRON_LM in CASES[key].needs
        revisions = {item.key: f"core_v{item.cell.stack[MCORE]}" for item in items}
        runs = [item for item in items if not needs_tag or revisions[item.key] in (tags or ())]
        lacking = sorted({revisions[item.key] for item in items if item not in runs})
        if newest and runs:  # with each release that writes its checkpoint
            last = max((item.cell.stack.version(MCORE) for item in runs), key=position)
            runs = [item for item in runs if item.cell.stack.version(MCORE) == last]
        name = f"{base}-{'-'.join(key)}"
        if runs:
            yield pytest.param(base, runs, id=name)
        if lacking:
            reason = f"the clone of Megatron-LM has no tag {', '.join(lacking)}: megatrix sources fetch"
            yield pytest.param(base, [], id=f"{name}-without-tag", marks=pytest.mark.skip(reason=reason))


PLANNED = [parameter for base in MACHINES for parameter in parameters(base, planned_cases(base), tags(), newest=NEWEST)]


@pytest.mark.parametrize(("base", "items"), PLANNED)
def test_case_runs_as_on_gpus(
    base: str, items: list[Planned], rehearsed: Callable[[str], tuple[dict[Key, list[Record]], str]]
) -> None:
    """With each planned release it holds a GPU for each rank and ends as expected; with small sizes nothing breaks."""
    key = items[0].failure, items[0].case
    records, printed = rehearsed(base)
    assert len(records[key]) == len(items), printed
    assert defects(CASES[key], records[key]) == []


def defects(case: Case, records: Sequence[Record]) -> list[str]:
    """Return what differs in the records of a case from what its entry and the stand-in machine say."""
    return [
        f"{record.cell.stack[MCORE]}: {record.verdict}, {record.outcome.reason}, {record.resolved}, {record.notes}"
        for record in records
        if not (
            record.resolved.get("GPUs", "").startswith(f"{case.gpus} of {GPUS} x Stand-in GPU")
            and record.resolved["backend"] == "nccl"
            and not any("gloo in place" in note for note in record.notes)
            and ended_as_expected(case, record)
        )
    ]


def ended_as_expected(case: Case, record: Record) -> bool:
    """Return whether a rehearsal ended as its entry expects: with small sizes nothing breaks.

    Where nothing is expected, the body may report that this torch lacks what the release imports.
    """
    if case.rehearsal:
        return record.outcome.kind is OutcomeKind.PASSED
    if record.planned.expectation is Expectation.UNKNOWN:
        return record.verdict in (Verdict.LEARNED, Verdict.UNAVAILABLE)
    return record.verdict in (Verdict.HOLDS, Verdict.REPRODUCED)


@pytest.mark.parametrize("base", MACHINES)
def test_ranks_share_one_gpu(rehearsals: Callable[[str], Rehearsals], tmp_path: Path, base: str) -> None:
    """With one GPU, each case of two to four ranks loads the real library of NCCL, and ends as on GPUs of its own."""
    planned = (parameter.values for parameter in parameters(base, planned_cases(base), tags(), newest=NEWEST))
    shared = [
        items
        for _, items in planned
        if items and 1 < items[0].ranks <= nccl_sharing().ranks
        if not {*APART} & {*CASES[items[0].failure, items[0].case].needs}
    ]
    expression = " or ".join(map(selection, shared))
    records, printed = rehearsals(base).run(expression, tmp_path, CUDA_VISIBLE_DEVICES=FIRST)
    assert {record.key for record in records} == {item.key for items in shared for item in items}, printed
    assert [
        f"{record.key}: {record.verdict}, {record.outcome.reason}, {record.resolved.get('NCCL')}, {record.notes}"
        for record in records
        if not (
            ended_as_expected(CASES[record.failure, record.case], record)
            and record.resolved["backend"] == "nccl, shared"
            and any(note.startswith(f"{record.planned.ranks} ranks share 1 GPU over NCCL 2.3") for note in record.notes)
        )
    ] == []
