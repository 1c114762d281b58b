"""What the plan command lists and counts."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace

import pytest

from matrix.cli.main import main
from matrix.cli.plan import counts, pulls
from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import MCORE
from matrix.ground.verdicts.planned import Kind, Planned
from matrix.prove.planning.night import everything
from matrix.prove.planning.statistics import Availability, Basis, TeBuild
from tests.schemas import items_of
from tests.unit.catalogs import image
from tests.unit.cli.small_night import KEY, KNOWN, NIGHT
from tests.unit.terminals import piped

pytestmark = pytest.mark.usefixtures("small_cli")


def test_the_command_in_an_error_works(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "--select", "mcore>=1"])
    (proposed,) = re.findall(r"megatrix (plan .*) lists all", capsys.readouterr().err)
    assert main(shlex.split(proposed)) == 0


def test_the_plan_is_the_night_with_its_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [f"{item.key}  [{item.expectation.value}]" for item in NIGHT] == [one for one in printed if "  [" in one]
    assert "    stack of Some#1: as reported" in printed
    assert printed[0] == f"{len(NIGHT)} cases in {len({item.cell.id for item in NIGHT})} cells"


def test_plan_json_has_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json"]) == 0
    assert [decode(Planned, one) for one in items_of(capsys.readouterr().out, "plan")] == NIGHT


@pytest.mark.parametrize(
    ("arguments", "holds"),
    [
        (["--select", "mcore==0.8.0"], lambda item: item.cell.stack[MCORE] == "0.8.0" and item.level is Level.CPU),
        (["--select", "level==gpu", "--level", "gpu"], lambda item: item.level is Level.GPU),
        (["--case", KEY], lambda item: item.key == KEY),
        (["--case", KEY.replace("cpu", "gpu")], lambda item: item.key == KEY.replace("cpu", "gpu")),
    ],
    ids=lambda value: shlex.join(value) if isinstance(value, list) else None,
)
def test_a_plan_selects_from_all_cells(arguments: list[str], holds: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", *arguments]) == 0
    every = [item.key for item in everything(KNOWN, tuple(Level)) if holds(item)]  # type: ignore[operator]
    chosen = [str(one["key"]) for one in items_of(capsys.readouterr().out, "plan")]
    assert every == [key for key in chosen if "0.8.0rc0" not in key]  # the stack of a report, not a release


def test_every_key_of_the_night_can_be_selected(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [item.key for item in NIGHT]
    assert main(["plan", "--json", *(word for key in keys for word in ("--case", key))]) == 0
    assert keys == [one["key"] for one in items_of(capsys.readouterr().out, "plan")]


def test_stats_count_the_night(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--stats", "--json"]) == 0
    (found,) = items_of(capsys.readouterr().out, "plan-stats")
    assert found["here"]["planned"] == len(NIGHT)


def test_stats_of_a_selection_count_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--stats", "--json", "--select", "mcore==0.8.0 and torch==2.4.0", "--level", "cpu"]) == 0
    found = items_of(capsys.readouterr().out, "plan-stats")[0]["here"]
    assert found["planned"] == found["runs"] + sum(found["missing"].values())
    assert found["gpu_minutes"] == 0


def test_stats_are_one_paragraph(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--stats"]) == 0
    assert capsys.readouterr().out.startswith(f"{len(NIGHT)} planned, ")


def test_within_selects_from_the_night(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--within", "base==torch-2.4.0", "--json"]) == 0
    keys = [one["key"] for one in items_of(capsys.readouterr().out, "plan")]
    assert keys == [item.key for item in NIGHT if item.cell.base == "torch-2.4.0"] != []


def test_stats_and_a_format_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--stats", "--format", "github"]) == 2
    assert "--stats and --format exclude each other" in capsys.readouterr().err


def test_only_the_night_becomes_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--format", "github"]) == 0
    names = " ".join(job["name"] for job in json.loads(capsys.readouterr().out)["include"])
    assert all(base in names for base in {item.cell.base for item in NIGHT})
    assert main(["plan", "--format", "github", "--select", "case==tp2"]) == 2
    assert "--format prints the night only" in capsys.readouterr().err


AVAILABLE = Availability(
    7,
    5,
    {Kind.GPUS: 2},
    shared=2,
    gloo=1,
    seconds=120.0,
    gpu_seconds=60.0,
    basis={Basis.DEFAULT: 1, Basis.CASE: 4},
    reasons={Kind.GPUS: "host has 1, in exclusive compute mode"},
)


def test_counts_name_what_is_missing() -> None:
    """Zeros have no line."""
    text = piped(*counts(AVAILABLE))
    assert text.splitlines()[:2] == [
        "7 planned, 5 run on this machine",
        "expected: at least 2 minutes, 1 GPU-minute",
    ]
    assert "in 2 of them ranks share a GPU, in 1 on gloo in place of NCCL" in text
    assert f"     2 unavailable: {Kind.GPUS.value}, for example: host has 1, in exclusive compute mode" in text
    assert "builds" not in text
    builds = TeBuild("torch-2.15.0", "2.18.0", 2.0), TeBuild("torch-2.4.0", "1.9.0", 30.0)
    built = piped(*counts(replace(AVAILABLE, builds=builds)))
    assert "builds Transformer Engine 2.18.0 on torch-2.15.0, once: about 2 minutes" in built
    assert "builds Transformer Engine 1.9.0 on torch-2.4.0, once: about 30 minutes" in built
    nothing = piped(*counts(replace(AVAILABLE, runs=0, shared=0, gloo=0, missing={}, basis={})))
    assert nothing == "7 planned, 0 run on this machine\n"


def test_images_to_pull_are_listed() -> None:
    absent = [image("ngc-24.07", "2.4.0a0")]
    assert piped(*pulls(absent, pulled=False)).splitlines() == [
        "images to pull: 1, sizes not in the catalog; --pull counts their cases",
        "  registry/ngc-24.07",
    ]
    assert "--pull" not in piped(*pulls(absent, pulled=True))
    assert list(pulls([], pulled=False)) == []
