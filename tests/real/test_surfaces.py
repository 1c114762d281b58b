"""Surfaces and calls extracted from releases of the real package index equal the recorded ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from matrix.contract import consuming, offering, recording
from matrix.provision.commands import run
from matrix.provision.overlays import Overlays

pytestmark = pytest.mark.real


def fetched(folder: Path, requirement: str, part: Callable[[str], bool]) -> Mapping[str, bytes]:
    """Return the relevant files of a release, path -> content, from its wheels for Python 3.11."""
    Overlays(folder, run).install([requirement], folder, "3.11")
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if part(name)}


@pytest.mark.parametrize("version", ["1.9.0.post1", "2.6.0"])
def test_te_release_equals_its_recorded_surface(version: str, tmp_path: Path) -> None:
    """The wheel has no sources of the compiled extension; the Python modules are equal."""
    surface = offering.read_offering(fetched(tmp_path, f"transformer_engine=={version}", offering.is_part), version)

    known = recording.load_surface(version)
    compiled = set(known.modules) - set(surface.modules)
    assert surface.modules == {name: names for name, names in known.modules.items() if name not in compiled}
    assert compiled == {"transformer_engine_torch"}
    assert surface.dormant == known.dormant


@pytest.mark.parametrize("version", ["0.9.0", "0.12.3"])
def test_megatron_core_release_equals_its_recorded_calls(version: str, tmp_path: Path) -> None:
    """Includes guards, arguments and lines. megatron/training is recorded from the tag and is not in these wheels."""
    calls = consuming.read_calls(fetched(tmp_path, f"megatron-core=={version}", consuming.is_part), version)

    known = recording.load_calls(version)
    assert calls.uses == tuple(use for use in known.uses if use.site.path.startswith("megatron/core/"))
    assert len(calls.uses) > 50
