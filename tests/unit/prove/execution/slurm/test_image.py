"""Images on Slurm: a node reports the contents first; cases on a node that lacks something are unavailable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.model import Image
from matrix.ground.verdicts.record import Record
from matrix.prove.execution import inside
from matrix.prove.execution.runner import Request, earlier, execute
from matrix.prove.execution.slurm import task
from matrix.prove.execution.slurm.client import Commands
from matrix.prove.execution.slurm.queue import ArraySpec, ClusterSite, Polling
from matrix.prove.execution.slurm.slurm_engine import Slurm
from matrix.prove.provision.tools import NO_TOOL, ContainerSpec, Ref
from matrix.prove.store import journal, stored_run
from matrix.read.commands import CommandResult
from tests.unit.catalogs import case, catalog, clause, failure, plan_entry, planned
from tests.unit.engines import HOST
from tests.unit.prove.execution.slurm import memory
from tests.unit.prove.execution.slurm.memory import Cluster, Maker

BUILT = Image("debian-13", "2.6.0", "3.13", ("python3-torch",))  # type: ignore[arg-type]  # built by this project, not pulled
ENTRY = failure(works=(clause(mcore=">=0"),), case=tuple(case(f"case-{place}") for place in range(3)))
KNOWN = catalog(ENTRY, images=(BUILT,))
CASES = [planned(KNOWN, base="debian-13", core="none", case=one.name) for one in ENTRY.case]
HOLDS = {"python": "3.13.5", "packages": {"torch": "2.6.0"}, "image": "sha256:ab"}
IMAGE = Ref("debian-13", BUILT.tag, "megatrix build debian-13")


def reporting(report: dict[str, Any] | None) -> Cluster:
    """Return a cluster on which a node writes this report of the image, or none."""
    cluster = Cluster()

    def work(path: Path, index: int, whole: bool) -> None:
        if path.stem.startswith("ask-"):
            if report is not None:
                task.answer(path.parent, "debian-13").write_text(json.dumps(report))
        else:
            memory.work_off(path, index, whole)

    cluster.work = work
    return cluster


@pytest.fixture
def run_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Record]]:
    """Return a function that runs CASES on a cluster."""
    monkeypatch.setattr("matrix.prove.provision.case_overlays.overlay_specs", lambda *_: ())

    def run(cluster: Cluster, resume: str = "") -> list[Record]:
        site = ClusterSite(KNOWN, HOST, Commands(call=cluster))
        engine = Slurm(site, Maker(), polling=Polling(sleep=lambda seconds: None))
        earlier_run = earlier(tmp_path / "out", resume) if resume else None
        request = Request(CASES, tmp_path / "out", False, earlier_run, attach=True, site=site)
        return list(execute(request, KNOWN, engine).records)

    return run


def parts(cluster: Cluster) -> list[ArraySpec]:
    return [decode(ArraySpec, json.loads(path.read_text())) for _, path, _ in cluster.jobs.values()]


def test_cases_are_submitted_with_the_reported_digest(
    run_cases: Callable[..., list[Record]],
) -> None:
    cluster = reporting(HOLDS)
    assert {record.verdict.value for record in run_cases(cluster)} == {"holds"}
    first, second = parts(cluster)
    assert (first.tasks, first.image) == (((),), IMAGE)
    assert (len(second.tasks[0]), second.image, second.digest) == (3, IMAGE, "sha256:ab")


def test_reported_lack_makes_the_cases_unavailable(run_cases: Callable[..., list[Record]]) -> None:
    cluster = reporting({"reason": "debian-13 is not built yet: megatrix build debian-13 (node n470)"})
    records = run_cases(cluster)
    assert {record.verdict.value for record in records} == {"unavailable"}
    assert records[0].outcome.reason == "debian-13 is not built yet: megatrix build debian-13 (node n470)"
    assert len(cluster.jobs) == 1


def test_missing_report_names_task_end_and_log(
    run_cases: Callable[..., list[Record]],
) -> None:
    cluster = reporting(None)
    cluster.ends = lambda job, index: "FAILED"
    records = run_cases(cluster)
    assert {record.verdict.value for record in records} == {"not-reached"}
    assert "Slurm task 1_0 ended FAILED on n470" in records[0].outcome.reason
    assert "ask-debian-13-0.log" in records[0].outcome.reason


def test_resumed_run_requests_the_report_again(run_cases: Callable[..., list[Record]], tmp_path: Path) -> None:
    """The image was built meanwhile: recorded results stay, and the cases without a result run."""
    folder = tmp_path / "out" / "runs" / "20260101-night"
    (folder / "slurm").mkdir(parents=True)
    stored_run.write_plan(folder, [plan_entry(item) for item in CASES])
    task.answer(folder / "slurm", "debian-13").write_text(json.dumps({"reason": "debian-13 is not built yet"}))
    assert {record.verdict.value for record in run_cases(reporting(HOLDS), folder.name)} == {"holds"}


def test_array_spec_round_trips_through_json() -> None:
    for part in (ArraySpec((("a",), ("b",)), {"n1": ("driver535",)}), ArraySpec(((),), {}, IMAGE, "sha256:ab")):
        assert decode(ArraySpec, json.loads(json.dumps(encode(part)))) == part


class Node:
    """The container runtime of a node, with an image of `digest`.

    Containers exit with `status`; `once` refuses the first.
    """

    name = "podman"

    def __init__(self, digest: str = "sha256:ab", lack: str = "", status: int = 0, *, once: bool = False) -> None:
        self._digest, self._lack, self.status, self.once = digest, lack, status, once

    def lack(self, image: Ref) -> str:
        return self._lack

    def digest(self, image: Ref) -> str:
        return self._digest

    def command(self, image: Ref, box: ContainerSpec, *inside: str) -> list[str]:
        return [*inside]

    def query(self, image: Ref, box: ContainerSpec, *inside: str) -> CommandResult:
        contents = {"python": "3.13.5", "packages": {}}
        return (
            CommandResult(125, err="Error: OCI permission denied")
            if self.status
            else CommandResult(0, json.dumps(contents))
        )

    def start_s(self, image: Ref) -> float:
        return 60.0

    def refusal(self, status: int, printed: str) -> str:
        return printed if status == 125 else ""

    def kill(self, name: str) -> None:
        raise AssertionError("nothing is to be killed")


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Node | None], list[Record]]:
    """Run the task of the cases on a node; its container writes no record."""
    folder = tmp_path / "run"
    folder.mkdir()
    stored_run.write_plan(folder, [plan_entry(item) for item in CASES])
    monkeypatch.setattr(task, "load", lambda: KNOWN)
    monkeypatch.setenv("MEGATRIX_KEYS", "[]")
    monkeypatch.setenv("MEGATRIX_PLACE", "node n470")

    def run(node: Node | None) -> list[Record]:
        monkeypatch.setattr(task, "runtime", lambda: node)
        if node:
            refused = inside.Ended(125, "podman could not run debian-13: crun")
            ends = [refused, inside.Ended(0)] if node.once else [refused] * 2 if node.status == 125 else []
            monkeypatch.setattr(
                inside, "run_container", lambda *_, left: ends.pop(0) if ends else inside.Ended(node.status)
            )
        keys = [item.key for item in CASES[:2]]
        part = ArraySpec((tuple(keys),), {}, IMAGE, "sha256:ab")
        task.run_in_image(
            task.NodeTask(folder / "0000.json", part, 0, "n470", stored_run.StoredRun(folder)), IMAGE, keys
        )
        return [*journal.read(folder).results.values()]

    return run


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (None, f"debian-13 is an image: {NO_TOOL}, then megatrix build debian-13 (node n470)"),
        (Node(lack="debian-13 is not built yet"), "debian-13 is not built yet (node n470)"),
        (
            Node("sha256:cd"),
            f"{BUILT.tag} is sha256:cd, and sha256:ab on the node that reported its contents (node n470)",
        ),
        (Node(status=125), "podman could not run debian-13: crun (node n470)"),
    ],
)
def test_node_lack_makes_only_its_tasks_cases_unavailable(
    on: Callable[[Node | None], list[Record]], node: Node | None, reason: str
) -> None:
    records = on(node)
    assert [record.verdict.value for record in records] == ["unavailable"] * 2
    assert {record.outcome.reason for record in records} == {reason}


def test_refused_container_is_started_once_more(on: Callable[[Node | None], list[Record]]) -> None:
    """enroot rejects the folder of a dead task of the same name; the next step has another name."""
    assert on(Node(once=True)) == []


def test_dead_container_records_nothing(on: Callable[[Node | None], list[Record]]) -> None:
    """A second task runs the cases without a result."""
    assert on(Node(status=137)) == []


@pytest.mark.parametrize(("node", "expected"), [(Node(), "sha256:ab"), (Node(status=125), "OCI permission denied")])
def test_task_without_keys_reports_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: Node, expected: str
) -> None:
    monkeypatch.setattr(task, "runtime", lambda: node)
    path = tmp_path / "ask-debian-13.json"
    path.write_text(json.dumps(encode(ArraySpec(((),), {}, IMAGE))))
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    monkeypatch.setenv("SLURMD_NODENAME", "n470")
    monkeypatch.setattr(task, "die_with_parent", lambda parent: None)
    assert task.main(path) == 0
    report = task.reported_contents(tmp_path, "debian-13")
    assert expected in (report if isinstance(report, str) else report.image if report else "")
