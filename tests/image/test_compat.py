"""An image with a compat package, on hosts with older and newer drivers: by podman, with GPUs by CDI.

The drivers are stand-ins (standin.py); the image, podman, its CDI, the command line, the session in the container and
the record are real. The project is a copy whose catalog has one more failure, with a body that does nothing, and the
test image's tag in place of the container's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from matrix.prove.provision.project import ROOT
from matrix.prove.provision.tools import Tool
from matrix.prove.store.paths import Paths
from tests.image import standin
from tests.schemas import items_of

BASE: Final = "ngc-24.07"  # CUDA 12.5, built for driver 555.42.06
THEIRS: Final = "nvcr.io/nvidia/pytorch:24.07-py3"
TAG: Final = "localhost/megatrix/compat-test:latest"
PACKAGE, OFFERS = "555.42.06", 12050
SELECT: Final = f"base=={BASE} and failure==noop"
FAILURE: Final = f"""
id = "noop"
title = "nothing at all"
references = []
axes = ["base"]
symptom = "none"
cause = "none"
fix = "none"
affected = []

[[signature]]
name = "never"
exception = "NeverRaised"

[[works]]
cases = ["noop"]
reason = "its body does nothing"

[[case]]
name = "noop"
run = "do_nothing"
levels = ["gpu"]
ranks = 2
gpus = 2
bases = ["{BASE}"]

[[stack]]
name = "a stand-in"
text = "an image of NVIDIA's on two GPUs"
cell = {{ base = "{BASE}", mcore = "0.16.1" }}
gpus = 2
"""
BODY: Final = """
def do_nothing(rank):
    pass
"""
HANG_S: Final = 10  # s for a driver to answer; on a busy machine Python alone takes more than 2 s to start
QUERY: Final = f"""
import json
from matrix.read.machine.hardware import query
found = query(seconds={HANG_S})
print(json.dumps([found.nvml.problem, found.cuda.version, found.cuda.driver, found.cuda.problem]))
"""
# The files of the project that a run needs.
COPIED: Final = (
    "matrix",
    "containers",
    "tests/failures",
    "conftest.py",
    "pyproject.toml",
    "tox.ini",
    "toxfile.py",
)


@pytest.fixture(scope="module", autouse=True)
def image(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Build the image on that of the other tests (2 s)."""
    if tool.name != "podman" or os.getuid() != 0 or not shutil.which("gcc"):
        pytest.fail("stand-ins of drivers require gcc, podman and root", pytrace=False)
    if found := standin.specifications():
        pytest.fail(f"this machine has GPUs ({', '.join(found)}): stand-ins are not used", pytrace=False)
    folder = standin.recipe(tmp_path_factory.mktemp("image"), "localhost/megatrix/debian-13:latest", PACKAGE, OFFERS)
    subprocess.run([tool.path, "build", "--isolation=chroot", "--tag", TAG, str(folder)], check=True)
    yield
    subprocess.run([tool.path, "image", "rm", "--force", TAG], check=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project with the no-op failure, and the test image in place of NVIDIA's."""
    folder = tmp_path_factory.mktemp("project")
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "out"))
        else:
            shutil.copy(source, target)
    failure = folder / "tests" / "failures" / "noop"
    failure.mkdir()
    (failure / "failure.toml").write_text(FAILURE)
    (failure / "reproduction.py").write_text(BODY)
    containers = folder / "matrix" / "ground" / "catalog" / "facts" / "containers.toml"
    text = containers.read_text()
    assert text.count(f'"{THEIRS}"') == 1
    containers.write_text(text.replace(THEIRS, TAG))
    return folder


