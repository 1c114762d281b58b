"""Slice batches with megatron-core's function in a cell's interpreter, one request and one result per line.

{"cp": ranks, "length": tokens, "batch": samples} -> {"parts": [{key: nested lists} for each rank]} or {"error": text}.
All entries of a key are different, so that the parts identify their positions.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import utils

from matrix.ground.catalog.folders import FAILURES, folder_name, load_module
from tests.founding import MASK

slicer = load_module(FAILURES / folder_name(MASK), "slices").slicer


@dataclass(frozen=True)
class Group:
    """A rank's view of a process group, with the only two values that slicing reads."""

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
        request = json.loads(line)
        result: dict[str, Any] = {"parts": []}
        try:
            for rank in range(request["cp"]):
                part = cut(whole(request["length"], request["batch"]), Group(rank, request["cp"]))
                result["parts"].append({key: value.tolist() for key, value in part.items()})
        except RuntimeError as error:
            result = {"error": str(error)}
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


main()
