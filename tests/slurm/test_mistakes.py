"""What a person gets wrong at the command line of a real Slurm: said before anything is submitted, or case by case."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.founding import BEHIND_MPI, MPI
from tests.slurm.cluster import wait
from tests.slurm.conftest import Site

pytestmark = pytest.mark.real

FEW = ("--level", "contract", "--select", f"base==no-torch and failure=={BEHIND_MPI} and mcore==0.8.0 and te==1.8.0")
KEY = f"no-torch/mcore-0.8.0/te-1.8.0/driver-none {BEHIND_MPI} contract contract"
GPUS = f"failure=={MPI} and case==gpu-gloo and level==gpu and driver==470.161.03"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--level", "contract", "--select", "base==ngc-99.99"), ("no case has this base", "ngc-99.99")),
        (("--level", "gpu", "--select", "driver==999"), ("no case has this driver", "999", "470.161.03")),
        (("--case", KEY.replace("no-torch", "ngc-99.99")), ("no such base", "ngc-99.99", "did you mean ngc-")),
        (("--case", KEY.replace("driver-none", "driver-999")), ("no such case", "driver-999", f"did you mean {KEY}?")),
        (("--case", KEY, "--case", KEY), ("a case is named twice", KEY, "leave one out")),
        ((*FEW, "--partition", "al"), ("no such partition", "al", "one of all", "did you mean all?")),
    ],
)
def test_what_the_catalog_or_the_cluster_does_not_know_is_a_mistake(
    site: Site, arguments: tuple[str, ...], said: tuple[str, ...]
) -> None:
    """Exit status 2, what was got and what would do; no run begins."""
    ran = site.run(*arguments)
    assert ran.status == 2, ran.stderr
    assert [word for word in said if word not in ran.stderr] == [], ran.stderr
    assert not site.out.exists()


def test_a_driver_that_no_node_with_gpus_has_makes_its_cases_unavailable(site: Site) -> None:
    """With Slurm's words: n470 has the driver and no GPU. The other cases of the run are not touched by it."""
    ran = site.run("--select", f"{GPUS} or {FEW[-1]}")
    (on_gpus,) = (one for one in ran.records if one["level"] == "gpu")
    assert ran.status == 0, ran.stderr
    assert {one["verdict"] for one in ran.records if one["level"] == "contract"} == {"reproduced"}
    assert on_gpus["verdict"] == "unavailable"
    assert "--constraint=driver470" in on_gpus["reason"]
    assert "Slurm: allocation failure: Requested node configuration is not available" in on_gpus["reason"]


def test_without_slurms_commands_the_error_says_where_they_are(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = site.run(*FEW)
    assert ran.status == 2, ran.stderr
    assert "Slurm is needed for --engine slurm" in ran.stderr
    assert "no sinfo on PATH" in ran.stderr
    assert "a login node" in ran.stderr
    assert not site.out.exists()


def test_without_a_controller_nothing_is_begun(site: Site) -> None:
    """Slurm's clients look for it for 10 s."""
    site.stop_controller()
    try:
        ran = site.run(*FEW)
    finally:
        site.cluster.start("slurmctld")
    assert ran.status == 2, ran.stderr
    assert "Unable to contact slurm controller" in ran.stderr
    assert not site.out.exists()
    wait(lambda: site.cluster.call("sinfo", "-h", "-t", "idle", "-o", "%D") == "2", "the nodes do not come back")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--no-such-option", "unrecognized option '--no-such-option'"),
        ("--time=soon", "Invalid --time specification"),
        ("--partition=al", "Invalid partition name specified"),
        ("--nodelist=n999", "Invalid node name specified"),
    ],
)
def test_an_option_that_sbatch_does_not_take_is_a_mistake(site: Site, option: str, words: str) -> None:
    ran = site.run(*FEW, f"--sbatch={option}")
    assert ran.status == 2, ran.stderr
    assert f"{option}: sbatch does not take these options" in ran.stderr
    assert words in ran.stderr
    assert not site.out.exists()


def test_nodes_that_are_drained_are_named(site: Site) -> None:
    """Slurm has the same words for a node that is away as for one that was never there."""
    site.cluster.call("scontrol", "update", "NodeName=n535", "State=DRAIN", "Reason=test")
    try:
        ran = site.run("--level", "gpu", "--select", GPUS)
    finally:
        site.cluster.call("scontrol", "update", "NodeName=n535", "State=RESUME")
    (record,) = ran.records
    assert record["verdict"] == "unavailable"
    assert record["reason"].endswith("features of its nodes: driver470, driver535; n535 is drained")
