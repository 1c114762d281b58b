"""The page of frameworks, and which breaks are new."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from matrix.ground.errors import MatrixError
from tests import framework_cores
from tests.framework_cores import PAGE, RECORD, Held, cloned, judged, main, new_breaks, page, read_record, wheel_of

RELEASES = ("0.15.0", "0.16.0", "0.17.0")
KEY = "megatron.core.f in train: f() got an unexpected keyword argument 'x'"


def held(**where: tuple[str, ...]) -> Held:
    return Held("verl", "1.0", "megatron-core", ">=0.15", RELEASES, {KEY: where["broken"]} if where else {})


def test_page_is_that_of_the_record() -> None:
    assert page(read_record(RECORD.read_text("utf-8"))) == PAGE.read_text("utf-8")


@pytest.mark.parametrize(
    ("declared", "expected"),
    [("", RELEASES), (">=0.16", RELEASES[1:]), ("==0.16.0", RELEASES[1:]), ("<0.17", RELEASES), (">=0.20", RELEASES)],
)
def test_newer_releases_than_declared_are_judged(declared: str, expected: tuple[str, ...]) -> None:
    assert tuple(judged(SpecifierSet(declared) if declared else None, RELEASES)) == expected


@pytest.mark.parametrize(
    ("known", "fresh", "expected"),
    [
        (held(), held(), []),
        (held(broken=("0.17.0",)), held(), []),
        (held(broken=("0.17.0",)), held(broken=("0.17.0",)), []),
        (held(broken=("0.16.0",)), held(broken=("0.16.0", "0.17.0")), ["0.17.0"]),
        (held(), held(broken=("0.16.0", "0.17.0")), ["0.16.0 .. 0.17.0"]),
    ],
)
def test_only_unrecorded_breaks_are_new(known: Held, fresh: Held, expected: list[str]) -> None:
    assert list(new_breaks([known], [fresh])) == [f"new: verl 1.0 x megatron-core {where}: {KEY}" for where in expected]


def test_page_names_releases_with_and_without_breaks() -> None:
    text = page([held(broken=("0.17.0",))])
    assert "| verl 1.0 | megatron-core | `>=0.15` | 0.15.0 .. 0.16.0 | 0.17.0 |" in text


def test_newest_wheel_of_a_folder_is_read(tmp_path: Path) -> None:
    for version in ("0.9.1", "0.10.0"):
        (tmp_path / f"ms_swift-{version}-py3-none-any.whl").touch()
    assert wheel_of("ms-swift", tmp_path).name == "ms_swift-0.10.0-py3-none-any.whl"
    with pytest.raises(MatrixError, match="no wheel of this package"):
        wheel_of("verl", tmp_path)


def test_framework_without_wheel_is_read_from_clone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framework_cores, "held_against", lambda name, source: [held()] if source == "a@v1" else [])
    assert main(["slime", "nemo-rl", "--clone", "slime=a@v1"]) == 0
    assert capsys.readouterr().out == "1 pairs of packages, 0 new breaks; unread without --clone: nemo-rl\n"


@pytest.mark.parametrize("text", ["verl=a@v1", "slime=a", "slime"])
def test_other_clones_are_refused(text: str) -> None:
    with pytest.raises(MatrixError, match="not a clone of a framework"):
        cloned(text)
