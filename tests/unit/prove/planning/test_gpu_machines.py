"""What runs at level gpu on machines of one to eight GPUs, and why the rest does not, with stand-ins of the drivers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

import pytest

from matrix.ground.cases.machine_requirements import offered, unmet
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.machine import Compiled, Cuda, Gpu, Machine, PythonEnvironment
from matrix.ground.verdicts.planned import Kind
from matrix.prove.planning.case_request import cases_here, with_host
from matrix.prove.planning.night import of_base
from matrix.prove.planning.statistics import Durations, Parallel, availability
from tests.founding import ARGUMENTS

GIB: Final = 2**30  # bytes
PACKAGES: Final = {"torch": "2.11.0+cu130", "numpy": "2.5.2"}
ENGINE: Final = {"transformer-engine": "2.18.0"}
CLONES: Final = ("megatron-lm", "transformer-engine")
FEATURES: Final = ("cuda", "nvcc", "pkg_resources")
H100, A100, B200 = ("NVIDIA H100", "9.0"), ("NVIDIA A100", "8.0"), ("NVIDIA B200", "10.0")


@dataclass(frozen=True)
class Plan:
    """The entries with a case that runs, the number of such cases, and the first requirements that others lack."""

    entries: frozenset[str]
    runs: int
    lacks: Counter[Kind]


def plan(gpus: int, gpu: tuple[str, str], *, engine: bool, multicast: bool = True) -> Plan:
    """Return what a host with these GPUs runs in an environment without a network."""
    packages = {**PACKAGES, **(ENGINE if engine else {})}
    cards = tuple(Gpu(*gpu, 80 * GIB, multicast, f"GPU-{place}") for place in range(gpus))
    machine = Machine("580.82.07", gpus, Cuda("13.0", gpus=cards), memory=128 * gpus * GIB)
    catalog = with_host(load(), packages, "3.12")
    offer = offered(
        catalog,
        "host",
        PythonEnvironment(packages=packages, features=["cuda", *["compiled-te"] * engine]),
        clones=CLONES,
    )
    entries, runs, lacks = set[str](), 0, Counter[Kind]()
    for item in cases_here(catalog, "host", packages, [Level.GPU]):
        lack = unmet(catalog, item, offer, machine)
        runs += lack is None
        if lack is None:
            entries.add(item.failure)
        else:
            lacks[lack.kind] += 1
    return Plan(frozenset(entries), runs, lacks)


def test_one_card_runs_cases_of_34_entries() -> None:
    """With a compiled Transformer Engine, and no other network of GPUs."""
    with_engine = plan(1, H100, engine=True, multicast=False)
    assert len(with_engine.entries) >= 34, sorted(with_engine.entries)
    assert Kind.SM in with_engine.lacks
    bare = plan(1, H100, engine=False, multicast=False)
    assert bare.entries < with_engine.entries
    assert Kind.TE in bare.lacks


@pytest.mark.parametrize(
    ("torch", "numpy", "te", "nccl", "cuda"),
    [
        ("2.11.0+cu130", "2.5.2", "2.20.2", "2.28.9", "13.0"),
        ("2.15.0+cu132", "2.5.5", "2.20.2", "2.30.7", "13.2"),
        ("2.4.0+cu121", "1.26.4", "1.9.0", "2.20.5", "12.1"),
    ],
)
def test_one_card_leaves_few_cases_for_nccl(torch: str, numpy: str, te: str, nccl: str, cuda: str) -> None:
    """Before ranks shared a GPU over NCCL it was 136, 136 and 184 cases; each that is left has its reason."""
    package = f"nvidia-nccl-cu{cuda.partition('.')[0]}"
    packages = {"torch": torch, "numpy": numpy, "transformer-engine": te, package: nccl}
    catalog = with_host(load(), packages, "3.10" if numpy < "2" else "3.12")
    features = [*FEATURES, "compiled-te"]
    offer = offered(
        catalog, "host", PythonEnvironment(packages=packages, features=features, torch_cuda=cuda), clones=CLONES
    )
    cards = (Gpu(*H100, 80 * GIB, False, "GPU-0", multiprocessors=132),)
    machine = Machine("580.82.07", 1, Cuda("13.0", gpus=cards), memory=126 * GIB)
    cases = cases_here(catalog, "host", packages, [Level.GPU])
    lacks = [lack for item in cases if (lack := unmet(catalog, item, offer, machine)) and lack.kind is Kind.NCCL]
    reasons = ("multicast joins different GPUs", "tested for multicast", "at most 4 can share 1 GPU")
    assert 0 < len(lacks) <= 30
    assert [lack.text for lack in lacks if not any(reason in lack.text for reason in reasons)] == []


@pytest.mark.parametrize(("line", "te"), [("1.9", "1.9.0"), ("1.10", "1.10.0")])
def test_nvcc_makes_cases_of_a_release_possible(line: str, te: str) -> None:
    """On an environment of wheels: both sides of a report. Without nvcc they name the fix."""
    packages = {"torch": "2.4.0", "numpy": "1.26.4"}
    catalog, card = load(), Gpu(*H100, 80 * GIB, False, "GPU-0")
    offer = offered(
        catalog,
        "torch-2.4.0",
        PythonEnvironment(packages=packages, features=FEATURES, torch_cuda="12.1"),
        clones=CLONES,
    )
    cases = [
        item
        for item in of_base(catalog, "torch-2.4.0", [Level.GPU], te_line=line)
        if item.failure == ARGUMENTS and item.cell.stack["transformer-engine"] == te
    ]
    machine = Machine("580.82.07", 1, Cuda("13.0", gpus=(card,)), memory=128 * GIB)

    assert len(cases) >= 5
    assert {unmet(catalog, item, offer, replace(machine, nvcc="12.4")) for item in cases} <= {None}
    lacks = {unmet(catalog, item, offer, replace(machine, nvcc="none")) for item in cases}
    assert {lack and lack.kind for lack in lacks} == {Kind.TE}
    assert all("install CUDA's toolkit 12 and set CUDA_HOME" in str(lack) for lack in lacks)


@pytest.mark.parametrize(("gpus", "gpu"), [(2, H100), (8, H100), (8, A100), (8, B200)])
def test_cases_for_other_gpus_are_unavailable(gpus: int, gpu: tuple[str, str]) -> None:
    """An entry whose cases all name an architecture runs only on such GPUs."""
    planned = plan(gpus, gpu, engine=True, multicast=gpu is not A100)
    bounds = {
        failure.id: (case.releases["sm"], case.gpus)
        for failure in load().failures
        if (on_gpus := [case for case in failure.case if Level.GPU in case.levels])
        and all("sm" in case.releases for case in on_gpus)
        for case in on_gpus
    }
    fitting = {id for id, (bound, needed) in bounds.items() if gpu[1] in bound and needed <= gpus}
    assert planned.entries & bounds.keys() == fitting
    assert planned.lacks[Kind.SM] > 0


def test_builds_of_writers_are_counted() -> None:
    """A host has one Transformer Engine; a checkpoint that another one wrote needs that one's build, too."""
    packages, cards = PACKAGES | ENGINE, (Gpu(*H100, 80 * GIB, False, "GPU-0"),)
    catalog, machine = (
        with_host(load(), packages, "3.12"),
        Machine("580.82.07", 1, Cuda("13.0", gpus=cards), nvcc="13.0"),
    )
    features = ["cuda", "compiled-te"]
    offer = offered(
        catalog, "host", PythonEnvironment(packages=packages, features=features, torch_cuda="13.0"), clones=CLONES
    )
    cases = [item for item in cases_here(catalog, "host", packages, [Level.GPU]) if item.writer]
    counted = availability(catalog, cases, lambda base: offer, {Level.GPU: machine}, Durations(catalog, {}), Parallel())
    assert {"2.9.0", "2.17.1", "2.20.2"} <= {build.te for build in counted.builds}
    assert "2.18.0" not in {build.te for build in counted.builds}
    bundled = {Level.GPU: replace(machine, compiled=(Compiled.of("2.9.0", packages["torch"], "13.0"),))}
    counted = availability(catalog, cases, lambda base: offer, bundled, Durations(catalog, {}), Parallel())
    assert "2.9.0" not in {build.te for build in counted.builds}
