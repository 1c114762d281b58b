"""A bundle, made with the site's index, and used in a network namespace without any interface but loopback."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.ground.catalog.model import Wheels
from matrix.prove.provision import bases
from matrix.prove.provision.bundle_folder import MANIFEST
from tests.founding import SAVE
from tests.real.conftest import COMMAND_S, ROOT
from tests.unit.catalogs import real

BASE = "torch-2.13.0"
SPLIT = "100 MiB"  # less than torch's wheel


@pytest.fixture(scope="module")
def python() -> tuple[str, Path]:
    """Return the first minor of Python of the base that this machine has, and its interpreter."""
    base = real().base(BASE)
    assert isinstance(base, Wheels)
    environment = bases.find_python((*base.pythons, *base.fallbacks))
    assert environment.path
    return environment.minor, environment.path


@pytest.fixture(scope="module")
def made(python: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Make a bundle of one case, and the command that did."""
    folder = tmp_path_factory.mktemp("made") / "b"
    select = f"failure=={SAVE} and mcore==0.8.0 and case==world1"
    options = ["--level", "cpu", "--python", python[0], "--base", BASE, "--select", select, "--split", SPLIT]
    command = [sys.executable, "-m", "matrix", "bundle", *options, "--out", str(folder)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S, check=True).stdout
    deviation = re.search(r"stated: ([+-][\d.]+) %", printed)
    assert deviation
    assert abs(float(deviation[1])) < 5
    return folder, command


def without_network(folder: Path, home: Path, python: Path) -> subprocess.CompletedProcess[str]:
    """Start a copy of a bundle with an empty home, indexes that do not exist, and no interface but loopback."""
    home.mkdir()
    theirs = {"PIP_INDEX_URL": "https://theirs.invalid/simple", "UV_INDEX": "https://theirs.invalid/simple"}
    environment = {"HOME": str(home), "PATH": f"{python.parent}:{os.defpath}", "UV_NO_BINARY": "1", **theirs}
    inside = 'ip link set lo up && exec "$@"'
    return subprocess.run(
        ["unshare", "--map-root-user", "--net", "sh", "-c", inside, "sh", python, folder / "start.py"],
        cwd=home, env=environment, capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip


def test_bundle_runs_green_without_a_network(
    made: tuple[Path, list[str]], python: tuple[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made[0], copy)
    assert [*copy.glob("wheels/torch-*.part-000")]
    ran = without_network(copy, tmp_path / "home", python[1])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "GREEN: " in ran.stdout
    assert "; 1 ran, 0 unavailable" in ran.stdout
    assert not [*copy.glob("wheels/*.part-*")]


def test_damaged_part_is_named_before_anything_is_installed(
    made: tuple[Path, list[str]], python: tuple[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made[0], copy)
    (part,) = copy.glob("wheels/torch-*.part-001")
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    ran = without_network(copy, tmp_path / "home", python[1])
    assert ran.returncode == 1
    assert f"got:      wheels/{part.name}: another content" in ran.stderr
    assert not (copy / "environment").exists()


def test_second_command_downloads_nothing(made: tuple[Path, list[str]]) -> None:
    folder, command = made
    before = (folder / MANIFEST).read_text()
    without = subprocess.run(
        [*command, "--split", "1 TiB"], cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S, check=True
    )
    assert " MB/s" not in without.stderr
    assert before != (folder / MANIFEST).read_text()  # it is whole now
    assert not [*folder.glob("wheels/*.part-*")]
