"""`megatrix bundle`: its mistakes, each with a fix; what `run --bundle` takes from one."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

import pytest

from matrix.cli import case_options
from matrix.cli.main import main, whole_parser
from matrix.ground.catalog.regular_file import sha256
from matrix.ground.errors import MatrixError
from matrix.prove.provision import bundle_folder, host
from matrix.prove.provision.bundle_folder import Bundle, BundleFile
from matrix.prove.provision.bundle_making import BundleContents, Maker
from tests.founding import SAVE
from tests.unit.engines import HOST

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--base", "torch-2.14.0"], "no such --base"),
        (["--base", "torch-2.13.0", "--python", "3.9"], "no wheels for this --python"),
        (["--base", "torch-2.13.0", "--split", "4"], "not a size"),
        (["--base", "torch-2.13.0", "--select", "mcor==0.8.0"], "unknown component or name"),
        (["--base", "torch-2.13.0", "--out", "occupied"], "not a bundle"),
        (["--base", "torch-2.13.0", "--compile", "no-environment"], "no environment: Python none, torch none"),
    ],
)
def test_mistake_is_refused_with_a_fix(
    words: list[str],
    what: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    handlers: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied/file").write_text("")
    defaults = ["--level", "cpu", "--python", "3.11", "--out", "b", "--select", f"failure=={SAVE}"]
    assert main(["bundle", *defaults, *words]) == 2
    printed = capsys.readouterr().err
    assert what in printed
    assert "fix:" in printed or "expected:" in printed
    assert not (tmp_path / "b").exists()


def parsed(*words: str) -> argparse.Namespace:
    return whole_parser().parse_args(["run", *words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a bundle of one file."""
    return write(tmp_path, "torch-2.13.0", "")


def write(folder: Path, base: str, select: str) -> Path:
    (folder / "start.py").write_text("")
    files = {"start.py": BundleFile(0, sha256(folder / "start.py"))}
    bundle_folder.write(folder, Bundle("1", "cpu", PYTHON, base, platform.machine(), select, files=files))
    return folder


@pytest.mark.parametrize(
    ("base", "select", "words", "expected"),
    [
        ("torch-2.13.0", "", (), ("cpu", "", "base==torch-2.13.0", False)),
        ("torch-2.13.0", "a==1 or b==2", (), ("cpu", "base==torch-2.13.0 and (a==1 or b==2)", "", False)),
        ("host", "", (), ("cpu", "", "", True)),
        ("host", "a==1", (), ("cpu", "a==1", "", True)),
        ("torch-2.13.0", "", ("--select", "c==3"), ("contract cpu", "c==3", "", False)),
        ("torch-2.13.0", "", ("--level", "gpu"), ("gpu", "", "base==torch-2.13.0", False)),
    ],
)
def test_run_takes_the_cases_of_its_bundle(
    base: str, select: str, words: tuple[str, ...], expected: object, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "look", lambda: HOST)
    write(folder, base, select)
    options = parsed("--bundle", str(folder), *words)
    bundle, _ = case_options.bundled(options)
    assert bundle
    request = case_options.cases_of_bundle(options, bundle)
    levels = " ".join(level.value for level in request.levels)
    assert (levels, request.select, request.within, request.here) == expected


def test_run_has_the_variables_of_its_bundle_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX", "https://theirs.example")
    monkeypatch.setenv("PIP_FIND_LINKS", "/theirs")
    _, environ = case_options.bundled(parsed("--bundle", str(folder)))
    assert "UV_INDEX" not in environ
    assert environ["PIP_FIND_LINKS"] == f"{folder}/wheels"
    assert (os.environ["UV_INDEX"], os.environ["PIP_FIND_LINKS"]) == ("https://theirs.example", "/theirs")


def test_damaged_bundle_runs_nothing(folder: Path) -> None:
    (folder / "start.py").write_text("changed")
    with pytest.raises(MatrixError, match="this bundle is damaged"):
        case_options.bundled(parsed("--bundle", str(folder)))


def test_dry_run_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None) -> None:
    made: list[Path] = []

    def contents(maker: Maker, *_: object) -> BundleContents:
        made.append(maker._folder)
        return BundleContents(Path(__file__), (), {})

    monkeypatch.setattr(Maker, "contents", contents)
    words = ["--level", "cpu", "--python", "3.11", "--base", "torch-2.13.0", "--select", f"failure=={SAVE}"]
    assert main(["bundle", *words, "--out", str(tmp_path / "b"), "--dry-run"]) == 0
    assert not (tmp_path / "b").exists()
    assert made[0] != tmp_path / "b"
