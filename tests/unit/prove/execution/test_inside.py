"""pytest in an image: the container, its limits, and how it is stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.cases.cells import plan_case
from matrix.ground.cases.machine_requirements import BaseOffer
from matrix.ground.catalog.failure import CaseNeed, Level, Limits
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, PythonEnvironment
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.schema import Size
from matrix.ground.verdicts.planned import Lack, Planned
from matrix.prove.execution import inside
from matrix.prove.execution.engine import STOP_S, EngineRequest, EngineResult, Engines
from matrix.prove.execution.gpus import JOB_WAIT_S, WAIT_S
from matrix.prove.execution.inside import COLLECT_S, Images, limit_s, pull, to_pull
from matrix.prove.execution.ranks.rank_spec import OVERTIME_S
from matrix.prove.provision import case_overlays as provision
from matrix.prove.provision import host
from matrix.prove.provision.host import LocalSite
from matrix.prove.provision.image_builds import Builder
from matrix.prove.provision.overlays import Overlay
from matrix.prove.provision.project import ROOT
from matrix.prove.provision.tools import START_S, Tool
from matrix.prove.store import stored_run
from matrix.read.commands import TIMED_OUT, CommandResult, python_module
from tests.unit.catalogs import case, catalog, failure, image, planned
from tests.unit.prove.execution.image_runs import BUILT, CASE, DIGEST, INSIDE, KNOWN, FakePodman, Make


def test_container_has_read_only_mounts_and_no_network(make: Make) -> None:
    image_run = make()
    assert image_run.run() == EngineResult(0, {})
    (command,) = image_run.started
    options = dict.fromkeys(command)
    assert command[1:2] == ["run"]
    assert {"--rm", "--network=none", "--read-only"} <= options.keys()
    mounts = [value for option, value in pairwise(command) if option == "--volume"]
    cache = image_run.environ["MEGATRIX_CACHE"]
    run, relay = image_run.run_folder, image_run.relay.parent
    assert mounts == [f"{ROOT}:{ROOT}:ro", f"{cache}:{cache}:ro", f"{run}:{run}", f"{relay}:{relay}"]
    words = ["tests/failures", "-o", "filterwarnings=default"]
    assert command[-7:] == [BUILT.tag, *python_module("python3", "pytest", *words, folder=ROOT)]


def test_container_gets_its_variables_and_no_secret(make: Make) -> None:
    image_run = make()
    image_run.run()
    variables = [value for option, value in pairwise(image_run.started[0]) if option == "--env"]
    assert {"MEGATRIX_BASE=debian-13", f"MEGATRIX_IMAGE={DIGEST}", f"MEGATRIX_RUN={image_run.run_folder}"} <= set(
        variables
    )
    assert "s3cret" not in " ".join(image_run.started[0])
    assert not [option for option in image_run.started[0] if "nvidia.com/gpu" in option or option == "--gpus"]


@pytest.mark.parametrize(
    ("environ", "given"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, ["nvidia.com/gpu=all", "CUDA_VISIBLE_DEVICES=2,3"]),
        (
            {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "6,7"},
            ["nvidia.com/gpu=6", "nvidia.com/gpu=7"],
        ),
    ],
)
def test_gpu_case_gets_the_available_gpus(make: Make, environ: dict[str, str], given: list[str]) -> None:
    """Slurm numbers a job's GPUs from 0, and so does a container that gets only those."""
    image_run = make()
    image_run.environ |= environ
    case = planned(KNOWN, base="debian-13", core="none", level=Level.GPU, gpus=2)
    image_run.plan(case)
    image_run.run()
    passed = [word for word in image_run.started[0] if "nvidia.com" in word or "CUDA_VISIBLE" in word]
    assert sorted(passed) == sorted(given)


@pytest.mark.parametrize(("environ", "waits_s"), [({}, WAIT_S), ({"SLURM_JOB_GPUS": "6,7"}, JOB_WAIT_S)])
def test_container_may_wait_for_gpus(make: Make, environ: dict[str, str], waits_s: float) -> None:
    """Other runs may hold them; a job of Slurm has its own."""
    image_run = make()
    image_run.environ |= environ
    image_run.plan(planned(KNOWN, base="debian-13", core="none", level=Level.GPU, gpus=2))
    image_run.run()
    assert image_run.process.limits == [START_S + limit_s(1, {}) + waits_s]


