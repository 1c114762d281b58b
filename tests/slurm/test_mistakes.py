"""Command-line mistakes on a real Slurm: reported before anything is submitted, or for each case."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.founding import BEHIND_MPI, SAVE
from tests.slurm.cluster import wait
from tests.slurm.conftest import Site

FEW = ("--level", "contract", "--select", f"base==no-torch and failure=={BEHIND_MPI} and mcore==0.8.0 and te==1.8.0")
KEY = f"no-torch/mcore-0.8.0/te-1.8.0/driver-none {BEHIND_MPI} contract contract"
EIGHT = f"base==torch-2.4.0 and failure=={SAVE} and case==tp4-pp2 and mcore==0.8.0"  # GPUs


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--level", "contract", "--select", "base==ngc-99.99"), ("no case has this base", "ngc-99.99")),
        (("--level", "gpu", "--select", "driver==999"), ("no case has this driver", "999", "470.161.03")),
        (("--case", KEY.replace("no-torch", "ngc-99.99")), ("no such base", "ngc-99.99", "did you mean ngc-")),
        (("--case", KEY.replace("driver-none", "driver-999")), ("no such case", "driver-999", f"did you mean {KEY}?")),
        (("--case", KEY, "--case", KEY), ("a case is named twice", KEY, "leave one out")),
        ((*FEW, "--partition", "al"), ("no such partition", "al", "one of all", "did you mean all?")),
    ],
)
def test_unknown_names_are_rejected(site: Site, arguments: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """The exit status is 2, the message names valid values, and no run begins."""
    ran = site.run(*arguments)
    assert ran.status == 2, ran.stderr
    assert [word for word in expected if word not in ran.stderr] == [], ran.stderr
    assert not site.out.exists()


def test_missing_gpus_make_their_case_unavailable(site: Site) -> None:
    """No node has eight GPUs; the reason contains Slurm's message. Other cases of the run are not affected."""
    ran = site.run("--select", f"{EIGHT} or {FEW[-1]}")
    (on_gpus,) = (one for one in ran.records if one["level"] == "gpu")
    assert ran.status == 0, ran.stderr
    assert {one["verdict"] for one in ran.records if one["level"] == "contract"} == {"reproduced"}
    assert on_gpus["verdict"] == "unavailable"
    assert "needs --gres=gpu:8" in on_gpus["reason"]
    assert "; Slurm: allocation failure: Requested node configuration is not available" in on_gpus["reason"]


def test_missing_slurm_commands_are_an_error(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = site.run(*FEW)
    assert ran.status == 2, ran.stderr
    assert "Slurm is needed for --engine slurm" in ran.stderr
    assert "no sinfo on PATH" in ran.stderr
    assert "a login node" in ran.stderr
    assert not site.out.exists()


def test_missing_controller_is_an_error(site: Site) -> None:
    """Slurm's clients try for 10 s."""
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
def test_invalid_sbatch_options_are_rejected(site: Site, option: str, words: str) -> None:
    ran = site.run(*FEW, f"--sbatch={option}")
    assert ran.status == 2, ran.stderr
    assert f"{option}: sbatch does not take these options" in ran.stderr
    assert words in ran.stderr
    assert not site.out.exists()


def test_drained_nodes_are_named(site: Site) -> None:
    """Slurm prints the same message for a drained node as for one that does not exist."""
    site.cluster.call("scontrol", "update", "NodeName=n535", "State=DRAIN", "Reason=test")
    try:
        ran = site.run("--level", "gpu", "--select", EIGHT)
    finally:
        site.cluster.call("scontrol", "update", "NodeName=n535", "State=RESUME")
    (record,) = ran.records
    assert record["verdict"] == "unavailable"
    assert record["reason"].endswith("features of its nodes: driver470, driver535; n535 is drained")
