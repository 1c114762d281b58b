"""What one pytest process works off, and with what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.catalog.failure import Level
from matrix.errors import MatrixError
from matrix.execution import interrupt, session
from matrix.execution.ranks.job import RankJob
from matrix.execution.reproduction import DEADLINE_S
from matrix.execution.session import Options, Session, new_run_id
from matrix.planning.rerun import plan_entry
from matrix.provision import case_overlays as provision
from matrix.provision import installed as environments
from matrix.provision.case_overlays import Provision
from matrix.provision.host import Host
from matrix.provision.installed import PythonEnvironment
from matrix.provision.nvidia import devices
from matrix.provision.nvidia.cuda import Cuda, CudaDevice
from matrix.provision.overlays import Overlay
from matrix.store import night
from matrix.store.journal import Journal
from matrix.verdicts.outcome import Outcome, OutcomeKind
from tests.unit.catalogs import catalog, failure, planned
from tests.unit.report.samples import record

KNOWN = catalog(failure())
CASE = planned(KNOWN)
BASE = PythonEnvironment("3.10.13", {"torch": "2.4.0", "numpy": "1.26.4", "pytest": "9.2.0"})


def test_options_are_read_from_the_environment() -> None:
    environ = {
        "MEGATRIX_BASE": "torch-2.4.0",
        "MEGATRIX_RUN": "/runs/a",
        "MEGATRIX_DEADLINE": "2.5",
        "MEGATRIX_RELAY": "/tmp/records",
        "MEGATRIX_TE": "1.9",
    }
    expected = Options("torch-2.4.0", Path("/runs/a"), "case==tp2", 2.5, "/tmp/records", "1.9")
    assert expected == Options.from_environment(environ, select="case==tp2")


def test_an_empty_environment_asks_for_nothing() -> None:
    assert Options(deadline_s=DEADLINE_S) == Options.from_environment({"MEGATRIX_RUN": ""})


def test_a_deadline_that_is_no_number_is_told() -> None:
    with pytest.raises(MatrixError, match="MEGATRIX_DEADLINE"):
        Options.from_environment({"MEGATRIX_DEADLINE": "two minutes"})


def test_a_run_is_named_by_time_and_label() -> None:
    first, second = new_run_id("night"), new_run_id("night")
    assert first < second
    assert first.endswith("Z-night")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run with two cases, one of them on another base; the session sees the small catalog."""
    monkeypatch.setattr(interrupt, "once", lambda: None)
    monkeypatch.setattr(session, "load", lambda: KNOWN)
    monkeypatch.setattr(environments, "current", lambda: BASE)
    other = planned(KNOWN, base="torch-2.3.1")
    night.write_plan(tmp_path / "run", [plan_entry(CASE), plan_entry(other)])
    return tmp_path / "run"


def test_a_session_works_off_the_cases_of_its_base(folder: Path) -> None:
    assert Session(Options("torch-2.4.0", folder), folder).planned == [CASE]


def test_a_session_leaves_out_what_has_a_result(folder: Path) -> None:
    with Journal.new(folder) as journal:
        journal.result(replace(record(), failure="break"))
    assert Session(Options("torch-2.4.0", folder), folder).planned == []


def test_a_session_without_a_run_plans_its_base_and_writes_the_plan(folder: Path) -> None:
    here = Session(Options("torch-2.4.0", select="mcore==0.8.0"), folder)
    assert here.planned == [CASE]
    assert [plan_entry(CASE)] == night.plan(here.run_folder)


def test_an_interpreter_that_no_base_stands_for_is_the_host(folder: Path) -> None:
    here = Session(Options(), folder)
    assert ("host", {"host"}, {"2.4.0"}) == (
        here.base,
        {item.cell.base for item in here.planned},
        {item.cell.torch for item in here.planned},
    )


def test_a_base_that_is_not_known_is_told(folder: Path) -> None:
    with pytest.raises(MatrixError, match="did you mean torch-2"):
        Session(Options("torch-2.4"), folder)


def test_an_environment_without_a_case_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "load", lambda: catalog(failure(case=())))
    with pytest.raises(MatrixError, match="the catalog has no case for this environment"):
        _ = Session(Options("torch-2.4.0"), folder).planned


def test_a_case_that_can_not_run_here_is_unavailable_with_the_reason(folder: Path) -> None:
    here = Session(Options("torch-2.4.0", folder), folder)
    here.host = Host(0, "none", "x86_64")
    made = here.reproduction(replace(CASE, level=Level.GPU, gpus=2))
    assert made.run().outcome.reason == "needs 2 GPUs; host has 0"
    here.close()
    assert [one.verdict.value for one in here.records] == ["unavailable"]


def provided(folder: Path, told: Provision, key: str = CASE.key) -> Session:
    """A session in an image, for which this was provided from outside."""
    provision.write(folder / "overlays.json", {key: told})
    return Session(Options("torch-2.4.0", folder, overlays=folder / "overlays.json", image="sha256:ab"), folder)


def test_in_an_image_overlays_are_those_provided_from_outside(folder: Path) -> None:
    overlay = Overlay(folder / "mcore", "ab", {"megatron-core": "0.8.0"})
    here = provided(folder, Provision((overlay,)))
    where = here.reproduction(CASE)._where
    assert where.path == (str(folder / "mcore"),)
    assert (where.resolved or {})["image"] == "sha256:ab"


@pytest.mark.parametrize(
    ("told", "key", "reason"),
    [
        (Provision(reason="needs a clone of Megatron-LM"), CASE.key, "needs a clone of Megatron-LM"),
        (Provision(), "another", "nothing was provided for it"),
    ],
)
def test_what_could_not_be_provided_makes_its_case_unavailable(
    folder: Path, told: Provision, key: str, reason: str
) -> None:
    here = provided(folder, told, key)
    assert reason in here.reproduction(CASE).run().outcome.reason
    here.close()


