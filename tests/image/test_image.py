"""The real image: its cases have the expected verdicts under each launcher, and no container outlives a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from matrix.ground.catalog.failure import MIB, Expectation, Level
from matrix.ground.catalog.loading import load
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.night import night, pairwise
from matrix.prove.provision.tools import ContainerSpec, Ref, Tool
from matrix.prove.store import stored_run as nights
from matrix.prove.store.paths import Paths
from tests.founding import BEHIND_MPI, MPI
from tests.real.conftest import COMMAND_S, ROOT, Megatrix, started, wait_for_first_result
from tests.schemas import items_of
from tests.unit.prove.bisection import repositories

GONE_S = 20.0  # s for a container to end; 1 s on an idle machine
EXPECTED = {Expectation.BROKEN: "reproduced", Expectation.WORKS: "holds"}


def picked() -> list[Planned]:
    """Return the cases of a night on the image."""
    return [item for item in night(load(), pairwise, (Level.CPU,)) if item.cell.base == "debian-13"]


def chosen(cases: list[str]) -> list[str]:
    """Return the options that run these cases without the cache."""
    return ["--no-cache", *(word for key in cases for word in ("--case", key))]


def containers(tool: Tool, out: Path) -> list[str]:
    """Return the names of the containers, running or stopped, of the runs with results under `out`."""
    runs = [folder.name for folder in out.glob("**/runs/*")]
    result = tool.run([tool.path, "ps", "--all", "--format", "{{.Names}}"])
    return [name for name in result.out.split() if any(run in name for run in runs)]


def test_night_of_the_image_has_expected_verdicts(megatrix: Megatrix, tool: Tool, tmp_path: Path) -> None:
    """Megatron-LM x Transformer Engine x bootstrap backend, by torchrun and mpirun, in worlds of 2, 4, 8 and 16."""
    cases = picked()
    ran = megatrix(*chosen([item.key for item in cases]), out=tmp_path)

    expected = {item.key: EXPECTED[item.expectation] for item in cases}
    report = nights.read(next((tmp_path / "runs").iterdir()))
    assert {record.key: record.verdict.value for record in report.records} == expected, ran.stderr
    assert {4, 8, 16} <= {len(record.outcome.ranks) for record in report.records}
    assert {record.outcome.leftovers for record in report.records} == {0}
    assert {record.resolved["image"][:7] for record in report.records} == {"sha256:"}
    assert containers(tool, tmp_path) == []


def test_container_limits_the_memory_of_its_case(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cgroup can't be made in a container: the container has the limit, and the kill of a rank counts as such."""
    monkeypatch.chdir(tmp_path)  # conmon leaves an empty file `oom` there
    (image,) = load().images
    found = []
    for limit in (256 * MIB, 255 * MIB):  # the container has the first
        spec = ContainerSpec(
            f"megatrix-memory-{os.getpid()}", ROOT, (ROOT,), environ={"PYTHONPATH": str(ROOT)}, memory=256 * MIB
        )
        ended = tool.query(Ref(image.id, image.tag), spec, "python3", "-m", "tests.image.memory_job", str(limit))
        found += ended.out.split()
    assert found == ["out-of-memory", "unavailable"], ended.err


def test_error_behind_the_crash_names_its_entry(megatrix: Megatrix, tool: Tool, tmp_path: Path) -> None:
    """Transformer Engine 1.8 has no tp_size: under mpirun the group is created, and then this error is raised."""
    key = f"debian-13/mcore-0.7.0/te-1.8.0/driver-none {MPI} mpirun-default cpu"
    (record,) = megatrix(*chosen([key]), out=tmp_path).records
    assert (record["verdict"], record["other"]) == ("unexplained", BEHIND_MPI)


def test_missing_backend_of_torch_is_unavailable(megatrix: Megatrix, tool: Tool, tmp_path: Path) -> None:
    key = f"debian-13/mcore-0.10.0/te-1.9.0/driver-none {MPI} torchrun-default cpu"
    (record,) = megatrix(*chosen([key]), out=tmp_path).records
    assert (record["verdict"], record["reason"]) == (
        "unavailable",
        "needs NCCL for this bootstrap backend; this torch is built without",
    )


LIMIT = """
import os, sys
(file,) = [path for one in sys.path if os.path.exists(path := os.path.join(one, "megatron", "a.py"))]
assert open(file).read() < "c15", "too new"
"""


def test_a_command_is_bisected_in_the_image(tool: Tool, tmp_path: Path) -> None:
    """The script is in the folder of the call, of which a container has the named file alone."""
    (tmp_path / "limit.py").write_text(LIMIT)
    clone = repositories.chain(tmp_path / "c.git", 20)
    line = [sys.executable, "-m", "matrix", "bisect", "--axis", "mcore", "--base", "debian-13", "--repo", str(clone)]
    line += ["--good", "c10", "--bad", "c19", "--at-once", "3", "--json", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*line, "--", "python3", "limit.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    (report,) = items_of(done.stdout, "bisect")
    assert (report["label"].split()[-1], report["fixed"]) == ("c15", {"base": "debian-13"})
    assert {probe["resolved"]["image"][:7] for probe in report["probes"]} == {"sha256:"}
    assert containers(tool, tmp_path) == []


def in_container(out: Path, tool: Tool) -> subprocess.Popen[str]:
    """Start the image's night and wait until its container has reported a case."""
    process = started(out, *chosen([item.key for item in picked()]))
    wait_for_first_result(process)
    assert len(containers(tool, out)) == 1
    return process


def no_container_left(tool: Tool, out: Path) -> None:
    """Fail unless every container of the runs in `out` is gone within GONE_S."""
    end = time.monotonic() + GONE_S
    while containers(tool, out) and time.monotonic() < end:
        time.sleep(0.2)  # no event exists for the end of other processes' containers
    assert containers(tool, out) == []


def test_ctrl_c_stops_the_container_and_reports(tool: Tool, tmp_path: Path) -> None:
    process = in_container(tmp_path, tool)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130, errors
    no_container_left(tool, tmp_path)
    report = nights.read(next((tmp_path / "runs").iterdir()))
    assert Counter(record.verdict.value for record in report.records)["not-reached"] > 0
    assert Paths(tmp_path).pages(report.run).page.is_file()


def test_kill_9_of_the_run_ends_its_container(tool: Tool, tmp_path: Path) -> None:
    """The relay shows the container that its run has ended."""
    process = in_container(tmp_path, tool)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

    no_container_left(tool, tmp_path)
