"""What a case requires, matched with what its base and the machine offer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from matrix.ground.cases.cells import plan_case
from matrix.ground.cases.machine_requirements import (
    BaseFeature,
    BaseOffer,
    Fit,
    Fitting,
    Placement,
    builds_te,
    driver_branches,
    driver_lack,
    driver_note,
    driver_of,
    fit_of,
    fitting,
    lacks,
    minimum_driver,
    offered,
    place,
    place_on_one,
    runnable,
    unmet,
    user_mode_driver,
)
from matrix.ground.catalog.distributions import SharedNccl
from matrix.ground.catalog.failure import GIB, Case, CaseNeed, Level, Limits
from matrix.ground.catalog.machine import Compiled, Cuda, Gpu, Machine, PythonEnvironment, Toolkit
from matrix.ground.catalog.model import Container, Driver, Image, RequiredModule
from matrix.ground.catalog.schema import Identifier, Size
from matrix.ground.catalog.stack import ABSENT, DRIVER, UNKNOWN, Stack
from matrix.ground.catalog.versions import Range
from matrix.ground.verdicts.planned import Kind, Lack, Planned
from tests.unit.catalogs import case, catalog, clause, failure, image, planned, real, values

H100 = Gpu("H100", "9.0", multicast=True, uuid="GPU-0")
A800 = Gpu("A800", "8.0", multicast=False, uuid="GPU-0")
ON_GPU = case(levels=(Level.GPU,), ranks=2, gpus=2)
ON_CPU = case(levels=(Level.CPU,))
BASE = BaseOffer("torch-2.4.0")
SHARING = BaseOffer("torch-2.15.0", nccl="2.30.7")


def item_of(one: Case, **cell: Any) -> Planned:
    made = planned(catalog(failure(case=(one,))))
    return replace(made, cell=made.cell.with_(values(**cell)))


def lack_of(one: Case, machine: Machine, offer: BaseOffer = BASE, **cell: Any) -> tuple[Kind, str] | None:
    """Return the kind and the text of what a case lacks."""
    module = RequiredModule(Identifier("pkg_resources"), Identifier("setuptools"), clause(mcore="<0.9"), "a reason")
    known = catalog(failure(case=(one,)), modules=(module,))
    lack = unmet(known, item_of(one, **cell), offer, machine)
    return (lack.kind, lack.text) if lack else None


def gpus(count: int, kind: Gpu = H100, **changes: object) -> Machine:
    return Machine("550.54.14", cuda=Cuda(gpus=(replace(kind, **changes),) * count))  # type: ignore[arg-type]


OLD, TORCH_12_1 = SharedNccl("2.32.3", "nvidia-nccl-cu12==2.32.3"), Toolkit(cuda="12.1")
EACH = "one for each rank"
GLOO = Placement(1, "gloo", "gloo in place of NCCL: 2 ranks share 1 GPU", each=2)
OVER = "2 ranks share 1 GPU over NCCL"


@pytest.mark.parametrize(
    ("machine", "offer", "expected"),
    [
        (gpus(2), BASE, Placement(2, "nccl")),
        (gpus(8), BASE, Placement(2, "nccl")),
        (Machine(), BASE, Placement(2, "nccl")),  # what a node offers is not known here
        (gpus(1), BASE, GLOO),
        (gpus(1), replace(BASE, nccl="2.29.7"), GLOO),
        (gpus(1), replace(BASE, nccl="2.30.7"), Placement(1, "nccl", f"{OVER} 2.30.7", SharedNccl("2.30.7"), each=2)),
        (
            gpus(1),
            replace(BASE, toolkit=Toolkit()),
            Placement(1, "nccl", f"{OVER} 2.32.3, preloaded", OLD, each=2),
        ),  # not made yet
        (gpus(1), replace(BASE, toolkit=Toolkit(cuda="none")), GLOO),
        (gpus(1), replace(BASE, toolkit=Toolkit(cuda="11.8")), GLOO),
        (
            gpus(1),
            replace(BASE, nccl="2.20.5", toolkit=TORCH_12_1),
            Placement(1, "nccl", f"{OVER} 2.32.3, preloaded", OLD, each=2),
        ),
        (
            gpus(1),
            replace(BASE, nccl="2.22.3", lays="12.6.2.004"),  # an image
            Placement(1, "nccl", f"{OVER} 2.32.3, preloaded", OLD, each=2),
        ),
        (gpus(1, multiprocessors=7), replace(BASE, nccl="2.30.7"), GLOO),
    ],
)
def test_ranks_have_gpus_of_their_own_or_share(machine: Machine, offer: BaseOffer, expected: Placement) -> None:
    assert place(ON_GPU, item_of(ON_GPU), machine, offer) == expected


@pytest.mark.parametrize(
    ("ranks", "needs", "offer", "expected"),
    [
        (4, (CaseNeed.NCCL,), SHARING, ""),
        (5, (CaseNeed.NCCL,), SHARING, "5 GPUs, one for each rank; host has 1, and at most 4 can share 1 GPU"),
        (2, (CaseNeed.NCCL,), BASE, "2 GPUs, one for each rank; host has 1, and NCCL >=2.30 alone lets them share it"),
        (2, (CaseNeed.NCCL, CaseNeed.PEERS), SHARING, ""),
        (2, (CaseNeed.MULTICAST,), SHARING, f"2 GPUs, {EACH}; host has 1, and multicast joins different GPUs"),
    ],
)
def test_ranks_that_cannot_share_say_why(
    ranks: int, needs: tuple[CaseNeed, ...], offer: BaseOffer, expected: str
) -> None:
    one = replace(ON_GPU, ranks=ranks, gpus=ranks, needs=needs)
    placed = place(one, item_of(one), gpus(1), offer)
    assert (placed.text if isinstance(placed, Lack) else "") == (expected and f"needs NCCL and {expected}")
    stands_in = (
        isinstance(placed, Placement) and "stand-in: the answer that the GPU has access to itself" in placed.note
    )
    assert stands_in is (CaseNeed.PEERS in needs)


WITH_CUDA = replace(SHARING, features=frozenset({BaseFeature.CUDA.value}))
NO_DRIVER = Machine(cuda=Cuda(problem="libcuda.so.1: cannot open"))


@pytest.mark.parametrize(
    ("machine", "offer", "expected"),
    [
        (gpus(1), WITH_CUDA, "4 ranks share 1 GPU over NCCL 2.30.7"),
        (gpus(8), WITH_CUDA, "4 ranks share 1 GPU over NCCL 2.30.7"),
        (gpus(1), replace(WITH_CUDA, nccl="2.28.9", toolkit=TORCH_12_1), "4 ranks share 1 GPU over NCCL 2.32.3, pre"),
        (gpus(1), replace(WITH_CUDA, nccl="2.28.9"), "needs NCCL and 4 GPUs, one for each rank; host has 1, and NCCL"),
        (gpus(1), replace(WITH_CUDA, features=frozenset()), "needs a torch with CUDA; that of torch-2.15.0 is built"),
        (gpus(1, exclusive=True), WITH_CUDA, "needs 4 GPUs; host has 1, in exclusive compute mode: ranks can't share"),
        (gpus(1, multiprocessors=8), WITH_CUDA, "needs NCCL and 4 GPUs, one for each rank; host has 1, and at most 2"),
        (gpus(0), WITH_CUDA, "needs 1 GPU; host has 0"),
        (NO_DRIVER, WITH_CUDA, "needs 1 GPU; CUDA shows 0: libcuda.so.1: cannot open"),
    ],
)
def test_four_ranks_share_the_first_gpu(machine: Machine, offer: BaseOffer, expected: str) -> None:
    """Or the reason why they can't."""
    placed = place_on_one(4, machine, offer)
    assert (placed.text if isinstance(placed, Lack) else placed.note).startswith(expected)
    assert isinstance(placed, Lack) or (placed.gpus, placed.backend, placed.each) == (1, "nccl", 4)


