"""The overlap contract, cell by cell of what was run with the real Megatron-LM and Transformer Engine functions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.catalog.failure import Expectation, Level
from matrix.catalog.versions import parse
from matrix.check.answer import Answer, Word
from matrix.check.launch import Launcher, environment_of
from matrix.check.multicast import Device
from matrix.check.overlap import BACKENDS, Setting, contract, facts
from matrix.errors import MatrixError
from matrix.planning.cases import expected
from matrix.planning.night import night_cells
from matrix.verdicts.judge import judge
from matrix.verdicts.record import Verdict
from tests.failures.tp_overlap_contract import outcome_of
from tests.unit.catalogs import real

CRASH = "SIGSEGV in createProcessGroupMPI, or MPI_ERR_RANK and exit code 6"
TP_SIZE = "TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'"
NO_MPI = "RuntimeError: Distributed package doesn't have MPI built in"
# Ran on Debian's torch with its mpi backend: Megatron-LM (None: none), Transformer Engine, bootstrap
# backend, and what comes of it under a torchrun-like launcher and under mpirun.
RAN = [
    ("0.4.0", "1.5.0", None, [CRASH], []),
    ("0.7.0", "1.5.0", None, [CRASH], []),
    ("0.7.0", "1.8.0", None, [CRASH, TP_SIZE], [TP_SIZE]),
    ("0.9.0", "1.9.0", None, [CRASH], []),
    ("0.10.0", "1.5.0", "gloo", [CRASH], []),
    ("0.19.0", "1.7.0", "gloo", [CRASH], []),
    ("0.10.0", "1.9.0", "gloo", [], []),
    ("0.19.0", "2.17.1", "gloo", [], []),
    ("0.10.0", "1.9.0", "mpi", [CRASH], []),
    ("0.19.0", "2.17.1", "mpi", [CRASH], []),
    (None, "1.13.0", None, [CRASH], []),
    (None, "2.17.1", None, [CRASH], []),
]


def setting(
    mcore: str | None, te: str, bootstrap: str | None = None, launcher: Launcher = Launcher.TORCHRUN, size: int = 2
) -> Setting:
    return Setting(te, mcore, bootstrap, torch_mpi=True, environ=environment_of(launcher, size))


def breaks(job: Setting) -> list[str]:
    return [answer.breaks for answer in contract(job) if answer.breaks]


def group(job: Setting) -> Answer:
    return contract(job)[0]


@pytest.mark.parametrize(("mcore", "te", "bootstrap", "torchrun", "mpirun"), RAN)
def test_what_was_run_is_told_beforehand(
    mcore: str | None, te: str, bootstrap: str | None, torchrun: list[str], mpirun: list[str]
) -> None:
    assert torchrun == breaks(setting(mcore, te, bootstrap))
    assert mpirun == breaks(setting(mcore, te, bootstrap, Launcher.MPIRUN))


@pytest.mark.parametrize("size", [2, 4, 8, 16, 64])
def test_every_world_size_but_one_is_the_same_failure(size: int) -> None:
    assert breaks(setting("0.9.0", "1.9.0", size=size)) == [CRASH]
    assert breaks(setting("0.9.0", "1.9.0", size=1)) == []


@pytest.mark.parametrize(
    ("mcore", "te", "bootstrap", "word"),
    [
        # Megatron-LM <= 0.9 makes it whatever Transformer Engine offers, and has no option to choose with
        ("0.5.0", "1.5.0", None, "yes"), ("0.9.0", "1.13.0", None, "yes"), ("0.9.0", "2.17.1", "gloo", "yes"),
        # >= 0.10 leaves it to Transformer Engine >= 1.9 and passes nccl unless told otherwise
        ("0.10.0", "1.8.0", None, "yes"), ("0.10.0", "1.8.0", "nccl", "yes"), ("0.10.0", "1.9.0", None, "no"),
        ("0.10.0", "1.9.0", "nccl", "no"), ("0.19.2", "2.17.1", None, "no"), ("0.10.0", "1.9.0", "mpi", "yes"),
        # the guard is >= 1.9.0: a development version before it still gets a group
        ("0.10.0", "1.9.0.dev0+f9dd37f", "gloo", "yes"),
        # Transformer Engine by itself: gloo first in 1.9 - 1.12, mpi first from 1.13 on
        (None, "1.9.0", None, "no"), (None, "1.12.0", None, "no"), (None, "1.13.0", None, "yes"),
        (None, "2.17.1", "gloo", "no"), (None, "1.9.0", "mpi", "yes"),
        # nothing is known of what 1.8 makes
        (None, "1.8.0", None, "unknown"),
    ],
)  # fmt: skip
def test_who_makes_an_mpi_group(mcore: str | None, te: str, bootstrap: str | None, word: str) -> None:
    assert word == group(setting(mcore, te, bootstrap)).word.value


def test_a_backend_that_is_not_passed_on_is_said_so() -> None:
    assert "gloo is not passed on" in group(setting("0.10.0", "1.5.0", "gloo")).reason


@pytest.mark.parametrize("bootstrap", [None, *BACKENDS])
@pytest.mark.parametrize("te", ["1.9.0", "2.17.1"])
def test_a_build_with_mpi_makes_one_whatever_is_asked_for(te: str, bootstrap: str | None) -> None:
    assert breaks(replace(setting("0.19.0", te, bootstrap), built_with_mpi=True)) == [CRASH]


def test_without_the_mpi_backend_there_is_another_error_in_place_of_the_crash() -> None:
    job = replace(setting("0.9.0", "1.9.0"), torch_mpi=False)
    assert breaks(job) == [NO_MPI]
    assert breaks(replace(job, environ=environment_of(Launcher.MPIRUN, 2))) == [NO_MPI]


def test_without_the_mpi_backend_transformer_engine_tries_the_next() -> None:
    assert breaks(replace(setting(None, "1.13.0"), torch_mpi=False)) == []


def test_what_is_not_known_breaks_nothing_and_is_said_to_be_unknown() -> None:
    unknown = Setting("1.13.0")
    assert breaks(unknown) == []
    assert [answer.word for answer in contract(unknown)[:2]] == [Word.UNKNOWN] * 2


def test_where_megatron_ends_earlier_no_group_is_made() -> None:
    job = setting("0.15.0", "2.7.0", "mpi")
    (error,) = breaks(job)
    assert error.startswith("AttributeError: ")
    assert group(job).word is Word.NO


def test_a_backend_for_a_transformer_engine_that_takes_none_is_a_type_error() -> None:
    (error,) = breaks(setting(None, "1.7.0", "gloo", Launcher.MPIRUN))
    assert error == "TypeError: initialize_ub() got an unexpected keyword argument 'bootstrap_backend'"


def test_a_release_that_is_not_recorded_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(MatrixError, match="did you mean"):
        contract(setting("0.9.0", "1.9.7"))


@pytest.mark.parametrize("te", ["1.8.0", "1.8.0+37280ec", "1.9.0.dev0+f9dd37f"])
def test_tp_size_is_refused_by_those_that_want_a_group(te: str) -> None:
    assert TP_SIZE in breaks(setting("0.7.0", te))


@pytest.mark.parametrize(("te", "told"), [("1.5.0", True), ("1.7.0", True), ("1.8.0", False), ("2.17.1", False)])
def test_an_old_transformer_engine_must_have_been_built_with_userbuffers(te: str, told: bool) -> None:
    questions = [answer.question for answer in contract(setting("0.9.0", te))]
    assert told == ("userbuffers are in the build" in questions)


def test_the_stack_of_the_founding_report() -> None:
    """TransformerEngine#985: the driver is too old for multicast, and on SM80 that is not what breaks."""
    job = setting("0.7.0", "1.9.0.dev0+f9dd37f", size=8)
    told = contract(replace(job, device=Device(driver="470.161.03", cuda="12.4", sm="8.0")))
    assert [answer.failure for answer in told if answer.failure] == ["tp-overlap"]


