"""`megatrix surface record` on the command line."""

import re
import shlex
from pathlib import Path

import pytest

from matrix.ground.catalog.schema import toml_table
from matrix.ground.errors import MatrixError
from matrix.read.api import recording
from matrix.read.api.provider import PROVIDERS, providers_in
from tests.schemas import items_of
from tests.unit.cli.test_contract import run
from tests.unit.read.api.test_sides import INFO, engine, megatron, tree  # noqa: F401 - fixtures

PAGE = Path(__file__).parents[3] / "docs" / "providers.md"


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


def test_page_adds_a_provider(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row and its commands, on a package whose second release drops a parameter that megatron-core passes."""
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    rows = [row for kind, text in blocks if kind == "toml" for row in toml_table(text, "page")["provider"]]
    for package, provider in providers_in(rows).items():
        monkeypatch.setitem(PROVIDERS, package, provider)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recording, "folder", lambda: Path("surfaces"))
    core = {"__init__.py": "", "package_info.py": INFO, "adam.py": "import fused_adam\nfused_adam.step(1, scale=2)\n"}
    tree(tmp_path / "Megatron-LM", {f"megatron/core/{path}": text for path, text in core.items()})
    tree(tmp_path / "fused-adam-1.0", {"fused_adam/__init__.py": "def step(p, scale=1): ...\n"})
    tree(tmp_path / "fused-adam-2.0", {"src/fused_adam/__init__.py": "def step(p): ...\n"})

    for line in [line for kind, text in blocks if kind == "sh" for line in text.splitlines()]:
        assert run(*shlex.split(line)[1:]) == 0

    shown = capsys.readouterr().out
    assert "2.0         1 definite\n1.0         nothing" in shown
    assert "step() got an unexpected keyword argument 'scale'" in shown


def test_source_without_a_version_is_refused(tmp_path: Path) -> None:
    source = tree(tmp_path / "pytorch", {"torch/__init__.py": ""})
    with pytest.raises(MatrixError, match="the version of this source is not read"):
        run("surface", "record", str(source), "--api", "torch")
