"""An image built with a release in it, and pytest and tox run inside of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from matrix.ground.catalog.folders import ENTRY, folder_name
from matrix.ground.catalog.loading import load
from matrix.prove.provision.image_builds import Builder, BuildRequest, build, build_request
from matrix.prove.provision.indexes import site_options
from matrix.prove.provision.tools import Tool
from tests.founding import SAVE
from tests.real.conftest import ROOT

DEADLINE_S = 300.0  # s for a command in an image; the longest takes 15 s on 2 cores


@pytest.fixture
def laid(tool: Tool) -> Iterator[BuildRequest]:
    """Build the image with a megatron-core (12 s); one of pip's indexes has a password and is unreachable."""
    request = build_request(load(), "debian-13", mcore="0.16.1")
    indexes = f"{site_options().get('extra-index-url', '')} https://me:s3cr3t@127.0.0.1:9/simple"
    build(request, Builder(print, {**os.environ, "PIP_EXTRA_INDEX_URL": indexes, "PIP_RETRIES": "0"}))
    yield request
    tool.run([tool.path, "rmi", request.tag])


def inside(tool: Tool, tag: str, *command: str, options: tuple[str, ...] = ()) -> str:
    """Run a command in the image with only the checkout mounted; return its output."""
    place = [
        "--rm",
        "--network=none",
        "--read-only",
        "--tmpfs=/tmp:exec",
        f"--volume={ROOT}:{ROOT}:ro",
        f"--workdir={ROOT}",
    ]
    variables = ["--env=MEGATRIX_OUT=/tmp/out", "--env=PYTHONDONTWRITEBYTECODE=1", *options]
    ran = subprocess.run(
        [tool.path, "run", *place, *variables, tag, *command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_pytest_finds_its_cell_from_installed_packages(tool: Tool, laid: BuildRequest) -> None:
    chosen = f"failure=={SAVE} and case==world1"
    output = inside(tool, laid.tag, "python3", "-m", "pytest", "tests/failures", "-rA", "--megatrix-select", chosen)
    assert "base host: Python 3.13" in output
    assert "megatron-core 0.16.1" in output
    entry = f"tests/failures/{folder_name(SAVE)}/{ENTRY}"
    assert f"HOLDS {entry}::{SAVE}-world1-cpu-host/mcore-0.16.1/te-none" in output


def test_image_contains_no_password_or_host_path(tool: Tool, laid: BuildRequest) -> None:
    history = tool.run([tool.path, "history", "--no-trunc", laid.tag]).out
    settings = tool.run([tool.path, "image", "inspect", laid.tag]).out
    assert "MCORE=0.16.1" in history
    for text in (history, settings):
        assert "s3cr3t" not in text
        assert not [folder for folder in site_options().get("find-links", "").split() if folder in text]
    left = inside(tool, laid.tag, "sh", "-c", "grep -rIl s3cr3t /etc /root /run /usr/local /var || true")
    assert left == ""
