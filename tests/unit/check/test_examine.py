"""The diagnosis of a job from the facts of a machine and assumptions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from matrix.check.examine import Diagnosis, assume, examine, job_of, judges, machine_of
from matrix.check.facts import GIB, HostFacts
from matrix.errors import MatrixError
from matrix.execution import preflights
from matrix.kit.preflight import Answer, Contracts, Error, Machine, Preflight, Report, Status, TrainingJob
from matrix.provision.nvidia.cuda import Cuda
from tests.unit.catalogs import failure
from tests.unit.check.machines import A800, BARE, H100, NGC

MPIRUN = {"OMPI_COMM_WORLD_SIZE": "8"}
KNOWN = judges()
BREAKS = Answer("it starts", Status.NO, "in the test", Error("TypeError", "break broke"))


def job(host: HostFacts = NGC, **given: str) -> TrainingJob:
    return job_of(host, assume({name.replace("_", "-"): text for name, text in given.items()}, KNOWN))


def machine(host: HostFacts = NGC, **given: str) -> Machine:
    return machine_of(host, assume(given, KNOWN))


def look(host: HostFacts = NGC, *known: Preflight, **given: str) -> Diagnosis:
    return examine(host, assume(given, known), (failure(),), known)


def preflight(*answers: Answer) -> Preflight:
    return Preflight("a flag", lambda job, machine, contracts: Report("a flag", answers, (("change it",),)))


def unrecorded(job: TrainingJob, machine: Machine, contracts: Contracts) -> Report:
    raise MatrixError("no such release", got=job.te)


def test_the_facts_found_are_judged() -> None:
    found = job()
    assert (found.mcore, found.te, found.torch_mpi, found.te_mpi) == ("0.9.0", "1.8.0+37280ec", True, False)
    assert (found.world.size, found.world.mpi) == (8, 1)
    assert machine() == Machine("535.129.03", "12.5", "9.0", True, 2000 * GIB, 64 * GIB)


def test_an_assumption_replaces_a_fact() -> None:
    found = job(mcore="0.10.0", te="1.9.0", torch="2.4.1", bootstrap="gloo")
    assert (found.mcore, found.te, found.arguments) == ("0.10.0", "1.9.0", {"bootstrap": "gloo"})
    assert (found.torch_mpi, found.te_mpi) == (None, None)  # another PyTorch, another build
    other = machine(driver="470.161.03", sm="8.0")
    assert (other.driver, other.sm, other.cuda, other.multicast) == ("470.161.03", "8.0", None, None)
    assert machine(sm="8.0").cuda == "12.5"


def test_transformer_engine_is_judged_without_megatron() -> None:
    assert job(mcore="none").mcore == ""


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
    world = job(replace(NGC, environ=environ), **given).world
    assert (size, mpi) == (world.size, world.mpi)


def test_the_weakest_gpu_is_judged() -> None:
    found = machine(replace(NGC, cuda=Cuda("12.5", "libcuda.so.1", (H100, A800))))
    assert (found.sm, found.multicast) == ("8.0", False)


def test_a_variable_of_a_preflight_reaches_the_job() -> None:
    assert job(replace(NGC, environ={**MPIRUN, "SETTING": "1"})).environ == {"SETTING": "1"}


def test_an_error_gets_the_id_of_its_signature() -> None:
    other = replace(BREAKS, error=Error("TypeError", "something else"))
    diagnosis = look(NGC, preflight(BREAKS, other))
    assert [answer.failure for report in diagnosis.reports for answer in report.answers] == ["break", ""]
    assert diagnosis.fails


def test_a_preflight_with_a_topic_judges_no_machine() -> None:
    assert {one.topic for one in preflights.installed()} > {one.topic for one in KNOWN} == {""}


def test_a_machine_without_packages_is_not_judged() -> None:
    diagnosis = look(BARE, *KNOWN)
    assert (diagnosis.fails, diagnosis.judged) == (False, False)
    assert [answer.status for report in diagnosis.reports for answer in report.answers] == [Status.UNKNOWN]


def test_an_unrecorded_release_is_unknown_unless_named() -> None:
    known = Preflight("a flag", unrecorded)
    diagnosis = look(NGC, known)
    assert (diagnosis.fails, diagnosis.judged) == (False, False)
    (answer,) = diagnosis.reports[0].answers
    assert (answer.status, answer.reason) == (Status.UNKNOWN, "no such release: got 1.8.0+37280ec")
    with pytest.raises(MatrixError, match=r"9\.9\.9"):
        look(NGC, known, te="9.9.9")


def test_json_holds_every_answer() -> None:
    found = json.loads(json.dumps(look(NGC, preflight(BREAKS)).to_json()))
    assert set(found) == {"facts", "host", "setting", "job", "fails", "changes"}
    assert (found["facts"]["driver"], found["facts"]["cuda"]["driver"], found["facts"]["cuda"]["compat"]) == (
        "535.129.03", "555.42.06", True,
    )  # fmt: skip
    assert found["facts"]["nvml"]["gpus"][1] == {"name": "NVIDIA H100 80GB HBM3", "links": 18, "up": 18, "problem": ""}
    assert (found["fails"], found["changes"]) == (True, [["change it"]])
    assert found["job"] == [
        {
            "question": "it starts",
            "word": "no",
            "reason": "in the test",
            "breaks": "TypeError: break broke",
            "failure": "break",
            "warns": "",
        }
    ]
    assert found["setting"]["te"] == "1.8.0+37280ec"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"launcher": "torchrn"}, "did you mean torchrun"),
        ({"bootstrap": "glo"}, "did you mean gloo"),
        ({"driver": "new"}, "such as --driver"),
        ({"torch": "two"}, "such as --torch"),
        ({"sm": "90"}, "such as --sm 9.0"),
        ({"sm": "sm90"}, "such as --sm 9.0"),
        ({"world_size": "0"}, "a whole number, 1 or more"),
        ({"world_size": "-2"}, "a whole number, 1 or more"),
    ],
)
def test_an_invalid_value_is_an_error(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(MatrixError, match=expected):
        job(**given)


def test_unrecorded_megatron_is_refused_without_te() -> None:
    with pytest.raises(MatrixError, match="no recorded megatron-core"):
        look(BARE, *KNOWN, mcore="99")


def test_failing_preflight_leaves_the_others() -> None:
    def fail(job: TrainingJob, machine: Machine, contracts: Contracts) -> Report:
        raise KeyError("a mistake of one entry")

    diagnosis = look(NGC, Preflight("a flag", fail), preflight(BREAKS))
    assert "its preflight failed: KeyError: 'a mistake of one entry'" in diagnosis.reports[0].answers[0].reason
    assert (len(diagnosis.reports), diagnosis.fails) == (2, True)
