"""The containers of a run: how they are started, what each way to fail is called, and that none is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from matrix.catalog.failure import Level
from matrix.catalog.model import Image
from matrix.execution import inside
from matrix.execution.engine import STOP_S, BaseContents, Ending, Engines
from matrix.execution.images import Images
from matrix.execution.inside import COLLECT_S, limit_s
from matrix.execution.ranks.timeouts import OVERTIME_S
from matrix.planning.planned import Planned
from matrix.planning.rerun import plan_entry
from matrix.provision import case_overlays as provision
from matrix.provision.commands import TIMED_OUT, CommandResult
from matrix.provision.overlays import Overlay
from matrix.provision.project import ROOT
from matrix.store import night
from tests.unit.catalogs import case, catalog, clause, failure, image, planned

BUILT = Image("debian-13", "2.6.0", "3.13", ("python3-torch",))  # type: ignore[arg-type]  # built, not read
KNOWN = catalog(
    failure(affected=(clause(),), case=(case("tp2"),)), containers=(image("ngc-24.07", "2.4.0a0"),), images=(BUILT,)
)
CASE = planned(KNOWN, base="debian-13", core="none")
DIGEST = "sha256:4cd62cad08b9"
INSIDE = {"python": "3.13.5", "packages": {"torch": "2.6.0+debian", "numpy": "2.2.4"}}


class FakePodman:
    """podman as it answers: `here` is whether it works, `images` what it holds; what it was asked is kept."""

    def __init__(self, *, here: bool = True, images: bool = True, inside: CommandResult | None = None) -> None:
        self.here, self.images, self.asked = here, images, list[list[str]]()
        self.inside = inside or CommandResult(0, json.dumps(INSIDE))

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        arguments = list(command[1:])
        self.asked.append(arguments)
        if arguments == ["info"]:
            return CommandResult(0 if self.here else 125, err="" if self.here else "Cannot connect to the daemon")
        if arguments[:2] == ["image", "inspect"]:
            return CommandResult(0, f"{DIGEST}\n") if self.images else CommandResult(125, err="no such image")
        return self.inside if arguments[0] == "run" else CommandResult(0)


class FakeProcess:
    """A container's process: ends with `code`, or waits to be interrupted, or to be killed."""

    def __init__(self, code: int, waits: Sequence[BaseException] = ()) -> None:
        self.code, self.waits, self.signals, self.killed = code, list(waits), list[int](), False

    def wait(self, timeout: float | None = None) -> int:
        if self.waits:
            raise self.waits.pop(0)
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def kill(self) -> None:
        self.killed = True


class Desk:
    """A run with one case on an image, and what was started for it."""

    def __init__(self, folder: Path, podman: FakePodman, process: FakeProcess, said: str = "") -> None:
        self.podman, self.process, self.said, self.started = podman, process, said, list[list[str]]()
        self.run_folder, self.relay = folder / "20260101-night", folder / "relay" / "records"
        self.run_folder.mkdir()
        (folder / "bin").mkdir()
        tool = folder / "bin" / "podman"
        tool.touch()
        tool.chmod(0o755)
        self.environ = {"PATH": str(folder / "bin"), "MEGATRIX_CACHE": str(folder / "cache"), "SECRET": "s3cret"}
        self.plan(CASE)

    def plan(self, *cases: Planned) -> None:
        """Make these the run's cases."""
        (self.run_folder / night.PLAN).unlink(missing_ok=True)
        night.write_plan(self.run_folder, [plan_entry(one) for one in cases])

    @property
    def engine(self) -> Images:
        return Images(KNOWN, self.environ, run=self.podman, start=self.start)  # type: ignore[arg-type]

    def start(self, command: Sequence[str], *, stdout: Any, **settings: Any) -> FakeProcess:
        self.started.append(list(command))
        stdout.write(self.said.encode())
        return self.process

    def run(self) -> Ending:
        environ = {"MEGATRIX_RUN": str(self.run_folder), "MEGATRIX_RELAY": str(self.relay)}
        return self.engine.run(["debian-13"], environ, self.run_folder / "engine.log")


