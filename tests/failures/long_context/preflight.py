"""Preflight of the attention masks of data loaders: whether they fit into the memory of the hosts."""

from __future__ import annotations

from matrix.kit.preflight import (
    Answer,
    Contracts,
    Error,
    Machine,
    Report,
    TrainingJob,
    status_of,
    unjudged,
)

from .memory import FLAG, Limit, Loading, longest, need, shown, without_mask


def examine(job: TrainingJob, machine: Machine, _: Contracts) -> Report:
    """Return whether the masks fit. The result holds for all releases since 0.6.0: each makes the mask by default."""
    given = dict(job.arguments)
    tensor = job.command.get("tensor-model-parallel-size", "")
    if job.per_host:  # one rank of a tensor-parallel group loads data
        ranks = max(job.per_host // (int(tensor) if tensor.isdecimal() and int(tensor) else 1), 1)
        given.setdefault("ranks-per-host", ranks)
    if missing := [name for name in ("seq-length", "ranks-per-host") if name not in given]:
        return unjudged(f"--{' and --'.join(missing)} would name what is missing")
    loading = Loading(given["seq-length"], given["workers"], given["ranks-per-host"], given["micro-batch-size"])
    limit = longest(loading, machine.allowed, machine.shm)
    fits = None if limit is None else loading.sequence <= limit.sequence
    error = Error("", f"{loading.sequence} tokens do not fit with the mask") if fits is False else None
    data = {
        "loading": vars(loading),
        "host_memory": machine.allowed,
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
    changes = ((f"add {FLAG} (not with --reset-attention-mask, which it drops silently)",),) if error else ()
    return Report((answer,), changes, clears=fits is True, text=render(loading, limit), data=data)


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
        lines.append("--host-memory and --shm give the longest sequence that fits.")
    else:
        lines.append(
            f"The longest sequence that fits with the mask: {limit.sequence} tokens ({limit.resource} is the limit)."
        )
    lines.append("The model, the processes themselves and what else runs on the host come on top.")
    return "\n".join(lines)