@pytest.mark.parametrize(
    ("one", "machine", "expected"),
    [
        (ON_GPU, Machine(cuda=Cuda()), (Kind.GPUS, "needs 2 GPUs; host has 0")),
        (
            ON_GPU,
            Machine("550", cuda=Cuda(problem="cuInit returned 999")),
            (Kind.GPUS, "needs 2 GPUs; CUDA shows 0: cuInit returned 999"),
        ),
        (
            replace(ON_GPU, needs=(CaseNeed.NCCL,)),
            gpus(1),
            (
                Kind.NCCL,
                "needs NCCL and 2 GPUs, one for each rank; host has 1, and NCCL >=2.30 alone lets them share it",
            ),
        ),
        (
            ON_GPU,
            gpus(1, exclusive=True),
            (
                Kind.GPUS,
                "needs 2 GPUs; host has 1, in exclusive compute mode: ranks can't share it; nvidia-smi -c DEFAULT",
            ),
        ),
        (ON_GPU, gpus(2, exclusive=True), None),
        (replace(ON_GPU, gpus=8), gpus(2), (Kind.GPUS, "needs 8 GPUs; host has 2")),  # those of a report
        (
            replace(ON_GPU, needs=(CaseNeed.MULTICAST,)),
            gpus(2, A800),
            (Kind.MULTICAST, "needs CUDA Multicast; 0 of 2 GPUs have it"),
        ),
        (replace(ON_GPU, needs=(CaseNeed.MULTICAST,)), gpus(2), None),
        (replace(ON_GPU, needs=(CaseNeed.NO_MULTICAST,)), gpus(2, A800), None),
        (
            replace(ON_GPU, needs=(CaseNeed.NO_MULTICAST,)),
            gpus(2),
            (Kind.MULTICAST, "needs GPUs without CUDA Multicast; 2 of 2 GPUs have it"),
        ),
        (
            replace(ON_GPU, limits=Limits(memory=Size(40 * GIB))),
            replace(gpus(2), memory=32 * GIB),
            (Kind.MEMORY, "needs 40 GiB of memory for its limit; host has 32 GiB"),
        ),
    ],
)
def test_missing_requirement_is_named(one: Case, machine: Machine, expected: tuple[Kind, str] | None) -> None:
    assert lack_of(one, machine) == expected


@pytest.mark.parametrize(
    ("machine", "cell", "kind"),
    [
        (gpus(2), {"driver": "470.161.03"}, Kind.DRIVER),
        (gpus(2), {"driver": "550.90"}, None),
        (gpus(2), {"sm": "8.0"}, Kind.SM),
        (gpus(2, A800), {"sm": "8.0"}, None),
    ],
)
def test_hardware_of_a_cell_is_required(machine: Machine, cell: dict[str, str], kind: Kind | None) -> None:
    found = lack_of(ON_GPU, machine, BASE, **cell)
    assert (found[0] if found else None) is kind


COMPILED = BaseOffer("host", te="1.8.0+37280ec", measured=True, features=frozenset(one.value for one in BaseFeature))


@pytest.mark.parametrize(
    ("needs", "te", "offer", "expected"),
    [
        ((), "none", replace(BASE, te="none"), ""),
        ((), "1.9.0", replace(BASE, te="none"), "needs a compiled Transformer Engine 1.9.0; torch-2.4.0 has none"),
        ((CaseNeed.COMPILED_TE,), "none", replace(BASE, te="none"), "needs a compiled Transformer Engine; torch"),
        ((CaseNeed.COMPILED_TE,), "none", COMPILED, ""),
        ((), "1.8.0+37280ec", COMPILED, ""),
        ((), "1.9.0", COMPILED, "host has 1.8.0+37280ec, and an overlay holds the Python only"),
        ((), "1.8.0", COMPILED, "and an overlay holds the Python only"),
        ((), "1.4.0", BaseOffer("ngc-24.03", te="1.4"), ""),  # the catalog has the minor version
        ((), "1.9.0.dev0+f9dd37f", BaseOffer("ngc-24.03", te="1.4"), "ngc-24.03 has 1.4, and"),
        ((), "1.9.0", BaseOffer("ngc-25.01"), ""),  # not known
    ],
)  # fmt: skip
def test_te_must_be_compiled(needs: tuple[CaseNeed, ...], te: str, offer: BaseOffer, expected: str) -> None:
    found = lack_of(replace(ON_GPU, needs=needs), gpus(2), offer, te=te)
    assert (found is None) is (expected == "")
    assert found is None or (found[0] is Kind.TE and expected in found[1])


CUDA_12 = replace(BASE, te="none", toolkit=Toolkit(cuda="12.1", torch="2.4.0"))


