"""An image with a release laid over it, for real; and what pytest and tox do for somebody who stands in an image."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.catalog.folders import ENTRY, folder_name
from matrix.catalog.loading import load
from matrix.execution.engine import tox_command
from matrix.provision.building import BuildRequest, build, build_request
from matrix.provision.images import Builder
from matrix.provision.indexes import site_options
from matrix.provision.overlays import uv
from matrix.provision.tools import Tool
from tests.founding import SAVE
from tests.real.conftest import ROOT

DEADLINE_S = 300.0  # s for a command in an image; the longest takes 15 s on 2 cores


@pytest.fixture
def laid(tool: Tool) -> Iterator[BuildRequest]:
    """The image with a megatron-core (12 s) from pip's indexes, one of which wants a password and is not there."""
    wish = build_request(load(), "debian-13", mcore="0.16.1")
    indexes = f"{site_options().get('extra-index-url', '')} https://me:s3cr3t@127.0.0.1:9/simple"
    build(wish, Builder(print, {**os.environ, "PIP_EXTRA_INDEX_URL": indexes, "PIP_RETRIES": "0"}))
    yield wish
    tool.run([tool.path, "rmi", wish.tag])


def inside(tool: Tool, tag: str, *command: str, options: tuple[str, ...] = ()) -> str:
    """Run a command as somebody would who has the checkout, and nothing else, in the image; return what it wrote."""
    place = ["--rm", "--network=none", "--read-only", "--tmpfs=/tmp", f"--volume={ROOT}:{ROOT}:ro", f"--workdir={ROOT}"]
    told = ["--env=MEGATRIX_OUT=/tmp/out", "--env=PYTHONDONTWRITEBYTECODE=1", *options]
    ran = subprocess.run(
        [tool.path, "run", *place, *told, tag, *command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_pytest_finds_its_cell_from_what_is_installed(tool: Tool, laid: BuildRequest) -> None:
    chosen = f"failure=={SAVE} and case==world1"
    told = inside(tool, laid.tag, "python3", "-m", "pytest", "tests/failures", "-rA", "--select", chosen)
    assert "base host: Python 3.13" in told
    assert "megatron-core 0.16.1" in told
    entry = f"tests/failures/{folder_name(SAVE)}/{ENTRY}"
    assert f"HOLDS {entry}::{SAVE}-world1-cpu-host/mcore-0.16.1/te-none" in told


def test_neither_a_password_nor_a_path_of_this_machine_stays_in_the_image(tool: Tool, laid: BuildRequest) -> None:
    history = tool.run([tool.path, "history", "--no-trunc", laid.tag]).out
    settings = tool.run([tool.path, "image", "inspect", laid.tag]).out
    assert "MCORE=0.16.1" in history
    for told in (history, settings):
        assert "s3cr3t" not in told
        assert not [folder for folder in site_options().get("find-links", "").split() if folder in told]
    left = inside(tool, laid.tag, "sh", "-c", "grep -rIl s3cr3t /etc /root /run /usr/local /var || true")
    assert left == ""


def test_a_line_of_tox_runs_in_place_in_the_image_that_has_its_torch(tool: Tool) -> None:
    """tox and uv are lent by this machine; what the image lacks for the line would take an index."""
    asking = [tox_command(os.environ)[0], "-c", "import tox; print(tox.__path__[0])"]
    lent = Path(subprocess.run(asking, capture_output=True, text=True, check=True).stdout.strip()).parent
    asked = ["config", "--workdir", "/tmp/tox", "-e", "te113", "-k", "description", "base_python", "runner"]
    binary = uv(os.environ)[0]
    options = tuple(f"--volume={path}:{path}:ro" for path in (lent, binary))
    options += (f"--env=PYTHONPATH={lent}", f"--env=TOX_UV_PATH={binary}")
    told = inside(tool, load().images[0].tag, "python3", "-m", "tox", *asked, options=options)
    assert "this image's own torch 2.6.0" in told
    assert "base_python = /usr/bin/python3" in told
    assert "runner = virtualenv" in told
