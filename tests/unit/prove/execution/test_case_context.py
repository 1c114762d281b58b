"""The context of a case: its overlays, what it lacks, its notes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.distributions import nccl_sharing
from matrix.ground.catalog.failure import GIB, CaseNeed, Expectation, Level, Signature
from matrix.ground.catalog.machine import COMPILED, Cuda, Gpu, Machine, PythonEnvironment
from matrix.ground.catalog.model import HOST
from matrix.ground.catalog.schema import Identifier
from matrix.ground.catalog.stack import TE, WRITER_TE
from matrix.ground.errors import MatrixError
from matrix.prove.execution import case_context, installation
from matrix.prove.execution.case_context import CaseContexts, Options
from matrix.prove.execution.installation import Installation
from matrix.prove.execution.reproduction import DEADLINE_S
from matrix.prove.execution.session import Session
from matrix.prove.planning.case_request import cases_here, with_host
from matrix.prove.provision import case_overlays as provision
from matrix.prove.provision import te_wheels
from matrix.prove.provision.case_overlays import Provision
from matrix.prove.provision.host import LocalSite
from matrix.prove.provision.overlays import Overlay, OverlaySpec
from matrix.show.run_summary import SHARING
from tests.unit.catalogs import case, catalog, failure, image, planned, real, wheels
from tests.unit.prove.execution.sessions import CASE, ON_GPUS, OWN, fallback, of_host, on_gpus, provided


def test_options_are_read_from_the_environment() -> None:
    environ = {
        "MEGATRIX_BASE": "torch-2.4.0",
        "MEGATRIX_RUN": "/runs/a",
        "MEGATRIX_DEADLINE": "2.5",
        "MEGATRIX_RELAY": "/tmp/records",
    }
    expected = Options("torch-2.4.0", Path("/runs/a"), "case==tp2", 2.5, "/tmp/records")
    assert expected == Options.from_environment(environ, select="case==tp2")


def test_empty_environment_gives_default_options() -> None:
    assert Options(deadline_s=DEADLINE_S) == Options.from_environment({"MEGATRIX_RUN": ""})


def test_invalid_deadline_raises() -> None:
    with pytest.raises(MatrixError, match="MEGATRIX_DEADLINE"):
        Options.from_environment({"MEGATRIX_DEADLINE": "two minutes"})


def test_case_that_needs_a_missing_helper_is_unavailable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = fallback(folder, monkeypatch, CaseNeed.DATASET_HELPER)
    assert current.reproduction(CASE).context.unavailable == (
        "no compiled dataset helper: no wheel; Python 3.10 can run it: pip install uv && uv python install 3.10"
    )


def test_other_case_runs_with_a_note(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = fallback(folder, monkeypatch).reproduction(CASE).context
    assert (context.unavailable, context.notes) == (
        "",
        ("no compiled dataset helper: no wheel", "ran on Python 3.12.1, not 3.10"),
    )


def test_case_without_its_gpus_is_unavailable(folder: Path) -> None:
    current = Session(Options("torch-2.4.0", folder), folder)
    of_host(current, LocalSite(Machine("none", 0, architecture="x86_64")))
    made = current.reproduction(replace(CASE, level=Level.GPU, gpus=2))
    assert made.run().outcome.reason == "needs 2 GPUs; host has 0"
    current.close()
    assert [one.verdict.value for one in current.records] == ["unavailable"]


def test_overlays_in_an_image_come_from_a_file(folder: Path) -> None:
    overlay = Overlay(folder / "mcore", "ab", {"megatron-core": "0.8.0"})
    current = provided(folder, Provision((overlay,)))
    context = current.reproduction(CASE).context
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


def test_keys_and_place_are_read_from_the_environment() -> None:
    environ = {"MEGATRIX_KEYS": '["a", "b"]', "MEGATRIX_PLACE": "node n535: driver535", "MEGATRIX_MPS": "1"}
    options = Options.from_environment(environ)
    assert (options.keys, options.place, options.mps) == (frozenset({"a", "b"}), "node n535: driver535", True)
    assert not Options.from_environment({}).mps


@pytest.mark.usefixtures("no_overlays")
def test_gpus_outside_cuda_visible_devices_are_unavailable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    current, jobs = on_gpus(folder, 1)
    site = current.installation.host
    of_host(current, replace(site, machine=replace(site.machine, listed=8)))
    made = current.reproduction(replace(CASE, level=Level.GPU, gpus=8)).run()
    current.close()
    hidden = "CUDA_VISIBLE_DEVICES is '3'; the kernel driver lists 8"
    assert made.outcome.reason == f"needs 8 GPUs; CUDA shows 1: {hidden}"
    assert jobs == []


@pytest.mark.usefixtures("no_overlays")
def test_failed_cuda_is_unavailable_with_its_error(folder: Path) -> None:
    cuda = Cuda("12.5", OWN, problem="cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
    current, jobs = on_gpus(folder, 2, cuda=cuda)
    made = current.reproduction(replace(CASE, level=Level.GPU, gpus=2)).run()
    current.close()
    assert made.outcome.reason == "needs 2 GPUs; CUDA shows 0: cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
    assert jobs == []


class Wheels:
    """Overlays whose wheel of NCCL is at hand, or not."""

    def __init__(self, folder: Path, problem: str = "") -> None:
        self.folder, self.problem = folder, problem

    def provide(self, spec: OverlaySpec) -> Overlay:
        if self.problem:
            raise MatrixError(self.problem)
        (source,) = spec.sources
        library = self.folder / source.revision / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        library.parent.mkdir(parents=True)
        library.touch()
        return Overlay(self.folder / source.revision, "ab", {source.package: source.revision})


@pytest.mark.usefixtures("no_overlays")
def test_ranks_share_the_gpu_over_a_preloaded_nccl(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_context, "Overlays", lambda root: Wheels(folder))
    current, jobs = on_gpus(folder, 1)
    record = current.reproduction(ON_GPUS).run()
    current.close()
    (job,) = jobs
    library = str(folder / "2.32.3" / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    assert (job.libraries, job.nccl, job.gpus, job.backend, job.fresh) == ((library,), "2.32.3", 1, "nccl", True)
    assert job.env == {"CUDA_VISIBLE_DEVICES": "GPU-0", **nccl_sharing().variables}
    assert "2 ranks share 1 GPU over NCCL 2.32.3, preloaded" in record.notes
    assert (record.resolved["NCCL"], record.resolved["backend"]) == ("2.32.3, preloaded", "nccl, shared")
    assert [record.resolved[name] for name in SHARING if name in record.resolved] == ["2", "4", "none"]


@pytest.mark.usefixtures("no_overlays")
@pytest.mark.parametrize(("te", "count"), [("2.3.0", 2), ("2.4.0", 1)])
def test_te_that_names_cudnns_parts_gets_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, te: str, count: int
) -> None:
    """Its library is linked to each, and it loads libcudnn.so.9 alone: no folder of torch's wheels is searched."""
    part = folder / "nvidia" / "cudnn" / "lib" / "libcudnn_adv.so.9"
    part.parent.mkdir(parents=True)
    part.touch()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(case_context, "Overlays", lambda root: Wheels(folder))
    monkeypatch.setattr(CaseContexts, "lack", lambda *_: "")
    current, _ = on_gpus(folder, 1)
    context = current.reproduction(replace(ON_GPUS, cell=ON_GPUS.cell.with_({TE: te}))).context
    current.close()
    assert [Path(library).name for library in context.libraries] == ["libnccl.so.2", "libcudnn_adv.so.9"][:count]


