"""A site's clones: from megatrix.toml or the environment, and the error without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.provision.configuration import Configuration, load


def test_a_relative_path_starts_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "megatrix.toml").write_text('[sources]\nmegatron-lm = "clones/Megatron-LM"\n')

    configured = load({}, tmp_path)

    assert configured.resolve("megatron-lm@abc") == f"{tmp_path / 'clones/Megatron-LM'}@abc"


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "megatrix.toml").write_text('[sources]\nmegatron-lm = "/file"\n')

    assert load({"MEGATRIX_MEGATRON_LM": "/env"}, tmp_path).sources == {"megatron-lm": "/env"}


@pytest.mark.parametrize("source", ["0.9.0", "", "./Megatron-LM@abc", "/tree", "wheel.whl"])
def test_other_sources_are_unchanged(source: str) -> None:
    assert Configuration().resolve(source) == source


def test_a_missing_clone_has_a_fix() -> None:
    with pytest.raises(MatrixError) as raised:
        Configuration().resolve("transformer-engine@v1.8")
    assert raised.value.brief == (
        "needs a clone of TransformerEngine: got none is configured: "
        "expected MEGATRIX_TRANSFORMER_ENGINE=PATH, or transformer-engine under [sources] in megatrix.toml"
    )


def test_a_misspelled_source_has_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "megatrix.toml").write_text('[sources]\nmegatron = "/clone"\n')

    with pytest.raises(MatrixError, match="did you mean megatron-lm"):
        load({}, tmp_path)


def test_a_misspelled_key_has_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "megatrix.toml").write_text("[source]\n")

    with pytest.raises(MatrixError, match="did you mean sources"):
        load({}, tmp_path)
