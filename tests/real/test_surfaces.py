"""Surfaces and calls extracted from releases of the real package index equal the recorded ones."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from matrix.cli.main import main
from matrix.prove.provision.overlays import Overlays
from matrix.read.api import consuming, offering, pairs, recording
from matrix.read.api.definition import dotted
from matrix.read.api.provider import TRANSFORMER_ENGINE
from matrix.read.commands import run


def fetched(folder: Path, requirement: str, part: Callable[[str], bool]) -> Mapping[str, bytes]:
    """Return the relevant files of a release, path -> content, from its wheels for Python 3.11."""
    Overlays(folder, run).install(requirement, folder, "3.11")
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
    assert (surface.called, surface.instances) == (known.called, known.instances)
    assert (surface.returned, surface.refused) == (known.returned, known.refused)


@pytest.mark.parametrize("version", ["0.9.0", "0.12.3"])
def test_megatron_core_release_equals_its_recorded_calls(version: str, tmp_path: Path) -> None:
    """Includes guards, arguments and lines. megatron/training is recorded from the tag and is not in these wheels."""
    calls = consuming.read_calls(fetched(tmp_path, f"megatron-core=={version}", consuming.is_part), version)

    known = recording.load_calls(version)
    assert [*calls.uses] == [use for use in known.uses if use.site.path.startswith("megatron/core/")]
    assert len(calls.uses) > 50


def plain_calls(source: bytes) -> set[int]:
    """Return the lines of the calls that start with a name that an import of Transformer Engine binds."""
    nodes = list(ast.walk(ast.parse(source)))
    owns = TRANSFORMER_ENGINE.owns
    imports = [node for node in nodes if isinstance(node, ast.Import)]
    names = {a.asname or a.name.partition(".")[0] for node in imports for a in node.names if owns(a.name)}
    sources = [
        node for node in nodes if isinstance(node, ast.ImportFrom) and owns(node.module or "") and not node.level
    ]
    names |= {alias.asname or alias.name for node in sources for alias in node.names}
    return {n.lineno for n in nodes if isinstance(n, ast.Call) and dotted(n.func).partition(".")[0] in names}


@pytest.mark.parametrize("version", ["0.12.3", "0.14.0", "0.16.1"])
def test_every_plain_call_is_recorded(version: str, tmp_path: Path) -> None:
    """What ast sees through an import of Transformer Engine, without following anything, is in the record.

    Three releases with wheels for Python 3.11: each is a download.
    """
    files = fetched(tmp_path, f"megatron-core=={version}", consuming.is_part)
    recorded = {(use.site.path, use.site.line) for use in recording.load_calls(version).uses if use.kind == "call"}

    seen = {(path, line) for path, source in files.items() for line in plain_calls(source)}

    assert seen - recorded == set()
    assert seen


def test_recorded_pairs_equal_those_read(tmp_path: Path) -> None:
    """`megatrix surface pairs` writes the shipped file, byte for byte."""
    assert main(["surface", "pairs", "-o", str(tmp_path / "pairs.json.gz")]) == 0
    assert (tmp_path / "pairs.json.gz").read_bytes() == pairs.path().read_bytes()
