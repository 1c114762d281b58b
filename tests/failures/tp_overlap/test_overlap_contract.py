"""The overlap contract in every cell that was run with the real Megatron-LM and Transformer Engine functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.ground.catalog.folders import load_module
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.catalog.versions import parse
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Raised
from matrix.kit import contracts
from matrix.kit.launch import Launcher, environment_of, world_of
from matrix.kit.preflight import Answer, Cuda, Gpu, Machine, Status, TrainingJob
from matrix.prove.execution.preflights import read_case
from tests.unit.catalogs import real

FOLDER = Path(__file__).parent
overlap = load_module(FOLDER, "overlap")
CRASH = "SIGSEGV in createProcessGroupMPI, or MPI_ERR_RANK and exit code 6"
TP_SIZE = "TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'"
NO_MPI = "RuntimeError: Distributed package doesn't have MPI built in"
# Ran on Debian's torch with its mpi backend: Megatron-LM ("": none), Transformer Engine, bootstrap
# backend, and the errors under a torchrun-like launcher and under mpirun.
RAN = [
    ("0.4.0", "1.5.0", "", [CRASH], []),
    ("0.7.0", "1.5.0", "", [CRASH], []),
    ("0.7.0", "1.8.0", "", [CRASH, TP_SIZE], [TP_SIZE]),
    ("0.9.0", "1.9.0", "", [CRASH], []),
    ("0.10.0", "1.5.0", "gloo", [CRASH], []),
    ("0.19.0", "1.7.0", "gloo", [CRASH], []),
    ("0.10.0", "1.9.0", "gloo", [], []),
    ("0.19.0", "2.17.1", "gloo", [], []),
    ("0.10.0", "1.9.0", "mpi", [CRASH], []),
    ("0.19.0", "2.17.1", "mpi", [CRASH], []),
    ("", "1.13.0", "", [CRASH], []),
    ("", "2.17.1", "", [CRASH], []),
]


def job(mcore: str, te: str, bootstrap: str = "", launcher: Launcher = Launcher.TORCHRUN, size: int = 2) -> TrainingJob:
    arguments = {"bootstrap": bootstrap} if bootstrap else {}
    return TrainingJob(te, mcore, torch_mpi=True, world=world_of(environment_of(launcher, size)), arguments=arguments)


def answers(of: TrainingJob) -> tuple[Answer, ...]:
    found: tuple[Answer, ...] = overlap.contract(of, Machine(), contracts)
    return found


def breaks(of: TrainingJob) -> list[str]:
    return [str(answer.error) for answer in answers(of) if answer.error]


def group(of: TrainingJob) -> Answer:
    return answers(of)[0]


@pytest.mark.parametrize(("mcore", "te", "bootstrap", "torchrun", "mpirun"), RAN)
def test_errors_of_runs_are_predicted(
    mcore: str, te: str, bootstrap: str, torchrun: list[str], mpirun: list[str]
) -> None:
    assert torchrun == breaks(job(mcore, te, bootstrap))
    assert mpirun == breaks(job(mcore, te, bootstrap, Launcher.MPIRUN))


@pytest.mark.parametrize("size", [2, 4, 8, 16, 64])
def test_all_world_sizes_above_one_fail_alike(size: int) -> None:
    assert breaks(job("0.9.0", "1.9.0", size=size)) == [CRASH]
    assert breaks(job("0.9.0", "1.9.0", size=1)) == []


@pytest.mark.parametrize(
    ("mcore", "te", "bootstrap", "word"),
    [
        # Megatron-LM <= 0.9 makes it whatever Transformer Engine offers, and has no option to choose with
        ("0.5.0", "1.5.0", "", "yes"), ("0.9.0", "1.13.0", "", "yes"), ("0.9.0", "2.17.1", "gloo", "yes"),
        # >= 0.10 leaves it to Transformer Engine >= 1.9 and passes nccl by default
        ("0.10.0", "1.8.0", "", "yes"), ("0.10.0", "1.8.0", "nccl", "yes"), ("0.10.0", "1.9.0", "", "no"),
        ("0.10.0", "1.9.0", "nccl", "no"), ("0.19.2", "2.17.1", "", "no"), ("0.10.0", "1.9.0", "mpi", "yes"),
        # the guard is >= 1.9.0: a development version before it still gets a group
        ("0.10.0", "1.9.0.dev0+f9dd37f", "gloo", "yes"),
        # Transformer Engine by itself: gloo first in 1.9 - 1.12, mpi first from 1.13 on
        ("", "1.9.0", "", "no"), ("", "1.12.0", "", "no"), ("", "1.13.0", "", "yes"),
        ("", "2.17.1", "gloo", "no"), ("", "1.9.0", "mpi", "yes"),
        # nothing is known of what 1.8 makes
        ("", "1.8.0", "", "unknown"),
    ],
)  # fmt: skip
def test_an_mpi_group_is_made_by_these_versions(mcore: str, te: str, bootstrap: str, word: str) -> None:
    assert word == group(job(mcore, te, bootstrap)).status.value


def test_a_backend_that_is_dropped_is_named() -> None:
    assert "gloo is not passed on" in group(job("0.10.0", "1.5.0", "gloo")).reason


@pytest.mark.parametrize("bootstrap", ["", "nccl", "gloo", "mpi"])
@pytest.mark.parametrize("te", ["1.9.0", "2.17.1"])
def test_a_build_with_mpi_ignores_the_backend(te: str, bootstrap: str) -> None:
    assert breaks(replace(job("0.19.0", te, bootstrap), te_mpi=True)) == [CRASH]


def test_a_torch_without_mpi_raises_in_every_launcher() -> None:
    for launcher in (Launcher.TORCHRUN, Launcher.MPIRUN):
        assert breaks(replace(job("0.9.0", "1.9.0", launcher=launcher), torch_mpi=False)) == [NO_MPI]


def test_without_mpi_transformer_engine_tries_the_next_backend() -> None:
    assert breaks(replace(job("", "1.13.0"), torch_mpi=False)) == []


def test_unknown_facts_give_no_error() -> None:
    unknown = TrainingJob("1.13.0")
    assert breaks(unknown) == []
    assert [answer.status for answer in answers(unknown)[:2]] == [Status.UNKNOWN] * 2


def test_where_megatron_ends_earlier_no_group_is_made() -> None:
    stack = job("0.15.0", "2.7.0", "mpi")
    (error,) = breaks(stack)
    assert error.startswith("AttributeError: ")
    assert group(stack).status is Status.NO


def test_a_backend_without_its_parameter_raises() -> None:
    (error,) = breaks(job("", "1.7.0", "gloo", Launcher.MPIRUN))
    assert error == "TypeError: initialize_ub() got an unexpected keyword argument 'bootstrap_backend'"


def test_an_unrecorded_release_is_an_error() -> None:
    with pytest.raises(MatrixError, match="did you mean"):
        answers(job("0.9.0", "1.9.7"))


@pytest.mark.parametrize("te", ["1.8.0", "1.8.0+37280ec", "1.9.0.dev0+f9dd37f"])
def test_engines_that_take_a_group_refuse_tp_size(te: str) -> None:
    assert TP_SIZE in breaks(job("0.7.0", te))


@pytest.mark.parametrize(("te", "needed"), [("1.5.0", True), ("1.7.0", True), ("1.8.0", False), ("2.17.1", False)])
def test_an_old_engine_needs_userbuffers_in_its_build(te: str, needed: bool) -> None:
    questions = [answer.question for answer in answers(job("0.9.0", te))]
    assert needed == ("userbuffers are in the build" in questions)


def test_the_stack_of_the_founding_report() -> None:
    """TransformerEngine#985: the driver is too old for multicast, and on SM80 that is not what breaks."""
    stack = job("0.7.0", "1.9.0.dev0+f9dd37f", size=8)
    found = overlap.contract(stack, Machine("470.161.03", cuda=Cuda("12.4", gpus=(Gpu(sm="8.0"),))), contracts)
    assert [answer.error.type for answer in found if answer.error] == ["MpiWorldTooSmall", "TypeError"]


