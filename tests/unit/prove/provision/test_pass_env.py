"""The environment variables that tox.ini passes: those of launchers for `megatrix`, but not for cells."""

from __future__ import annotations

import re
from configparser import ConfigParser
from fnmatch import fnmatch

import pytest

from matrix.kit.launch import VARIABLES
from matrix.prove.provision.host import VISIBLE
from matrix.prove.provision.project import ROOT

GIVEN = ConfigParser(interpolation=None)
GIVEN.read(ROOT / "tox.ini", encoding="utf-8")


def passes(section: str, name: str) -> bool:
    """Return whether the environments of a section get a variable."""
    source = section if GIVEN.has_option(section, "pass_env") else "testenv"
    for line in GIVEN[source]["pass_env"].split("\n"):
        other = re.fullmatch(r"\{\[(.+)\]pass_env\}", line)
        if passes(other[1], name) if other else fnmatch(name, line):
            return True
    return False


@pytest.mark.parametrize("section", ["cell", "unit", "testenv:nightly", "testenv:megatrix", "testenv:tests"])
def test_the_gpu_selection_is_passed(section: str) -> None:
    assert passes(section, VISIBLE)


@pytest.mark.parametrize("name", [*VARIABLES, "UB_SKIPMC"])
def test_launcher_variables_are_passed_to_megatrix_only(name: str) -> None:
    """`megatrix check` needs those of its job; a cell must not get them."""
    assert passes("testenv:megatrix", name)
    assert not passes("cell", name)


@pytest.mark.parametrize("name", ["GITHUB_ACTIONS", "NO_COLOR", "TERM"])
@pytest.mark.parametrize("section", ["testenv:nightly", "testenv:megatrix"])
def test_what_changes_printed_text_is_passed(section: str, name: str) -> None:
    """tox itself passes FORCE_COLOR, and sets COLUMNS."""
    assert passes(section, name)


@pytest.mark.parametrize("name", ["SLURM_CONF", "SBATCH_PARTITION"])
@pytest.mark.parametrize("section", ["testenv:nightly", "testenv:megatrix"])
def test_slurm_variables_are_passed_for_sbatch(section: str, name: str) -> None:
    assert passes(section, name)
