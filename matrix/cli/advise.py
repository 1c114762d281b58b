"""`megatrix advise`: the command line of this package."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from matrix.check import memory
from matrix.check.memory import FLAG, Loading, shown


def add_parser(commands: Any) -> None:
    """Add `advise` to the subparsers of the top."""
    text = "Say what a job will need before it starts."
    topics = commands.add_parser("advise", help=text, description=text).add_subparsers(required=True, metavar="TOPIC")
    text = "Say what the data loader's attention mask takes of a host, and the longest sequence that fits."
    about = topics.add_parser("memory", help=text, description=text)
    about.add_argument("--seq-length", required=True, metavar="TOKENS")
    about.add_argument("--workers", default="2", metavar="N", help="DataLoader workers per rank (2)")
    about.add_argument(
        "--ranks-per-host", required=True, metavar="N",
        help="ranks of a host that load: every context-parallel rank, one rank of a tensor-parallel group",
    )  # fmt: skip
    about.add_argument("--micro-batch-size", default="1", metavar="N")
    about.add_argument("--host-memory", metavar="SIZE", help="of one host: 880G")
    about.add_argument("--shm", metavar="SIZE", help="size of /dev/shm: 64G (a container has 64M unless told)")
    about.add_argument("--json", action="store_true", help="one JSON object")
    about.set_defaults(command=memory_command)


def memory_command(parsed: argparse.Namespace) -> int:
    """`megatrix advise memory`: 1 when it does not fit."""
    loading = Loading(
        memory.count(parsed.seq_length, "--seq-length"),
        memory.count(parsed.workers, "--workers"),
        memory.count(parsed.ranks_per_host, "--ranks-per-host"),
        memory.count(parsed.micro_batch_size, "--micro-batch-size"),
    )
    host = memory.size(parsed.host_memory, "--host-memory") if parsed.host_memory is not None else None
    shm = memory.size(parsed.shm, "--shm") if parsed.shm is not None else None
    told = advice(loading, host, shm)
    sys.stdout.write((json.dumps(told) if parsed.json else in_words(told)) + "\n")
    return 1 if told["fits"] is False else 0


def advice(loading: Loading, host: int | None, shm: int | None) -> dict[str, Any]:
    """Return the advice as plain JSON values; sizes in bytes. `fits` is None when no size of the host was given."""
    limit = memory.longest(loading, host, shm)
    fits = None if limit is None else loading.sequence <= limit.sequence
    kinds = {"mask": memory.need(loading), "no_mask": memory.without_mask(loading)}
    return {
        "loading": vars(loading),
        "host_memory": host,
        "shm": shm,
        **{kind: {**vars(need), "host": need.host} for kind, need in kinds.items()},
        "longest": limit and vars(limit),
        "fits": fits,
        "flag": FLAG if fits is False else None,
    }


def in_words(told: dict[str, Any]) -> str:
    """Return the advice for people."""
    loading, mask, rest = Loading(**told["loading"]), told["mask"], told["no_mask"]
    rows = [
        (f"{loading.sequence} tokens", "with the mask", "without"),
        ("peak of a worker", shown(mask["worker"]), shown(rest["worker"])),
        (f"peak of the host, {loading.loaders} at once", shown(mask["host"]), shown(rest["host"])),
        ("from then on", shown(mask["steady"]), shown(rest["steady"])),
        (f"of it in /dev/shm, {loading.ranks * loading.ready} batches", shown(mask["shm"]), shown(rest["shm"])),
    ]
    lines = [f"{name:<40}{one:>14}{other:>14}" for name, one, other in rows]
    if told["longest"]:
        longest, resource = told["longest"]["sequence"], told["longest"]["resource"]
        lines += ["", f"The longest sequence that fits with the mask: {longest} tokens ({resource} is the limit)."]
    if told["fits"] is False:
        lines += [f"Set {FLAG}.", "Not with --reset-attention-mask, which it drops without a word."]
    elif told["fits"]:
        lines.append("It fits.")
    else:
        lines += ["", f"Where that is too much: {FLAG}.", "Say --host-memory and --shm to hear what fits."]
    lines.append("The model, the processes themselves and what else runs on the host come on top.")
    return "\n".join(lines)
