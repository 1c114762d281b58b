"""Preflight of the attention masks of data loaders: whether they fit into the memory of the hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from matrix.kit.options import Option, count, size
from matrix.kit.preflight import (
    Answer,
    Contracts,
    Error,
    Machine,
    Preflight,
    Report,
    TrainingJob,
    status_of,
    unjudged,
)

from .memory import FLAG, Limit, Loading, longest, need, shown, without_mask

SUBJECT: Final = "the data loader's attention mask"
# The options that Megatron-LM's own arguments state, and the argument of each.
ARGUMENTS: Final = {"seq-length": "seq-length", "workers": "num-workers", "micro-batch-size": "micro-batch-size"}


def examine(job: TrainingJob, machine: Machine, _: Contracts) -> Report:
    """Return whether the masks fit. The result holds for all releases since 0.6.0: each makes the mask by default."""
    given = job.arguments
    if missing := [name for name in ("seq-length", "ranks-per-host") if name not in given]:
        return unjudged(SUBJECT, f"--{' and --'.join(missing)} would name what is missing")
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
    changes = ((f"add {FLAG} (not with --reset-attention-mask, which it drops silently)",),) if error else ()
    return Report(SUBJECT, (answer,), changes, clears=fits is True, text=render(loading, limit), data=data)


def given(values: Mapping[str, str], per_host: int | None) -> Mapping[str, str]:
    """Return the options that a command states. One rank of a tensor-parallel group loads data."""
    found = {name: values[option] for name, option in ARGUMENTS.items() if option in values}
    tensor = values.get("tensor-model-parallel-size", "")
    if per_host:
        found["ranks-per-host"] = str(max(per_host // (int(tensor) if tensor.isdecimal() and int(tensor) else 1), 1))
    return found


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


PREFLIGHT: Final = Preflight(
    SUBJECT,
    examine,
    options=(
        Option("seq-length", "TOKENS", "sequence length of the job (default: the command's)", count(1)),
        Option("workers", "N", "DataLoader workers per rank (2)", count(0), default="2"),
        Option(
            "ranks-per-host",
            "N",
            "ranks of a host that load: every context-parallel rank, one rank of a tensor-parallel group",
            count(1),
        ),
        Option("micro-batch-size", "N", "samples of a batch (1)", count(1), default="1"),
        Option("host-memory", "SIZE", "of one host: 880G", size, machine="memory"),
        Option("shm", "SIZE", "size of /dev/shm: 64G (64M by default in a container)", size, machine="shm"),
    ),
    given=given,
)
