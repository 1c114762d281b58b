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
from matrix.report.site import FEED, picture, published, write_site
from matrix.store.stored_run import Night
from matrix.verdicts.outcome import RankEnd
from matrix.verdicts.record import Record, Verdict
from tests.schemas import validator
from tests.unit.catalogs import catalog, clause, failure, image, real
from tests.unit.report.samples import cell, changed, record, stack_map
from tests.unit.report.test_page import Document

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


def test_site_has_pages_and_data_of_each_part(tmp_path: Path) -> None:
    files = written(tmp_path, private())
    parts = ["container/ngc-24.07", "failures/dud-assertion", *(f"megatron-core/0.{n}.0" for n in (7, 8, 9))]
    parts += [f"stack/ngc-24.07/0.{n}.0" for n in (7, 8, 9)]
    assert {f"{part}.html" for part in parts} | {f"api/1/{part}.json" for part in parts} <= {*files}
    roots = {"index.html", "all.html", "feed.xml", "llms.txt", "catalog.json", "map.json"}
    assert {name for name in files if "/" not in name} == roots
    badges = {"badges/catalog.svg", "badges/ngc-24.07.svg", *(f"badges/mcore-0.{n}.0.svg" for n in (7, 8, 9))}
    assert {name for name in files if name.startswith("badges/")} == badges
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


def test_data_of_every_page_fits_its_schema(tmp_path: Path) -> None:
    files = written(tmp_path, private())
    names = [name for name in files if name.startswith("api/1/")]
    for name in names:
        validator("site").validate(json.loads(files[name]))
    listed = json.loads(files["api/1/index.json"])["items"]
    assert {item["json"] for item in listed} == {*names} - {"api/1/index.json"}
    assert {item["page"] for item in listed} <= {*files}


def test_page_of_a_stack_answers_as_check(tmp_path: Path) -> None:
    files = written(tmp_path)
    assert (
        "ngc-24.07 with megatron-core 0.8.0: breaks for certain: dud-assertion." in files["stack/ngc-24.07/0.8.0.html"]
    )
    assert "no certain break: read, not run." in files["stack/ngc-24.07/0.9.0.html"]
    assert "1 breaks" not in files["container/ngc-24.07.html"]
    assert "2 breaks; 1 no certain break" in files["container/ngc-24.07.html"]


def test_pages_without_a_url_name_none(tmp_path: Path) -> None:
    """With one: a sitemap of every page, canonical addresses, absolute links of the feed."""
    files = written(tmp_path)
    assert "sitemap.xml" not in files
    assert "og:url" not in files["all.html"]
    night = Night("1-night", ())
    write_site(tmp_path, stack_map(KNOWN), night, "https://ours.example/m")
    located = {one.text for one in ET.parse(tmp_path / "sitemap.xml").getroot().iter() if one.text and one.text.strip()}
    assert "https://ours.example/m/container/ngc-24.07.html" in located
    assert len(located) == len([name for name in files if name.endswith(".html")])
    assert 'content="https://ours.example/m/all.html"' in (tmp_path / "all.html").read_text("utf-8")
    links = [
        one.get("href") for one in ET.parse(tmp_path / "feed.xml").getroot().iter("{http://www.w3.org/2005/Atom}link")
    ]
    assert all(str(link).startswith("https://ours.example/m/") for link in links)


def test_feed_has_the_newest_releases_and_failures(tmp_path: Path) -> None:
    write_site(tmp_path, stack_map(real()), Night("", ()))
    atom = "{http://www.w3.org/2005/Atom}"
    entries = list(ET.parse(tmp_path / "feed.xml").getroot().iter(f"{atom}entry"))
    updated = [str(one.findtext(f"{atom}updated")) for one in entries]
    assert updated == sorted(updated, reverse=True)
    assert len({one.findtext(f"{atom}id") for one in entries}) == len(entries) == FEED


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
    assert "1 into Transformer Engine, with --tp-comm-overlap" in (tmp_path / "stack/ngc-24.07/0.9.0.html").read_text(
        "utf-8"
    )


def test_site_names_no_machine_and_no_log(tmp_path: Path) -> None:
    """Also of a base or a release that only this machine has."""
    own = (private(where) for where in (Verdict.REPRODUCED, Verdict.REGRESSED))
    local = private(cell=cell("torch-2.4.0", "0.9.0rc0+feedbee"))
    files = written(tmp_path, *own, local, private(cell=cell("host", "0.8.0")))
    for name, text in files.items():
        assert not re.search(r"node17|/home/ann|feedbee|\.\./cells|runs/a", text), name


def test_no_site_of_the_catalog_names_a_folder(tmp_path: Path) -> None:
    """Examples of the catalog name none of the machine that ran them."""
    write_site(tmp_path, stack_map(real()), Night("", ()))
    for page in (tmp_path / "failures").iterdir():
        assert not re.search(r"/reports/out/|/runs/\d|/home/[a-z]+/|/root/", page.read_text("utf-8")), page.name


def test_every_link_of_the_site_has_a_target(tmp_path: Path) -> None:
    files = written(tmp_path, private())
    for name, text in files.items():
        if name.endswith(".html"):
            for link in Document(text).values("href"):
                if not link.startswith(("https://", "#")):
                    target = (tmp_path / name).parent / link.partition("#")[0]
                    assert target.resolve().is_relative_to(tmp_path), (name, link)
                    assert target.is_file(), (name, link)


def test_badge_states_what_breaks(tmp_path: Path) -> None:
    files = written(tmp_path)
    texts = {name: "".join(ET.fromstring(text).itertext()) for name, text in files.items() if name[:6] == "badges"}
    assert "breaks: megatron-core 0.7.0 .. 0.8.0" in texts["badges/ngc-24.07.svg"]
    assert "no certain break known" in texts["badges/mcore-0.9.0.svg"]
    assert "1 known failures" in texts["badges/catalog.svg"]


def test_badge_of_an_unknown_image_is_grey(tmp_path: Path) -> None:
    """Nothing certain is known of it, which is no good news."""
    images = (image("ngc-24.07", "2.4.0a0+ab12cd3", "1.4"), image("ngc-26.10", None))
    known = catalog(failure("dud-assertion", affected=(clause(torch="<2.3"),)), containers=images)
    write_site(tmp_path, stack_map(known), Night("", ()))
    texts = {path.stem: path.read_text("utf-8") for path in (tmp_path / "badges").iterdir()}
    assert "its packages are not known" in texts["ngc-26.10"]
    assert ["#0a7a55" in texts[name] for name in ("ngc-24.07", "ngc-26.10")] == [True, False]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_picture_is_well_formed_and_complete(scheme: str) -> None:
    text = picture(stack_map(KNOWN), scheme)
    words = [one.text for one in ET.fromstring(text).iter() if one.text]
    assert {"ngc-24.07", "0.7.0", "0.8.0", "0.9.0", "!", "breaks"} <= {*words}


def test_report_writes_site_and_picture_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ["--site", str(tmp_path / "site"), "--map", str(tmp_path / "map.svg")]
    assert main(["report", "--out", str(tmp_path / "out"), *made]) == 0
    assert capsys.readouterr().out.split() == [
        str(tmp_path / one) for one in ("site/index.html", "map.svg", "map-dark.svg")
    ]
    assert "Without the results of a night" in (tmp_path / "site" / "index.html").read_text("utf-8")
    files = [path for path in (tmp_path / "site").rglob("*") if path.is_file()]
    assert (tmp_path / "site" / "index.html").stat().st_size < 300_000
    assert sum(path.stat().st_size for path in files) < 25_000 * len(files)
