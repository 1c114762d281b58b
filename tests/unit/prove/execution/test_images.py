"""The containers of a run: their command line, their failures, and their removal."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.cases.machine_requirements import BaseOffer
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.model import Catalog
from matrix.ground.verdicts.planned import Lack, Planned
from matrix.prove.execution.engine import EngineRequest, EngineResult, Engines
from matrix.prove.execution.images import pull, to_pull
from matrix.prove.provision import case_overlays as provision
from matrix.prove.provision.image_builds import Builder
from matrix.prove.provision.overlays import Overlay
from matrix.prove.provision.tools import Tool
from matrix.prove.store import stored_run
from matrix.read.commands import CommandResult
from tests.unit.catalogs import case, catalog, failure, image, planned
from tests.unit.prove.execution.image_runs import CASE, DIGEST, INSIDE, KNOWN, FakePodman, Make


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
