"""What a bundle is made for, and what its cases need: from the real catalog and planned cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.supplies import bundled_cases, checked_base, supplies
from tests.founding import FUSED, METADATA, SAVE
from tests.unit.catalogs import real


@pytest.mark.parametrize(
    ("base", "python", "what", "fix"),
    [
        ("torch-2.13.00", "3.11", "no such --base", "torch-2.13.0"),
        ("hosts", "3.11", "no such --base", "host"),
        ("debian-13", "3.11", "no such --base", ""),
        ("torch-2.13.0", "3.9", "no wheels for this --python on torch-2.13.0", "--python 3.11"),
        ("torch-2.4.0", "3.13", "no wheels for this --python on torch-2.4.0", "--python 3.10"),
        ("host", "3.8", "no wheels for this --python on host", "--python 3.10"),
    ],
)
def test_wrong_base_or_python_is_refused(base: str, python: str, what: str, fix: str) -> None:
    with pytest.raises(MatrixError) as raised:
        checked_base(real(), base, python)
    assert raised.value.what == what
    assert fix in str(raised.value.fix)


def test_base_of_wheels_is_returned() -> None:
    entry = checked_base(real(), "torch-2.4.0", "3.12")
    assert entry is not None
    assert entry.torch == "2.4.0"
    assert checked_base(real(), "host", "3.12") is None


def cpu(expression: str) -> list[Planned]:
    return bundled_cases(real(), "torch-2.13.0", "3.11", Level.CPU, expression)


def test_selected_cases_are_on_the_base_alone() -> None:
    cases = cpu(f"failure=={SAVE} and (mcore==0.8.0 or mcore==0.9.0)")
    assert {str(item.cell.base) for item in cases} == {"torch-2.13.0"}
    assert supplies(real(), cases).releases == (("megatron-core", "0.8.0"), ("megatron-core", "0.9.0"))


def test_base_outside_of_the_night_needs_a_selection() -> None:
    with pytest.raises(MatrixError, match="the night has no case of level cpu on this base") as raised:
        bundled_cases(real(), "torch-2.11.0", "3.11", Level.CPU, "")
    assert "torch-2.13.0" in str(raised.value.expected)
    assert "debian" not in str(raised.value.expected)


def test_host_has_releases_of_every_numpy() -> None:
    releases = supplies(real(), bundled_cases(real(), "host", "3.12", Level.GPU, "")).releases
    cores = {version for name, version in releases if name == "megatron-core"}
    assert {"0.8.0", "0.19.2"} <= cores


def test_writers_packages_and_clones_are_supplied() -> None:
    writing = next(item for item in cpu(f"failure=={METADATA}") if item.writer)
    assert writing.writer
    versions = {str(part.cell.stack["megatron-core"]) for part in (writing, writing.writer)}
    assert {version for _, version in supplies(real(), [writing]).releases} == versions
    cloned = replace(writing, source="megatron-lm@main", writer_source="", packages=("triton==3.4.0",))
    needed = supplies(real(), [cloned])
    assert needed.clones == ("megatron-lm",)
    assert ("triton", "3.4.0") in needed.releases


def test_extension_is_built_at_level_gpu_alone() -> None:
    (case, *_) = cpu(f"failure=={FUSED} and mcore==0.16.1 and te==2.18.0")
    assert supplies(real(), [case]).builds == ()
    needed = supplies(real(), [replace(case, level=Level.GPU)])
    assert needed.builds == ("2.18.0",)
    assert needed.releases == (("megatron-core", "0.16.1"),)


def test_host_has_the_engine_of_its_cases() -> None:
    """Its night has the cases of the Transformer Engine that it has, which is unknown here."""
    cases = bundled_cases(real(), "host", "3.12", Level.GPU, "te==2.18.0 and writer-te==none")
    assert len({item.failure for item in cases}) > 10
    needed = supplies(real(), cases)
    assert needed.builds == ()
    assert {name for name, _ in needed.releases} == {"megatron-core"}
    assert needed.clones == ("megatron-lm",)


def test_engine_of_another_writer_is_built() -> None:
    cases = bundled_cases(real(), "host", "3.12", Level.GPU, "te==2.18.0 and writer-te>=2.16")
    assert supplies(real(), cases).builds == ("2.16.0", "2.16.1", "2.17.0", "2.17.1", "2.19.0", "2.20.2")
    (case, *_) = [item for item in cases if item.writer]
    assert supplies(real(), [replace(case, level=Level.CPU)]).builds == ()