@pytest.mark.parametrize(
    ("te", "offer", "nvcc", "expected"),
    [
        ("1.9.0", CUDA_12, "12.4", None),
        ("1.9.0", CUDA_12, None, None),  # not known
        ("1.9.0", CUDA_12, "none", "needs a compiled Transformer Engine 1.9.0: no nvcc builds it here; fix: install"),
        ("2.18.0", CUDA_12, "12.4", "it can't be imported: it imports torch.distributed.fsdp._fully_shard"),
        ("1.9.0", replace(CUDA_12, te="1.9.0", measured=True), "none", None),  # its own
        ("1.10.0", replace(CUDA_12, te="1.9.0", measured=True), "12.4", None),
        (
            "1.9.0",
            CUDA_12,
            "none",
            "12 and set CUDA_HOME, or make a bundle with megatrix bundle --compile",
        ),
        (
            "none",
            CUDA_12,
            "none",
            "12 and set CUDA_HOME, or make a bundle with megatrix bundle --compile",
        ),
        ("none", CUDA_12, "12.4", "needs a compiled Transformer Engine; torch-2.4.0 has none"),
        ("1.9.0", replace(CUDA_12, toolkit=None), "12.4", "1.9.0; torch-2.4.0 has none"),  # an image
    ],
)
def test_nvcc_builds_a_release(te: str, offer: BaseOffer, nvcc: str | None, expected: str | None) -> None:
    lack = lack_of(replace(ON_GPU, needs=(CaseNeed.COMPILED_TE,)), replace(gpus(2), nvcc=nvcc), offer, te=te)
    assert (lack and lack[0]) == (Kind.TE if expected else None)
    assert expected is None or expected in (lack or (None, ""))[1]


def test_extension_of_a_bundle_needs_no_nvcc() -> None:
    machine = replace(gpus(2), nvcc="none", compiled=(Compiled("1.9.0", "2.4.0", "12.1"),))
    needs = replace(ON_GPU, needs=(CaseNeed.COMPILED_TE,))
    assert lack_of(needs, machine, CUDA_12, te="1.9.0") is None
    assert "no nvcc builds it here" in (lack_of(needs, machine, CUDA_12, te="1.10.0") or ("", ""))[1]
    assert "torch-2.4.0 has none" in (lack_of(needs, machine, CUDA_12, te="none") or ("", ""))[1]  # nothing to make


def test_nvcc_builds_what_a_bundle_has_as_source() -> None:
    machine = replace(gpus(2), nvcc="12.4", sources=frozenset({"1.9.0"}))
    needs = replace(ON_GPU, needs=(CaseNeed.COMPILED_TE,))
    assert lack_of(needs, machine, CUDA_12, te="1.9.0") is None
    assert "the bundle has no source of it" in (lack_of(needs, machine, CUDA_12, te="1.10.0") or ("", ""))[1]
    compiled = replace(machine, compiled=(Compiled("1.10.0", "2.4.0", "12.1"),))
    assert lack_of(needs, compiled, CUDA_12, te="1.10.0") is None


def test_host_builds_although_no_catalog_has_it() -> None:
    """A plan, and a run before its first case, ask with the catalog of the files."""
    host = PythonEnvironment("3.12.1", {"torch": "2.4.0"}, ["cuda", "pkg_resources"], torch_cuda="12.1")
    offer = offered(catalog(failure()), "host", host)
    assert (offer.toolkit, offer.te) == (Toolkit(cuda="12.1", torch="2.4.0"), "none")
    assert lack_of(replace(ON_GPU, needs=()), replace(gpus(2), nvcc="12.4"), offer, te="1.9.0") is None
    assert offered(catalog(failure()), "host", replace(host, packages={})).toolkit is None


def test_commits_and_other_levels_build_no_release() -> None:
    item = item_of(ON_GPU, te="1.9.0")
    assert builds_te(item, CUDA_12)
    assert not builds_te(replace(item, level=Level.CPU), CUDA_12)
    assert not builds_te(replace(item, te_source="transformer-engine@v1.8"), CUDA_12)
    assert not builds_te(replace(item, compiled=True), CUDA_12)


@pytest.mark.parametrize(
    ("base", "toolkit"),
    [("torch-2.4.0", Toolkit(cuda="12.1", torch="2.4.0")), ("ngc-24.03", None)],
)
def test_environments_of_wheels_have_a_toolkit(base: str, toolkit: Toolkit | None) -> None:
    assert (
        offered(real(), base, PythonEnvironment(packages={"torch": "2.4.0"}, features=[], torch_cuda="12.1")).toolkit
        == toolkit
    )


def test_writers_te_must_be_compiled_too() -> None:
    """A host has one Transformer Engine: it writes what it reads, and no other release's checkpoint."""
    offer = replace(COMPILED, te="2.18.0")
    assert lack_of(ON_GPU, gpus(2), offer, te="2.18.0", writer_te="2.18.0") is None
    found = lack_of(ON_GPU, gpus(2), offer, te="2.18.0", writer_te="1.13.0")
    assert found
    assert found[0] is Kind.TE
    assert "needs a compiled Transformer Engine 1.13.0; host" in found[1]


def test_built_commit_needs_no_other_te() -> None:
    """Its overlay has the extension; the base must have nvcc, which the overlay reports."""
    item = replace(item_of(ON_GPU, te="2.6.0+0a1b2c3"), compiled=True)
    assert unmet(catalog(failure(case=(ON_GPU,))), item, replace(BASE, te="none"), gpus(2)) is None


def test_below_level_gpu_no_gpu_is_required() -> None:
    one = replace(ON_GPU, levels=(Level.CPU,), needs=(CaseNeed.COMPILED_TE, CaseNeed.NCCL))
    assert (
        lack_of(one, Machine("none", cuda=Cuda()), replace(BASE, te="none", features=frozenset({"pkg_resources"})))
        is None
    )


@pytest.mark.parametrize("level", [Level.CPU, Level.GPU])
@pytest.mark.parametrize(("core", "kind"), [("0.8.0", Kind.MODULE), ("0.9.0", None)])
def test_base_without_pkg_resources_is_unavailable(level: Level, core: str, kind: Kind | None) -> None:
    """setuptools 82 is without it; megatron-core 0.8 imports it."""
    found = lack_of(replace(ON_GPU, levels=(level,)), gpus(2), replace(BASE, features=frozenset({"cuda"})), mcore=core)
    assert (found[0] if found else None) is kind


@pytest.mark.parametrize("one", [ON_GPU, replace(ON_CPU, needs=(CaseNeed.CUDA_TORCH,))], ids=["gpu", "cpu"])
def test_torch_without_cuda_is_unavailable(one: Case) -> None:
    found = lack_of(one, gpus(2), replace(BASE, features=frozenset({"pkg_resources"})))
    assert found == (Kind.CUDA, "needs a torch with CUDA; that of torch-2.4.0 is built without")


