"""Writing the reports of a run, once and repeatedly."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import RankEnd
from matrix.ground.verdicts.record import Verdict
from matrix.prove.store.history import History
from matrix.prove.store.journal import Journal
from matrix.prove.store.paths import Paths, write_whole
from matrix.prove.store.stored_run import Night, StoredRun, write_plan
from matrix.show.output import render
from tests.unit.catalogs import real
from tests.unit.show.samples import night, planned, record


def rendered(paths: Paths, run: str, *, until: int | None = None) -> Night:
    """Write the journal of the sample night, up to `until` cases, and its reports."""
    if not paths.run(run).exists():
        write_plan(paths.run(run), [planned(each) for each in night()])
    with Journal.new(paths.run(run)) as journal:
        for each in night()[:until]:
            if each.verdict is not Verdict.NOT_REACHED:
                journal.started(each.key)
                journal.result(each)
    with History(paths.history) as history:
        return render(StoredRun(paths.run(run)), paths.out, history, real())


def test_run_writes_page_junit_and_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = Paths(tmp_path / "out")
    current = rendered(paths, "1-night")
    assert len(current.records) == len(night())
    assert "15 of 134 cases are red" in paths.page.read_text("utf-8")
    assert len(ET.parse(paths.junit).findall(".//testcase")) == len(night())
    with History(paths.history) as history:
        assert history.levels()
    assert capsys.readouterr() == ("", "")


def test_interrupted_run_is_rendered_and_again_after_resume(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    lost = [each.verdict for each in rendered(paths, "1-night", until=50).records].count(Verdict.NOT_REACHED)
    assert lost == len(night()) - 50
    lost = [each.verdict for each in rendered(paths, "1-night").records].count(Verdict.NOT_REACHED)
    assert lost == 3


def test_second_night_is_compared_with_the_first(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    rendered(paths, "1-night")
    assert "no earlier run to compare with" in paths.page.read_text("utf-8")
    rendered(paths, "2-night", until=90)
    page = paths.page.read_text("utf-8")
    assert "since 1-night" in page
    rendered(paths, "1-night")  # an older run again: compared neither with itself nor with later runs
    assert "no earlier run to compare with" in paths.page.read_text("utf-8")


def test_only_reports_are_left(tmp_path: Path) -> None:
    rendered(Paths(tmp_path), "1-night")
    made = ["cells", "failures", "history.sqlite", "index.html", "junit.xml", "runs", "summary.md", "upgrade.html"]
    assert sorted(path.name for path in tmp_path.iterdir()) == made


def test_desk_run_leaves_the_nights_pages(tmp_path: Path) -> None:
    """It is compared with the night; the next night is compared with the night alone."""
    paths = Paths(tmp_path)
    rendered(paths, "1-night")
    before = {path: path.read_bytes() for path in (paths.page, paths.junit, paths.summary)}
    rendered(paths, "2-select", until=90)
    assert before == {path: path.read_bytes() for path in before}
    assert "since 1-night" in paths.pages("2-select").page.read_text("utf-8")
    rendered(paths, "3-night")
    assert "since 1-night" in paths.page.read_text("utf-8")


def test_level_without_results_is_missing(tmp_path: Path) -> None:
    """A GPU runner that lost its driver plans no case of level gpu; here it is level contract."""
    paths = Paths(tmp_path)
    assert rendered(paths, "1-night").missing == {}
    few = [each for each in night() if each.level is Level.CPU and each.verdict.colour == "green"]
    write_plan(paths.run("2-night"), [planned(each) for each in few])
    with Journal.new(paths.run("2-night")) as journal:
        for each in few:
            journal.result(each)
    with History(paths.history) as history:
        assert render(StoredRun(paths.run("2-night")), paths.out, history, real()).missing == {"contract": "1-night"}
    assert "level contract, which ran in 1-night, did not run" in paths.page.read_text("utf-8")


def test_log_is_named_relative_to_its_run(tmp_path: Path) -> None:
    """The link leads to the file. A log of another run, or one that is missing here, has its whole path."""
    paths, red = Paths(tmp_path), record(Verdict.REGRESSED)
    ours, others = paths.run("1-night") / "logs" / "x" / "rank-0.log", tmp_path / "rank-1.log"
    for log in (ours, others):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
    ranks = [RankEnd(n, 1, log=str(log)) for n, log in enumerate((ours, others, tmp_path / "missing.log"))]
    red = replace(red, outcome=replace(red.outcome, ranks=tuple(ranks)))
    write_plan(paths.run("1-night"), [planned(red)])
    with Journal.new(paths.run("1-night")) as journal:
        journal.result(red)
    with History(paths.history) as history:
        render(StoredRun(paths.run("1-night")), paths.out, history, real())

    page = paths.cell(red.cell.id).read_text("utf-8")
    assert '<a href="../runs/1-night/logs/x/rank-0.log">logs/x/rank-0.log</a>' in page
    assert f'<a href="../rank-1.log">{others}</a>' in page
    assert f'<td class="id">{tmp_path / "missing.log"}</td>' in page


def test_failed_write_raises_and_keeps_the_old_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "file", "\ud800")
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(MatrixError, match="can't be written"):
        write_whole(tmp_path / "file" / "below", "new")
