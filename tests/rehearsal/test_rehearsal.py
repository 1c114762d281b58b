"""Every case of level gpu as a rehearsal, in the cell that the catalog knows best."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from matrix.catalog.failure import Case, Expectation, Level
from matrix.catalog.loading import load
from matrix.catalog.stack import MCORE
from matrix.catalog.versions import parse
from matrix.planning.host_cases import cases_here, with_host
from matrix.verdicts.outcome import OutcomeKind
from matrix.verdicts.planned import Planned
from matrix.verdicts.record import Record, Verdict
from tests.founding import SAVE
from tests.rehearsal.conftest import GPUS, SUMMARY, Rehearsals

# An entry gives the reason for a case without a rehearsal.
CASES = [
    (failure.id, case)
    for failure in load().failures
    for case in failure.case
    if Level.GPU in case.levels and not case.no_rehearsal
]
FIRST = "GPU-01010101-0101-0101-0101-010101010101"  # the first GPU of the stand-in driver
OLDEST = parse("0.10.0")  # the first megatron-core whose userbuffers need no MPI, which this torch is built without


def cell_of(failure: str, case: Case, rehearsals: Rehearsals) -> Planned:
    """Return the planned case with the oldest release from OLDEST on, if possible one that works."""
    packages, minor = rehearsals.contents.packages, rehearsals.contents.minor
    catalog = with_host(load(), packages, minor)
    planned = cases_here(catalog, "host", packages, [Level.GPU])
    mine = [item for item in planned if (item.failure, item.case) == (failure, case.name)]
    known = [item for item in mine if item.expectation is not Expectation.UNKNOWN]
    rank = {Expectation.WORKS: 0, Expectation.BROKEN: 1}
    new = [item for item in known if core(item) >= OLDEST and not core(item).local]  # no build
    return min(new, key=lambda item: (rank[item.expectation], core(item)))


def summary(record: Record) -> str:
    """Return the seconds of a rehearsal, how it ended, and what was replaced in its ranks."""
    values = [end.value for end in record.outcome.ranks]
    replaced = {
        f"{name} -> {value}" for one in values if isinstance(one, dict) for name, value in one["replaced"].items()
    }
    where = f"{record.failure} {record.case}, megatron-core {record.cell.stack[MCORE]}, ranks {len(values)}"
    return f"{record.outcome.seconds:6.1f} s  {where}: {record.outcome.kind.value}; {', '.join(sorted(replaced))}"


@pytest.mark.parametrize(
    ("failure", "case"), [pytest.param(failure, case, id=f"{failure}-{case.name}") for failure, case in CASES]
)
def test_case_runs_as_on_gpus(
    failure: str, case: Case, rehearsals: Rehearsals, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """It holds a GPU for each rank and ends as the catalog expects; with small sizes nothing breaks."""
    item = cell_of(failure, case, rehearsals)
    expression = f"failure=={failure} and case=={case.name} and level==gpu and mcore=={item.cell.stack[MCORE]}"
    records, printed = rehearsals.run(expression, tmp_path)
    assert len(records) == 1, printed
    (record,) = records

    pytestconfig.stash.setdefault(SUMMARY, []).append(summary(record))
    assert record.outcome.kind is not OutcomeKind.UNAVAILABLE, record.outcome.reason
    assert record.resolved["GPUs"].startswith(f"{case.gpus} of 8 x Stand-in GPU"), record.resolved
    assert record.resolved["backend"] == "nccl"
    assert [note for note in record.notes if "gloo in place" in note] == []
    if case.rehearsal:
        assert record.outcome.kind is OutcomeKind.PASSED, printed
    else:
        assert record.verdict in (Verdict.HOLDS, Verdict.REPRODUCED), printed


def test_ranks_share_one_gpu_over_gloo(rehearsals: Rehearsals, tmp_path: Path) -> None:
    """With one of the GPUs: collectives go over gloo and the record notes it; send and receive need NCCL."""
    expression = f"failure=={SAVE} and (case==tp2 or case==pp2) and level==gpu and mcore=={OLDEST}"
    records, printed = rehearsals.run(expression, tmp_path, CUDA_VISIBLE_DEVICES=FIRST)
    found = {record.case: record for record in records}
    assert found["tp2"].verdict is Verdict.HOLDS, printed
    assert "gloo in place of NCCL: 2 ranks share 1 GPU" in found["tp2"].notes
    assert found["pp2"].outcome.kind is OutcomeKind.UNAVAILABLE
    assert found["pp2"].outcome.reason == (
        "needs NCCL, so 2 GPUs, one for each rank; CUDA shows 1: "
        f"CUDA_VISIBLE_DEVICES is '{FIRST}'; the kernel driver lists {GPUS}"
    )


def core(item: Planned) -> Version:
    return parse(str(item.cell.stack[MCORE]))
