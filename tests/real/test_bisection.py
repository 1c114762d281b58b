"""Bisections with real cells: the torch that introduced the assertion, and the commits of both halves of its fix."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.founding import SAVE
from tests.real.conftest import COMMAND_S, ROOT
from tests.real.test_cells import coordinator_by_name, tree_of
from tests.schemas import items_of

STRATEGIES = "dist_checkpointing/strategies"


def bisect(out: Path, *arguments: str) -> dict[str, Any]:
    """Return the JSON output of `megatrix bisect`."""
    done = subprocess.run(
        [sys.executable, "-m", "matrix", "bisect", SAVE, "--json", "--out", str(out), *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return items_of(done.stdout, "bisect")[0]


@pytest.mark.slow
def test_first_bad_torch_is_found_and_stored(tmp_path: Path) -> None:
    """With megatron-core 0.8.0; a second bisection runs nothing."""
    line = ("--axis", "torch", "--mcore", "0.8.0", "--good", "2.3.1", "--bad", "2.4.1", "--at-once", "2")
    first, again = bisect(tmp_path, *line), bisect(tmp_path, *line)

    assert (first["answer"], first["kind"], first["confidence"]) == ("2.4.0", "first-bad", 1.0)
    assert {probe["signature"] for probe in first["probes"] if probe["seen"] == "bad"} == {"duplicate-fqn"}
    assert (again["answer"], first["cost"]["ran"], again["cost"]["ran"]) == ("2.4.0", 3, 0)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a Megatron-LM of four commits: 0.8.0, an unrelated one, the fix of TP=2, the fix of PP=2."""
    folder = tmp_path_factory.mktemp("clone")
    tree_of("0.8.0", folder, f"{STRATEGIES}/torch.py", lambda text: f"{text}\n# one\n")

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)

    def commit(name: str, file: str, edit: Callable[[str], str]) -> None:
        path = folder / "megatron" / "core" / STRATEGIES / file
        path.write_text(edit(path.read_text()))
        git("add", "-A")
        git("commit", "-q", "-m", name)
        git("tag", name)

    git("init", "-q")
    commit("release", "torch.py", lambda text: text)
    commit("other", "torch.py", lambda text: f"{text}# two\n")
    commit("by-name", "state_dict_saver.py", coordinator_by_name)
    commit("helper", "torch.py", lambda text: text.replace("self._add_non_coordinator_iobytes_request(plan)", "pass"))
    return folder


@pytest.mark.parametrize(("case", "fix"), [("tp2", "by-name"), ("pp2", "helper")])
def test_bisection_finds_the_fix_of_each_layout(clone: Path, tmp_path: Path, case: str, fix: str) -> None:
    """Each commit of the clone is an overlay over torch 2.4.0; the work tree of the clone is not changed."""
    report = bisect(
        tmp_path, "--axis", "mcore", "--repo", str(clone), "--bad", "release", "--good", "helper", "--torch", "2.4.0",
        "--case", case, "--at-once", "2",
    )  # fmt: skip

    assert (report["kind"], report["label"].split()[-1]) == ("first-fixed", fix)
