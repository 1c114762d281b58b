"""Settings of YAML files as the arguments of a training command."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.catalog.place import Place
from matrix.check.files.config import PROGRAM, read_config
from matrix.check.files.read import read_file


def test_settings_are_arguments(tmp_path: Path) -> None:
    path = tmp_path / "llama.yaml"
    path.write_text("model:\n  ub_tp_comm_overlap: true\n  encoder_seq_length: 131072\n  fp8: null\n  bf16: false\n")
    assert read_file(path).commands[0].words[1:] == ("--tp-comm-overlap", "--seq-length", "131072", "--no-bf16")


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {seq_length: 8, b: *a}",
        "a0: &a0 [{seq_length: 8}]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(60)),
    ],
    ids=["cycle", "doubling"],
)
def test_aliases_are_read_once(text: str) -> None:
    (command,) = read_config(text, "x.yaml", lambda _: None).commands
    assert command.words[1:] == ("--seq-length", "8")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seq_length: 8", ("--seq-length", "8")),
        ("a: {b: {num_layers: 2}}", ("--num-layers", "2")),
        ("- num_layers: 2", ("--num-layers", "2")),
        ("fp8: null", ()),
        ("sequence_parallel: true", ("--sequence-parallel",)),
        ("sequence_parallel: false", ("--no-sequence-parallel",)),
        ("--lr: 0.5", ("--lr", "0.5")),
        ("5: 6", ("--5", "6")),
        ("'': 6", ()),
    ],
)
def test_a_setting_is_an_argument(text: str, words: tuple[str, ...]) -> None:
    found = read_config(text, "x.yaml", lambda _: None).commands
    assert [one.words for one in found] == ([(PROGRAM, *words)] if words else [])
    assert {one.place for one in found} <= {Place("x.yaml")}
