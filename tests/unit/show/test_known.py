"""The commands state a known failure in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from matrix.cli.main import main
from matrix.ground.catalog.failure import Failure
from matrix.show.known import advice, affected_versions, statement, where
from tests.founding import BEHIND_MPI, SAVE
from tests.unit.catalogs import catalog, clause, failure, real


def expected_of(failure: Failure) -> list[str]:
    """Return the fix and the workarounds, as every command prints them."""
    return [f"{label} {text}" for label, text in advice(failure)]


def test_check_match_and_contract_use_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGATRIX_OUT", str(tmp_path))
    failure = real().failure(BEHIND_MPI)
    log = tmp_path / "log"
    log.write_text(
        "Traceback (most recent call last):\nTypeError: initialize_ub() got an unexpected keyword argument 'tp_size'\n"
    )
    printed = []
    for words in (
        ["check", "mcore=0.12.0 te=1.8.0", "--all"],
        ["match", str(log)],
        ["contract", "--mcore", "0.12.0", "--te", "1.8.0"],
    ):
        main(words)
        printed.append(" ".join(capsys.readouterr().out.split()))
    assert len(expected_of(failure)) > 1
    for out in printed:
        assert f"{failure.id}: {failure.title}" in out
        assert [line for line in expected_of(failure) if " ".join(line.split()) not in out] == []


def test_bisection_states_the_failure_first() -> None:
    failure = real().failure(SAVE)
    first, *rest = statement(failure)
    assert first == f"known: {failure.id}: {failure.title}"
    assert rest == expected_of(failure)


def test_rule_names_packages_in_full() -> None:
    rule = clause(base=["ngc-24.07"], mcore=">=0.7", te="<1.9", packages={"numpy": ">=2"})
    expected = "the image ngc-24.07 and megatron-core >=0.7 and Transformer Engine <1.9 and numpy >=2"
    assert where(rule) == expected
    assert where(clause()) == "everywhere"


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"mcore": ">=0.8"}, "megatron-core 0.8.0 and later"),
        ({"mcore": "<0.9"}, "megatron-core 0.7.0 to 0.8.0"),
        ({"mcore": "==0.8.0"}, "megatron-core 0.8.0"),
        ({"mcore": ">=0.1"}, "any megatron-core"),
        ({"mcore": "!=0.8.0"}, "megatron-core 0.7.0, 0.9.0"),
        ({"mcore": "<0.9", "flash-attn": ">=2.7"}, "megatron-core 0.7.0 to 0.8.0, flash-attn >=2.7"),
        ({}, "every version"),
    ],
)
def test_affected_versions_are_plain_words(rule: dict[str, Any], text: str) -> None:
    assert affected_versions(catalog(failure()), clause(**rule)) == text