@pytest.mark.parametrize(
    ("clones", "kind"), [(None, None), (frozenset({"megatron-lm"}), None), (frozenset[str](), Kind.CLONE)]
)
def test_missing_clone_is_named(clones: frozenset[str] | None, kind: Kind | None) -> None:
    found = lack_of(replace(ON_GPU, needs=(CaseNeed.MEGATRON_LM,)), gpus(2), replace(BASE, clones=clones))
    assert found == (kind and (kind, "needs a clone of megatron-lm: megatrix sources fetch"))


TE_TAG, CORE_TAG, WHEEL = "transformer-engine@v1.9", "megatron-lm@core_r0.9.0", "/wheels/te.whl"


@pytest.mark.parametrize(
    ("sources", "needs", "offer", "missing"),
    [
        ({}, (), BASE, []),
        ({"source": CORE_TAG}, (), BASE, ["megatron-lm"]),
        ({"source": CORE_TAG}, (CaseNeed.MEGATRON_LM,), BASE, ["megatron-lm", "megatron-lm"]),
        ({"source": CORE_TAG, "te_source": TE_TAG}, (), BASE, ["megatron-lm", "transformer-engine"]),
        ({"te_source": TE_TAG}, (), replace(BASE, te="1.9"), ["transformer-engine"]),  # the catalog's, not measured
        ({"te_source": TE_TAG}, (), replace(BASE, te="1.9", measured=True), []),  # the base has it
        ({"te_source": TE_TAG}, (), replace(BASE, te="1.8", measured=True), ["transformer-engine"]),
        ({"source": "megatron-lm", "te_source": WHEEL}, (), BASE, []),  # a working tree, and a wheel
        ({"source": "another@main"}, (), BASE, []),  # no clone of the site
    ],
)
def test_clones_of_sources_are_required(
    sources: dict[str, str], needs: tuple[CaseNeed, ...], offer: BaseOffer, missing: list[str]
) -> None:
    """A package of the base at the cell's version needs no clone."""
    one = replace(ON_CPU, needs=needs)
    item = replace(item_of(one, te="1.9"), **sources)  # type: ignore[arg-type]  # the names of fields
    known = catalog(failure(case=(one,)))
    assert [lack.name for lack in lacks(known, item, replace(offer, clones=frozenset()), Machine())] == missing
    assert [*lacks(known, item, replace(offer, clones=frozenset(missing)), Machine())] == []


@pytest.mark.parametrize("level", [Level.CPU, Level.GPU])
def test_case_with_a_dataset_helper_requires_it(level: Level) -> None:
    one, offer = replace(ON_GPU, levels=(level,), needs=(CaseNeed.DATASET_HELPER,)), replace(BASE, no_helper="no gcc")
    assert lack_of(one, gpus(2), offer) == (Kind.HELPER, "no gcc")
    assert lack_of(one, gpus(2)) is None
    assert lack_of(replace(one, needs=()), gpus(2), offer) is None


def test_case_without_reproduction_is_named_alone() -> None:
    item = replace(item_of(ON_CPU), reproducible=False)
    known = catalog(failure(case=(ON_CPU,)))
    assert [*lacks(known, item, replace(BASE, lack="not pulled"), Machine())] == [
        Lack(Kind.REPRODUCTION, "the catalog has no reproduction of it yet")
    ]


def test_contract_requires_nothing_of_the_machine() -> None:
    """It reads sources: no torch, no clone, no memory."""
    one = replace(
        case(levels=(Level.CONTRACT,)),
        needs=(CaseNeed.CUDA_TORCH, CaseNeed.MEGATRON_LM, CaseNeed.DATASET_HELPER),
        limits=Limits(memory=Size(GIB)),
    )
    offer = replace(BASE, features=frozenset(), clones=frozenset(), no_helper="no gcc")
    assert lack_of(one, Machine("none", memory=1), offer) is None


def test_all_requirements_are_listed_in_order() -> None:
    needs = (CaseNeed.NCCL, CaseNeed.MULTICAST, CaseNeed.NO_MULTICAST, CaseNeed.COMPILED_TE, CaseNeed.DATASET_HELPER)
    one = replace(ON_GPU, needs=needs, launcher="mpirun", limits=Limits(memory=Size(2 * GIB)))
    module = RequiredModule(Identifier("pkg_resources"), Identifier("setuptools"), clause(mcore="<0.9"), "a reason")
    known = catalog(failure(case=(one,)), modules=(module,))
    offer = BaseOffer("b", te="none", features=frozenset(), clones=frozenset(), mpirun=False, no_helper="no gcc")
    item = replace(item_of(one, driver="535.1", sm="8.0"), source=CORE_TAG)
    machine = replace(gpus(1), memory=GIB)
    assert [(lack.kind, lack.text) for lack in lacks(known, item, offer, machine)] == [
        (Kind.DRIVER, "needs driver 535.1; host has 550.54.14"),
        (Kind.CUDA, "needs a torch with CUDA; that of b is built without"),
        (Kind.TE, "needs a compiled Transformer Engine; b has none"),
        (Kind.NCCL, "needs NCCL and 2 GPUs, one for each rank; host has 1, and multicast joins different GPUs"),
        (Kind.SM, "needs GPUs of SM 8.0, as in the report; host has SM 9.0"),
        (Kind.MULTICAST, "needs GPUs without CUDA Multicast; 1 of 1 GPU have it"),
        (Kind.MODULE, "needs pkg_resources, which b lacks: a reason"),
        (Kind.CLONE, "needs a clone of megatron-lm: megatrix sources fetch"),
        (Kind.HELPER, "no gcc"),
        (Kind.LAUNCHER, "needs mpirun (Debian, Ubuntu: apt-get install openmpi-bin); none on PATH"),
        (Kind.MEMORY, "needs 2 GiB of memory for its limit; host has 1 GiB"),
    ]


def test_overridden_package_needs_no_module() -> None:
    module = RequiredModule(Identifier("pkg_resources"), Identifier("setuptools"), clause(mcore="<0.9"), "a reason")
    known, item = catalog(failure(case=(ON_CPU,)), modules=(module,)), item_of(ON_CPU)
    lacking = replace(BASE, features=frozenset())
    assert [lack.kind for lack in lacks(known, item, lacking, Machine())] == [Kind.MODULE]
    assert [*lacks(known, replace(item, overrides=("setuptools",)), lacking, Machine())] == []
    assert [*lacks(known, item, BASE, Machine())] == []  # not known


