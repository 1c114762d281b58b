"""The static site: complete, linked, small, and without anything that names a machine."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.cli.main import main
from matrix.ground.catalog.failure import Level
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import RankEnd
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.store.history import History
from matrix.prove.store.journal import Journal
from matrix.prove.store.paths import Paths, write_whole
from matrix.prove.store.stored_run import Night, StoredRun, write_plan
from matrix.show.site import published, render, write_site
from tests.schemas import validator
from tests.unit.catalogs import catalog, clause, failure, image
from tests.unit.show.samples import cell, changed, night, planned, record, stack_map
from tests.unit.show.test_page import Document

KNOWN = catalog(
    failure("dud-assertion", affected=(clause(mcore="<0.9"),), works=(clause(mcore=">=0.9"),)),
    containers=(image("ngc-24.07", "2.4.0a0+ab12cd3", "1.4"),),
)
SECRET = "node17.corp.example /home/ann/run"


def private(verdict: Verdict = Verdict.REPRODUCED, **further: Any) -> Record:
    """Return a record that names a machine in every field that may."""
    one = record(verdict, notes=(SECRET,), reproduce=SECRET, resolved={"host": SECRET})
    ranks = (RankEnd(0, 1, log=SECRET, stacks=SECRET),)
    return changed(one, outcome=replace(one.outcome, reason=SECRET, evidence=SECRET, ranks=ranks), **further)


def written(folder: Path, *records: Record) -> dict[str, str]:
    night = Night("1-night", tuple(published(KNOWN, records)))
    write_site(folder, stack_map(KNOWN, *night.records), night)
    return {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()}


def test_site_has_its_pages_and_data(tmp_path: Path) -> None:
    files = written(tmp_path, private())
    releases = {name for name in files if name.startswith("releases/")}
    own = {"index.html", "all.html", "catalog.json", "map.json", "failures/dud-assertion.html"}
    assert {*files} == own | releases
    assert {"releases/megatron-core-0.19.0.html", "releases/megatron-bridge-0.6.0.html"} <= releases
    asked = [link for link in Document(files["all.html"]).values("href") if link.startswith("index.html#")]
    words = ("base%3Dngc-24.07", "te%3D1.10", "mcore%3D0.9.0", "mcore%3D0.7.0")
    assert {f"index.html#from={word}&want=none" for word in words} <= {*asked}
    validator("map").validate(json.loads(files["map.json"]))
    items = json.loads(files["map.json"])["items"]
    assert sorted(item["call"]["needs"] for item in items if not item["failure"]) == [
        "with --enable-cuda-graph",
        "with --use-distributed-optimizer, when Apex is not installed",
    ]
    assert [item for item in items if item["failure"]] == [
        {"container": "ngc-24.07", "failure": "dud-assertion", "standing": "will break", "mcore": ["0.7.0", "0.8.0"]}
    ]
    assert "reproduced" in files["failures/dud-assertion.html"]


def test_map_data_has_the_calls(tmp_path: Path) -> None:
    """Transformer Engine 1.5 lacks an argument that megatron-core 0.9 passes; no entry of the catalog states it."""
    known = catalog(failure("dud-assertion"), containers=(image("ngc-24.07", "2.4.0a0+ab12cd3", "1.5.0"),))
    write_site(tmp_path, stack_map(known), Night("", ()))
    data = json.loads((tmp_path / "map.json").read_text("utf-8"))
    validator("map").validate(data)
    calls = [one for one in data["items"] if not one["failure"]]
    assert {(one["container"], *one["mcore"], one["call"]["needs"]) for one in calls} == {
        ("ngc-24.07", "0.9.0", "with --enable-cuda-graph"),
        ("ngc-24.07", "0.8.0", "0.9.0", "with --use-distributed-optimizer, when Apex is not installed"),
        ("ngc-24.07", "0.9.0", "with --tp-comm-overlap"),
    }


def test_pages_link_to_commits_and_first_releases(tmp_path: Path) -> None:
    """1284d25e12 (#3912) is in megatron-core 0.18.0 first."""
    entry = failure("dud-assertion", references=("NVIDIA/Megatron-LM#3912",))
    write_site(tmp_path, stack_map(catalog(entry)), Night("", ()))
    page = Document((tmp_path / "failures" / "dud-assertion.html").read_text("utf-8")).values("href")
    assert "https://github.com/NVIDIA/Megatron-LM/commit/1284d25e12" in page
    assert "../releases/megatron-core-0.18.0.html" in page
    release = Document((tmp_path / "releases" / "megatron-core-0.18.0.html").read_text("utf-8"))
    assert "https://github.com/NVIDIA/Megatron-LM/commit/1284d25e12" in release.values("href")
    assert "https://github.com/NVIDIA/Megatron-LM/issues/3912" in release.values("href")


def test_site_names_no_machine_and_no_log(tmp_path: Path) -> None:
    """Also of a base or a release that only this machine has."""
    own = (private(where) for where in (Verdict.REPRODUCED, Verdict.REGRESSED))
    local = private(cell=cell("torch-2.4.0", "0.9.0rc0+feedbee"))
    files = written(tmp_path, *own, local, private(cell=cell("host", "0.8.0")))
    for name, text in files.items():
        assert not re.search(r"node17|/home/ann|feedbee|\.\./cells|runs/a", text), name


def test_every_link_of_the_site_has_a_target(tmp_path: Path) -> None:
    files = written(tmp_path, private())
    for name, text in files.items():
        if name.endswith(".html"):
            for link in Document(text).values("href"):
                if not link.startswith(("https://", "#")):
                    target = (tmp_path / name).parent / link.partition("#")[0]
                    assert target.resolve().is_relative_to(tmp_path), (name, link)
                    assert target.is_file(), (name, link)


def test_report_writes_the_site_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of the catalog: its examples name no folder of the machine that ran them."""
    assert main(["report", "--out", str(tmp_path / "out"), "--site", str(tmp_path / "site")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "site" / "index.html")]
    assert "Without the results of a night" in (tmp_path / "site" / "index.html").read_text("utf-8")
    files = [path for path in (tmp_path / "site").rglob("*") if path.is_file()]
    assert (tmp_path / "site" / "index.html").stat().st_size < 300_000
    pages = [*(tmp_path / "site" / "failures").iterdir()]
    assert sum(path.stat().st_size for path in files) < 41_000 * len(pages)  # 6,500 of them are releases of upstream
    for page in pages:
        assert not re.search(r"/reports/out/|/runs/\d|/home/[a-z]+/|/root/", page.read_text("utf-8")), page.name


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
        return render(StoredRun(paths.run(run)), paths.out, history, KNOWN)


def test_run_writes_page_junit_and_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = Paths(tmp_path / "out")
    current = rendered(paths, "1-night")
    assert len(current.records) == len(night())
    assert "15 of 134 cases are red" in paths.page.read_text("utf-8")
    assert len(ET.parse(paths.junit).findall(".//testcase")) == len(night())
    with History(paths.history) as history:
        assert history.levels()
    assert capsys.readouterr() == ("", "")
    made = ["cells", "failures", "history.sqlite", "index.html", "junit.xml", "runs", "summary.md", "upgrade.html"]
    assert sorted(path.name for path in paths.out.iterdir()) == made


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
        assert render(StoredRun(paths.run("2-night")), paths.out, history, KNOWN).missing == {"contract": "1-night"}
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
        render(StoredRun(paths.run("1-night")), paths.out, history, KNOWN)

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