@given(st.sampled_from(RAN), st.sampled_from(list(Launcher)), st.integers(1, 64))
def test_mpi_never_crashes_where_its_own_launcher_started_the_job(
    row: tuple[str | None, str, str | None, list[str], list[str]], launcher: Launcher, size: int
) -> None:
    mcore, te, bootstrap, torchrun, _ = row
    crashed = CRASH in breaks(setting(mcore, te, bootstrap, launcher, size))
    assert crashed == (CRASH in torchrun and size > 1 and launcher in (Launcher.TORCHRUN, Launcher.NONE))


def test_each_transformer_engine_is_in_one_window_at_most() -> None:
    probes = ["1.5.0", "1.6.0", "1.9.0.dev0", "1.12.0", "1.13.0.dev0", "1.13.0", "2.17.1"]
    for windows in (facts().window, facts().bootstrap):
        assert all(sum(te in window.te for window in windows) <= 1 for te in sorted(probes, key=parse))  # type: ignore[attr-defined]


def test_the_catalog_expects_what_the_contract_tells() -> None:
    """Every case of a night at level contract, and none of them red."""
    known, entry = real(), real().failure("tp-overlap")
    verdicts = {
        (cell.id, case.name): judge(entry, expectation, outcome_of(cell, case.name), known.failures).verdict
        for cell in night_cells(known, entry)
        for case in entry.case
        if Level.CONTRACT in case.levels
        and (expectation := expected(known, entry, cell, case)) is not Expectation.UNKNOWN
    }
    assert set(verdicts.values()) == {Verdict.REPRODUCED, Verdict.HOLDS}
