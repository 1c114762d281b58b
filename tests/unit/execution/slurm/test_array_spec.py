"""What a case needs of a node, and which cases share an array task."""

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


def wants(item: Planned) -> ResourceRequest:
    return needs(item, 2, (item.cell.driver,))


def test_a_gpu_case_needs_its_gpus_and_a_node_with_its_driver() -> None:
    options = needs(on_driver("535"), 8, ("535", "550")).options
    assert options == ("--cpus-per-task=2", "--gres=gpu:8", "--constraint=driver535|driver550")


def test_without_a_gpu_no_gpu_is_asked_for() -> None:
    assert needs(on_driver("535", Level.CPU), 8, ()).options == ("--cpus-per-task=2",)


def test_no_more_processors_are_asked_for_than_a_node_has() -> None:
    """The ranks share them there, as they do on one machine."""
    assert [needs(replace(ITEM, ranks=ranks), 4, ()).cpus for ranks in (1, 4, 8)] == [1, 4, 4]


def test_what_only_reads_needs_one_processor() -> None:
    assert needs(replace(ITEM, level=Level.CONTRACT, ranks=8), 64, ()).cpus == 1


def test_cases_with_other_needs_are_in_other_arrays() -> None:
    items = [on_driver("470"), on_driver("535"), ITEM, on_driver("470", gpus=1)]
    assert [wanted for wanted, _ in arrays(items, wants, 1000)] == [wants(item) for item in items]


@given(some.integers(1, 60), some.integers(1, 9), some.booleans())
def test_every_case_is_in_one_task_in_its_order(count: int, longest: int, alone: bool) -> None:
    items = [replace(ITEM, case=f"case-{place}") for place in range(count)]
    made = arrays(items, wants, longest, alone=alone)
    assert [key for _, tasks in made for task in tasks for key in task] == [item.key for item in items]
    assert max(len(tasks) for _, tasks in made) <= longest
    assert max(len(task) for _, tasks in made for task in tasks) <= (1 if alone else TOGETHER[Level.CPU])


@given(some.integers(1, 500), some.integers(1, 100))
def test_parts_are_as_even_as_can_be(count: int, most: int) -> None:
    sizes = [len(part) for part in cut(range(count), most)]
    assert sum(sizes) == count
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1


def test_the_time_limit_is_beyond_what_its_cases_can_take() -> None:
    """A red case runs twice, each time up to its deadline; before it there are ten minutes, with an image an hour."""
    wanted = ResourceRequest("torch-2.4.0", Level.CPU, 0, (), 2)
    assert minutes(ArraySpec([["case"] * 8, ["case"]]), wanted, deadline_s=120) == 10 + 8 * 2 * 2
    assert minutes(ArraySpec([["case"]], image=Ref("ngc-24.07", "tag")), wanted, deadline_s=120) == 60 + 2 * 2
