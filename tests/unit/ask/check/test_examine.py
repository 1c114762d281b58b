"""The reports of preflights on jobs and machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ask.check.examine import Assumed, assume, examine, machine_of, training_job
from matrix.ask.check.job_site import JobSite
from matrix.ask.check.training_job import NO_JOB, UserJob
from matrix.ground.catalog.failure import Failure
from matrix.ground.catalog.loading import preflight_options
from matrix.ground.catalog.machine import Cuda, Machine
from matrix.ground.catalog.reach import JobArguments, JobOption, OptionKind, PreflightOptions
from matrix.ground.catalog.stack import ABSENT, BASE, DRIVER, MCORE, SM, TE, TORCH, Stack
from matrix.ground.errors import MatrixError
from matrix.kit.launch import Launcher, environment_of, world_of
from matrix.kit.preflight import Answer, Contracts, Error, Examine, Report, Status, TrainingJob
from tests.unit.ask.check.machines import A800, H100, NGC, changed
from tests.unit.catalogs import failure

MPIRUN = {"OMPI_COMM_WORLD_SIZE": "8"}
KNOWN = preflight_options()
BREAKS = Answer("it starts", Status.NO, "in the test", Error("TypeError", "break broke"))
STACK = Stack({TORCH: "2.4.0a0+3bcc3cddb5.nv24.07", MCORE: "0.9.0", TE: "1.8.0+37280ec", BASE: "ngc-24.07"})


def job(host: JobSite | None = NGC, given: Mapping[str, str] | None = None, described: UserJob = NO_JOB) -> TrainingJob:
    options = {name.replace("_", "-"): text for name, text in (given or {}).items()}
    return training_job(STACK, described, host, assume(options, KNOWN), {})


def machine(host: JobSite | None = NGC, stack: Stack = STACK, **given: str) -> Machine:
    return machine_of(stack, host, assume(given, KNOWN))


class Preflights:
    """Failures whose preflights are functions of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.examine: Examine = lambda job, machine, contracts: Report(())
        monkeypatch.setattr("matrix.ask.check.examine.preflight_of", lambda folder: self.examine)

    def report(
        self,
        examine_: Examine,
        *options: JobOption,
        described: UserJob = NO_JOB,
        given: Mapping[str, str] | None = None,
        known: tuple[Failure, ...] = (),
    ) -> Report:
        self.examine = examine_
        entry = failure(preflight=PreflightOptions(option=options))
        return examine(entry, STACK, described, None, assume(given or {}, [entry.preflight]), known)


@pytest.fixture
def preflights(monkeypatch: pytest.MonkeyPatch) -> Preflights:
    return Preflights(monkeypatch)


def test_the_facts_found_are_judged() -> None:
    found = job()
    assert (found.mcore, found.te, found.torch_mpi, found.te_mpi) == ("0.9.0", "1.8.0+37280ec", True, False)
    assert (found.world.size, found.world.mpi) == (8, 1)
    assert machine() == NGC.machine


def test_stated_version_replaces_a_fact() -> None:
    other = machine(stack=STACK.with_({DRIVER: "470.161.03", SM: "8.0"}))
    assert (other.driver, other.sm, other.cuda_version, other.multicast) == ("470.161.03", "8.0", None, None)
    assert machine(sm="8.0").cuda_version == "12.5"
    assert machine(None, driver="470") == Machine("470", cuda=Cuda())


def test_torch_of_an_image_has_its_mpi_backend() -> None:
    assert job(None).torch_mpi is True
    assert training_job(STACK.with_({BASE: ABSENT}), NO_JOB, None, Assumed(), {}).torch_mpi is None


@pytest.mark.parametrize(
    ("environ", "given", "size", "mpi"),
    [
        ({}, {"launcher": "torchrun"}, 2, 1),  # as many as there are GPUs
        ({}, {"launcher": "torchrun", "world_size": "16"}, 16, 1),
        ({}, {"launcher": "mpirun", "world_size": "16"}, 16, 16),
        (MPIRUN, {"launcher": "torchrun"}, 8, 1),
        (MPIRUN, {"world_size": "4"}, 4, 4),
        (MPIRUN, {}, 8, 8),
        ({}, {"launcher": "srun", "world_size": "4"}, 4, None),
        ({}, {"world_size": "4"}, None, 1),
    ],
)
def test_the_launcher_is_detected_or_assumed(
    environ: dict[str, str], given: dict[str, str], size: int | None, mpi: int | None
) -> None:
    world = job(replace(NGC, environ=environ), given).world
    assert (size, mpi) == (world.size, world.mpi)


