"""Real cells end to end: real torch and megatron-core wheels, two ranks, Python 3.10 and a newer one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.ground.catalog.folders import default_root
from matrix.prove.provision.overlays import Overlays, OverlaySpec
from matrix.read.package_source import parse
from tests.founding import BEHIND_SAVE, RESUME, SAVE
from tests.real.conftest import Megatrix

LAYOUTS = ("tp2", "pp2", "world1")


def test_assertion_is_reproduced_and_its_fix_holds(megatrix: Megatrix) -> None:
    """On torch 2.4.0, 0.8.0 shows the assertion in every layout and 0.9.0 passes in every layout."""
    ran = megatrix(
        "--select",
        f"torch==2.4.0 and failure=={SAVE} and not case==train-loop and (mcore==0.8.0 or mcore==0.9.0)",
    )

    expected = {("2.4.0", "0.8.0", case): "reproduced" for case in LAYOUTS}
    expected |= {("2.4.0", "0.9.0", case): "holds" for case in LAYOUTS}
    assert ran.verdicts() == expected, ran.stderr
    assert ran.status == 0
    assert {one["signature"] for one in ran.records if one["verdict"] == "reproduced"} == {"duplicate-fqn"}
    assert {one["resolved"]["python"].rsplit(".", 1)[0] for one in ran.records} == {"3.10"}


def test_same_content_does_not_run_twice(megatrix: Megatrix, tmp_path: Path) -> None:
    """A second run reads the verdicts of the first; --no-cache runs again."""
    expression = f"torch==2.4.0 and failure=={SAVE} and case==world1 and mcore==0.8.0"
    first = megatrix("--select", expression, out=tmp_path)
    second = megatrix("--select", expression, out=tmp_path)
    third = megatrix("--select", expression, "--no-cache", out=tmp_path)

    assert [one["cached_from"] for one in first.records + third.records] == ["", ""]
    assert [one["cached_from"] for one in second.records] == [first.records[0]["run"]]


@pytest.mark.change
def test_masked_case_is_red_only_against_an_expectation(megatrix: Megatrix) -> None:
    """On torch 2.13 on a newer Python, 0.9.0 has another failure, which hides the case: both results name its entry."""
    select = f"torch==2.13.0 and failure=={SAVE} and case==tp2"
    ran = megatrix("--select", f"{select} and (mcore==0.8.0 or mcore==0.9.0 or mcore==0.16.1)")
    expecting = megatrix("--select", select, "--mcore", "0.9.0", "--expect", "works")

    assert ran.verdicts() == {
        ("2.13.0", "0.8.0", "tp2"): "reproduced",
        ("2.13.0", "0.9.0", "tp2"): "learned",
        ("2.13.0", "0.16.1", "tp2"): "holds",
    }, ran.stderr
    assert expecting.verdicts() == {("2.13.0", "0.9.0", "tp2"): "unexplained"}, expecting.stderr
    hidden = [*expecting.records, *(one for one in ran.records if one["verdict"] == "learned")]
    assert [one["other"] for one in hidden] == [BEHIND_SAVE, BEHIND_SAVE]
    assert (ran.status, expecting.status) == (0, 1)
    assert "3.10" not in {one["resolved"]["python"].rsplit(".", 1)[0] for one in ran.records}


Edit = Callable[[str], str]


def tree_of(version: str, folder: Path, file: str, edit: Edit) -> Path:
    """Return a work tree made from a release's wheel with one edit."""
    overlay = Overlays(default_root()).provide(OverlaySpec((parse(version, "megatron-core"),), "3.10", {}))
    shutil.copytree(overlay.path / "megatron", folder / "megatron")
    path = folder / "megatron" / "core" / file
    before = path.read_text()
    after = edit(before)
    assert after != before, f"the edit changed nothing in {file}"
    path.write_text(after)
    return folder


def coordinator_by_name(text: str) -> str:
    """Apply half of the fix: pass is_coordinator by name, keep the helper."""
    return text.replace(
        "(state_dict, dist_wrapper.is_coordinator)", "(state_dict, is_coordinator=dist_wrapper.is_coordinator)"
    )


def gate_of_pr_1004(text: str) -> str:
    """Apply the first version of PR 1004: the helper only for torch <= 2.3, which excludes 2.3.1."""
    call = "        self._add_non_coordinator_iobytes_request(plan)\n"
    gate = "        from packaging.version import Version\n"
    gate += "        if Version(torch.__version__) <= Version('2.3'):\n    "
    return text.replace(call, gate + call, 1)


def test_half_a_fix_stays_red(megatrix: Megatrix, tmp_path: Path) -> None:
    """With is_coordinator by name only, TP=2 passes and PP=2 still shows the assertion."""
    tree = tree_of("0.8.0", tmp_path / "half", "dist_checkpointing/strategies/state_dict_saver.py", coordinator_by_name)
    ran = megatrix("--mcore", str(tree), "--select", f"torch==2.4.0 and failure=={SAVE} and (case==tp2 or case==pp2)")

    assert {one["case"]: one["verdict"] for one in ran.records} == {"tp2": "holds", "pp2": "regressed"}, ran.stderr
    assert ran.status == 1


def test_gate_that_loses_data_is_red(megatrix: Megatrix, tmp_path: Path) -> None:
    """With PR 1004's gate on torch 2.3.1, PP=2 saves, and only the load shows that entries were lost."""
    tree = tree_of("0.8.0", tmp_path / "gate", "dist_checkpointing/strategies/torch.py", gate_of_pr_1004)
    ran = megatrix("--mcore", str(tree), "--select", f"torch==2.3.1 and failure=={SAVE} and case==pp2")

    assert [one["verdict"] for one in ran.records] == ["unexplained"], ran.stderr
    assert "KeyError" in {raised["type"] for one in ran.records for raised in one["detail"]["chain"]}
    assert ran.status == 1


def test_a_checkpoint_is_written_once_for_its_readers(megatrix: Megatrix, tmp_path: Path) -> None:
    """Two writers and two readers: one pair is broken, and each writer runs once."""
    cores = "(mcore==0.14.0 or mcore==0.15.3) and (writer_mcore==0.14.0 or writer_mcore==0.15.3)"
    ran = megatrix("--select", f"failure=={RESUME} and torch==2.13.0 and {cores}", out=tmp_path)

    cells = [(record["cell"]["stack"], record["verdict"]) for record in ran.records]
    verdicts = {(stack["writer-megatron-core"], stack["megatron-core"]): verdict for stack, verdict in cells}
    assert verdicts == {
        ("0.15.3", "0.14.0"): "reproduced",
        ("0.15.3", "0.15.3"): "holds",
        ("0.14.0", "0.14.0"): "holds",
        ("0.14.0", "0.15.3"): "holds",
    }, ran.stderr
    assert len(list(tmp_path.glob("runs/*/checkpoints/*/model"))) == 2
    assert len(list(tmp_path.glob("runs/*/logs/**/writer/rank-0.log"))) == 2
