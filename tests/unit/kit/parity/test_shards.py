"""Canonical names of parameters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from matrix.kit.parity import shards

LAYERS = {"decoder.layers.0": 2, "decoder.layers.1": 3}


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("decoder.layers.1.mlp.linear_fc1.weight", "decoder.layers.3.mlp.linear_fc1.weight"),
        ("decoder.layers.10.mlp.linear_fc1.weight", "decoder.layers.10.mlp.linear_fc1.weight"),
        (
            "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight",
            "decoder.layers.2.mlp.experts.local_experts.3.linear_fc1.weight",
        ),
        ("decoder.final_layernorm.weight", "decoder.final_layernorm.weight"),
    ],
)
def test_numbers_are_those_of_the_whole_model(name: str, whole: str) -> None:
    assert shards.canonical(name, LAYERS, 2, tied=False) == whole


@pytest.mark.parametrize("tied", [False, True])
def test_tied_output_layer_is_the_embedding(tied: bool) -> None:
    name = "embedding.word_embeddings.weight" if tied else "output_layer.weight"
    assert shards.canonical("output_layer.weight", {}, 0, tied=tied) == name


def test_offset_of_sinks_is_divided_by_heads() -> None:
    """Upstream does not mark it."""
    assert shards.split_dimension("a.core_attention.softmax_offset", SimpleNamespace()) == 0
    assert shards.split_dimension("a.weight", SimpleNamespace(tensor_model_parallel=True, partition_dim=1)) == 1
    assert shards.split_dimension("a.weight", SimpleNamespace(tensor_model_parallel=False, partition_dim=1)) is None