def megatrix(project: Path, out: Path, driver: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line on a host with this driver."""
    environ = {**os.environ, "LD_LIBRARY_PATH": str(driver), "MEGATRIX_OUT": str(out), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "matrix", *arguments]
    return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=300, check=False)


def one_record(project: Path, folder: Path, version: str, offers: int, gpu: str = "") -> dict[str, Any]:
    """Run the case on a host with a driver and return its record."""
    seen = standin.driver(
        folder / "host", version, offers, gpu=gpu
    )  # the driver on the host; `given` is that in a container
    given = standin.driver(folder / "given", version, offers, gpu=gpu, at=standin.INSIDE)
    with standin.passed_in(given):
        ran = megatrix(project, folder / "out", seen, "run", "--json", "--no-cache", "--select", SELECT)
    records = items_of(ran.stdout, "records")
    log = "".join(path.read_text() for path in Paths(folder / "out").run("").glob("*/engine.log"))
    assert len(records) == 1, ran.stdout + ran.stderr + log
    record: dict[str, Any] = records[0]
    assert record["level"] == "gpu"
    return record


def test_too_old_driver_names_a_sufficient_branch(project: Path, tmp_path: Path) -> None:
    record = one_record(project, tmp_path, "470.42.01", 11040)
    assert record["verdict"] == "unavailable"
    assert record["reason"] == (
        "driver 470.42.01 is too old: ngc-24.07 has CUDA 12.5.1.007, whose compat package needs 470.57 of driver 470; "
        "driver 535 would do"
    )


def test_compat_package_runs_and_is_recorded(project: Path, tmp_path: Path) -> None:
    record = one_record(project, tmp_path, "470.161.03", 11040)
    assert record["verdict"] == "holds", record["reason"]
    assert record["resolved"]["host driver"] == "470.161.03"
    assert record["resolved"]["user-mode driver"] == "555.42.06 (compat package of the image)"
    assert record["resolved"]["image"].startswith("sha256:")
    assert record["notes"][-1] == (
        "driver 470.161.03: ngc-24.07 has CUDA 12.5.1.007 and runs by its compat package; GPUs for data centers only; "
        "found: 555.42.06 (compat package of the image)"
    )
    page = next((tmp_path / "out").glob("desk/cells/*.html")).read_text()
    assert "<dt>host driver</dt><dd>470.161.03</dd>" in page
    assert "<dt>user-mode driver</dt><dd>555.42.06 (compat package of the image)</dd>" in page


def test_new_driver_runs_without_the_compat_package(project: Path, tmp_path: Path) -> None:
    record = one_record(project, tmp_path, "560.35.03", 12060)
    assert record["verdict"] == "holds", record["reason"]
    assert record["resolved"]["user-mode driver"] == "560.35.03 (the host driver itself)"
    assert not [note for note in record["notes"] if "driver" in note]


def test_unusable_compat_package_is_recorded(project: Path, tmp_path: Path) -> None:
    """On a workstation GPU: the catalog lists the package for this driver, but it does not support the GPU."""
    record = one_record(project, tmp_path, "470.161.03", 11040, gpu="geforce")
    assert record["resolved"]["user-mode driver"] == "470.161.03 (the host driver itself)"
    assert record["notes"][-1].endswith("but found: 470.161.03 (the host driver itself)")


def test_check_in_the_image_reports_both_drivers(tool: Tool, tmp_path: Path) -> None:
    with standin.passed_in(standin.driver(tmp_path, "470.161.03", 11040, at=standin.INSIDE)):
        inside = ["--rm", "--network=none", "--device", "nvidia.com/gpu=all", "--volume", f"{ROOT}:{ROOT}:ro"]
        inside += ["--workdir", str(ROOT), "--env", "PYTHONDONTWRITEBYTECODE=1"]
        result = tool.run([tool.path, "run", *inside, TAG, "python3", "-m", "matrix", "check", "--json"], seconds=60)
    facts = items_of(result.out, "check")[0]["machine"]
    assert (facts["driver"], facts["cuda"]["driver"], facts["cuda"]["compat"]) == ("470.161.03", PACKAGE, True)
    assert (facts["cuda"]["version"], facts["nvml"]["cuda"]) == ("12.5", "11.4")
    assert [(card["up"], card["links"]) for card in facts["nvml"]["gpus"]] == [(18, 18), (17, 18)]
    card = {"name": "Stand-in GPU", "sm": "9.0", "memory": 80 << 30, "multicast": True, "exclusive": False}
    assert [{**card, "uuid": one["uuid"]} for one in facts["cuda"]["gpus"]] == facts["cuda"]["gpus"]
    assert len({one["uuid"] for one in facts["cuda"]["gpus"]}) == 2


@pytest.mark.parametrize(
    ("flag", "problem"), [("-DCRASH", "crashed: SIGSEGV"), ("-DHANG", f"did not return in {HANG_S} s")]
)
def test_crashing_or_hanging_driver_is_reported(flag: str, problem: str, tmp_path: Path) -> None:
    """From a Python that starts with the driver's folder on its path, as on a host: it looks for NVML itself."""
    environ = {**os.environ, "LD_LIBRARY_PATH": str(standin.driver(tmp_path, "535.129.03", 12020, flag))}
    printed = subprocess.check_output([sys.executable, "-c", QUERY], cwd=ROOT, env=environ, text=True)
    assert json.loads(printed) == [f"nvmlInit {problem}", "12.2", "535.129.03", f"cuInit {problem}"]
