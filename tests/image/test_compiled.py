"""A command is bisected over commits whose extension is compiled in the image, into which CUDA's toolkit is mounted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from matrix.prove.provision.tools import Tool
from matrix.read.machine.installed import nvcc
from tests import compiled

TOOLKIT = Path("/usr/local/cuda")

if nvcc() is None or not TOOLKIT.is_dir():
    pytest.skip("no nvcc", allow_module_level=True)


def test_the_culprit_compiled_in_the_image_is_found(tool: Tool, tmp_path: Path) -> None:
    """By CUDA's assembler: the image has no C++ compiler."""
    if tool.name != "podman":
        pytest.skip("no podman: docker has no configuration of mounts")
    given = os.environ.get("CONTAINERS_CONF", "")
    text = Path(given).read_text() if given else "[containers]\n"
    mounted = f'volumes = ["{TOOLKIT.resolve()}:{TOOLKIT}:ro"]\n'
    text = text.replace("[containers]\n", f"[containers]\n{mounted}")
    assert mounted in text
    (tmp_path / "containers.conf").write_text(text)
    clone = compiled.clone(tmp_path / "c.git", compiled.PTXAS)
    environ = {"CONTAINERS_CONF": str(tmp_path / "containers.conf")}
    report = compiled.bisect(tmp_path / "out", clone, "--base", "debian-13", **environ)

    compiled.check(report, clone, "fatal")
    assert {probe["resolved"]["image"][:7] for probe in report["probes"] if probe["seen"] != "skip"} == {"sha256:"}
