"""The session of one pytest process: its cases and their context."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from matrix.catalog.failure import CaseNeed, Level
from matrix.errors import MatrixError
from matrix.execution import interrupt, session
from matrix.execution.ranks.job import RankJob
from matrix.execution.ranks.supervisor import PRELOAD
from matrix.execution.reproduction import DEADLINE_S
from matrix.execution.session import Options, Session
from matrix.planning.estimates import DEFAULT_S
from matrix.planning.rerun import plan_entry
from matrix.provision import case_overlays as provision
from matrix.provision import installed as environments
from matrix.provision.case_overlays import Provision
from matrix.provision.host import Host
from matrix.provision.installed import PythonEnvironment
from matrix.provision.nvidia import devices
from matrix.provision.nvidia.cuda import Cuda, CudaDevice
from matrix.provision.nvidia.nvml import Card, Nvml
from matrix.provision.overlays import Overlay
from matrix.store import night
from matrix.store.journal import Journal
from matrix.verdicts.outcome import Outcome, OutcomeKind
from tests.unit.catalogs import case, catalog, failure, planned, wheels
from tests.unit.report.samples import changed, record

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


def test_empty_environment_gives_default_options() -> None:
    assert Options(deadline_s=DEADLINE_S) == Options.from_environment({"MEGATRIX_RUN": ""})


def test_invalid_deadline_raises() -> None:
    with pytest.raises(MatrixError, match="MEGATRIX_DEADLINE"):
        Options.from_environment({"MEGATRIX_DEADLINE": "two minutes"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run with two cases, one of them on another base, and set the catalog of the session."""
    monkeypatch.setattr(interrupt, "once", lambda: None)
    monkeypatch.setattr(session, "load", lambda: KNOWN)
    monkeypatch.setattr(environments, "current", lambda: BASE)
    other = planned(KNOWN, base="torch-2.3.1")
    night.write_plan(tmp_path / "run", [plan_entry(CASE), plan_entry(other)])
    return tmp_path / "run"


def test_session_plans_the_cases_of_its_base(folder: Path) -> None:
    assert Session(Options("torch-2.4.0", folder), folder).planned == [CASE]


def test_session_skips_cases_with_a_result(folder: Path) -> None:
    with Journal.new(folder) as journal:
        journal.result(changed(record(), failure="break"))
    assert Session(Options("torch-2.4.0", folder), folder).planned == []


def test_session_without_a_run_writes_its_plan(folder: Path) -> None:
    current = Session(Options("torch-2.4.0", select="mcore==0.8.0"), folder)
    assert current.planned == [replace(CASE, seconds=DEFAULT_S[Level.CPU])]
    current.journal.close()
    assert [plan_entry(planned) for planned in current.planned] == night.plan(current.run_folder)


def test_interpreter_without_a_base_is_the_host(folder: Path) -> None:
    current = Session(Options(), folder)
    assert ("host", {"host"}, {"2.4.0"}) == (
        current.base,
        {item.cell.base for item in current.planned},
        {item.cell.torch for item in current.planned},
    )


def test_unknown_base_raises(folder: Path) -> None:
    with pytest.raises(MatrixError, match="did you mean torch-2"):
        Session(Options("torch-2.4"), folder)


def test_base_without_torch_raises(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "current", lambda: replace(BASE, packages={"pytest": "9.2.0"}))
    with pytest.raises(MatrixError, match=r"this environment is not torch-2\.4\.0(.|\n)*tox run -e torch2\.4\.0"):
        Session(Options("torch-2.4.0"), folder)


