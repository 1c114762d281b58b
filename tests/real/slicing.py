"""Runs in a cell's interpreter: slices batches with megatron-core's own function, one request and answer per line.

{"cp": ranks, "length": tokens, "batch": samples} -> {"parts": [{key: nested lists} for each rank]} or {"error": text}.
Every entry of a key differs from all its others, so that parts tell where they come from.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import utils

from matrix.catalog.folders import FAILURES, folder_name, load_module
from tests.founding import MASK

slicer = load_module(FAILURES / folder_name(MASK), "slices").slicer


@dataclass(frozen=True)
class Group:
    """A rank's view of a process group that need not exist: slicing asks for no more than this."""

    of_rank: int
    of_size: int


utils.get_pg_size = lambda group: group.of_size
utils.get_pg_rank = lambda group: group.of_rank


def whole(length: int, samples: int) -> dict[str, Any]:
    """Return the batch: labels are the tokens that follow."""
    tokens = torch.arange(samples * length).view(samples, length)
    mask = torch.arange(samples * length * length).view(samples, 1, length, length)
    return {"tokens": tokens, "labels": tokens + 1, "position_ids": tokens % length, "attention_mask": mask}


def main() -> None:
    cut = slicer()
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any] = {"parts": []}
        try:
            for rank in range(asked["cp"]):
                part = cut(whole(asked["length"], asked["batch"]), Group(rank, asked["cp"]))
                answer["parts"].append({key: value.tolist() for key, value in part.items()})
        except RuntimeError as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


main()