@settings(deadline=None)
@given(st.sampled_from(RAN), st.sampled_from(list(Launcher)), st.integers(1, 64))
def test_mpi_never_crashes_under_its_own_launcher(
    row: tuple[str, str, str, list[str], list[str]], launcher: Launcher, size: int
) -> None:
    mcore, te, bootstrap, torchrun, _ = row
    crashed = CRASH in breaks(job(mcore, te, bootstrap, launcher, size))
    assert crashed == (CRASH in torchrun and size > 1 and launcher in (Launcher.TORCHRUN, Launcher.NONE))


def test_each_engine_is_in_one_window_at_most() -> None:
    probes = ["1.5.0", "1.6.0", "1.9.0.dev0", "1.12.0", "1.13.0.dev0", "1.13.0", "2.17.1"]
    for windows in (overlap.facts().window, overlap.facts().bootstrap):
        assert all(sum(te in window.te for window in windows) <= 1 for te in sorted(probes, key=parse))


def test_a_case_raises_its_first_error() -> None:
    cell, entry = real().cell("debian-13", {MCORE: "0.9.0", TE: "1.9.0"}), real().failure("tp-overlap")
    outcome = read_case(entry, entry.case_named("torchrun-default"), cell)
    assert outcome.reason == (
        "Megatron-LM makes it itself before megatron/training/initialize.py:218 _initialize_tp_communicators; "
        "MPI_COMM_WORLD has 1 of 2 processes (torchrun)"
    )
    assert outcome.chain == (Raised("MpiWorldTooSmall", outcome.reason),)
    cell = cell.with_({MCORE: "0.7.0", TE: "1.8.0"})
    refused = read_case(entry, entry.case_named("mpirun-default"), cell)
    assert (refused.reason, refused.chain[0].type) == (TP_SIZE, "TypeError")