@pytest.mark.usefixtures("no_overlays")
@pytest.mark.parametrize(
    ("signature", "mps", "note"),
    [
        ({"exception": "AssertionError"}, "a daemon of its own", "through MPS"),
        ({"signal": "SIGSEGV"}, "none", "without MPS: it may end in a crash, which ends the other ranks"),
    ],
)
def test_mps_is_for_cases_without_a_crash(
    folder: Path, monkeypatch: pytest.MonkeyPatch, signature: dict[str, str], mps: str, note: str
) -> None:
    monkeypatch.setattr(case_context, "Overlays", lambda root: Wheels(folder))
    entry = failure(case=(case(),), signature=(Signature(Identifier("one"), **signature),))  # type: ignore[arg-type]
    monkeypatch.setattr(installation, "load", lambda: catalog(entry, wheels=(wheels("2.4.0"),)))
    current, _ = on_gpus(folder, 1)
    current.options = replace(current.options, mps=True)
    context = current.reproduction(replace(ON_GPUS, expectation=Expectation.BROKEN)).context
    current.close()
    assert (context.resolved or {})["MPS"] == mps
    assert f"2 ranks share 1 GPU over NCCL 2.32.3, preloaded; {note}" in context.notes


@pytest.mark.usefixtures("no_overlays")
def test_image_shares_over_the_wheel_of_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network, nothing else is laid over it; where the wheel can't be had, gloo does for this case."""
    known = catalog(failure(), containers=(replace(image("ngc-24.07", "2.4.0a0"), cuda="12.5.1.007", nccl="2.22.3"),))
    monkeypatch.setattr(installation, "load", lambda: known)
    wheel, overlay = "nvidia-nccl-cu12==2.32.3", Overlay(folder / "nccl", "ab", {})
    for given, backend in ((Provision((overlay,)), "nccl"), (Provision(reason="no index"), "gloo")):
        provision.write(folder / "overlays.json", {CASE.key: Provision(), wheel: given})
        current, _ = on_gpus(folder, 1)
        current.options = Options("ngc-24.07", folder, overlays=folder / "overlays.json", image="sha256:ab")
        current.installation = replace(current.installation, base="ngc-24.07")
        case_here = planned(known, base="ngc-24.07", level=Level.GPU, ranks=2, gpus=2)
        context = current.reproduction(case_here).context
        current.close()
        library = str(folder / "nccl" / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
        assert (context.placement.backend, context.libraries) == (backend, (library,) * (backend == "nccl"))


@pytest.mark.usefixtures("no_overlays")
@pytest.mark.parametrize(("needs", "lack"), [((), ""), ((CaseNeed.NCCL,), "no index")])
def test_without_the_wheel_ranks_share_over_gloo(
    folder: Path, monkeypatch: pytest.MonkeyPatch, needs: tuple[CaseNeed, ...], lack: str
) -> None:
    known = catalog(failure(case=(replace(case(), needs=needs),)), wheels=(wheels("2.4.0"),))
    monkeypatch.setattr(installation, "load", lambda: known)
    monkeypatch.setattr(case_context, "Overlays", lambda root: Wheels(folder, "no index"))
    current, _ = on_gpus(folder, 1)
    context = current.reproduction(ON_GPUS).context
    current.close()
    assert (context.unavailable, context.placement.backend, context.libraries) == (lack, "gloo", ())
    assert ("gloo in place of NCCL: 2 ranks share 1 GPU; no index" in context.notes) is (not lack)


@pytest.mark.usefixtures("no_overlays")
def test_loaded_nccl_is_in_the_cache_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set[str]()
    for problem in ("", "no index"):
        monkeypatch.setattr(case_context, "Overlays", lambda root, problem=problem: Wheels(folder, problem))
        current, _ = on_gpus(folder, 1)
        keys.add(current.reproduction(ON_GPUS).context.content)
        current.close()
    assert len(keys) == 2


def test_unreadable_file_makes_a_case_unavailable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verdict depends on the file, so no key of a cached one may stand for it."""

    def unreadable(*_: object) -> str:
        raise MatrixError("a file that verdicts depend on can't be read", where="te/1.9.json.gz", got="Input error")

    monkeypatch.setattr(case_context, "case_key", unreadable)
    record = provided(folder, Provision()).reproduction(CASE).run()
    assert (record.verdict.value, record.content) == ("unavailable", "")
    assert "te/1.9.json.gz" in record.outcome.reason


@pytest.mark.parametrize(
    ("writers", "bundled", "builds"),
    [(("none",), "", []), (("2.18.0",), "", []), (("2.17.1",), "", ["2.17.1"]), (("2.17.1",), "2.17.1", [])],
)
def test_build_of_the_writers_engine_is_started(
    writers: tuple[str, ...], bundled: str, builds: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes as long as that of the case: the process of builds has both. What a bundle has is not built."""
    monkeypatch.setattr(te_wheels, "nvcc_version", lambda: "13.0")
    monkeypatch.setenv(COMPILED, str(folder))
    (folder / f"te-{bundled}-torch-2.11.0-cuda-13.0-nvcc-13.0").mkdir()
    (folder / f"te-{bundled}-torch-2.11.0-cuda-13.0-nvcc-13.0" / "a.whl").touch()
    packages = {"torch": "2.11.0", "numpy": "2.5.2", "transformer-engine": "2.18.0"}
    environment = PythonEnvironment(
        "3.12.3", packages, ["cuda", "compiled-te"], Path(sys.executable), torch_cuda="13.0"
    )
    card = Gpu("NVIDIA H100", "9.0", 80 * GIB, False, "GPU-0")
    machine = Machine("580.82.07", 1, Cuda("13.0", gpus=(card,)), architecture="x86_64", memory=128 * GIB, nvcc="13.0")
    catalog = with_host(real(), packages, "3.12")
    site = LocalSite(machine, user_mode=lambda: Cuda("13.0", gpus=(card,)))
    contexts = CaseContexts(Installation(catalog, HOST, environment, site), Options(HOST), folder)
    cases = [
        item for item in cases_here(catalog, HOST, packages, [Level.GPU]) if str(item.cell.stack[WRITER_TE]) in writers
    ]
    assert cases
    assert sorted({spec.build.te for item in cases for spec in contexts.builds_of(item) if spec.build}) == builds
