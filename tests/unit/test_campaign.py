"""The campaign counts tries and failures; the share of its parts that takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.ground.errors import ExitStatus
from tests import campaign


@pytest.mark.parametrize(
    ("results", "status"),
    [(["", ""], ExitStatus.GOOD), (["", "lost\na case"], ExitStatus.BAD), ([], ExitStatus.NOTHING)],
)
def test_campaign_counts_tries_and_failures(
    results: list[str], status: ExitStatus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def part(tries: int, seed: int, folder: Path) -> Iterator[str]:
        yield from results[:tries]

    monkeypatch.setattr(campaign, "PARTS", {"part": (part, 3)})
    out = tmp_path / "table.md"
    assert campaign.main(["--out", str(out)]) == status
    assert f"| part | {len(results)} | {sum(map(bool, results))} | 0 |" in out.read_text()
    assert ("- part: lost a case" in out.read_text()) is (status is ExitStatus.BAD)


def test_failed_check_is_one_of_its_tries() -> None:
    def check() -> None:
        raise AssertionError("a case twice")

    assert list(campaign.blamed(check, 3)) == ["AssertionError: a case twice", "", ""]
    assert list(campaign.blamed(lambda: None, 2)) == ["", ""]


def test_each_part_has_the_tries_of_a_release() -> None:
    tries = {name: count for name, (_, count) in campaign.PARTS.items()}
    assert tries == {"kills": 150, "inputs": 3_000, "hosts": 60, "disks": 20, "clocks": 10, "users": 5}
