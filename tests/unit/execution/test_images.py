"""The containers of a run: their command line, their failures, and their removal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from matrix.catalog.failure import CaseNeed, Level
from matrix.catalog.limits import Limits
from matrix.catalog.model import Catalog, Image
from matrix.catalog.schema import Size
from matrix.execution import inside
from matrix.execution.engine import STOP_S, BaseContents, EngineRequest, EngineResult, Engines
from matrix.execution.gpus import JOB_WAIT_S, WAIT_S
from matrix.execution.images import Images, pull, to_pull
from matrix.execution.inside import COLLECT_S, limit_s
from matrix.execution.ranks.timeouts import OVERTIME_S
from matrix.planning.cases import plan_case
from matrix.planning.requirements import BaseOffer
from matrix.planning.rerun import plan_entry
from matrix.provision import case_overlays as provision
from matrix.provision.commands import TIMED_OUT, CommandResult
from matrix.provision.images import Builder
from matrix.provision.overlays import Overlay
from matrix.provision.project import ROOT
from matrix.provision.tools import START_S, Tool
from matrix.store import night
from matrix.store.paths import PLAN
from matrix.verdicts.planned import Planned
from matrix.verdicts.reason import Lack
from tests.unit.catalogs import case, catalog, clause, failure, image, planned

BUILT = Image("debian-13", "2.6.0", "3.13", ("python3-torch",))  # type: ignore[arg-type]  # built by this project, not pulled
KNOWN = catalog(
    failure(affected=(clause(),), case=(case("tp2"),)), containers=(image("ngc-24.07", "2.4.0a0"),), images=(BUILT,)
)
CASE = planned(KNOWN, base="debian-13", core="none")
DIGEST = "sha256:4cd62cad08b9"
INSIDE = {"python": "3.13.5", "packages": {"torch": "2.6.0+debian", "numpy": "2.2.4"}}


class FakePodman:
    """podman with fixed outputs: `works`, `images` (whether it has them); `calls` are its arguments."""

    def __init__(self, *, works: bool = True, images: bool = True, inside: CommandResult | None = None) -> None:
        self.works, self.images, self.calls = works, images, list[list[str]]()
        self.inside = inside or CommandResult(0, json.dumps(INSIDE))

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        arguments = list(command[1:])
        self.calls.append(arguments)
        if arguments == ["info"]:
            return CommandResult(0 if self.works else 125, err="" if self.works else "Cannot connect to the daemon")
        if arguments[:2] == ["image", "inspect"]:
            return CommandResult(0, f"{DIGEST}\n") if self.images else CommandResult(125, err="no such image")
        return self.inside if arguments[0] == "run" else CommandResult(0)


class FakeProcess:
    """A container's process: exits with `code`; the first waits raise `waits`."""

    def __init__(self, code: int, waits: Sequence[BaseException] = ()) -> None:
        self.code, self.waits, self.signals, self.killed = code, list(waits), list[int](), False
        self.limits = list[float]()

    def wait(self, timeout: float | None = None) -> int:
        self.limits.append(timeout or 0.0)
        if self.waits:
            raise self.waits.pop(0)
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def kill(self) -> None:
        self.killed = True


class ImageRun:
    """A run with one case on an image, and the commands it started."""

    def __init__(
        self, folder: Path, podman: FakePodman, process: FakeProcess, printed: str = "", workers: int = 1
    ) -> None:
        self.podman, self.process, self.printed, self.started = podman, process, printed, list[list[str]]()
        self.workers = workers
        self.run_folder, self.relay = folder / "20260101-night", folder / "relay" / "records"
        self.run_folder.mkdir()
        (folder / "bin").mkdir()
        tool = folder / "bin" / "podman"
        tool.touch()
        tool.chmod(0o755)
        self.environ = {"PATH": str(folder / "bin"), "MEGATRIX_CACHE": str(folder / "cache"), "SECRET": "s3cret"}
        self.plan(CASE)

    def plan(self, *cases: Planned) -> None:
        """Write these cases to the plan of the run."""
        (self.run_folder / PLAN).unlink(missing_ok=True)
        night.write_plan(self.run_folder, [plan_entry(one, os.environ) for one in cases])

    @property
    def engine(self) -> Images:
        return Images(KNOWN, self.environ, workers=self.workers, run=self.podman, start=self.start)  # type: ignore[arg-type]

    def start(self, command: Sequence[str], *, stdout: Any, **settings: Any) -> FakeProcess:
        self.started.append(list(command))
        stdout.write(self.printed.encode())
        return self.process

    def run(self) -> EngineResult:
        return self.engine.run(self.request)

    @property
    def request(self) -> EngineRequest:
        log = self.run_folder / "engine.log"
        return EngineRequest(["debian-13"], night.StoredRun(self.run_folder), log, str(self.relay))


