"""Preflight of the attention masks of data loaders: whether they fit into the memory of the hosts."""

from __future__ import annotations

from typing import Final

from matrix.kit.options import Option, count, size
from matrix.kit.preflight import Answer, Contracts, Error, Machine, Preflight, Report, TrainingJob, status_of

from .memory import FLAG, Limit, Loading, longest, need, shown, without_mask

SUBJECT: Final = "the data loader's attention mask"


def examine(job: TrainingJob, machine: Machine, _: Contracts) -> Report:
    """Return whether the masks fit. The result holds for all releases since 0.6.0: each makes the mask by default."""
    given = job.arguments
    loading = Loading(given["seq-length"], given["workers"], given["ranks-per-host"], given["micro-batch-size"])
    limit = longest(loading, machine.memory, machine.shm)
    fits = None if limit is None else loading.sequence <= limit.sequence
    error = Error("", f"{loading.sequence} tokens do not fit with the mask") if fits is False else None
    data = {
        "loading": vars(loading),
        "host_memory": machine.memory,
        "shm": machine.shm,
        **{
            kind: {**vars(needs), "host": needs.host}
            for kind, needs in {"mask": need(loading), "no_mask": without_mask(loading)}.items()
        },
        "longest": limit and vars(limit),
        "fits": fits,
        "flag": FLAG if error else None,
    }
    reason = (
        f"{limit.sequence} tokens fit ({limit.resource} is the limit)" if limit else "the host's sizes are not given"
    )
    answer = Answer("the sequence fits with the mask", status_of(fits), reason, error)
    return Report(SUBJECT, (answer,), text=render(loading, limit), data=data)


def render(loading: Loading, limit: Limit | None) -> str:
    """Return the needs and the longest sequence as text."""
    mask, rest = need(loading), without_mask(loading)
    rows = [
        (f"{loading.sequence} tokens", "with the mask", "without"),
        ("peak of a worker", shown(mask.worker), shown(rest.worker)),
        (f"peak of the host, {loading.loaders} at once", shown(mask.host), shown(rest.host)),
        ("from then on", shown(mask.steady), shown(rest.steady)),
        (f"of it in /dev/shm, {loading.ranks * loading.ready} batches", shown(mask.shm), shown(rest.shm)),
    ]
    lines = [*(f"{name:<40}{one:>14}{other:>14}" for name, one, other in rows), ""]
    if limit is None:
        lines += [
            f"Where that is too much: {FLAG}.",
            "Say --host-memory and --shm to get the longest sequence that fits.",
        ]
    else:
        lines.append(
            f"The longest sequence that fits with the mask: {limit.sequence} tokens ({limit.resource} is the limit)."
        )
        fits = loading.sequence <= limit.sequence
        lines += (
            ["It fits."]
            if fits
            else [f"Set {FLAG}.", "Not with --reset-attention-mask, which it drops without a word."]
        )
    lines.append("The model, the processes themselves and what else runs on the host come on top.")
    return "\n".join(lines)


PREFLIGHT: Final = Preflight(
    SUBJECT,
    examine,
    options=(
        Option("seq-length", "TOKENS", read=count(1), required=True),
        Option("workers", "N", "DataLoader workers per rank (2)", count(0), default="2"),
        Option(
            "ranks-per-host",
            "N",
            "ranks of a host that load: every context-parallel rank, one rank of a tensor-parallel group",
            count(1),
            required=True,
        ),
        Option("micro-batch-size", "N", read=count(1), default="1"),
        Option("host-memory", "SIZE", "of one host: 880G", size, machine="memory"),
        Option("shm", "SIZE", "size of /dev/shm: 64G (64M by default in a container)", size, machine="shm"),
    ),
    topic="memory",
    about="Compute the host memory that the data loader's attention mask takes, and the longest sequence that fits.",
)