def test_banner_of_an_image_is_ignored(make: Make) -> None:
    """NGC's entrypoint prints its name and licence first."""
    greeting = "\n=============\n== PyTorch ==\n=============\n"
    found = make(FakePodman(inside=CommandResult(0, f"{greeting}{json.dumps(INSIDE)}\n"))).engine.installed("debian-13")
    assert found is not None
    assert found.python == INSIDE["python"]


def test_container_without_output_is_removed(make: Make) -> None:
    podman = FakePodman(inside=CommandResult(TIMED_OUT, err="no answer within 60 s"))
    assert make(podman).engine.installed("debian-13") is None
    call = next(call for call in podman.calls if call[0] == "run")
    name = call[call.index("--name") + 1]
    assert "debian-13" in name
    assert podman.calls[-2:] == [["kill", name], ["rm", "--force", name]]


@pytest.mark.parametrize("code", [125, 126, 127])
def test_container_that_can_not_start_is_refused(make: Make, code: int) -> None:
    image_run = make(
        code=code, printed="collecting\nError: crun: setrlimit: https://me:token@example.org Operation not permitted\n"
    )
    ending = image_run.run()
    assert "crun: setrlimit" in ending.refused["debian-13"]
    assert "token" not in ending.refused["debian-13"]


@pytest.mark.parametrize("code", [1, 137, 139])
def test_status_of_pytest_is_not_a_refusal(make: Make, code: int) -> None:
    assert make(code=code).run() == EngineResult(code, {})


