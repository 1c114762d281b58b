"""`megatrix report`: each format of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.cli.main import main
from matrix.ground.catalog import loading
from matrix.prove.store.paths import Paths
from tests.schemas import items_of
from tests.unit.catalogs import catalog, failure
from tests.unit.show.test_site import rendered

RUN = "20260131T020000000000Z-night"


@pytest.fixture(scope="module")
def of_night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an output folder with one night of several red cases."""
    folder = tmp_path_factory.mktemp("out")
    rendered(Paths(folder), RUN)
    return folder


@pytest.fixture
def out(of_night: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set a public and a private failure; return the output folder of the night."""
    own, private = failure("dud-assertion"), failure("write-item")
    monkeypatch.setattr(loading, "load", lambda *public: catalog(own) if public else catalog(own, private))
    return str(of_night)


def test_json_has_the_records_of_the_run(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", RUN, "--out", out, "--json"]) == 1
    assert len(items_of(capsys.readouterr().out, "records")) == 134


@pytest.mark.parametrize("options", [(), ("--private",)])
def test_site_has_private_failures_where_asked(out: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    assert main(["report", "--out", out, "--site", str(tmp_path / "site"), *options]) == 0
    files = {str(path): path.read_text("utf-8") for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert any("dud-assertion" in text for text in files.values())
    assert any("write-item" in name + text for name, text in files.items()) is bool(options)