@pytest.mark.parametrize(
    ("machine", "required", "text"),
    [
        (gpus(2, sm="8.0"), "8.0", ""),
        (gpus(2, sm="8"), "8.0", ""),  # as versions
        (gpus(2, sm=None), "8.0", ""),  # not known
        (Machine(), "8.0", ""),
        (gpus(2), "none", ""),
        (
            replace(gpus(2), cuda=Cuda(gpus=(H100, A800, H100))),
            "8.0",
            "needs GPUs of SM 8.0, as in the report; host has SM 8.0, 9.0",
        ),
        (
            replace(gpus(2), cuda=Cuda(gpus=(H100, replace(H100, sm=None)))),
            "8.0",
            "needs GPUs of SM 8.0, as in the report; host has SM 9.0",
        ),
    ],
)
def test_every_gpu_has_the_compute_capability(machine: Machine, required: str, text: str) -> None:
    assert lack_of(ON_GPU, machine, BASE, sm=required) == ((Kind.SM, text) if text else None)


@pytest.mark.parametrize(
    ("need", "text"),
    [
        (CaseNeed.MULTICAST, "needs CUDA Multicast; 1 of 2 GPUs have it"),
        (CaseNeed.NO_MULTICAST, "needs GPUs without CUDA Multicast; 1 of 2 GPUs have it"),
    ],
)
def test_every_gpu_counts_for_multicast(need: CaseNeed, text: str) -> None:
    one = replace(ON_GPU, needs=(need,))
    assert lack_of(one, replace(gpus(2), cuda=Cuda(gpus=(H100, A800)))) == (Kind.MULTICAST, text)
    assert lack_of(one, Machine()) is None


@pytest.mark.parametrize(
    ("driver", "problem", "required", "text"),
    [
        ("550.54.14", "", "550.90", ""),  # the branch decides
        ("550.54.14", "", "none", ""),
        ("550.54.14", "lost", "470", "needs driver 470; host has 550.54.14"),
        ("none", "no libcuda", "470", "needs driver 470; host has none (no libcuda)"),
        ("none", "", "470", "needs driver 470; host has none"),
        (None, "", "470", ""),
    ],
)
def test_branch_of_the_driver_is_required(driver: str | None, problem: str, required: str, text: str) -> None:
    machine = Machine(driver, cuda=Cuda(gpus=(H100, H100), problem=problem))
    assert lack_of(ON_GPU, machine, BASE, driver=required) == ((Kind.DRIVER, text) if text else None)


def test_driver_too_old_for_an_image_is_named() -> None:
    item = item_of(ON_GPU)
    known = replace(real(), failures=(failure(case=(ON_GPU,)),))
    in_image = replace(item, cell=replace(item.cell, base="ngc-24.10"))
    found = unmet(known, in_image, BaseOffer("ngc-24.10"), Machine("450.80.02"))
    assert found is not None
    assert (found.kind, found.text.startswith("driver 450.80.02 is too old: ")) == (Kind.DRIVER, True)


@pytest.mark.parametrize(
    ("count", "machine", "expected"),
    [
        (0, gpus(2), Placement(0, "gloo")),  # of ranks on the CPU alone
        (1, gpus(1), Placement(1, "nccl")),
        (1, Machine(cuda=Cuda()), Lack(Kind.GPUS, "needs 1 GPU; host has 0")),
        (3, gpus(2), Lack(Kind.GPUS, "needs 3 GPUs; host has 2")),  # more than ranks: they can't share
    ],
)
def test_gpus_of_a_case(count: int, machine: Machine, expected: Placement | Lack) -> None:
    one = replace(ON_GPU, gpus=count)
    assert place(one, item_of(one), machine, BASE) == expected
    on_cpu = replace(one, levels=(Level.CPU,))
    assert place(on_cpu, item_of(on_cpu), machine, BASE) == Placement(0, "gloo", "")


def test_gpu_with_few_multiprocessors_carries_few_ranks() -> None:
    """A part of an H100 has 16; where kernels of all ranks are not on the GPU at once, they wait for each other."""
    one = replace(ON_GPU, ranks=3, gpus=3, needs=(CaseNeed.NCCL,))
    lack = place(one, item_of(one), gpus(1, multiprocessors=8), SHARING)
    why = "at most 2 can share 1 GPU with 8 multiprocessors, as each uses up to 4"
    assert isinstance(lack, Lack)
    assert lack.text == f"needs NCCL and 3 GPUs, one for each rank; host has 1, and {why}"


def test_ranks_share_several_gpus() -> None:
    one = replace(ON_GPU, ranks=3, gpus=3)
    assert place(one, item_of(one), gpus(2), BASE) == Placement(
        2, "gloo", "gloo in place of NCCL: 3 ranks share 2 GPUs", each=2
    )


@pytest.mark.parametrize(
    ("memory", "text"),
    [(None, ""), (2 * GIB, ""), (2 * GIB - 1, "needs 2 GiB of memory for its limit; host has 2 GiB")],
)
def test_host_has_the_memory_of_the_limit(memory: int | None, text: str) -> None:
    one = replace(ON_CPU, limits=Limits(memory=Size(2 * GIB)))
    assert lack_of(one, Machine(memory=memory)) == ((Kind.MEMORY, text) if text else None)
    assert lack_of(ON_CPU, Machine(memory=memory)) is None


def test_torch_with_cuda_is_required_once() -> None:
    """At level gpu by the level itself."""
    one, offer = replace(ON_GPU, needs=(CaseNeed.CUDA_TORCH,)), replace(BASE, features=frozenset())
    assert [lack.kind for lack in lacks(catalog(failure(case=(one,))), item_of(one), offer, gpus(2))] == [Kind.CUDA]
    assert lack_of(ON_CPU, gpus(2), replace(BASE, features=frozenset({"pkg_resources"}))) is None


@pytest.mark.parametrize("level", Level)
def test_missing_base_is_named_once(level: Level) -> None:
    one = replace(ON_GPU, levels=(level,))
    found = [*lacks(catalog(failure(case=(one,))), item_of(one), replace(BASE, lack="not pulled"), gpus(2))]
    assert found == [Lack(Kind.BASE, "not pulled", BASE.base)]


def test_mpirun_is_required_where_it_is_missing() -> None:
    one = replace(ON_GPU, levels=(Level.CPU,), launcher="mpirun")
    found = [lack_of(one, Machine(), replace(BASE, mpirun=there)) for there in (None, True, False)]
    missing = (Kind.LAUNCHER, "needs mpirun (Debian, Ubuntu: apt-get install openmpi-bin); none on PATH")
    assert found == [None, None, missing]
    assert lack_of(replace(one, launcher="torchrun"), Machine(), replace(BASE, mpirun=False)) is None


