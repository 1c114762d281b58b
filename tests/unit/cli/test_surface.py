"""`megatrix surface record` on the command line."""

from pathlib import Path

import pytest

from matrix.contract import recording
from matrix.errors import MatrixError
from tests.schemas import items_of
from tests.unit.cli.test_contract import run
from tests.unit.contract.test_reading import engine, megatron  # noqa: F401 - fixtures


def test_record_writes_a_file_that_contract_reads(
    engine: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "te.json.gz"
    assert run("surface", "record", str(engine), "-o", str(output), "--as", "1.8.0+37280ec") == 0
    assert "transformer-engine 1.8.0+37280ec, 2 modules" in capsys.readouterr().out
    assert run("contract", "--mcore", "0.9.0", "--te", str(output), "--json") == 1
    assert items_of(capsys.readouterr().out, "contract")[0]["te"] == "1.8.0+37280ec"


def test_record_detects_megatron(
    megatron: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run("surface", "record", "./Megatron-LM")
    assert "megatron-core 0.9.0rc0+tree." in capsys.readouterr().out
    assert list(tmp_path.glob("megatron-core-0.9.0rc0+tree.*.json.gz"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/", "neither Transformer Engine nor Megatron-LM"),
        ("1.9.0", "read from a local copy only"),
        ("./gone", "no such source"),
    ],
)
def test_record_refuses_an_invalid_source(source: str, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        run("surface", "record", source)


def test_api_is_added_to_an_archive(megatron: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    output = tmp_path / "api.jsonl.xz"
    for version in ("0.10.0", "0.9.0", "0.10.0"):
        run("surface", "record", str(megatron), "--api", "megatron-core", "--as", version, "-o", str(output))

    assert list(recording.read_archive(output)) == ["0.9.0", "0.10.0"]
    assert "megatron-core 0.10.0, 7 modules" in capsys.readouterr().out
