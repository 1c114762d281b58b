"""The names that people type: tox.ini and toxfile.py."""

from __future__ import annotations

import re
import runpy
import sys
from configparser import ConfigParser

import pytest

from matrix.cli import COMMANDS
from matrix.prove.planning.catalog_lines import lines
from matrix.prove.provision.project import ROOT
from tests.unit.catalogs import real

SETTINGS = ConfigParser(interpolation=None)
SETTINGS.read(ROOT / "tox.ini", encoding="utf-8")


def test_a_line_has_no_section_of_its_own() -> None:
    assert not {*lines(real())} & {name.removeprefix("testenv:") for name in SETTINGS}
    assert SETTINGS["testenv"]["commands"] == "python -m matrix run --line {env_name} {posargs}"


def test_commands_of_tox_exist() -> None:
    named = re.findall(r"python -m matrix (\w+)", (ROOT / "tox.ini").read_text(encoding="utf-8"))
    assert named
    assert {*named} <= {*COMMANDS}


def test_tox_on_an_old_python_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.9, which RHEL 9 has: the project's own modules do not import there."""
    pytest.importorskip("tox")
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    with pytest.raises(SystemExit, match=r"needs Python 3\.10 or later; this tox runs on 3\.9\.18\n  fix: .*uvx"):
        runpy.run_path(str(ROOT / "toxfile.py"))


@pytest.mark.parametrize("name", ["tests", "{nightly-checks,campaign}"])
def test_own_tests_get_few_variables(name: str) -> None:
    """PYTEST_ADDOPTS, a job's WORLD_SIZE and the like would change what they show."""
    assert "*" not in SETTINGS[f"testenv:{name}"]["pass_env"].split()
