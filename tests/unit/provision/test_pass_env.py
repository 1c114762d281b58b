"""What tox.ini lets through of the environment: enough for those who ask about a job, and no more for cells."""

from __future__ import annotations

import re
from configparser import ConfigParser
from fnmatch import fnmatch

import pytest

from matrix.execution.gpus import VISIBLE
from matrix.kit.launch import VARIABLES
from matrix.provision.project import ROOT

GIVEN = ConfigParser(interpolation=None)
GIVEN.read(ROOT / "tox.ini", encoding="utf-8")


def passes(section: str, name: str) -> bool:
    """Say whether the environments of a section get a variable."""
    here = section if GIVEN.has_option(section, "pass_env") else "testenv"
    for line in GIVEN[here]["pass_env"].split("\n"):
        other = re.fullmatch(r"\{\[(.+)\]pass_env\}", line)
        if passes(other[1], name) if other else fnmatch(name, line):
            return True
    return False


@pytest.mark.parametrize("section", ["cell", "unit", "testenv:nightly", "testenv:megatrix", "testenv:tests"])
def test_who_shares_a_machine_keeps_to_its_own_gpus(section: str) -> None:
    assert passes(section, VISIBLE)


@pytest.mark.parametrize("name", [*VARIABLES, "UB_SKIPMC"])
def test_the_doctor_hears_of_the_job_that_it_is_asked_in_and_a_cell_does_not(name: str) -> None:
    assert passes("testenv:megatrix", name)
    assert not passes("cell", name)


@pytest.mark.parametrize("name", ["SLURM_CONF", "SBATCH_PARTITION"])
@pytest.mark.parametrize("section", ["testenv:nightly", "testenv:megatrix"])
def test_who_submits_is_heard_by_sbatch(section: str, name: str) -> None:
    assert passes(section, name)