@pytest.mark.parametrize(("level", "kind"), [(Level.CPU, Kind.MEMORY), (Level.GPU, None)])
def test_container_limits_memory_at_level_gpu(level: Level, kind: Kind | None) -> None:
    """The limits of other levels are smaller than what a session in the container takes."""
    one = replace(ON_GPU, levels=(level,), limits=Limits(memory=Size(GIB)))
    known = catalog(failure(case=(one,)), containers=(image("ngc-24.07", "2.4.0a0+3bcc3cddb5"),))
    found = unmet(known, planned(known, base="ngc-24.07"), BaseOffer("ngc-24.07"), gpus(2))
    text = "needs a memory cgroup, and in a container its file system is read-only"
    assert found == (kind and Lack(kind, text))


def test_known_contents_replace_the_catalogs_te() -> None:
    """The environments of wheels hold the Python of Transformer Engine only."""
    built = Image("debian", "2.4.0", "3.11", ())  # type: ignore[arg-type]  # not from TOML
    known = catalog(failure(), containers=(image("ngc-24.07", "2.4.0a0", "1.8"),), images=(built,))
    bases = ("ngc-24.07", "torch-2.4.0", "debian", "host", "gone")
    assert [offered(known, base).te for base in bases] == ["1.8", "none", "none", None, None]
    packages = {"transformer-engine": "1.9.0"}
    contents = [
        (packages, ["compiled-te", "cuda"], "1.9.0"),
        (packages, ["cuda"], "none"),
        ({}, ["compiled-te"], "none"),
    ]
    for versions, features, te in contents:
        assert offered(known, "ngc-24.07", PythonEnvironment(packages=versions, features=features)) == BaseOffer(
            "ngc-24.07", te=te, measured=True, features=frozenset(features)
        )


@pytest.mark.parametrize("base", ["ngc-24.07", "torch-2.4.0", "host"])
@pytest.mark.parametrize("contents", [{}, {"packages": {}}, {"features": []}])
def test_offer_has_lack_and_clones(base: str, contents: dict[str, Any]) -> None:
    known = catalog(failure(), containers=(image("ngc-24.07", "2.4.0a0", "1.8"),))
    whole = "features" in contents
    environment = PythonEnvironment(**contents)
    made = offered(known, base, environment, lack="not pulled", clones=["megatron-lm"])
    assert (made.base, made.lack, made.clones) == (base, "not pulled", frozenset({"megatron-lm"}))
    assert (made.measured, made.features) == (whole, frozenset() if whole else None)
    assert offered(known, base, environment).clones is None
    assert offered(known, base, environment, clones=()).clones == frozenset()


IMAGES = {image.id: image for image in real().containers}


@pytest.mark.parametrize(
    ("image", "driver", "fit"),
    [
        ("ngc-24.03", "550", Fit.NATIVE),  # CUDA 12.4, built for 550
        ("ngc-24.03", "580.82.07", Fit.NATIVE),
        ("ngc-24.03", "535", Fit.NATIVE),  # runs every CUDA 12
        ("ngc-24.03", "470.161.03", Fit.COMPAT),  # TransformerEngine#985
        ("ngc-24.03", "470.57", Fit.COMPAT),
        ("ngc-24.03", "470.42.01", Fit.TOO_OLD),
        ("ngc-24.03", "510", Fit.TOO_OLD),
        ("ngc-24.10", "530", Fit.TOO_OLD),  # CUDA 12.6
        ("ngc-24.03", "530", Fit.UNKNOWN),
        ("ngc-24.03", "515", Fit.UNKNOWN),
        ("ngc-23.12", "510", Fit.UNKNOWN),  # CUDA 12.3: two sources that contradict each other
        ("ngc-25.06", "470.256.02", Fit.TOO_OLD),  # CUDA 12.9, the first without R470
        ("ngc-25.10", "535", Fit.COMPAT),  # CUDA 13.0
        ("ngc-25.10", "535.54", Fit.TOO_OLD),
        ("ngc-25.10", "510", Fit.TOO_OLD),
        ("ngc-25.10", "565", Fit.COMPAT),
        ("ngc-25.10", "580.65.06", Fit.NATIVE),
        ("ngc-26.02", "565", Fit.TOO_OLD),  # CUDA 13.1
        ("nemo-25.09", "570", Fit.NATIVE),  # CUDA 12.9: each driver from 525 runs every CUDA 12
        ("nemo-26.04", "470", Fit.TOO_OLD),
        ("nemo-26.04", "570", Fit.COMPAT),
        ("nemo-26.04", "590", Fit.NATIVE),
        ("ngc-26.09", "570", Fit.UNKNOWN),  # CUDA 13.4: no list was found
        ("ngc-23.10", "535", Fit.NATIVE),  # CUDA 12.2, built for 535
        ("ngc-25.07", "535", Fit.UNKNOWN),
    ],
)
def test_how_an_image_runs_on_a_driver(image: str, driver: str, fit: Fit) -> None:
    assert fitting(real(), IMAGES[image], driver).fit is fit  # type: ignore[index]


PACKAGE = Cuda("12.5", "/usr/local/cuda/compat/lib.real/libcuda.so.555.42.06")


def on(image: str, driver: str, level: Level = Level.GPU) -> Planned:
    entry = failure(case=(case(levels=(level,)),))
    return plan_case(real(), entry, entry.case[0], level, real().cell(image, values(driver=driver)))


def test_an_old_driver_is_named_with_a_fix() -> None:
    assert driver_lack(real(), on("ngc-24.03", "510"), "none") == (
        "driver 510 is too old: ngc-24.03 has CUDA 12.4.0.041, for which its compat package does not work on driver "
        "510; driver 535 would do"
    )


def test_without_a_cell_driver_the_hosts_counts() -> None:
    item = on("ngc-24.03", "none")
    assert [bool(driver_lack(real(), item, host)) for host in ("510.39", "535.86", "none")] == [True, False, False]


@pytest.mark.parametrize("level", [Level.CPU, Level.CONTRACT])
def test_below_level_gpu_the_driver_is_ignored(level: Level) -> None:
    assert (
        driver_lack(real(), on("ngc-24.03", "510", level), "510")
        == driver_note(real(), on("ngc-24.03", "470", level), "", None)
        == ""
    )


