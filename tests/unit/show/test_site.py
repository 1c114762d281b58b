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
from matrix.ground.verdicts.outcome import RankEnd
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.store.stored_run import Night
from matrix.show.site import picture, published, write_site
from tests.schemas import validator
from tests.unit.catalogs import catalog, clause, failure, image, real
from tests.unit.show.samples import cell, changed, record, stack_map
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
    assert {*files} == {"index.html", "all.html", "catalog.json", "map.json", "failures/dud-assertion.html"}
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
    assert sum(path.stat().st_size for path in files) < 4_000_000
