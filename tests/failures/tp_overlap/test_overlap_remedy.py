"""Remedies are the smallest sets of changes after which the contract holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.folders import load_module
from matrix.kit import contracts
from matrix.kit.launch import Launcher, World
from matrix.kit.preflight import Cuda, Gpu, Machine, TrainingJob
from tests.profiles import tries

overlap = load_module(Path(__file__).parent, "overlap")
remedies = load_module(Path(__file__).parent, "remedy").remedies
examine = load_module(Path(__file__).parent, "preflight").examine
TORCHRUN = World(Launcher.TORCHRUN, 8, 1)
MPIRUN = "start it with mpirun"
A800 = Machine("470.161.03", cuda=Cuda(gpus=(Gpu(sm="8.0"),)))
ANY = Machine()
MPI, GLOO = {"bootstrap": "mpi"}, {"bootstrap": "gloo"}


@pytest.mark.parametrize(
    ("job", "machine", "changes"),
    [
        (TrainingJob("1.9.0", "0.9.0", torch_mpi=True), ANY, [(MPIRUN,), ("megatron-core 0.10.0",)]),
        (
            TrainingJob("1.8.0", "0.7.0", torch_mpi=True), ANY,
            [(MPIRUN, "Transformer Engine 1.9.0"), ("megatron-core 0.10.0", "Transformer Engine 1.9.0")],
        ),
        (
            TrainingJob("1.5.0", "0.10.0", torch_mpi=True, arguments=GLOO), ANY,
            [(MPIRUN,), ("Transformer Engine 1.9.0",)],
        ),
        (
            TrainingJob("2.17.1", "0.19.0", torch_mpi=True, arguments=MPI), A800,
            [(MPIRUN, "set UB_SKIPMC=1"), ("--tp-comm-bootstrap-backend nccl", "set UB_SKIPMC=1")],
        ),
        (TrainingJob("1.13.0", torch_mpi=True), ANY, [(MPIRUN,), ('bootstrap_backend="nccl"',)]),
        (
            TrainingJob("1.9.0", "0.10.0", torch_mpi=True, te_mpi=True), ANY,
            [(MPIRUN,), ("a Transformer Engine built without NVTE_UB_WITH_MPI",)],
        ),
        (
            TrainingJob("1.9.0", "0.9.0", torch_mpi=False), ANY,
            [("megatron-core 0.10.0",), (MPIRUN, "a PyTorch that has its mpi backend, as in NGC's images")],
        ),
        (TrainingJob("2.7.0", "0.19.0"), ANY, [("Transformer Engine 2.8.0",)]),
        (TrainingJob("1.9.0", "0.10.0"), ANY, []),
    ],
)  # fmt: skip
def test_the_smallest_sets_of_changes_are_found(
    job: TrainingJob, machine: Machine, changes: list[tuple[str, ...]]
) -> None:
    assert changes == list(examine(replace(job, world=TORCHRUN), machine, contracts).changes)


def test_a_named_source_gets_no_newer_release() -> None:
    clone = TrainingJob("1.9.0", "somewhere/Megatron-LM", world=TORCHRUN)
    examined: list[TrainingJob] = []

    def starts(job: TrainingJob) -> bool:
        examined.append(job)
        return False

    remedies(clone, starts, contracts.released)
    assert {job.mcore for job in examined} == {"somewhere/Megatron-LM"}


@tries(100)
@given(
    mcore=st.sampled_from(["", "0.7.0", "0.9.0", "0.10.0", "0.19.0"]),
    te=st.sampled_from(["1.5.0", "1.8.0", "1.9.0", "1.13.0", "2.17.1"]),
    arguments=st.sampled_from([{}, *({"bootstrap": one} for one in ("nccl", "gloo", "mpi"))]),
    torch_mpi=st.sampled_from([True, False]),
    sm=st.sampled_from(["8.0", "9.0"]),
)
def test_changes_exist_for_every_job_that_fails(
    mcore: str, te: str, arguments: dict[str, str], torch_mpi: bool, sm: str
) -> None:
    job = TrainingJob(te, mcore, torch_mpi, world=TORCHRUN, arguments=arguments)
    report = examine(job, Machine("470.161.03", cuda=Cuda(gpus=(Gpu(sm=sm),))), contracts)
    assert bool(report.changes) == report.fails
    assert sorted(report.changes, key=len) == list(report.changes)
