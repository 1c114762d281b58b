"""The doctor's judgement: facts of a machine and wishes in, what fails and what to change out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from matrix.check.answer import Word
from matrix.check.examine import Diagnosis, Wishes, examine, setting_of
from matrix.check.facts import HostFacts
from matrix.check.launch import world_of
from matrix.check.overlap import Setting
from matrix.errors import MatrixError
from matrix.provision.nvidia.cuda import Cuda
from tests.unit.catalogs import real
from tests.unit.check.machines import A800, BARE, H100, NGC

MPIRUN = {"OMPI_COMM_WORLD_SIZE": "8"}


def job(host: HostFacts = NGC, **wishes: str) -> Setting:
    setting = setting_of(host, Wishes(**wishes))
    assert setting is not None
    return setting


def failures(diagnosis: Diagnosis) -> list[str]:
    return [answer.failure for answer in diagnosis.job if answer.breaks]


def test_what_is_found_is_what_is_judged() -> None:
    setting = job()
    assert (setting.mcore, setting.te, setting.torch_mpi, setting.built_with_mpi) == (
        "0.9.0", "1.8.0+37280ec", True, False,
    )  # fmt: skip
    assert setting.environ == NGC.environ
    assert (setting.device.driver, setting.device.cuda, setting.device.sm, setting.device.says) == (
        "535.129.03", "12.5", "9.0", True,
    )  # fmt: skip


def test_what_is_wished_for_takes_the_place_of_what_is_found() -> None:
    setting = job(mcore="0.10.0", te="1.9.0", torch="2.4.1", driver="470.161.03", sm="8.0", bootstrap="gloo")
    assert (setting.mcore, setting.te, setting.bootstrap) == ("0.10.0", "1.9.0", "gloo")
    assert (setting.torch_mpi, setting.built_with_mpi) == (None, None)  # another PyTorch, another build
    assert (setting.device.driver, setting.device.sm) == ("470.161.03", "8.0")
    assert (setting.device.cuda, setting.device.says) == (None, None)


def test_transformer_engine_can_be_judged_by_itself() -> None:
    assert job(mcore="none").mcore is None


@pytest.mark.parametrize(
    ("environ", "wishes", "size", "mpi"),
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
def test_the_launcher_is_the_one_found_or_the_one_named(
    environ: dict[str, str], wishes: dict[str, str], size: int | None, mpi: int | None
) -> None:
    world = world_of(job(replace(NGC, environ=environ), **wishes).environ)
    assert (size, mpi) == (world.size, world.mpi)


def test_the_weakest_gpu_decides() -> None:
    device = job(replace(NGC, cuda=Cuda("12.5", "libcuda.so.1", (H100, A800)))).device
    assert (device.sm, device.says) == ("8.0", False)


def test_each_failure_is_named_by_its_catalog_entry() -> None:
    assert failures(examine(NGC, Wishes(), real().failures)) == ["tp-overlap", "ub-tp-size"]


def test_a_machine_without_transformer_engine_is_not_judged_and_does_not_fail() -> None:
    diagnosis = examine(BARE, Wishes())
    assert (diagnosis.fails, diagnosis.setting) == (False, None)
    assert [answer.word for answer in diagnosis.job] == [Word.UNKNOWN]


def test_an_installed_build_that_is_not_recorded_is_unknown_and_a_named_one_is_a_mistake() -> None:
    newer = replace(NGC, interpreter=replace(NGC.interpreter, packages={"transformer-engine": "9.9.9"}))
    diagnosis = examine(newer, Wishes())
    assert not diagnosis.fails
    assert [answer.word for answer in diagnosis.job] == [Word.UNKNOWN]
    assert "9.9.9" in diagnosis.job[0].reason
    with pytest.raises(MatrixError, match=r"9\.9\.9"):
        examine(NGC, Wishes(te="9.9.9"))


def test_a_setting_of_the_environment_counts() -> None:
    old = replace(NGC, cuda=Cuda("12.5", "libcuda.so.1", (A800,)), environ=MPIRUN)
    wishes = Wishes(te="1.13.0", mcore="0.10.0")
    assert failures(examine(old, wishes)) == ["ub-multicast"]
    assert failures(examine(replace(old, skipmc="1"), wishes)) == []


def test_json_is_one_object_with_everything_that_was_told() -> None:
    told = json.loads(json.dumps(examine(NGC, Wishes()).to_json()))
    assert set(told) == {"facts", "host", "setting", "job", "fails", "changes"}
    assert (told["facts"]["driver"], told["facts"]["cuda"]["driver"], told["facts"]["cuda"]["compat"]) == (
        "535.129.03", "555.42.06", True,
    )  # fmt: skip
    assert told["facts"]["nvml"]["gpus"][1] == {"name": "NVIDIA H100 80GB HBM3", "links": 18, "up": 18, "problem": ""}
    assert told["fails"] is True
    assert set(told["job"][0]) == {"question", "word", "reason", "breaks", "failure", "warns"}
    assert told["setting"]["te"] == "1.8.0+37280ec"


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"launcher": "torchrn"}, "did you mean torchrun"),
        ({"bootstrap": "glo"}, "did you mean gloo"),
        ({"driver": "new"}, "such as --driver"),
        ({"torch": "two"}, "such as --torch"),
        ({"sm": "90"}, "such as --sm 9.0"),
        ({"sm": "sm90"}, "such as --sm 9.0"),
        ({"world_size": "0"}, "a number from 1 on"),
        ({"world_size": "-2"}, "a number from 1 on"),
    ],
)
def test_a_wish_that_can_t_be_meant_is_an_error(wishes: dict[str, str], said: str) -> None:
    with pytest.raises(MatrixError, match=said):
        Wishes(**wishes)