Make = Callable[..., Desk]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a maker of desks: how podman answers, how the container ends, what it prints."""

    def made(podman: FakePodman | None = None, *, code: int = 0, said: str = "", waits: Sequence[Any] = ()) -> Desk:
        return Desk(tmp_path, podman or FakePodman(), FakeProcess(code, waits), said)

    return made


def test_the_container_sees_the_project_and_the_overlays_read_only_and_no_network(make: Make) -> None:
    desk = make()
    assert desk.run() == Ending(0, {})
    (command,) = desk.started
    options = dict.fromkeys(command)
    assert command[1:2] == ["run"]
    assert {"--rm", "--network=none", "--read-only"} <= options.keys()
    mounts = [value for option, value in pairwise(command) if option == "--volume"]
    cache = desk.environ["MEGATRIX_CACHE"]
    run, relay = desk.run_folder, desk.relay.parent
    assert mounts == [f"{ROOT}:{ROOT}:ro", f"{cache}:{cache}:ro", f"{run}:{run}", f"{relay}:{relay}"]
    assert command[-5:] == [BUILT.tag, "python3", "-m", "pytest", "tests/failures"]


def test_the_container_is_told_which_part_of_the_run_is_its_and_no_secret(make: Make) -> None:
    desk = make()
    desk.run()
    told = [value for option, value in pairwise(desk.started[0]) if option == "--env"]
    assert {"MEGATRIX_BASE=debian-13", f"MEGATRIX_IMAGE={DIGEST}", f"MEGATRIX_RUN={desk.run_folder}"} <= set(told)
    assert "s3cret" not in " ".join(desk.started[0])
    assert not [option for option in desk.started[0] if "gpu" in option]


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
def test_a_case_that_needs_gpus_gets_those_that_are_ours(make: Make, environ: dict[str, str], given: list[str]) -> None:
    """Slurm counts a job's GPUs from 0, whichever they are, and so does a container that gets those alone."""
    desk = make()
    desk.environ |= environ
    case = planned(KNOWN, base="debian-13", core="none", level=Level.GPU, gpus=2)
    desk.plan(case)
    desk.run()
    told = [word for word in desk.started[0] if "nvidia.com" in word or "CUDA_VISIBLE" in word]
    assert sorted(told) == sorted(given)


def test_what_an_image_greets_with_is_no_answer(make: Make) -> None:
    """NGC's entrypoint prints its name and its licence before it starts anything."""
    greeting = "\n=============\n== PyTorch ==\n=============\n"
    told = make(FakePodman(inside=CommandResult(0, f"{greeting}{json.dumps(INSIDE)}\n"))).engine.installed("debian-13")
    assert told is not None
    assert told.environment.python == INSIDE["python"]


def test_a_container_that_does_not_answer_is_not_left_behind(make: Make) -> None:
    podman = FakePodman(inside=CommandResult(TIMED_OUT, err="no answer within 60 s"))
    assert make(podman).engine.installed("debian-13") is None
    asked = next(asked for asked in podman.asked if asked[0] == "run")
    name = asked[asked.index("--name") + 1]
    assert "debian-13" in name
    assert podman.asked[-2:] == [["kill", name], ["rm", "--force", name]]


def test_what_cannot_be_provided_is_the_reason_of_its_case_alone(make: Make) -> None:
    """A clone that is not configured is said per case; the container runs the others."""
    desk = make()
    case = planned(KNOWN, base="debian-13", core="0.8.0", source="megatron-lm@core_v0.8.0")
    desk.plan(CASE, case)
    assert desk.run() == Ending(0, {})
    provided = provision.read(desk.run_folder / "overlays-debian-13.json")
    assert provided[CASE.key].reason == ""
    assert "MEGATRIX_MEGATRON_LM=PATH" in provided[case.key].reason


@pytest.mark.parametrize("code", [125, 126, 127])
def test_what_podman_could_not_start_is_no_failure_of_a_case(make: Make, code: int) -> None:
    desk = make(
        code=code, said="collecting\nError: crun: setrlimit: https://me:token@example.org Operation not permitted\n"
    )
    ending = desk.run()
    assert "crun: setrlimit" in ending.refused["debian-13"]
    assert "token" not in ending.refused["debian-13"]


@pytest.mark.parametrize("code", [1, 137, 139])
def test_how_pytest_ended_is_not_taken_for_a_fault_of_the_machine(make: Make, code: int) -> None:
    assert make(code=code).run() == Ending(code, {})


def test_an_image_that_can_not_be_started_is_refused_with_what_podman_said(make: Make) -> None:
    desk = make(FakePodman(inside=CommandResult(125, err="Error: OCI permission denied")))
    assert "OCI permission denied" in desk.run().refused["debian-13"]
    assert desk.started == []


