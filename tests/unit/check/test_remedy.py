"""What is to be changed is what makes the contract hold, in the smallest sets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.check.launch import Launcher, environment_of
from matrix.check.multicast import Device
from matrix.check.overlap import BACKENDS, Setting, contract
from matrix.check.remedy import remedies
from matrix.contract import recording

RELEASES = {"mcore": recording.released(recording.MCORE), "te": recording.released(recording.TE)}
TORCHRUN = environment_of(Launcher.TORCHRUN, 8)
MPIRUN = "start it with mpirun"
A800 = Device("470.161.03", sm="8.0")


def starts(setting: Setting) -> bool:
    return not any(answer.breaks for answer in contract(setting))


@pytest.mark.parametrize(
    ("setting", "changes"),
    [
        (Setting("1.9.0", "0.9.0", torch_mpi=True), [(MPIRUN,), ("megatron-core 0.10.0",)]),
        (
            Setting("1.8.0", "0.7.0", torch_mpi=True),
            [(MPIRUN, "Transformer Engine 1.9.0"), ("megatron-core 0.10.0", "Transformer Engine 1.9.0")],
        ),
        (
            Setting("1.5.0", "0.10.0", "gloo", torch_mpi=True),
            [(MPIRUN,), ("Transformer Engine 1.9.0",)],
        ),
        (
            Setting("2.17.1", "0.19.0", "mpi", torch_mpi=True, device=A800),
            [(MPIRUN, "set UB_SKIPMC=1"), ("--tp-comm-bootstrap-backend nccl", "set UB_SKIPMC=1")],
        ),
        (Setting("1.13.0", torch_mpi=True), [(MPIRUN,), ('bootstrap_backend="nccl"',)]),
        (
            Setting("1.9.0", "0.10.0", torch_mpi=True, built_with_mpi=True),
            [(MPIRUN,), ("a Transformer Engine built without NVTE_UB_WITH_MPI",)],
        ),
        (
            Setting("1.9.0", "0.9.0", torch_mpi=False),
            [("megatron-core 0.10.0",), (MPIRUN, "a PyTorch that has its mpi backend, as in NGC's images")],
        ),
        (Setting("2.7.0", "0.19.0"), [("Transformer Engine 2.8.0",)]),
    ],
)  # fmt: skip
def test_the_facts_ways_round_are_found(setting: Setting, changes: list[tuple[str, ...]]) -> None:
    assert changes == list(remedies(replace(setting, environ=TORCHRUN), starts, RELEASES))


def test_a_newer_release_is_not_looked_for_where_a_source_is_named() -> None:
    from_clone = Setting("1.9.0", "somewhere/Megatron-LM", environ=TORCHRUN)
    asked: list[Setting] = []
    remedies(from_clone, lambda setting: bool(asked.append(setting)), RELEASES)
    assert {setting.mcore for setting in asked} == {"somewhere/Megatron-LM"}


@settings(max_examples=100, deadline=None)
@given(
    mcore=st.sampled_from([None, "0.7.0", "0.9.0", "0.10.0", "0.19.0"]),
    te=st.sampled_from(["1.5.0", "1.8.0", "1.9.0", "1.13.0", "2.17.1"]),
    bootstrap=st.sampled_from([None, *BACKENDS]),
    torch_mpi=st.sampled_from([True, False]),
    sm=st.sampled_from(["8.0", "9.0"]),
)
def test_nothing_is_wanted_of_a_job_that_starts_and_a_known_launcher_and_release_help_every_other(
    mcore: str | None, te: str, bootstrap: str | None, torch_mpi: bool, sm: str
) -> None:
    device = Device("470.161.03", sm=sm)
    setting = Setting(te, mcore, bootstrap, torch_mpi=torch_mpi, environ=TORCHRUN, device=device)
    found = remedies(setting, starts, RELEASES)
    assert found or starts(setting)
    assert sorted(found, key=len) == list(found)