def test_interpreter_without_asserts_raises(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks inherit -O, and upstream's AssertionError, which a failure is, would not be raised."""
    monkeypatch.setattr(sys, "flags", SimpleNamespace(optimize=1))
    with pytest.raises(MatrixError, match="without asserts"):
        Session(Options("torch-2.4.0"), folder)


def test_cells_have_the_python_of_their_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base prefers 3.10; the key of a case, and so its history, stays the same."""
    monkeypatch.setattr(environments, "current", lambda: replace(BASE, python="3.12.1"))

    for options in (Options("torch-2.4.0", folder), Options("torch-2.4.0", select="mcore==0.8.0")):
        (found,) = Session(options, folder).planned
        assert (CASE.cell.python, found.cell.python, found.key) == ("3.10", "3.12", CASE.key)


def fallback(folder: Path, monkeypatch: pytest.MonkeyPatch, *needs: CaseNeed) -> Session:
    """Return a session on a fallback Python, whose overlay lacks the dataset helper, that its case may need."""
    entry = failure(case=(replace(case(), needs=needs),))
    known = catalog(entry, wheels=(wheels("2.4.0", fallbacks=("3.12",)), wheels("2.3.1")))
    monkeypatch.setattr(session, "load", lambda: known)
    monkeypatch.setattr(environments, "current", lambda: replace(BASE, python="3.12.1"))
    return provided(folder, Provision((Overlay(folder / "mcore", "ab", {}, "no compiled dataset helper: no wheel"),)))


def test_case_that_needs_a_missing_helper_is_unavailable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = fallback(folder, monkeypatch, CaseNeed.DATASET_HELPER)
    assert current.reproduction(CASE)._context.unavailable == (
        "no compiled dataset helper: no wheel; Python 3.10 can run it: pip install uv && uv python install 3.10"
    )


def test_other_case_runs_with_a_note(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = fallback(folder, monkeypatch).reproduction(CASE)._context
    assert (context.unavailable, context.notes) == (
        "",
        ("no compiled dataset helper: no wheel", "ran on Python 3.12.1, not 3.10"),
    )


def test_environment_without_a_case_raises(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "load", lambda: catalog(failure(case=())))
    with pytest.raises(MatrixError, match="the catalog has no case for this environment"):
        _ = Session(Options("torch-2.4.0"), folder).planned


def test_case_without_its_gpus_is_unavailable(folder: Path) -> None:
    current = Session(Options("torch-2.4.0", folder), folder)
    current.host = Host(0, "none", "x86_64")
    made = current.reproduction(replace(CASE, level=Level.GPU, gpus=2))
    assert made.run().outcome.reason == "needs 2 GPUs; host has 0"
    current.close()
    assert [one.verdict.value for one in current.records] == ["unavailable"]


def provided(folder: Path, given: Provision, key: str = CASE.key) -> Session:
    """Return a session in an image with this provision in its file of overlays."""
    provision.write(folder / "overlays.json", {key: given})
    return Session(Options("torch-2.4.0", folder, overlays=folder / "overlays.json", image="sha256:ab"), folder)


def test_overlays_in_an_image_come_from_a_file(folder: Path) -> None:
    overlay = Overlay(folder / "mcore", "ab", {"megatron-core": "0.8.0"})
    current = provided(folder, Provision((overlay,)))
    context = current.reproduction(CASE)._context
    assert context.path == (str(folder / "mcore"),)
    assert (context.resolved or {})["image"] == "sha256:ab"


@pytest.mark.parametrize(
    ("given", "key", "reason"),
    [
        (Provision(reason="needs a clone of Megatron-LM"), CASE.key, "needs a clone of Megatron-LM"),
        (Provision(), "another", "no overlays were provided for this case"),
    ],
)
def test_missing_overlay_makes_its_case_unavailable(folder: Path, given: Provision, key: str, reason: str) -> None:
    current = provided(folder, given, key)
    assert reason in current.reproduction(CASE).run().outcome.reason
    current.close()


def test_missing_mpirun_is_unavailable_with_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    current = provided(folder, Provision())
    made = current.reproduction(replace(CASE, launcher="mpirun"))
    assert "apt-get install openmpi-bin" in made.run().outcome.reason
    current.close()
    assert [one.verdict.value for one in current.records] == ["unavailable"]


def test_contract_case_needs_no_mpirun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    one = replace(CASE, launcher="mpirun", level=Level.CONTRACT)
    current = provided(folder, Provision(), one.key)
    monkeypatch.setattr(session, "read_case", lambda *_: Outcome(OutcomeKind.PASSED))
    assert current.reproduction(one).run().outcome.kind is OutcomeKind.PASSED
    current.close()


def test_session_with_keys_runs_only_those(folder: Path) -> None:
    """An array task has a part of its base's cases."""
    assert Session(Options("torch-2.4.0", folder, keys=frozenset({CASE.key})), folder).planned == [CASE]
    assert Session(Options("torch-2.4.0", folder, keys=frozenset({"another"})), folder).planned == []


@pytest.mark.parametrize("preload", [True, False])
def test_torch_is_preloaded_for_cases_that_need_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, preload: bool
) -> None:
    known = catalog(failure(case=(replace(case(), preload=preload),)))
    monkeypatch.setattr(session, "load", lambda: known)
    monkeypatch.setattr(session, "Supervisor", lambda preload=PRELOAD: preload)
    assert ("torch" in Session(Options("torch-2.4.0", folder), folder).supervisor) is preload  # type: ignore[operator]


def test_keys_and_place_are_read_from_the_environment() -> None:
    options = Options.from_environment({"MEGATRIX_KEYS": '["a", "b"]', "MEGATRIX_PLACE": "node n535: driver535"})
    assert (options.keys, options.place) == (frozenset({"a", "b"}), "node n535: driver535")


OWN = "/usr/lib/libcuda.so.535.129.03"


def on_gpus(folder: Path, count: int, place: str = "", cuda: Cuda | None = None) -> tuple[Session, list[RankJob]]:
    """Return a session on a host with `count` GPUs, and the list of the jobs that it runs."""
    current, jobs = Session(Options("torch-2.4.0", folder, place=place), folder), list[RankJob]()

    class Runner:
        def run(self, job: RankJob) -> Outcome:
            jobs.append(job)
            return Outcome(OutcomeKind.PASSED)

        def __exit__(self, *_: object) -> None:
            """Do nothing."""

    gpus = tuple(CudaDevice("H100", "9.0", 80, True, f"GPU-{place}") for place in range(count))
    found = cuda or Cuda("12.2", OWN, gpus)
    current.host = Host(count, "535.129.03", "x86_64", user_mode=lambda: found)
    current.__dict__["supervisor"] = Runner()
    return current, jobs


