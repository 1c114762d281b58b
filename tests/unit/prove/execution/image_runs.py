"""Runs of one case in an image, with fakes of podman and of its process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matrix.ground.catalog.model import Image
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution.engine import EngineRequest, EngineResult
from matrix.prove.execution.inside import Images
from matrix.prove.store import stored_run
from matrix.prove.store.paths import PLAN
from matrix.read.commands import CommandResult
from tests.unit.catalogs import case, catalog, clause, failure, image, plan_entry, planned

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
        stored_run.write_plan(self.run_folder, [plan_entry(one) for one in cases])

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
        return EngineRequest(["debian-13"], stored_run.StoredRun(self.run_folder), log, str(self.relay))


Make = Callable[..., ImageRun]