def test_ctrl_c_is_passed_on_once_and_raised_again(make: Make) -> None:
    desk = make(waits=[KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        desk.run()
    assert (desk.process.signals, desk.process.killed) == ([signal.SIGINT], False)


def test_a_container_that_does_not_stop_is_killed_by_its_name(make: Make) -> None:
    desk = make(waits=[KeyboardInterrupt(), subprocess.TimeoutExpired("podman", STOP_S)])
    with pytest.raises(KeyboardInterrupt):
        desk.run()
    name = desk.started[0][desk.started[0].index("--name") + 1]
    assert desk.podman.asked[-2:] == [["kill", name], ["rm", "--force", name]]
    assert desk.process.killed


def test_a_container_that_hangs_is_ended_and_the_run_goes_on(make: Make) -> None:
    """podman has been seen to wait for ever for a container that had ended."""
    hung = subprocess.TimeoutExpired("podman", 1)
    desk = make(waits=[hung, hung])
    assert desk.run() == Ending(TIMED_OUT, {})
    assert desk.process.killed


def test_a_tool_that_waits_for_a_container_that_is_gone_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """srun waits for ever for a step whose daemon died."""
    monkeypatch.setattr(inside, "LEFT_S", 0.01)
    killed, left = list[str](), threading.Event()

    class Tool(FakePodman):
        def kill(self, name: str) -> None:
            killed.append(name)

    with subprocess.Popen(["sleep", "600"]) as process:
        left.set()
        inside.end_when_left(Tool(), process, "box", left)  # type: ignore[arg-type]  # as it is called there
    assert (process.returncode, killed) == (-signal.SIGKILL, ["box"])


def test_a_container_has_each_case_s_deadline_twice() -> None:
    """A red case is run again."""
    assert limit_s(3, {"MEGATRIX_DEADLINE": "10"}) == COLLECT_S + 3 * 2 * (10 + OVERTIME_S)


def test_without_podman_and_docker_it_says_what_to_install(make: Make) -> None:
    desk = make(FakePodman(here=False))
    assert "apt-get install podman" in desk.engine.lacks("debian-13")


def test_an_image_that_is_not_built_or_not_here_names_the_command(make: Make) -> None:
    engine = make(FakePodman(images=False)).engine
    assert engine.lacks("debian-13") == "debian-13 is not built yet: megatrix build debian-13"
    assert "podman pull" in engine.lacks("ngc-24.07")


def test_an_image_that_is_here_lacks_nothing(make: Make) -> None:
    assert make().engine.lacks("debian-13") == ""


class Told:
    """An engine that keeps what it was given."""

    def __init__(self, ending: Ending) -> None:
        self.ending, self.bases = ending, list[str]()

    def ready(self, bases: Collection[str]) -> None:
        pass

    def lacks(self, base: str) -> str:
        return f"lacks {base}"

    def installed(self, base: str) -> BaseContents | None:
        return None

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> Ending:
        self.bases += bases
        return self.ending


def test_each_base_goes_to_the_engine_that_it_belongs_to(tmp_path: Path) -> None:
    images, others = Told(Ending(0, {"debian-13": "no"})), Told(Ending(1))
    engines = Engines({"debian-13"}, images, others)
    assert engines.run(["debian-13", "torch-2.4.0"], {}, tmp_path) == Ending(1, {"debian-13": "no"})
    assert (images.bases, others.bases) == (["debian-13"], ["torch-2.4.0"])
    assert engines.run(["torch-2.4.0"], {}, tmp_path) == Ending(1)
    assert images.bases == ["debian-13"]


def test_provisions_come_back_as_they_were_written(tmp_path: Path) -> None:
    overlay = Overlay(Path("/cache/overlays/ab"), "ab", {"megatron-core": "0.8.0"}, ("a note",))
    told = {"one": provision.Provision((overlay,)), "two": provision.Provision(reason="no clone")}
    provision.write(tmp_path / "told.json", told)
    assert provision.read(tmp_path / "told.json") == told


def test_what_an_image_holds_is_asked_once_and_makes_its_verdicts_known_again(make: Make) -> None:
    """By the digest and the packages a verdict is found that this very content got before."""
    podman = FakePodman()
    engine = make(podman).engine
    told = engine.installed("debian-13")
    assert told is not None
    assert (told.image, told.environment.packages, told.interpreter) == (DIGEST, INSIDE["packages"], None)
    assert engine.installed("debian-13") is told
    assert len([asked for asked in podman.asked if asked[0] == "run"]) == 1


def test_of_an_image_that_can_not_be_started_nothing_is_known(make: Make) -> None:
    podman = FakePodman(inside=CommandResult(125, err="Error: OCI permission denied"))
    engine = make(podman).engine
    assert (engine.installed("debian-13"), engine.installed("debian-13")) == (None, None)
    assert len([asked for asked in podman.asked if asked[0] == "run"]) == 1
