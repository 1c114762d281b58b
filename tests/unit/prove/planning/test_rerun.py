"""The command line that runs a case again."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.model import Wheels
from matrix.prove.planning.night import of_base
from matrix.prove.planning.rerun import RERUN_HERE, PlanEntry, reproduce_line
from matrix.prove.planning.selection import select
from tests.unit.catalogs import catalog, failure, plan_entry, planned

CASE = planned(catalog(failure()))


@pytest.mark.parametrize(
    "source", ["", "./Megatron-LM@fix", "/a folder/of mine", "./Megatron-LM@$(touch${IFS}x)", "it's@`x`", "a\nb@!x"]
)
def test_the_line_has_the_case_and_its_source(source: str) -> None:
    given = ["--mcore", source] if source else []
    assert ["megatrix", "run", *given, "--case", CASE.key] == shlex.split(
        reproduce_line(replace(CASE, source=source), os.environ)
    )


def test_the_line_names_every_source() -> None:
    """Of a commit of Transformer Engine, which is built, and of the writer's megatron-core."""
    item = replace(CASE, te_source="./TE@a", writer_source="./M@b", compiled=True)
    named = ["--te", "./TE@a", "--writer", "./M@b", "--compile"]
    assert ["megatrix", "run", *named, "--case", CASE.key] == shlex.split(reproduce_line(item, os.environ))


def test_a_pasted_line_executes_nothing(tmp_path: Path) -> None:
    """A branch may have any of these names; `megatrix` is a function that prints its arguments."""
    source = "./Megatron-LM@feat$(touch${IFS}x)`touch${IFS}x`;touch${IFS}x"
    line = reproduce_line(replace(CASE, source=source), os.environ)
    shell = f"megatrix() {{ printf '%s\\n' \"$@\"; }}\n{line}\n"
    printed = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["run", "--mcore", source, "--case", CASE.key]
    assert list(tmp_path.iterdir()) == []


def test_the_line_of_base_host_calls_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither another machine nor `megatrix run` has the base `host`; `--select` selects exactly the case."""
    known = catalog(failure(), wheels=(Wheels("host", "2.4.0", ("3.10",)),))  # type: ignore[arg-type]  # not from TOML
    case = planned(known, "host")
    line = shlex.split(reproduce_line(case, os.environ))
    assert line[:-1] == ["python3", "-m", "pytest", "tests/failures", "--megatrix-select"]
    assert select([case, *of_base(known, "host", (Level.CPU,), core="0.9.0")], line[-1]) == [case]
    monkeypatch.setenv("MEGATRIX_PYTEST", "tox run -e te113 --")
    assert reproduce_line(case, os.environ).startswith("tox run -e te113 -- --megatrix-select ")
    monkeypatch.setenv("MEGATRIX_PYTEST", RERUN_HERE)
    assert reproduce_line(case, os.environ).startswith("megatrix run --here --select ")


def test_the_line_leaves_out_the_catalog_s_clones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRIX_COMMAND", "tox run -e megatrix --")
    line = reproduce_line(replace(CASE, source="megatron-lm@094d66b488"), os.environ)
    assert line == f"tox run -e megatrix -- run --case '{CASE.key}'"


def test_plan_entry_has_case_and_line() -> None:
    entry = plan_entry(CASE)
    assert decode(PlanEntry, entry) == PlanEntry(CASE, reproduce_line(CASE, os.environ))
    assert entry == {**encode(CASE), "reproduce": reproduce_line(CASE, os.environ)}
