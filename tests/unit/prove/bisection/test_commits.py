"""Bisection of commits in real (small) git repositories, with a fake probe."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import MatrixError
from matrix.prove.bisection.axes import Clone, Subject
from matrix.prove.bisection.commits import Searcher
from matrix.prove.bisection.probe_session import Bisection, BisectionSession, ProbeStore
from matrix.prove.bisection.search import Plan, ResultKind
from tests.unit.prove.bisection.repositories import ENTRY, KNOWN, FakeProbe, broken_in, chain, clone, ids, on

SUBJECT = Subject(KNOWN, ENTRY, ENTRY.case[0], Level.CPU, on("torch-2.4.0"))
PLAIN = {"megatron/a.py": "x"}


@contextmanager
def searcher(path: Path, *broken: str) -> Iterator[tuple[Searcher, FakeProbe, Clone]]:
    probe = FakeProbe(broken_in(ids(path, *broken)))
    store = ProbeStore(path.parent / "store")
    with Clone(str(path), "megatron-core") as opened:
        session = BisectionSession(probe, store, lambda report: None)
        yield Searcher(SUBJECT, MCORE, opened, Plan(), session), probe, opened
    store.close()


def bisected(path: Path, good: str, bad: str, *broken: str) -> tuple[Bisection, str]:
    with searcher(path, *broken) as (made, _, opened):
        found = made.between(opened.commit(good), opened.commit(bad))
    return found, found.axis.points[found.result.candidates[0]].label.split()[-1]


def test_first_bad_commit_is_found_without_touching_clone(tmp_path: Path) -> None:
    path = chain(tmp_path / "clone", 12)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    found, name = bisected(path, "c0", "c11", *(f"c{number}" for number in range(7, 12)))

    assert (found.result.kind, name) == (ResultKind.FIRST_BAD, "c7")
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_older_bad_end_finds_first_fixed_commit(tmp_path: Path) -> None:
    path = chain(tmp_path / "clone", 12)
    found, name = bisected(path, "c11", "c0", *(f"c{number}" for number in range(5)))

    assert (found.result.kind, name) == (ResultKind.FIRST_FIXED, "c5")


def test_commits_with_a_parent_s_content_are_out(tmp_path: Path) -> None:
    """Of docs, of tests, and a merge of them; the good and the bad end stay."""
    history = [
        ("root", [], PLAIN),
        ("docs", ["root"], {"docs/a.md": "1"}),
        ("tests", ["root"], {"tests/a.py": "1"}),
        ("merge", ["docs", "tests"], {"docs/a.md": "2"}),
        ("break", ["merge"], {"megatron/a.py": "1"}),
        ("more", ["break"], {"docs/a.md": "3"}),
        ("end", ["more"], {"docs/a.md": "4"}),
    ]
    found, name = bisected(clone(tmp_path / "clone", history), "root", "end", "break", "more", "end")

    assert (found.result.kind, name) == (ResultKind.FIRST_BAD, "break")
    assert [point.label.split()[-1] for point in found.axis.points] == ["root", "break", "end"]
    assert "4 of them left out: each has the megatron, pyproject.toml of a parent" in found.notes[-1]


MERGED = [
    ("root", [], PLAIN),
    ("good", ["root"], {"megatron/b.py": "1"}),
    ("main", ["good"], {"megatron/b.py": "2"}),
    ("side1", ["root"], {"megatron/c.py": "1"}),
    ("side2", ["side1"], {"megatron/c.py": "2"}),
    ("merge", ["main", "side2"], {"megatron/c.py": "2"}),
    ("bad", ["merge"], {"megatron/b.py": "3"}),
]


def test_merged_branch_from_before_good_end_is_searched(tmp_path: Path) -> None:
    """The merge is the first bad descendant of the good end; the culprit is on the branch."""
    found, name = bisected(clone(tmp_path / "clone", MERGED), "good", "bad", "side2", "merge", "bad")

    assert (found.result.kind, name) == (ResultKind.FIRST_BAD, "side2")
    assert any("merges the branch" in note for note in found.notes)


def test_merge_of_two_good_sides_is_the_culprit(tmp_path: Path) -> None:
    found, name = bisected(clone(tmp_path / "clone", MERGED), "good", "bad", "merge", "bad")

    assert (found.result.kind, name) == (ResultKind.FIRST_BAD, "merge")


def test_branch_that_was_never_good_is_noted(tmp_path: Path) -> None:
    """The main line was fixed before the good end; the merged branch never had the fix."""
    found, name = bisected(clone(tmp_path / "clone", MERGED), "good", "bad", "root", "side1", "side2", "merge", "bad")

    assert (found.result.kind, name) == (ResultKind.FIRST_BAD, "merge")
    assert any("was never good" in note for note in found.notes)


FORKED = [
    ("fork", [], PLAIN),
    ("m1", ["fork"], {"megatron/b.py": "1"}),
    ("m2", ["m1"], {"megatron/b.py": "2"}),
    ("release", ["fork"], {"megatron/c.py": "1"}),
]


def test_ends_on_two_branches_start_at_merge_base(tmp_path: Path) -> None:
    """As with tags of release branches: the result at the merge base decides the direction."""
    bad, bad_name = bisected(clone(tmp_path / "one" / "clone", FORKED), "release", "m2", "m2")
    fixed, fixed_name = bisected(clone(tmp_path / "other" / "clone", FORKED), "m2", "release", "fork", "release", "m1")

    assert (bad.result.kind, bad_name) == (ResultKind.FIRST_BAD, "m2")
    assert (fixed.result.kind, fixed_name) == (ResultKind.FIRST_FIXED, "m2")
    assert all("their merge base" in found.notes[0] for found in (bad, fixed))


def test_wrong_end_on_another_branch_is_an_error(tmp_path: Path) -> None:
    path = clone(tmp_path / "clone", FORKED)
    with pytest.raises(MatrixError, match="the good end is not good"):
        bisected(path, "release", "m2", "m2", "release")


def test_wrong_end_is_an_error_with_a_command(tmp_path: Path) -> None:
    path = chain(tmp_path / "clone", 4)
    with pytest.raises(MatrixError) as caught:
        bisected(path, "c0", "c3")

    assert "the bad end is not bad" in str(caught.value)
    assert "good in 1 run" in str(caught.value)
    assert "megatrix run" in str(caught.value)


def test_dirty_work_tree_is_ignored(tmp_path: Path) -> None:
    """Only commits are read: the work tree and its index do not change."""
    bare = chain(tmp_path / "bare", 3)
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "-q", "--no-checkout", str(bare), str(tree)], check=True, capture_output=True)
    subprocess.run(["git", "-C", str(tree), "checkout", "-q", "c2"], check=True, capture_output=True)
    (tree / "megatron" / "a.py").write_text("changed")
    status = ["git", "-C", str(tree), "status", "--porcelain"]
    before = subprocess.run(status, check=True, capture_output=True, text=True).stdout
    found, name = bisected(tree, "c0", "c2", "c2")

    assert (found.result.kind, name) == (ResultKind.FIRST_BAD, "c2")
    assert before == subprocess.run(status, check=True, capture_output=True, text=True).stdout != ""


def test_interrupted_search_probes_nothing_twice(tmp_path: Path) -> None:
    """Results from before Ctrl-C are read from the probe store."""
    path = chain(tmp_path / "clone", 40)
    broken = [f"c{number}" for number in range(23, 40)]
    with searcher(path, *broken) as (made, first, opened):
        first.stop_after = 4
        with pytest.raises(KeyboardInterrupt):
            made.between(opened.commit("c0"), opened.commit("c39"))
    with searcher(path, *broken) as (made, second, opened):
        found = made.between(opened.commit("c0"), opened.commit("c39"))
    with searcher(path, *broken) as (made, third, opened):
        made.between(opened.commit("c0"), opened.commit("c39"))

    assert found.axis.points[found.result.candidates[0]].label.endswith("c23")
    assert len(first.probed) == 4
    assert not set(first.probed) & set(second.probed)
    assert found.ran == len(second.probed) == found.result.probes - 4
    assert third.probed == []