def test_a_wheels_base_has_no_driver_rule() -> None:
    assert (
        driver_lack(real(), replace(on("ngc-24.03", "510"), cell=real().cell("torch-2.4.0", {DRIVER: "510"})), "none")
        == ""
    )


BRANCHES = some.sets(some.sampled_from([driver.branch for driver in real().drivers]))


CONTAINERS = some.sampled_from(real().containers)


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        (("550", "470", "510"), ("470", "550")),  # with the compat package; directly; not at all
        (("515", "550"), ("550",)),  # nothing is known of 515
        (("515", "510"), ("515",)),
        ((), ()),
    ],
)
def test_the_branches_that_run_an_image(nodes: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert runnable(real(), on("ngc-24.03", "none"), nodes) == (found, "")


def test_without_a_node_the_reason_names_a_branch() -> None:
    reason = (
        "drivers 510 and 520 are too old: ngc-24.03 has CUDA 12.4.0.041, for which its compat package does not work on "
        "driver 520; driver 535 would do"
    )
    assert runnable(real(), on("ngc-24.03", "none"), ("520", "510")) == ((), reason)


def test_the_driver_of_a_cell_decides() -> None:
    assert runnable(real(), on("ngc-24.03", "550.54.14"), ("535", "580")) == (("550",), "")
    assert runnable(real(), on("ngc-24.03", "510"), ("535", "580"))[1].endswith("driver 535 would do")


def test_the_host_driver_overrides_that_of_the_cell() -> None:
    assert driver_lack(real(), on("ngc-24.03", "470.161.03"), "none") == ""
    assert "needs 470.57 of driver 470" in driver_lack(real(), on("ngc-24.03", "470.161.03"), "470.42.01")
    assert driver_note(real(), on("ngc-24.03", "470"), "470.161.03", PACKAGE).startswith("driver 470.161.03: ")


@pytest.mark.parametrize("level", [Level.CPU, Level.CONTRACT])
def test_without_a_gpu_any_node_will_do(level: Level) -> None:
    assert runnable(real(), on("ngc-24.03", "none", level), ("510",)) == ((), "")


@given(CONTAINERS, BRANCHES)
def test_a_case_has_usable_branches_or_a_reason(image: Container, nodes: set[str]) -> None:
    item = on(image.id, "none")
    found, reason = runnable(real(), item, nodes)
    assert set(found) <= nodes
    assert list(found) == sorted(found, key=int)
    assert bool(nodes) == bool(found or reason)
    assert not (found and reason)
    assert not any(driver_lack(real(), item, branch) for branch in found)
    assert not reason or all(driver_lack(real(), item, branch) for branch in nodes)


@given(CONTAINERS, BRANCHES, BRANCHES)
def test_more_nodes_never_make_a_case_unavailable(image: Container, nodes: set[str], further: set[str]) -> None:
    item = on(image.id, "none")
    assert runnable(real(), item, nodes | further)[1] == "" or runnable(real(), item, nodes)[0] == ()


@given(CONTAINERS, BRANCHES)
def test_the_suggested_branch_runs_the_case(image: Container, nodes: set[str]) -> None:
    item, would = on(image.id, "none"), minimum_driver(real(), image)
    if runnable(real(), item, nodes)[1] and would:
        assert runnable(real(), item, nodes | {would}) == ((would,), "")


def test_branches_are_read_from_features() -> None:
    assert driver_branches(["h100", "driver550", "driver470", "driver", "driver-535", "driver550"]) == ("470", "550")


@given(CONTAINERS)
def test_the_suggested_branch_runs_the_image_directly(image: Container) -> None:
    branch = minimum_driver(real(), image)
    assert not branch or fitting(real(), image, branch).fit is Fit.NATIVE


def test_without_an_image_the_cell_driver_decides() -> None:
    item = planned(catalog(failure()), level=Level.GPU)
    assert runnable(catalog(failure()), item, ["535"]) == ((), "")
    named = replace(item, cell=item.cell.with_({DRIVER: "470.161.03"}))
    assert runnable(catalog(failure()), named, ["535"]) == (("470",), "")


PACKAGE = Cuda("12.5", "/usr/local/cuda/compat/lib.real/libcuda.so.555.42.06")


ITSELF = Cuda("11.4", "/usr/lib/libcuda.so.470.161.03")


WSL = Cuda("12.5", "/usr/lib/wsl/lib/libcuda.so.1.1")


BY_COMPAT = (
    "driver 470.161.03: ngc-24.03 has CUDA 12.4.0.041 and runs by its compat package; GPUs for data centers only; "
)


@pytest.mark.parametrize(
    ("driver", "cuda", "expected"),
    [
        ("470.161.03", PACKAGE, f"{BY_COMPAT}found: 555.42.06 (compat package of the image)"),
        ("470.161.03", ITSELF, f"{BY_COMPAT}but found: 470.161.03 (the host driver itself)"),
        ("470.161.03", WSL, f"{BY_COMPAT}not measured"),
        ("470.161.03", None, f"{BY_COMPAT}not measured"),
        (
            "550.54.14",
            PACKAGE,
            "driver 550.54.14: ngc-24.03 is built for driver 550; but found: 555.42.06 (compat package of the image)",
        ),
        (
            "515.43",
            PACKAGE,
            "driver 515.43: no source states whether driver 515 runs CUDA 12.4.0.041; "
            "found: 555.42.06 (compat package of the image)",
        ),
        ("550.54.14", Cuda("12.4", "/usr/lib/libcuda.so.550.54.14"), ""),
        ("550.54.14", None, ""),
        ("none", PACKAGE, ""),
    ],
)
def test_a_note_has_expected_and_found_driver(driver: str, cuda: Cuda | None, expected: str) -> None:
    assert driver_note(real(), on("ngc-24.03", "none"), driver, cuda) == expected


@pytest.mark.parametrize(
    ("cuda", "host", "expected"),
    [
        (PACKAGE, "470.161.03", "555.42.06 (compat package of the image)"),
        (ITSELF, "470.161.03", "470.161.03 (the host driver itself)"),
        (ITSELF, "none", "470.161.03"),  # no kernel driver is known to compare with
        (WSL, "537.13", "CUDA 12.5"),
        (Cuda(problem="libcuda.so.1: not there"), "none", ""),
    ],
)
def test_the_user_mode_driver_in_a_record(cuda: Cuda, host: str, expected: str) -> None:
    assert user_mode_driver(cuda, host, inside=True) == expected


WITHOUT_IMAGE = real().cell("torch-2.4.0", {DRIVER: "470"})
IMAGE = replace(
    image("ngc-24.03", "2.3.0a0"),
    cuda="12.4.0",
    cuda_driver_version_in_image="550.54.14",
    driver_requirement="450 or later",
)
DRIVERS = catalog(
    drivers=(
        Driver("535", max_cuda_major_without_compat="12"),  # type: ignore[arg-type]  # not from TOML
        Driver("510", too_old_for_cuda=Range("<12.5")),  # type: ignore[arg-type]
        Driver("470", compat_from="470.57", compat_cuda=Range("<12.5"), max_cuda_major_without_compat="11"),  # type: ignore[arg-type]
        Driver("515"),  # type: ignore[arg-type]
        Driver("550"),  # type: ignore[arg-type]
        Driver("9999"),  # type: ignore[arg-type]
    )
)


@pytest.mark.parametrize(
    ("changes", "driver", "fit", "reason"),
    [
        ({}, "449.1", Fit.TOO_OLD, "ngc-24.03 requires driver 450 or later"),
        ({}, "450.1", Fit.UNKNOWN, "the catalog has no driver 450"),
        ({"driver_requirement": None}, "449.1", Fit.UNKNOWN, "the catalog has no driver 449"),
        ({"cuda": None}, "550", Fit.UNKNOWN, "the CUDA of ngc-24.03 is not known"),
        ({}, "550.1", Fit.NATIVE, "ngc-24.03 is built for driver 550"),
        ({}, "560", Fit.NATIVE, "ngc-24.03 is built for driver 550"),
        (
            {"cuda_driver_version_in_image": None},
            "550",
            Fit.UNKNOWN,
            "no source states whether driver 550 runs CUDA 12.4.0",
        ),
        ({}, "535.1", Fit.NATIVE, "driver 535 runs every CUDA 12"),
        ({"cuda": "11.8"}, "535", Fit.NATIVE, "driver 535 runs every CUDA 11"),
        ({"cuda": "13.0"}, "535", Fit.UNKNOWN, "no source states whether driver 535 runs CUDA 13.0"),
        (
            {},
            "510",
            Fit.TOO_OLD,
            "ngc-24.03 has CUDA 12.4.0, for which its compat package does not work on driver 510",
        ),
        ({"cuda": "12.5"}, "510", Fit.UNKNOWN, "no source states whether driver 510 runs CUDA 12.5"),
        ({}, "470.56", Fit.TOO_OLD, "ngc-24.03 has CUDA 12.4.0, whose compat package needs 470.57 of driver 470"),
        (
            {},
            "470.57",
            Fit.COMPAT,
            "ngc-24.03 has CUDA 12.4.0 and runs by its compat package; GPUs for data centers only",
        ),
        (
            {},
            "470",
            Fit.COMPAT,
            "ngc-24.03 has CUDA 12.4.0 and runs by its compat package; GPUs for data centers only",
        ),
        ({"cuda": "12.5"}, "470", Fit.UNKNOWN, "no source states whether driver 470 runs CUDA 12.5"),
        ({}, "515", Fit.UNKNOWN, "no source states whether driver 515 runs CUDA 12.4.0"),
    ],
)
def test_reason_of_a_fit(changes: dict[str, Any], driver: str, fit: Fit, reason: str) -> None:
    assert fitting(DRIVERS, replace(IMAGE, **changes), driver) == Fitting(fit, reason)


def test_lowest_branch_is_lowest_by_number() -> None:
    assert minimum_driver(DRIVERS, IMAGE) == "535"
    assert minimum_driver(DRIVERS, replace(IMAGE, cuda="13.0", cuda_driver_version_in_image="600")) == "9999"
    assert minimum_driver(DRIVERS, replace(IMAGE, cuda=None)) == ""


def test_reason_without_a_branch_that_would_do() -> None:
    old = replace(DRIVERS, containers=(IMAGE,), drivers=DRIVERS.drivers[1:2], failures=(failure(),))
    item = planned(old, base="ngc-24.03", level=Level.GPU)
    reason = "ngc-24.03 has CUDA 12.4.0, for which its compat package does not work on driver 510"
    assert runnable(old, item, ["510"]) == ((), f"driver 510 is too old: {reason}; none is known to do")
    older = f"drivers 449 and 510 are too old: {reason}; none is known to do"
    assert runnable(old, item, ["510", "449"]) == ((), older)


def test_versions_of_a_branch_are_one_branch() -> None:
    """As versions, the lowest first."""
    known = replace(DRIVERS, containers=(IMAGE,), failures=(failure(),))
    item = planned(known, base="ngc-24.03", level=Level.GPU)
    assert runnable(known, item, ["9999.1", "550.54", "550.90", "470.60", "470.56"]) == (("470", "550", "9999"), "")


@pytest.mark.parametrize(("host", "driver"), [("550.54", "550.54"), ("none", "470"), (None, "470"), ("", "470")])
def test_driver_of_a_case(host: str | None, driver: str) -> None:
    assert driver_of(on("ngc-24.03", "470"), host) == driver


def test_user_mode_driver_outside_an_image() -> None:
    assert user_mode_driver(PACKAGE, "470.161.03", inside=False) == "555.42.06 (compat package)"


@pytest.mark.parametrize(
    "item", [on("ngc-24.03", "470", Level.CPU), replace(on("ngc-24.03", "470"), cell=WITHOUT_IMAGE)]
)
def test_note_is_for_images_at_level_gpu(item: Planned) -> None:
    assert driver_note(real(), item, "470.161.03", PACKAGE) == ""


@pytest.mark.parametrize(("host", "text"), [("none", "driver 470: "), (None, "driver 470: ")])
def test_note_without_kernel_driver_has_the_cells(host: str | None, text: str) -> None:
    assert driver_note(real(), on("ngc-24.03", "470"), host, PACKAGE).startswith(text)


@pytest.mark.parametrize(
    ("cuda", "driver", "fit"),
    [
        ("12.8", "550", Fit.NATIVE),
        ("13.0", "550.54.15", Fit.TOO_OLD),
        ("13.2", "580", Fit.NATIVE),
        ("12.6", "545", Fit.UNKNOWN),
        ("12.6", "999", Fit.UNKNOWN),
    ],
)
def test_cuda_of_wheels_has_no_compat_package(cuda: str, driver: str, fit: Fit) -> None:
    stack = Stack({"cuda": cuda, "driver": driver, "toolkit": ABSENT})
    fitted = fit_of(real(), stack)
    assert fitted
    assert fitted.fit is fit
    assert fit_of(real(), stack.with_({"toolkit": UNKNOWN})) is None