def test_ctrl_c_is_forwarded_once_and_raised_again(make: Make) -> None:
    image_run = make(waits=[KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        image_run.run()
    assert (image_run.process.signals, image_run.process.killed) == ([signal.SIGINT], False)


def test_container_that_does_not_stop_is_killed(make: Make) -> None:
    image_run = make(waits=[KeyboardInterrupt(), subprocess.TimeoutExpired("podman", STOP_S)])
    with pytest.raises(KeyboardInterrupt):
        image_run.run()
    name = image_run.started[0][image_run.started[0].index("--name") + 1]
    assert image_run.podman.calls[-2:] == [["kill", name], ["rm", "--force", name]]
    assert image_run.process.killed


def test_hanging_container_is_ended(make: Make) -> None:
    """podman was seen to wait without end for a container that had ended."""
    hung = subprocess.TimeoutExpired("podman", 1)
    image_run = make(waits=[hung, hung])
    assert image_run.run() == EngineResult(TIMED_OUT, {})
    assert image_run.process.killed


def test_tool_waiting_for_an_ended_container_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """srun waits without end for a step whose daemon died."""
    monkeypatch.setattr(inside, "LEFT_S", 0.01)
    killed, left = list[str](), threading.Event()

    class Tool(FakePodman):
        def kill(self, name: str) -> None:
            killed.append(name)

    with subprocess.Popen(["sleep", "600"]) as process:
        left.set()
        inside.end_when_left(Tool(), process, "box", left)  # type: ignore[arg-type]  # only the methods used there
    assert (process.returncode, killed) == (-signal.SIGKILL, ["box"])


@pytest.mark.parametrize(("own", "deadline_s"), [(0, 10), (600, 600)])
def test_limit_covers_each_deadline_twice(own: int, deadline_s: int) -> None:
    """A red case runs twice; some have a longer deadline of their own."""
    assert limit_s(3, {"MEGATRIX_DEADLINE": "10"}, own) == COLLECT_S + 3 * 2 * (deadline_s + OVERTIME_S)


def test_each_memory_limit_has_its_container(tmp_path: Path) -> None:
    """With the clones and the deadline of its cases; below level gpu a limit is not the container's."""
    limited = Limits(memory=Size(7))
    big = replace(case("big", [Level.GPU, Level.CPU]), limits=limited, needs=(CaseNeed.MEGATRON_LM,), deadline=600)
    known = catalog(failure(case=(case("tp2", [Level.GPU]), big)), images=(BUILT,))
    entry, cell = known.failures[0], known.cell("debian-13")
    plan = [plan_case(known, entry, one, level, cell) for one in entry.case for level in one.levels]
    work = inside.ContainerJob(inside.ref(known, "debian-13"), DIGEST, tmp_path, tmp_path, plan, {}, workers=4)
    made = list(inside.containers(known, work, {"megatron-lm": "/clone"}))
    assert [one.workers for one in made] == [4, 1]  # the limit is that of one case
    assert [([item.case for item in one.cases], one.memory, one.deadline) for one in made] == [
        (["tp2", "big"], None, 600),
        (["big"], 7, 600),
    ]
    assert [json.loads(one.environ["MEGATRIX_KEYS"]) for one in made] == [
        [item.key for item in one.cases] for one in made
    ]
    assert made[1].environ["MEGATRIX_MEGATRON_LM"] == "/clone"


def test_clone_and_limit_reach_the_container(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Megatron-LM's training code is read from the clone, which is mounted read-only at its path."""
    monkeypatch.setenv("MEGATRIX_MEGATRON_LM", str(tmp_path))
    one = replace(case("big", [Level.GPU]), limits=Limits(memory=Size(7)), needs=(CaseNeed.MEGATRON_LM,))
    known = catalog(failure(case=(one,)), images=(BUILT,))
    image_run = make()
    image_run.environ |= {"MEGATRIX_MEGATRON_LM": str(tmp_path)}
    image_run.plan(planned(known, base="debian-13", core="none"))
    engine = Images(known, image_run.environ, run=image_run.podman, start=image_run.start)  # type: ignore[arg-type]
    engine.run(image_run.request)
    (command,) = image_run.started
    assert f"{tmp_path}:{tmp_path}:ro" in command
    assert f"MEGATRIX_MEGATRON_LM={tmp_path}" in command
    assert "--memory=7" in command


@pytest.mark.parametrize(("packages", "given"), [({}, []), ({"pytest-xdist": "3.6.1"}, ["-p", "xdist", "-n", "4"])])
def test_image_with_xdist_runs_cases_at_once(make: Make, packages: dict[str, str], given: list[str]) -> None:
    inside = {**INSIDE, "packages": {"torch": "2.6.0", **packages}}
    image_run = make(FakePodman(inside=CommandResult(0, json.dumps(inside))), workers=4)
    image_run.run()
    command = image_run.started[0]
    assert command[command.index("tests/failures") + 3 :] == given


@pytest.mark.parametrize(("gpus", "wheels"), [(1, ["nvidia-nccl-cu12==2.32.3"]), (2, [])])
def test_image_gets_the_nccl_of_shared_gpus(
    make: Make, monkeypatch: pytest.MonkeyPatch, gpus: int, wheels: list[str]
) -> None:
    """Its container has no network: the wheel is made beside its overlays, where ranks share a GPU alone."""
    cards = tuple(Gpu("H100", uuid=f"GPU-{place}") for place in range(gpus))
    site = LocalSite(Machine("550.54.14", gpus), user_mode=lambda: Cuda("12.4", gpus=cards))
    monkeypatch.setattr(host, "look", lambda: site)
    known = catalog(failure(), containers=(replace(image("ngc-24.07", "2.4.0a0"), cuda="12.5.1", nccl="2.22.3"),))
    item = planned(known, base="ngc-24.07", level=Level.GPU, ranks=2, gpus=2)
    contents = PythonEnvironment("3.10.12", {"torch": "2.4.0a0"}, ["cuda"])
    assert Images(known, make().environ)._preloaded("ngc-24.07", contents, [item]) == wheels


def test_missing_images_are_pulled_once(make: Make) -> None:
    """Only those of which a case could run here; one that can't be pulled does not stop the others."""
    known = catalog(
        failure(case=(case("tp2", levels=(Level.GPU,)),)),
        containers=tuple(image(f"ngc-{name}", "2.4.0a0") for name in ("24.05", "24.06", "24.07")),
    )
    items = [planned(known, base=f"ngc-{name}", level=Level.GPU) for name in ("24.05", "24.06", "24.07", "24.07")]
    calls, said = list[tuple[str, ...]](), list[str]()

    def podman(command: Sequence[str], **_: object) -> CommandResult:
        calls.append(tuple(command[1:]))
        missing = command[1] == "image" and not command[-1].endswith("24.05")
        refused = command[1] == "pull" and command[-1].endswith("24.06")
        return CommandResult(125, err="denied") if missing or refused else CommandResult(0, "1")

    class Site:
        def lack(self, catalog: Catalog, item: Planned, offer: BaseOffer) -> Lack | None:
            return None

        def capabilities(self, level: Level) -> dict[str, Any]:
            return {}

    absent = to_pull(known, items, Site(), Tool("podman", podman))
    assert [one.id for one in absent] == ["ngc-24.06", "ngc-24.07"]
    pull(absent, Builder(said.append, make().environ, run=podman), said.append)
    assert [call[-1] for call in calls if call[0] == "pull"] == [one.tag for one in absent]
    assert "the pull from its registry failed" in " ".join(said)


def test_missing_overlay_affects_only_its_case(make: Make) -> None:
    """A clone that is not configured is reported for its case; the container runs the others."""
    image_run = make()
    case = planned(KNOWN, base="debian-13", core="0.8.0", source="megatron-lm@core_v0.8.0")
    image_run.plan(CASE, case)
    assert image_run.run() == EngineResult(0, {})
    provided = provision.read(image_run.run_folder / "overlays-debian-13.json")
    assert provided[CASE.key].reason == ""
    assert "MEGATRIX_MEGATRON_LM=PATH" in provided[case.key].reason


def test_image_that_can_not_start_is_refused(make: Make) -> None:
    image_run = make(FakePodman(inside=CommandResult(125, err="Error: OCI permission denied")))
    assert "OCI permission denied" in image_run.run().refused["debian-13"]
    assert image_run.started == []


def test_missing_tool_names_the_package(make: Make) -> None:
    image_run = make(FakePodman(works=False))
    assert "apt-get install podman" in image_run.engine.lacks("debian-13")


def test_missing_image_names_the_command(make: Make) -> None:
    engine = make(FakePodman(images=False)).engine
    assert engine.lacks("debian-13") == "debian-13 is not built yet: megatrix build debian-13"
    assert "podman pull" in engine.lacks("ngc-24.07")


def test_present_image_lacks_nothing(make: Make) -> None:
    assert make().engine.lacks("debian-13") == ""


class FakeBases:
    """An engine that records the bases it runs."""

    def __init__(self, ending: EngineResult) -> None:
        self.ending, self.bases = ending, list[str]()

    def ready(self, bases: Collection[str]) -> None:
        pass

    def lacks(self, base: str) -> str:
        return f"lacks {base}"

    def installed(self, base: str) -> PythonEnvironment | None:
        return None

    def run(self, request: EngineRequest) -> EngineResult:
        self.bases += request.bases
        return self.ending


def test_each_base_runs_on_its_engine(tmp_path: Path) -> None:
    images, others = FakeBases(EngineResult(0, {"debian-13": "no"})), FakeBases(EngineResult(1))
    engines = Engines({"debian-13"}, images, others)
    request = EngineRequest(["debian-13", "torch-2.4.0"], stored_run.StoredRun(tmp_path), tmp_path)
    assert engines.run(request) == EngineResult(1, {"debian-13": "no"})
    assert (images.bases, others.bases) == (["debian-13"], ["torch-2.4.0"])
    assert engines.run(replace(request, bases=["torch-2.4.0"])) == EngineResult(1)
    assert images.bases == ["debian-13"]


def test_provisions_round_trip_through_their_file(tmp_path: Path) -> None:
    overlay = Overlay(Path("/cache/overlays/ab"), "ab", {"megatron-core": "0.8.0"}, "no helper")
    provisions = {"one": provision.Provision((overlay,)), "two": provision.Provision(reason="no clone")}
    provision.write(tmp_path / "overlays.json", provisions)
    assert provision.read(tmp_path / "overlays.json") == provisions


def test_contents_of_an_image_are_read_once(make: Make) -> None:
    """The digest and the packages identify cached verdicts."""
    podman = FakePodman()
    engine = make(podman).engine
    found = engine.installed("debian-13")
    assert found is not None
    assert (found.image, found.packages, found.path) == (DIGEST, INSIDE["packages"], None)
    assert engine.installed("debian-13") is found
    assert len([call for call in podman.calls if call[0] == "run"]) == 1


def test_contents_of_an_unstartable_image_are_none(make: Make) -> None:
    podman = FakePodman(inside=CommandResult(125, err="Error: OCI permission denied"))
    engine = make(podman).engine
    assert (engine.installed("debian-13"), engine.installed("debian-13")) == (None, None)
    assert len([call for call in podman.calls if call[0] == "run"]) == 1
