"""PyTorch's harnesses that run a body on ranks; bench_ranks.py starts this file with the case in $BENCH_CASE.

$BENCH_WAY is torchrun (one rank under torchrun), multiprocess (PyTorch's MultiProcessTestCase, once) or continuous
(its MultiProcContinuousTest, many times; older releases spell it MultiProcContinousTest and run unittest inside each
rank). The last two print one JSON line: {"spent": [[seconds, processor seconds], ...]}, or {"missing": reason}. There
are no arguments: unittest would read them as names of tests.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import tempfile
import time
import unittest
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.kit.rank import Rank

CASE: dict[str, Any] = json.loads(os.environ["BENCH_CASE"])
WAY = os.environ["BENCH_WAY"]
sys.path[:0] = CASE["path"]


def call(rank: int, folder: Path) -> None:
    """Run the body as the supervisor's ranks do: its own process group, over a file in a folder of its own."""
    module, _, function = CASE["target"].partition(":")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    body = getattr(importlib.import_module(module), function)
    body(Rank(rank, CASE["world_size"], "cpu", f"file://{folder}/store", work), **CASE["kwargs"])


MISSING = ""
if WAY != "torchrun":
    try:
        import torch
        from torch.testing._internal import common_distributed
    except ImportError as error:
        MISSING = f"torch.testing._internal.common_distributed: {error}"

if not MISSING and WAY == "multiprocess":

    class MultiProcess(common_distributed.MultiProcessTestCase):  # type: ignore[misc]  # torch is not installed here
        @property
        def world_size(self) -> int:
            return int(CASE["world_size"])

        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

        def test_case(self) -> None:
            call(self.rank, Path(os.environ["BENCH_FOLDER"]))


if not MISSING and WAY == "continuous":
    Continuous = getattr(common_distributed, "MultiProcContinuousTest", None) or getattr(
        common_distributed, "MultiProcContinousTest", None
    )
    if Continuous is None:
        MISSING = "this torch has no MultiProcContinuousTest"
    else:

        class Pooled(Continuous):  # type: ignore[misc, valid-type]
            world_size = int(CASE["world_size"])

            @classmethod
            def backend_str(cls) -> str:
                return "gloo"

            def run_case(self, number: int) -> None:
                if torch.distributed.is_initialized():  # the class's own group; the body creates its own
                    torch.distributed.destroy_process_group()
                if self.rank == 0:
                    with Path(os.environ["BENCH_FOLDER"], "starts").open("a") as starts:
                        starts.write(f"{time.monotonic()} {time.process_time() * self.world_size}\n")
                folder = Path(os.environ["BENCH_FOLDER"], str(number))
                folder.mkdir(exist_ok=True)
                call(self.rank, folder)

            def test_last(self) -> None:  # after test_case_*: the class destroys a group when it ends
                torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)

        for number in range(CASE["repeat"] + 1):
            setattr(Pooled, f"test_case_{number:04}", lambda self, number=number: self.run_case(number))


def seconds_of_unittest(case: type[unittest.TestCase]) -> float:
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    began = time.monotonic()
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=0).run(suite)
    if not result.wasSuccessful():
        sys.exit(1)
    return time.monotonic() - began


def processor() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main() -> None:
    if WAY == "torchrun":
        call(int(os.environ["RANK"]), Path(os.environ["BENCH_FOLDER"]))
        return
    if MISSING:
        print(json.dumps({"missing": MISSING}))
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BENCH_FOLDER"] = folder
        if WAY == "multiprocess":
            spent = [(seconds_of_unittest(MultiProcess), processor())]
        else:
            if hasattr(Pooled, "run_rank"):
                store = str(Path(folder, "rendezvous"))
                torch.multiprocessing.spawn(Pooled.run_rank, args=(Pooled.world_size, store), nprocs=Pooled.world_size)
            else:
                seconds_of_unittest(Pooled)
            starts = [[*map(float, line.split())] for line in Path(folder, "starts").read_text().splitlines()]
            spent = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(starts)]
    print(json.dumps({"spent": spent}))


if __name__ == "__main__":
    main()
