"""YAML of any kind; settings of Megatron, NeMo, Megatron-Bridge and verl."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from matrix.ask.check.files.declared import Declared
from matrix.ask.check.files.job_yaml import PROGRAM, read_yaml


def declared(text: str, files: Mapping[str, str] = {}) -> Declared:
    return read_yaml(text, "x.yaml", lambda name: (name, files[name]) if name in files else None)


def test_settings_are_arguments() -> None:
    (command,) = declared(
        "model:\n  ub_tp_comm_overlap: true\n  encoder_seq_length: 131072\n  fp8: null\n  bf16: false\n"
    ).commands
    assert command.words[1:] == ("--ub-tp-comm-overlap", "--encoder-seq-length=131072", "--no-bf16")


KNOWN = "seq_length: 8, bf16: true, ckpt_format: x"


@pytest.mark.parametrize(
    "text",
    [
        f"a: &a {{{KNOWN}, b: *a}}",
        f"a0: &a0 [{{{KNOWN}}}]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(60)),
    ],
    ids=["cycle", "doubling"],
)
def test_aliases_are_read_once(text: str) -> None:
    (command,) = declared(text).commands
    assert command.words[1:] == ("--seq-length=8", "--bf16", "--ckpt-format=x")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- hosts: all\n  tasks: []", "not read"),
        ("model: {seq_length: 8, name: x}", "not read"),
        ("{{ toYaml .Values }}: {{ x }}", "not YAML"),
        ("name: chart\nversion: 1.0\ndependencies: [{name: redis}]", "not read"),
        ("hello", "not read"),
        ("dependencies: 5", "not read"),
        ("dependencies: [{x: 5}]", "not read"),
        ("dependencies: [a", "not YAML"),
        ("a: !!python/object/apply:os.system [true]", "not YAML"),
        ("a: !vault x", "not YAML"),
    ],
)
def test_unknown_kinds_are_not_read(text: str, reason: str) -> None:
    found = declared(text)
    assert [reason in unread.text for unread in found.unread] == [True]
    assert not found.commands


MAIN = f"defaults:\n- _self_\n- optional model: none\n- model@actor: big\n- rollout: vllm\na: {{{KNOWN}}}"


def test_included_settings_are_read() -> None:
    found = declared(MAIN, {"model/big.yaml": "defaults: [base]\nfp8: hybrid"})
    missing = [unread.text for unread in found.unread]
    assert "--fp8=hybrid" in found.commands[0].words
    assert missing == ["the settings base.yaml are missing"]


def test_settings_that_include_each_other_end() -> None:
    found = declared(MAIN, {"model/big.yaml": "defaults: [{model: big}]\nfp8: hybrid"})
    assert len(found.commands) == 1


def test_settings_of_the_generating_engine_are_skipped() -> None:
    (command,) = declared(f"actor: {{{KNOWN}}}\nrollout: {{tensor_model_parallel_size: 1}}").commands
    assert "--tensor-model-parallel-size=1" not in command.words


def test_conda_environment_is_read() -> None:
    found = declared("dependencies:\n- pytorch=2.5.1\n- pip:\n  - numpy==1.26.4")
    assert [(pin.name, pin.version, pin.place.line) for pin in found.pins] == [
        ("torch", "2.5.1", 2),
        ("numpy", "1.26.4", 4),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num_layers: 2", ["--num-layers=2"]),
        ("a: {b: {num_layers: 2}}", ["--num-layers=2"]),
        ("a: [{num_layers: 2}]", ["--num-layers=2"]),
        ("fp8: null", []),
        ("sequence_parallel: true", ["--sequence-parallel"]),
        ("sequence_parallel: false", ["--no-sequence-parallel"]),
        ("--lr: 0.5", ["--lr=0.5"]),
        ("5: 6", ["--5=6"]),
        ("'': 6", []),
    ],
)
def test_a_setting_is_an_argument(text: str, words: list[str]) -> None:
    (command,) = declared(f"known: {{{KNOWN}}}\n{text}").commands
    assert [word for word in command.words[1:] if word not in ("--seq-length=8", "--bf16", "--ckpt-format=x")] == words
    assert command.words[0] == PROGRAM