Make = Callable[..., ImageRun]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes runs from podman, the end of the container and its output."""

    def made(
        podman: FakePodman | None = None,
        *,
        code: int = 0,
        printed: str = "",
        waits: Sequence[Any] = (),
        workers: int = 1,
    ) -> ImageRun:
        return ImageRun(tmp_path, podman or FakePodman(), FakeProcess(code, waits), printed, workers)

    return made


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
    assert command[-5:] == [BUILT.tag, "python3", "-m", "pytest", "tests/failures"]


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


@pytest.mark.parametrize(("packages", "given"), [({}, []), ({"pytest-xdist": "3.6.1"}, ["-n", "4"])])
def test_image_with_xdist_runs_cases_at_once(make: Make, packages: dict[str, str], given: list[str]) -> None:
    inside = {**INSIDE, "packages": {"torch": "2.6.0", **packages}}
    image_run = make(FakePodman(inside=CommandResult(0, json.dumps(inside))), workers=4)
    image_run.run()
    command = image_run.started[0]
    assert command[command.index("tests/failures") + 1 :] == given


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


def test_banner_of_an_image_is_ignored(make: Make) -> None:
    """NGC's entrypoint prints its name and licence first."""
    greeting = "\n=============\n== PyTorch ==\n=============\n"
    found = make(FakePodman(inside=CommandResult(0, f"{greeting}{json.dumps(INSIDE)}\n"))).engine.installed("debian-13")
    assert found is not None
    assert found.environment.python == INSIDE["python"]


def test_container_without_output_is_removed(make: Make) -> None:
    podman = FakePodman(inside=CommandResult(TIMED_OUT, err="no answer within 60 s"))
    assert make(podman).engine.installed("debian-13") is None
    call = next(call for call in podman.calls if call[0] == "run")
    name = call[call.index("--name") + 1]
    assert "debian-13" in name
    assert podman.calls[-2:] == [["kill", name], ["rm", "--force", name]]


def test_missing_overlay_affects_only_its_case(make: Make) -> None:
    """A clone that is not configured is reported for its case; the container runs the others."""
    image_run = make()
    case = planned(KNOWN, base="debian-13", core="0.8.0", source="megatron-lm@core_v0.8.0")
    image_run.plan(CASE, case)
    assert image_run.run() == EngineResult(0, {})
    provided = provision.read(image_run.run_folder / "overlays-debian-13.json")
    assert provided[CASE.key].reason == ""
    assert "MEGATRIX_MEGATRON_LM=PATH" in provided[case.key].reason


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


def test_image_that_can_not_start_is_refused(make: Make) -> None:
    image_run = make(FakePodman(inside=CommandResult(125, err="Error: OCI permission denied")))
    assert "OCI permission denied" in image_run.run().refused["debian-13"]
    assert image_run.started == []


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

    def installed(self, base: str) -> BaseContents | None:
        return None

    def run(self, request: EngineRequest) -> EngineResult:
        self.bases += request.bases
        return self.ending


def test_each_base_runs_on_its_engine(tmp_path: Path) -> None:
    images, others = FakeBases(EngineResult(0, {"debian-13": "no"})), FakeBases(EngineResult(1))
    engines = Engines({"debian-13"}, images, others)
    request = EngineRequest(["debian-13", "torch-2.4.0"], night.StoredRun(tmp_path), tmp_path)
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
    assert (found.image, found.environment.packages, found.interpreter) == (DIGEST, INSIDE["packages"], None)
    assert engine.installed("debian-13") is found
    assert len([call for call in podman.calls if call[0] == "run"]) == 1


def test_contents_of_an_unstartable_image_are_none(make: Make) -> None:
    podman = FakePodman(inside=CommandResult(125, err="Error: OCI permission denied"))
    engine = make(podman).engine
    assert (engine.installed("debian-13"), engine.installed("debian-13")) == (None, None)
    assert len([call for call in podman.calls if call[0] == "run"]) == 1
