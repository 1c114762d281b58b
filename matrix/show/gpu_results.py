"""The results of a run at level gpu as a page in Markdown that can be committed: docs/results/DATE-GPUS.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from matrix.ground.catalog.machine import Gpu
from matrix.ground.verdicts.record import SILENT, Record
from matrix.prove.store.stored_run import Night
from matrix.show.changes import changes
from matrix.show.escaping import code
from matrix.show.findings.markdown import table
from matrix.show.job_summary import job_summary
from matrix.show.words import WORST_FIRST, group_by

FACTS: Final = ("torch", "transformer-engine", "NCCL", "user-mode driver", "NVLink", "backend")  # of a record


def name(night: Night, gpus: Sequence[Gpu]) -> str:
    """Return the name of the file: 2026-01-31-8x-nvidia-h100.md."""
    models = Counter(gpu.name for gpu in gpus)
    text = " ".join(f"{count}x {model}" for model, count in models.items())
    return f"{night.began[:10]}-{re.sub(r'[^a-z0-9]+', '-', text.lower()).strip('-')}.md"


def page(night: Night, gpus: Sequence[Gpu], driver: str) -> str:
    """Return the page: the machine, the packages of each base, the verdicts of each failure, the summary of the run."""
    kinds = Counter(f"{gpu.name}, SM {gpu.sm}{', multicast' if gpu.multicast else ''}" for gpu in gpus)
    ran = [record for record in night.records if record.verdict not in SILENT]
    used = sum(held(record) * record.outcome.seconds for record in ran)
    took = (datetime.fromisoformat(night.ended) - datetime.fromisoformat(night.began)).total_seconds() if ran else 0.0
    share = f", {used / (len(gpus) * took):.0%} of those of the machine" if took and gpus else ""
    facts = [
        f"- GPUs: {', '.join(f'{count} x {kind}' for kind, count in kinds.items())}",
        f"- kernel driver: {driver}",
        f"- {len(ran)} of {len(night.records)} cases ran in {took / 60:.0f} minutes; "
        f"{used / 60:.0f} GPU-minutes{share}",
    ]
    counts = Counter((record.failure, record.verdict) for record in night.records)
    failures = [
        [code(failure), *(str(counts[failure, verdict] or "") for verdict in WORST_FIRST)]
        for failure in dict.fromkeys(record.failure for record in night.records)
    ]
    parts = [
        f"# Level gpu, {night.began[:10]}",
        "\n".join(facts),
        table(["base", "cases", *FACTS], bases(ran)),
        table(["failure", *(verdict.value for verdict in WORST_FIRST)], failures),
        job_summary(night, changes(night.records, {})),
    ]
    return "\n\n".join(filter(None, parts))


def held(record: Record) -> int:
    """Return the number of GPUs that a case held, from the fact "2 of 8 x NVIDIA H100, SM 9.0"."""
    count = re.match(r"(\d+) of ", record.resolved.get("GPUs", ""))
    return int(count[1]) if count else 0


def bases(ran: Sequence[Record]) -> list[list[str]]:
    """Return a row for each base: the number of its cases, and the values of FACTS."""
    rows = []
    for base, records in group_by(lambda record: record.cell.base, ran).items():
        values = (dict.fromkeys(run.resolved[fact] for run in records if fact in run.resolved) for fact in FACTS)
        rows.append([code(base), str(len(records)), *(", ".join(value) or "-" for value in values)])
    return rows
