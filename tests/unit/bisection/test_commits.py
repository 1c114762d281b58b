"""Bisecting commits of real (small) git repositories, the probe being told which are broken."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from matrix.bisection.axes import AxisName, Subject
from matrix.bisection.clone import Clone
from matrix.bisection.commits import Searcher
from matrix.bisection.search import Plan, ResultKind
from matrix.bisection.session import Bisection, BisectionSession, ProbeStore
from matrix.catalog.failure import Level
from matrix.errors import MatrixError
from tests.unit.bisection.repositories import ENTRY, KNOWN, Asker, broken_in, chain, clone

SUBJECT = Subject(KNOWN, ENTRY, ENTRY.case[0], Level.CPU, "torch-2.4.0")
PLAIN = {"megatron/a.py": "x"}


def ids(path: Path, *names: str) -> set[str]:
    told = subprocess.run(["git", "-C", str(path), "rev-parse", *names], check=True, capture_output=True, text=True)
    return set(told.stdout.split())


@contextmanager
def searcher(path: Path, *broken: str) -> Iterator[tuple[Searcher, Asker, Clone]]:
    asker = Asker(broken_in(ids(path, *broken)))
    notebook = ProbeStore(path.parent / "notebook")
    with Clone(str(path), "megatron-core") as opened:
        inquiry = BisectionSession(asker, notebook, lambda told: None)
        yield Searcher(SUBJECT, AxisName.MCORE, opened, Plan(), inquiry), asker, opened
    notebook.close()


def answer(path: Path, good: str, bad: str, *broken: str) -> tuple[Bisection, str]:
    with searcher(path, *broken) as (made, _, opened):
        found = made.between(opened.commit(good), opened.commit(bad))
    return found, found.axis.points[found.found.candidates[0]].label.split()[-1]


def test_the_first_bad_commit_is_found_and_the_clone_is_not_touched(tmp_path: Path) -> None:
    path = chain(tmp_path / "clone", 12)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    found, name = answer(path, "c0", "c11", *(f"c{number}" for number in range(7, 12)))

    assert (found.found.kind, name) == (ResultKind.FIRST_BAD, "c7")
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_which_end_is_older_says_what_is_looked_for(tmp_path: Path) -> None:
    """The bad end descends to the good one: the first fixed commit."""
    path = chain(tmp_path / "clone", 12)
    found, name = answer(path, "c11", "c0", *(f"c{number}" for number in range(5)))

    assert (found.found.kind, name) == (ResultKind.FIRST_FIXED, "c5")


MERGED = [
    ("root", [], PLAIN),
    ("good", ["root"], {"megatron/b.py": "1"}),
    ("main", ["good"], {"megatron/b.py": "2"}),
    ("side1", ["root"], {"megatron/c.py": "1"}),
    ("side2", ["side1"], {"megatron/c.py": "2"}),
    ("merge", ["main", "side2"], {"megatron/b.py": "2"}),
    ("bad", ["merge"], {"megatron/b.py": "3"}),
]


def test_a_merged_branch_that_left_before_the_good_end_is_searched(tmp_path: Path) -> None:
    """The merge is the first bad commit behind the good end; the commit that did it is on the branch."""
    found, name = answer(clone(tmp_path / "clone", MERGED), "good", "bad", "side2", "merge", "bad")

    assert (found.found.kind, name) == (ResultKind.FIRST_BAD, "side2")
    assert any("merges the branch" in note for note in found.notes)


def test_a_merge_that_broke_what_works_on_both_sides_is_itself_the_answer(tmp_path: Path) -> None:
    found, name = answer(clone(tmp_path / "clone", MERGED), "good", "bad", "merge", "bad")

    assert (found.found.kind, name) == (ResultKind.FIRST_BAD, "merge")


def test_a_branch_that_never_was_good_is_said(tmp_path: Path) -> None:
    """What was fixed on the main line before the good end came back by a branch that never had the fix."""
    found, name = answer(clone(tmp_path / "clone", MERGED), "good", "bad", "root", "side1", "side2", "merge", "bad")

    assert (found.found.kind, name) == (ResultKind.FIRST_BAD, "merge")
    assert any("never was good" in note for note in found.notes)


FORKED = [
    ("fork", [], PLAIN),
    ("m1", ["fork"], {"megatron/b.py": "1"}),
    ("m2", ["m1"], {"megatron/b.py": "2"}),
    ("release", ["fork"], {"megatron/c.py": "1"}),
]


def test_ends_on_two_branches_are_searched_from_where_they_part(tmp_path: Path) -> None:
    """As tags of release branches are: which way the history runs is asked where they part."""
    bad, bad_name = answer(clone(tmp_path / "one" / "clone", FORKED), "release", "m2", "m2")
    fixed, fixed_name = answer(clone(tmp_path / "other" / "clone", FORKED), "m2", "release", "fork", "release", "m1")

    assert (bad.found.kind, bad_name) == (ResultKind.FIRST_BAD, "m2")
    assert (fixed.found.kind, fixed_name) == (ResultKind.FIRST_FIXED, "m2")
    assert all("they part at" in told.notes[0] for told in (bad, fixed))


def test_an_end_on_another_branch_must_behave_as_said_too(tmp_path: Path) -> None:
    path = clone(tmp_path / "clone", FORKED)
    with pytest.raises(MatrixError, match="the good end is not good"):
        answer(path, "release", "m2", "m2", "release")


def test_an_end_that_is_not_as_said_is_an_error_that_shows_how_to_look(tmp_path: Path) -> None:
    path = chain(tmp_path / "clone", 4)
    with pytest.raises(MatrixError) as caught:
        answer(path, "c0", "c3")

    assert "the bad end is not bad" in str(caught.value)
    assert "good in 1 run" in str(caught.value)
    assert "megatrix run" in str(caught.value)


def test_a_missing_revision_is_named(tmp_path: Path) -> None:
    path = chain(tmp_path / "clone", 3)
    with (
        Clone(str(path), "megatron-core") as opened,
        pytest.raises(MatrixError, match="no such revision"),
    ):
        opened.commit("c9")


def test_a_dirty_work_tree_is_not_looked_at(tmp_path: Path) -> None:
    """Only commits are read: the change in the work tree, and its index, stay as they are."""
    bare = chain(tmp_path / "bare", 3)
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "-q", "--no-checkout", str(bare), str(tree)], check=True, capture_output=True)
    subprocess.run(["git", "-C", str(tree), "checkout", "-q", "c2"], check=True, capture_output=True)
    (tree / "megatron" / "a.py").write_text("changed")
    status = ["git", "-C", str(tree), "status", "--porcelain"]
    before = subprocess.run(status, check=True, capture_output=True, text=True).stdout
    found, name = answer(tree, "c0", "c2", "c2")

    assert (found.found.kind, name) == (ResultKind.FIRST_BAD, "c2")
    assert before == subprocess.run(status, check=True, capture_output=True, text=True).stdout != ""


def test_a_search_that_was_interrupted_asks_nothing_twice(tmp_path: Path) -> None:
    """What was answered before Ctrl-C is read from the notebook."""
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

    assert found.axis.points[found.found.candidates[0]].label.endswith("c23")
    assert len(first.asked) == 4
    assert not set(first.asked) & set(second.asked)
    assert found.ran == len(second.asked) == found.found.probes - 4
    assert third.asked == []


def test_files_are_read_by_their_blobs(tmp_path: Path) -> None:
    """Content and ids are git's own; what `part` leaves out is not read."""
    path = clone(tmp_path / "clone", [("one", [], {"megatron/core/x.py": "a = 1\n", "megatron/y.txt": "no"})])
    with Clone(str(path), "megatron-core") as opened:
        commit = opened.commit("one").id
        files = opened.files(commit, lambda name: name.endswith(".py"))

        assert opened.blobs(files)["megatron/core/x.py"] == b"a = 1\n"
        assert set(files) == {"megatron/core/x.py", "megatron/core/package_info.py"}
        assert files["megatron/core/x.py"] in ids(path, "one:megatron/core/x.py")
        assert opened.version(commit) == f"0.9.0rc0+{commit[:7]}"
