"""The resource request of a case, and the cases that share an array task."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as some

from matrix.catalog.failure import Level
from matrix.execution.slurm.array_spec import TOGETHER, ArraySpec, ResourceRequest, arrays, cut, minutes, needs
from matrix.planning.planned import Planned
from matrix.provision.tools import Ref
from tests.unit.catalogs import catalog, failure, planned

KNOWN = catalog(failure())
ITEM = planned(KNOWN)  # level cpu, 2 ranks, 1 GPU at level gpu


def on_driver(driver: str, level: Level = Level.GPU, gpus: int = 8) -> Planned:
    return replace(ITEM, level=level, gpus=gpus, cell=replace(ITEM.cell, driver=driver))


def request(item: Planned) -> ResourceRequest:
    return needs(item, 2, (item.cell.driver,))


def test_gpu_case_requests_gpus_and_driver_feature() -> None:
    options = needs(on_driver("535"), 8, ("535", "550")).options
    assert options == ("--cpus-per-task=2", "--gres=gpu:8", "--constraint=driver535|driver550")


def test_cpu_case_requests_no_gpu() -> None:
    assert needs(on_driver("535", Level.CPU), 8, ()).options == ("--cpus-per-task=2",)


def test_requested_cpus_are_limited_to_the_largest_node() -> None:
    """The ranks share the node's processors, as they do on one machine."""
    assert [needs(replace(ITEM, ranks=ranks), 4, ()).cpus for ranks in (1, 4, 8)] == [1, 4, 4]


def test_contract_case_requests_one_cpu() -> None:
    assert needs(replace(ITEM, level=Level.CONTRACT, ranks=8), 64, ()).cpus == 1


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
    assert minutes(ArraySpec([["case"] * 8, ["case"]]), limits, deadline_s=120) == 10 + 8 * 2 * 2
    assert minutes(ArraySpec([["case"]], image=Ref("ngc-24.07", "tag")), limits, deadline_s=120) == 60 + 2 * 2
