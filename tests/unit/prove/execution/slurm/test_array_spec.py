"""The resource request of a case, and the cases that share an array task."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as some

from matrix.ground.catalog.failure import GIB, Level, Limits
from matrix.ground.catalog.schema import Size
from matrix.ground.catalog.stack import DRIVER
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution.slurm.client import Node
from matrix.prove.execution.slurm.queue import TOGETHER, ArraySpec, ResourceRequest, arrays, cut, minutes, needs
from matrix.prove.provision.tools import Ref
from tests.unit.catalogs import catalog, failure, planned

KNOWN = catalog(failure())
ITEM = planned(KNOWN)  # level cpu, 2 ranks, 1 GPU at level gpu


def on_driver(driver: str, level: Level = Level.GPU, gpus: int = 8) -> Planned:
    return replace(ITEM, level=level, gpus=gpus, cell=ITEM.cell.with_({DRIVER: driver}))


CASE = KNOWN.failures[0].case[0]
NODE = Node("n535", (), "gpu:8", 16, "idle", 64_000)


def request(item: Planned) -> ResourceRequest:
    return needs(item, CASE, NODE, (str(item.cell.stack[DRIVER]),))


def test_gpu_case_requests_gpus_and_driver_feature() -> None:
    options = needs(on_driver("535"), CASE, NODE, ("535", "550")).options
    assert options == ("--cpus-per-task=8", "--gres=gpu:8", "--mem=16384M", "--constraint=driver535|driver550")


def test_cpu_case_requests_no_gpu() -> None:
    assert needs(on_driver("535", Level.CPU), CASE, NODE, ()).options == ("--cpus-per-task=2",)


def test_gpu_case_requests_the_memory_of_its_limit() -> None:
    """One that no node has is refused by Slurm; a default is never larger than the largest node."""
    limited = replace(CASE, limits=Limits(memory=Size(40 * GIB)))
    assert needs(on_driver("535"), limited, NODE, ()).memory == (40 + 2 * 8) * 1024
    assert needs(on_driver("535"), CASE, replace(NODE, memory=8000), ()).memory == 8000
    assert needs(on_driver("535"), limited, replace(NODE, memory=1), ()).memory == 0  # its site does not state it


def test_requested_cpus_are_limited_to_the_largest_node() -> None:
    """The ranks share the node's processors, as they do on one machine."""
    small = replace(NODE, cpus=4)
    assert [needs(replace(ITEM, ranks=ranks), CASE, small, ()).cpus for ranks in (1, 4, 8)] == [1, 4, 4]


def test_contract_case_requests_one_cpu() -> None:
    assert needs(replace(ITEM, level=Level.CONTRACT, ranks=8), CASE, NODE, ()).cpus == 1


def test_cases_with_different_requests_are_in_different_arrays() -> None:
    items = [on_driver("470"), on_driver("535"), ITEM, on_driver("470", gpus=1)]
    assert [found for found, _ in arrays(items, request, 1000)] == [request(item) for item in items]


@given(some.integers(1, 60), some.integers(1, 9), some.booleans())
def test_each_case_is_in_one_task_in_order(count: int, longest: int, alone: bool) -> None:
    items = [replace(ITEM, case=f"case-{place}") for place in range(count)]
    made = arrays(items, request, longest, alone=alone)
    assert [key for _, tasks in made for task in tasks for key in task] == [item.key for item in items]
    assert max(len(tasks) for _, tasks in made) <= longest
    assert max(len(task) for _, tasks in made for task in tasks) <= (1 if alone else TOGETHER[Level.CPU])


@given(some.integers(1, 500), some.integers(1, 100))
def test_cut_returns_lists_of_even_length(count: int, most: int) -> None:
    sizes = [len(part) for part in cut(range(count), most)]
    assert sum(sizes) == count
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1


def test_time_limit_covers_all_deadlines_and_the_start() -> None:
    """A red case runs twice, each time up to its deadline; the start gets ten minutes, or an hour with an image."""
    limits = ResourceRequest("torch-2.4.0", Level.CPU, 0, (), 2)
    assert minutes(ArraySpec((("case",),)), replace(limits, deadline=1800), deadline_s=120) == 10 + 2 * 30
    assert minutes(ArraySpec((("case",) * 8, ("case",))), limits, deadline_s=120) == 10 + 8 * 2 * 2
    assert minutes(ArraySpec((("case",),), image=Ref("ngc-24.07", "tag")), limits, deadline_s=120) == 60 + 2 * 2