def test_a_case_of_mpirun_without_one_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    here = provided(folder, Provision())
    made = here.reproduction(replace(CASE, launcher="mpirun"))
    assert "apt-get install openmpi-bin" in made.run().outcome.reason
    here.close()
    assert [one.verdict.value for one in here.records] == ["unavailable"]


def test_what_is_only_read_needs_no_mpirun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    one = replace(CASE, launcher="mpirun", level=Level.CONTRACT)
    here = provided(folder, Provision(), one.key)
    monkeypatch.setattr(session, "read_case", lambda *_: Outcome(OutcomeKind.PASSED))
    assert here.reproduction(one).run().outcome.kind is OutcomeKind.PASSED
    here.close()


def test_a_session_works_off_the_cases_that_are_meant(folder: Path) -> None:
    """As an array task does, which has a part of its base's cases."""
    assert Session(Options("torch-2.4.0", folder, keys=frozenset({CASE.key})), folder).planned == [CASE]
    assert Session(Options("torch-2.4.0", folder, keys=frozenset({"another"})), folder).planned == []


def test_keys_and_place_are_read_from_the_environment() -> None:
    told = Options.from_environment({"MEGATRIX_KEYS": '["a", "b"]', "MEGATRIX_PLACE": "node n535: driver535"})
    assert (told.keys, told.place) == (frozenset({"a", "b"}), "node n535: driver535")


OWN = "/usr/lib/libcuda.so.535.129.03"


def on_gpus(folder: Path, count: int, place: str = "") -> tuple[Session, list[RankJob]]:
    """A session on a host with two GPUs, and the jobs that it runs."""
    here, jobs = Session(Options("torch-2.4.0", folder, place=place), folder), list[RankJob]()

    class Runner:
        def run(self, job: RankJob) -> Outcome:
            jobs.append(job)
            return Outcome(OutcomeKind.PASSED)

        def __exit__(self, *_: object) -> None:
            """There is nothing to stop."""

    here.host = Host(count, "535.129.03", "x86_64")
    here.__dict__["cuda"] = Cuda("12.2", OWN, (CudaDevice("H100", "9.0", 80, multicast=True),) * count)
    here.__dict__["supervisor"] = Runner()
    return here, jobs


@pytest.fixture
def nothing_laid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No overlays, and locks in a folder of the test's own."""
    monkeypatch.setattr(Session, "_overlays_of", lambda *_: ())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.usefixtures("nothing_laid")
def test_a_case_on_gpus_sees_as_many_as_it_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    here, jobs = on_gpus(folder, 8, place="node n535: driver535")
    made = here.reproduction(replace(CASE, level=Level.GPU, gpus=2)).run()
    here.close()
    assert [job.env for job in jobs] == [{"CUDA_VISIBLE_DEVICES": "0,1"}]
    assert made.notes[-1] == "ran on node n535: driver535"


@pytest.mark.usefixtures("nothing_laid")
def test_gpus_that_a_scheduler_keeps_from_us_are_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    here, jobs = on_gpus(folder, 8)
    made = here.reproduction(replace(CASE, level=Level.GPU, gpus=2)).run()
    here.close()
    assert made.outcome.reason == "needs 2 GPUs; 1 may be used here (CUDA_VISIBLE_DEVICES)"
    assert jobs == []


@pytest.mark.usefixtures("nothing_laid")
@pytest.mark.parametrize(
    ("library", "image", "told"),
    [
        (OWN, "", "535.129.03 (the host driver itself)"),
        ("/usr/local/cuda/compat/libcuda.so.555.42.06", "", "555.42.06 (compat package)"),
        ("/usr/local/cuda/compat/libcuda.so.555.42.06", "sha256:ab", "555.42.06 (compat package of the image)"),
    ],
)
def test_a_result_says_which_user_mode_driver_its_ranks_had(folder: Path, library: str, image: str, told: str) -> None:
    here, _ = on_gpus(folder, 2)
    here.options = replace(here.options, image=image)
    here.__dict__["cuda"] = replace(here.cuda, library=library)
    made = here.reproduction(replace(CASE, level=Level.GPU, gpus=2)).run()
    here.close()
    assert (made.resolved["host driver"], made.resolved["user-mode driver"]) == ("535.129.03", told)


@pytest.mark.usefixtures("nothing_laid")
def test_a_case_whose_cuda_does_not_start_is_unavailable_with_the_drivers_words(folder: Path) -> None:
    here, jobs = on_gpus(folder, 2)
    here.__dict__["cuda"] = Cuda("12.5", OWN, problem="cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
    made = here.reproduction(replace(CASE, level=Level.GPU, gpus=2)).run()
    here.close()
    assert made.outcome.reason == "needs 2 GPUs; CUDA shows 0: cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
    assert jobs == []


@pytest.mark.usefixtures("nothing_laid")
def test_the_driver_is_asked_once_and_only_where_gpus_are_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[object]()
    here, _ = on_gpus(folder, 2)
    told = devices.Devices(cuda=here.__dict__.pop("cuda"))

    def ask(libraries: object) -> devices.Devices:
        asked.append(libraries)
        return told

    monkeypatch.setattr(devices, "ask", ask)
    here.reproduction(CASE)
    assert asked == []
    here.reproduction(replace(CASE, level=Level.GPU, gpus=2))
    here.reproduction(replace(CASE, level=Level.GPU, gpus=1))
    here.close()
    assert asked == [("cuda",)]
