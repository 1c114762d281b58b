"""What a case requires, matched with what its base and the machine offer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from matrix.catalog.failure import Case, CaseNeed, Level
from matrix.catalog.limits import GIB, Limits
from matrix.catalog.machine import Cuda, Gpu, Machine
from matrix.catalog.model import RequiredModule
from matrix.catalog.schema import Identifier, Size
from matrix.planning.machine_requirements import BaseFeature, BaseOffer, Placement, lacks, offered, place, unmet
from matrix.verdicts.planned import Planned
from matrix.verdicts.reason import Kind, Lack
from tests.unit.catalogs import case, catalog, clause, failure, image, planned, values

H100 = Gpu("H100", "9.0", multicast=True, uuid="GPU-0")
A800 = Gpu("A800", "8.0", multicast=False, uuid="GPU-0")
ON_GPU = case(levels=(Level.GPU,), ranks=2, gpus=2)
BASE = BaseOffer("torch-2.4.0")


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


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (gpus(2), Placement(2, "nccl")),
        (gpus(8), Placement(2, "nccl")),
        (gpus(1), Placement(1, "gloo", "gloo in place of NCCL: 2 ranks share 1 GPU")),
        (Machine(), Placement(2, "nccl")),  # what a node offers is not known here
    ],
)
def test_two_ranks_have_two_gpus_or_gloo(machine: Machine, expected: Placement) -> None:
    assert place(ON_GPU, item_of(ON_GPU), machine) == expected


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
            (Kind.NCCL, "needs NCCL, so 2 GPUs, one for each rank; host has 1"),
        ),
        (
            ON_GPU,
            gpus(1, exclusive=True),
            (Kind.GPUS, "needs 2 GPUs; host has 1, in exclusive compute mode: ranks can't share it"),
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


ON_CPU = case(levels=(Level.CPU,))


@pytest.mark.parametrize("one", [ON_GPU, replace(ON_CPU, needs=(CaseNeed.CUDA_TORCH,))], ids=["gpu", "cpu"])
def test_torch_without_cuda_is_unavailable(one: Case) -> None:
    found = lack_of(one, gpus(2), replace(BASE, features=frozenset({"pkg_resources"})))
    assert found == (Kind.CUDA, "needs a torch with CUDA; that of torch-2.4.0 is built without")


@pytest.mark.parametrize(
    ("clones", "kind"), [(None, None), (frozenset({"megatron-lm"}), None), (frozenset[str](), Kind.CLONE)]
)
def test_missing_clone_is_named(clones: frozenset[str] | None, kind: Kind | None) -> None:
    found = lack_of(replace(ON_GPU, needs=(CaseNeed.MEGATRON_LM,)), gpus(2), replace(BASE, clones=clones))
    assert (found[0] if found else None) is kind
    assert found is None or "megatrix sources fetch" in found[1]


@pytest.mark.parametrize("level", Level)
def test_missing_base_is_named_once(level: Level) -> None:
    one = replace(ON_GPU, levels=(level,))
    found = [*lacks(catalog(failure(case=(one,))), item_of(one), replace(BASE, lack="not pulled"), gpus(2))]
    assert found == [Lack(Kind.BASE, "not pulled", BASE.base)]


def test_mpirun_is_required_where_it_is_missing() -> None:
    one = replace(ON_GPU, levels=(Level.CPU,), launcher="mpirun")
    found = [lack_of(one, Machine(), replace(BASE, mpirun=there)) for there in (None, True, False)]
    assert [bool(one) for one in found] == [False, False, True]


@pytest.mark.parametrize(("level", "kind"), [(Level.CPU, Kind.MEMORY), (Level.GPU, None)])
def test_container_limits_memory_at_level_gpu(level: Level, kind: Kind | None) -> None:
    """The limits of other levels are smaller than what a session in the container takes."""
    one = replace(ON_GPU, levels=(level,), limits=Limits(memory=Size(GIB)))
    known = catalog(failure(case=(one,)), containers=(image("ngc-24.07", "2.4.0a0+3bcc3cddb5"),))
    found = unmet(known, planned(known, base="ngc-24.07"), BaseOffer("ngc-24.07"), gpus(2))
    assert (found and found.kind) == kind


def test_known_contents_replace_the_catalogs_te() -> None:
    known = catalog(failure(), containers=(image("ngc-24.07", "2.4.0a0", "1.8"),))
    assert (offered(known, "ngc-24.07").te, offered(known, "torch-2.4.0").te) == ("1.8", "none")
    packages = {"transformer-engine": "1.9.0"}
    assert offered(known, "ngc-24.07", packages=packages, features=["compiled-te"]).te == "1.9.0"
    assert offered(known, "torch-2.4.0", packages=packages, features=["cuda"]).te == "none"