def test_launcher_of_the_command_comes_first() -> None:
    described = UserJob(world=world_of(environment_of(Launcher.MPIRUN, 4)))
    assert job(NGC, described=described).world.size == 4


def test_the_weakest_gpu_is_judged() -> None:
    found = machine(changed(NGC, cuda=Cuda("12.5", "libcuda.so.1", (H100, A800))))
    assert (found.sm, found.multicast) == ("8.0", False)


def test_variables_of_machine_and_command_reach_the_job() -> None:
    host = replace(NGC, environ={**MPIRUN, "SETTING": "1"})
    assert job(host, described=UserJob(environ={"OTHER": "2"})).environ == {"SETTING": "1", "OTHER": "2"}


def test_users_options_replace_those_of_the_command(preflights: Preflights) -> None:
    seen: list[object] = []

    def record(job: TrainingJob, machine: Machine, contracts: Contracts) -> Report:
        seen.append((dict(job.arguments), machine.limit))
        return Report(())

    length = JobOption("length", "N", kind=OptionKind.COUNT, default="1", argument="seq-length")
    room = JobOption("room", "N", kind=OptionKind.COUNT, machine="limit")
    described = UserJob(JobArguments({"seq-length": "8"}))
    preflights.report(record, length, room)
    preflights.report(record, length, room, described=described)
    preflights.report(record, length, room, described=described, given={"length": "9", "room": "7"})
    assert seen == [({"length": 1}, None), ({"length": 8}, None), ({"length": 9}, 7)]


def test_the_command_reaches_the_preflight(preflights: Preflights) -> None:
    seen: list[object] = []

    def record(job: TrainingJob, machine: Machine, contracts: Contracts) -> Report:
        seen.append((dict(job.command), job.per_host))
        return Report(())

    preflights.report(record, described=UserJob(JobArguments({"seq-length": "8", "bf16": True}), per_host=4))
    assert seen == [({"seq-length": "8", "bf16": ""}, 4)]


def test_an_error_gets_the_id_of_its_signature(preflights: Preflights) -> None:
    other = replace(BREAKS, error=Error("TypeError", "something else"))
    report = preflights.report(lambda job, machine, contracts: Report((BREAKS, other)), known=(failure(),))
    assert [answer.failure for answer in report.answers] == ["break", ""]


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (MatrixError("no such release", got="9.9"), "no such release: got 9.9"),
        (KeyError("a mistake"), "its preflight failed: KeyError: 'a mistake'"),
    ],
)
def test_failing_preflight_leaves_the_job_unjudged(preflights: Preflights, raised: Exception, reason: str) -> None:
    def fail(job: TrainingJob, machine: Machine, contracts: Contracts) -> Report:
        raise raised

    report = preflights.report(fail)
    assert (report.judged, report.answers[0].reason) == (False, reason)


@pytest.mark.parametrize("code", ["", "raise RuntimeError('no')", "def", "import nothing_of_that_name"])
def test_broken_module_leaves_the_job_unjudged(tmp_path: Path, code: str) -> None:
    (tmp_path / "preflight.py").write_text(code)
    assert not examine(failure(folder=tmp_path), STACK, NO_JOB, NGC, Assumed(), ()).judged


def test_invalid_value_of_a_command_is_unjudged(preflights: Preflights) -> None:
    length = JobOption("length", "N", kind=OptionKind.COUNT, argument="seq-length")
    described = UserJob(JobArguments({"seq-length": "128k"}))
    assert not preflights.report(lambda *_: Report(()), length, described=described).judged


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"launcher": "torchrn"}, "did you mean torchrun"),
        ({"bootstrap": "glo"}, "did you mean gloo"),
        ({"driver": "new"}, "such as --driver"),
        ({"sm": "90"}, "such as --sm 9.0"),
        ({"sm": "sm90"}, "such as --sm 9.0"),
        ({"world_size": "0"}, "a whole number, 1 or more"),
        ({"world_size": "-2"}, "a whole number, 1 or more"),
        ({"shm": "64"}, "a number with K, M, G or T"),
        ({"seq_length": "128k"}, "131072 for 128k"),
        ({"ranks_per_host": "0"}, "a whole number, 1 or more"),
    ],
)
def test_an_invalid_value_is_an_error(given: dict[str, str], expected: str) -> None:
    with pytest.raises(MatrixError, match=expected):
        job(given=given)
