"""The index of upstream's history, made from a small clone and read back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.read.git import Repository
from matrix.read.history.index import UpstreamHistory, hash_of_line, hash_of_word
from tests.history_facts import UPSTREAMS, History, Maker, Wheels, read_source

OLD = """class Layer:
    def load(self, size):
        if size < 0:
            raise ValueError(f"size {size} is negative")
        return size
"""
NEW = OLD.replace("size < 0", "size <= 0")
GONE = "class Layer:\n    def load(self, size):\n        return max(size, 0)\n"


def git(clone: Path, *words: str) -> None:
    variables = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    dates = {"GIT_AUTHOR_DATE": "2026-01-02T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-02T00:00:00Z"}
    subprocess.run(
        ["git", *words], cwd=clone, check=True, capture_output=True, env={"PATH": "/usr/bin:/bin", **variables, **dates}
    )


def commit(clone: Path, text: str, subject: str, path: str = "megatron/core/layer.py") -> None:
    (clone / path).parent.mkdir(parents=True, exist_ok=True)
    (clone / path).write_text(text)
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", subject)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> UpstreamHistory:
    """0.4.0 has OLD; a fix of #12 makes it NEW, the file moves, 0.5.0; a revert; 0.6.0 without the message.

    0.4.1 is a branch of 0.4.0 with two cherry-picks; 0.5.1 takes over a merge request over the number of #14.
    """
    clone = tmp_path_factory.mktemp("clone")
    git(clone, "init", "-qb", "main")
    commit(clone, "", "Start")
    commit(clone, OLD, "Add layer (#3)")
    git(clone, "tag", "core_v0.4.0")
    commit(clone, NEW, "Fix empty sizes (#12)\n\nFixes #9")
    git(clone, "mv", "megatron/core/layer.py", "megatron/core/layers.py")
    git(clone, "commit", "-qm", "Move layer")
    git(clone, "tag", "core_v0.5.0")
    commit(clone, OLD, 'Revert "Fix empty sizes (#12)" (#13)', "megatron/core/layers.py")
    commit(clone, GONE, "Take any size (#14)", "megatron/core/layers.py")
    commit(clone, GONE + "\n", "ADLR/megatron-lm!4444 - End the file", "megatron/core/layers.py")
    git(clone, "tag", "core_v0.6.0")
    git(clone, "checkout", "-q", "core_v0.4.0")
    commit(clone, NEW, "cp: `Fix empty sizes (12)` into `core_r0.4.0` (#21)")
    git(clone, "tag", "core_v0.4.1")
    git(clone, "checkout", "-q", "core_v0.5.0")
    commit(clone, NEW + "\n", "Cherry pick `The end of a file (4444)` into", "megatron/core/layers.py")
    git(clone, "tag", "core_v0.5.1")
    git(clone, "checkout", "-q", "main")
    with Repository(clone) as repository:
        maker = Maker(History(repository, UPSTREAMS["megatron-lm"]), {})
        maker.commits()
        maker.write(clone / "index.bin")
    return UpstreamHistory(clone / "index.bin")


def test_lines_of_each_release_have_functions(history: UpstreamHistory) -> None:
    file = history.file("megatron/core/layer.py")
    assert file.path == "megatron/core/layers.py"
    for release, text in enumerate((OLD, NEW, NEW, NEW + "\n", GONE + "\n")):
        source = read_source(text)
        lines = [line for number in range(len(source.labels)) if (line := file.line(release, number + 1))]
        assert file.line(release, len(lines) + 1) is None
        assert [line.function for line in lines] == list(source.labels)
        assert bytes(line.hash for line in lines) == source.hashes
    line = file.line(0, 3)
    assert line is not None
    assert (line.function, line.hash) == ("Layer.load", hash_of_line("if size < 0:"))
    assert file.line(0, 0) is None


def test_changes_state_words_and_old_lines(history: UpstreamHistory) -> None:
    changes = list(history.file("megatron/core/layers.py").changes("Layer.load"))
    subjects = [history.commit_of(change.commit).subject for change in changes]
    assert subjects[:3] == ["Fix empty sizes (#12)", 'Revert "Fix empty sizes (#12)" (#13)', "Take any size (#14)"]
    assert hash_of_line("if size < 0:") in changes[0].removed
    assert hash_of_word("negative") in changes[2].words


def test_commits_state_releases_numbers_and_reverts(history: UpstreamHistory) -> None:
    fix = history.naming(9)[0]
    assert (fix.releases, fix.numbers, fix.date) == (("0.4.1", "0.5.0", "0.5.1", "0.6.0"), (9, 12), "2026-01-02")
    assert fix.reverted_by is not None
    assert history.commit_of(fix.reverted_by).releases == ("0.6.0",)
    assert history.find(fix.id[:7]) == [(fix.id, fix.number)]
    assert history.naming(77) == []
    assert history.largest_number() == 21


def test_cherry_pick_counts_as_the_commit_it_took(history: UpstreamHistory) -> None:
    """By its subject, or by the number of a merge request; a revert does not count as what it reverts."""
    (end,) = (commit for commit in map(history.commit_of, range(7)) if "4444" in commit.subject)
    assert end.releases == ("0.5.1", "0.6.0")
    assert history.new(end.number, 3, 2)
    assert not history.new(end.number, 4, 3)


def test_releases_of_a_function_need_no_commit(tmp_path: Path) -> None:
    """A project without a clone: its file moves in 2.1.0, its function changes in 2.2.0, and is gone in 2.3.0."""
    sources = {"2.0.0": OLD, "2.1.0": OLD, "2.2.0": NEW, "2.3.0": ""}
    folders = {version: tmp_path / version / "torch" / "distributed" for version in sources}
    for version, text in sources.items():
        folders[version].mkdir(parents=True)
        file = folders[version] / ("layer.py" if version == "2.0.0" else "layers.py")
        file.write_text(text + "".join(f"x{number} = 1\n" for number in range(9)))
    maker = Maker(Wheels(UPSTREAMS["pytorch"]), {version: tmp_path / version for version in sources})
    maker.moves()
    maker.write(tmp_path / "index.bin")
    history = UpstreamHistory(tmp_path / "index.bin")
    file_of = history.file("torch/distributed/layer.py")
    assert (file_of.path, history.has_commits, history.subjects) == ("torch/distributed/layers.py", False, [])
    assert [number for number in range(1, 4) if file_of.changed_in(["Layer.load"]) >> number & 1] == [2, 3]
    assert not file_of.changed_in(["Layer.save"])
    assert file_of.messages == [("Layer.load", "size {} is negative", 0b0111)]


def test_releases_are_found_by_any_form(history: UpstreamHistory) -> None:
    assert [history.number_of_release(version) for version in ("0.4", "0.5.0+abc", "0.5.1", "0.7.0")] == [0, 2, 3, None]


def test_functions_state_the_options_they_read() -> None:
    source = read_source("def load(self, args):\n    return args.size + self.config.depth + other.width\n")
    assert source.options == (("load", "size"), ("load", "depth"))


def test_messages_state_the_releases_with_them(history: UpstreamHistory) -> None:
    assert history.file("megatron/core/layers.py").messages == [("Layer.load", "size {} is negative", 0b01111)]


def test_paths_are_found_below_any_folder(history: UpstreamHistory) -> None:
    assert history.path_of("/opt/site-packages/megatron/core/layer.py") == "megatron/core/layer.py"
    assert history.path_of("/opt/other/core/layer.py") == ""


@given(st.text())
def test_a_line_of_code_has_a_hash(line: str) -> None:
    assert 1 <= hash_of_line(line) <= 255
    assert 0 <= hash_of_word(line) < 2**16