@pytest.fixture
def no_overlays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replace overlays by none, and put locks in a folder of the test."""
    monkeypatch.setattr(Session, "_overlays_of", lambda *_: ())
    monkeypatch.setenv("MEGATRIX_GPU_LOCKS", str(tmp_path / "locks"))


ON_GPUS = replace(CASE, level=Level.GPU, gpus=2)


@pytest.mark.usefixtures("no_overlays")
def test_gpu_case_sees_its_gpus_by_uuid(folder: Path) -> None:
    current, jobs = on_gpus(folder, 8, place="node n535: driver535")
    made = current.reproduction(ON_GPUS).run()
    current.close()
    assert [(job.env, job.backend) for job in jobs] == [({"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}, "nccl")]
    assert made.notes[-1] == "ran on node n535: driver535"


@pytest.mark.usefixtures("no_overlays")
def test_shared_gpu_uses_gloo_and_notes_it(folder: Path) -> None:
    current, jobs = on_gpus(folder, 1)
    made = current.reproduction(ON_GPUS).run()
    current.close()
    assert [(job.env, job.backend) for job in jobs] == [({"CUDA_VISIBLE_DEVICES": "GPU-0"}, "gloo")]
    assert "gloo in place of NCCL: 2 ranks share 1 GPU" in made.notes
    assert made.resolved["backend"] == "gloo"


@pytest.mark.usefixtures("no_overlays")
def test_gpus_outside_cuda_visible_devices_are_unavailable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    current, jobs = on_gpus(folder, 1)
    current.host = replace(current.host, listed=8)
    made = current.reproduction(replace(CASE, level=Level.GPU, gpus=8)).run()
    current.close()
    hidden = "CUDA_VISIBLE_DEVICES is '3'; the kernel driver lists 8"
    assert made.outcome.reason == f"needs 8 GPUs; CUDA shows 1: {hidden}"
    assert jobs == []


@pytest.mark.usefixtures("no_overlays")
def test_record_names_gpus_links_and_nccl(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = (Card("H100", 18, 18),) * 8
    monkeypatch.setattr(devices, "management", lambda: Nvml("535.129.03", "12.2", cards))
    current, _ = on_gpus(folder, 8)
    current.environment = replace(BASE, packages={**BASE.packages, "nvidia-nccl-cu12": "2.20.5"})
    resolved = current.reproduction(ON_GPUS).run().resolved
    current.close()
    assert {name: resolved[name] for name in ("GPUs", "NVLink", "NCCL", "backend", "host driver")} == {
        "GPUs": "2 of 8 x H100, SM 9.0",
        "NVLink": "18 of 18 links up",
        "NCCL": "2.20.5",
        "backend": "nccl",
        "host driver": "535.129.03",
    }


@pytest.mark.usefixtures("no_overlays")
@pytest.mark.parametrize(
    ("library", "image", "expected"),
    [
        (OWN, "", "535.129.03 (the host driver itself)"),
        ("/usr/local/cuda/compat/libcuda.so.555.42.06", "", "555.42.06 (compat package)"),
        ("/usr/local/cuda/compat/libcuda.so.555.42.06", "sha256:ab", "555.42.06 (compat package of the image)"),
    ],
)
def test_record_names_the_user_mode_driver(folder: Path, library: str, image: str, expected: str) -> None:
    cuda = Cuda("12.2", library, tuple(CudaDevice("H100", "9.0", 80, True, uuid) for uuid in ("GPU-0", "GPU-1")))
    current, _ = on_gpus(folder, 2, cuda=cuda)
    current.options = replace(current.options, image=image)
    made = current.reproduction(replace(CASE, level=Level.GPU, gpus=2)).run()
    current.close()
    assert (made.resolved["host driver"], made.resolved["user-mode driver"]) == ("535.129.03", expected)


@pytest.mark.usefixtures("no_overlays")
def test_failed_cuda_is_unavailable_with_its_error(folder: Path) -> None:
    cuda = Cuda("12.5", OWN, problem="cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
    current, jobs = on_gpus(folder, 2, cuda=cuda)
    made = current.reproduction(replace(CASE, level=Level.GPU, gpus=2)).run()
    current.close()
    assert made.outcome.reason == "needs 2 GPUs; CUDA shows 0: cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
    assert jobs == []


@pytest.mark.usefixtures("no_overlays")
def test_driver_is_queried_for_gpu_cases_only(folder: Path) -> None:
    current, _ = on_gpus(folder, 2)
    current.host = replace(current.host, user_mode=lambda: pytest.fail("the user-mode driver was queried"))
    current.reproduction(CASE)
