"""`megatrix show` on the command line."""

from __future__ import annotations

import pytest

from matrix.cli.main import main
from matrix.ground.catalog import loading
from tests.founding import PINNED
from tests.schemas import items_of


@pytest.mark.parametrize(
    ("what", "status", "text"),
    [
        ("NVIDIA/TransformerEngine#2480", 0, "Add THD support for max_logit"),
        ("https://github.com/NVIDIA/TransformerEngine/pull/3173/files", 0, "first in 2.17"),
        ("NVIDIA/TransformerEngine#99999", 3, "not mentioned in a commit up to 20"),
        ("pytorch/pytorch#1", 3, "pytorch/pytorch by its releases, up to 20"),
        ("torch==2.4.1", 0, "known of pytorch/pytorch by its releases, up to 20"),
        ("torch==99.1", 3, "not a release that is known up to 20"),
        ("22d304cfd", 0, "get_attention_backend"),
        ("NVIDIA/TransformerEngine@22d304cfd6", 0, "2.11"),
        ("abcdef0123", 3, "not a commit of main or of a release"),
        ("te=2.11", 0, "fixes and reverts that 2.10 lacks"),
        ("te=2.11.0", 0, "fixes and reverts that 2.10 lacks"),
        ("te==99.1", 3, "not a release that is known up to 20"),
        ("numpy==2.0", 3, "not a component whose history is known"),
        ("ROCm/Megatron-LM#83", 0, "Saving a distributed checkpoint fails"),
        ("NVIDIA/Megatron-LM#83", 3, "not mentioned in a commit up to 20"),  # that of the fork is another
        (PINNED, 0, "known: "),
    ],
)
def test_what_is_known_of_each_form(what: str, status: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", what]) == status
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("what", ["", "#12", "https://example.org/x/y/z", "NVIDIA/TransformerEngine#", "2.11", "../x"])
def test_malformed_names_are_a_mistake(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", what]) == 2
    assert "nothing that can be shown" in capsys.readouterr().err


def test_json_has_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "te=99.1", "--json"]) == 3
    item = items_of(capsys.readouterr().out, "show")[0]
    assert item["known"] is False
    assert "not a release" in item["lines"][0]


def test_check_points_an_issue_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "NVIDIA/Megatron-LM#1025"]) == 2
    assert "megatrix show NVIDIA/Megatron-LM#1025" in capsys.readouterr().err
    assert main(["show", "NVIDIA/Megatron-LM#1025"]) == 0
    assert "workaround: " in capsys.readouterr().out


def test_misspelt_entry_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    failure = loading.load().failures[0].id
    assert main(["show", f"{failure}x"]) == 2
    assert f"did you mean {failure}" in capsys.readouterr().err
