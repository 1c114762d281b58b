"""Overlays that are built in a process beside the cases, with a stand-in of uv."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from matrix.prove.execution.overlay_builder import OverlayBuilder
from matrix.prove.provision.overlays import Overlays, OverlaySpec, intact
from matrix.read.package_source import Source, SourceKind, parse
from tests import compiled

RELEASE = OverlaySpec((Source("megatron-core", SourceKind.PYPI, revision="0.9.0"),), "3.11", {})


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the program that is uv in this process and those that it starts."""
    program = tmp_path / "uv"
    monkeypatch.setenv("UV", str(program))
    monkeypatch.setenv("MEGATRIX_CACHE", str(tmp_path / "cache"))
    return program


def write(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def test_the_next_overlay_follows_one_that_fails(tmp_path: Path, uv: Path) -> None:
    write(uv, "echo 'error: no such release' >&2; exit 1")
    tree = parse(f"{compiled.clone(tmp_path / 'clone')}@docs", "transformer-engine")
    built = OverlaySpec((tree,), "3.11", {})
    log = tmp_path / "builds.log"

    assert OverlayBuilder([RELEASE, built], log).wait() == 0
    assert "no such release" in log.read_text()
    overlay = Overlays(tmp_path / "cache").provide(built)  # by a uv that fails: it is there
    assert f"built {overlay.path}" in log.read_text()
    assert intact(overlay.path)


def test_stop_ends_compilers(tmp_path: Path, uv: Path) -> None:
    write(uv, f"sleep 600 & echo $! > {tmp_path / 'compiler'}; wait")
    builder = OverlayBuilder([RELEASE], tmp_path / "builds.log")
    compiler, deadline = tmp_path / "compiler", time.monotonic() + 60
    while not (compiler.is_file() and compiler.read_text().endswith("\n")) and time.monotonic() < deadline:
        time.sleep(0.05)
    builder.stop()

    assert builder.wait() != 0
    status, deadline = Path("/proc", compiler.read_text().strip(), "stat"), time.monotonic() + 10
    while status.exists() and " Z " not in status.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not status.exists() or " Z " in status.read_text()  # a zombie until init reaps it
