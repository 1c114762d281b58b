"""The arguments of the tiny GPT and the order of its training steps; torch and megatron-core are replaced."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from matrix.kit import gpt, megatron
from matrix.kit.gpt import MICRO_BATCH, SEQUENCE, VOCABULARY
from matrix.kit.rank import Rank


class Text:
    """Rows of tokens: slices of columns, as a tensor's; `to` moves it."""

    def __init__(self, rows: list[list[int]], device: str = "cpu") -> None:
        self.rows, self.device = rows, device

    def __getitem__(self, key: tuple[slice, slice]) -> Text:
        rows, columns = key
        return Text([row[columns] for row in self.rows[rows]], self.device)

    def to(self, device: str) -> Text:
        return Text(self.rows, device)


class Mask(Text):
    def triu(self, diagonal: int) -> Text:
        return Text([[column - row >= diagonal for column in range(SEQUENCE)] for row in range(SEQUENCE)])


class Optimizer:
    def __init__(self, calls: list[str]) -> None:
        self.zero_grad, self.step = (lambda: calls.append("zero_grad")), (lambda: calls.append("step"))


def put(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    """Make a module importable, with its packages."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        if (part := ".".join(parts[:end])) not in sys.modules:
            monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    vars(sys.modules[name]).update(names)


def fake_torch() -> Any:
    generator = types.SimpleNamespace(manual_seed=lambda seed: itertools.count(seed))
    return types.SimpleNamespace(
        Generator=lambda: generator,
        arange=lambda size: types.SimpleNamespace(expand=lambda rows, _: Text([list(range(size))] * rows)),
        ones=lambda *shape, dtype: Mask([]),
        bool=bool,
        randint=lambda low, high, shape, generator: Text(
            [[next(generator) % (high - low) + low for _ in range(shape[1])] for _ in range(shape[0])]
        ),
    )


def test_labels_are_the_next_tokens() -> None:
    """Of [MICRO_BATCH, SEQUENCE] tokens; all four are on the device."""
    batch = next(gpt.batch_stream(fake_torch(), "cuda:1"))
    tokens, labels, positions, _ = (part.rows for part in batch)
    assert [row[1:] for row in tokens] == [row[:-1] for row in labels]
    assert {len(row) for row in (*tokens, *labels, *positions)} == {SEQUENCE}
    assert len(tokens) == len(labels) == len(positions) == MICRO_BATCH
    assert {token for row in tokens for token in row} <= set(range(VOCABULARY))
    assert {part.device for part in batch} == {"cuda:1"}


def test_mask_hides_what_comes_later() -> None:
    *_, mask = next(gpt.batch_stream(fake_torch(), "cpu"))
    assert (mask.rows[0][:2], mask.rows[-1]) == ([False, True], [False] * SEQUENCE)


def test_every_rank_has_the_same_batches() -> None:
    """And each batch differs from the one before."""
    streams = [gpt.batch_stream(fake_torch(), "cpu") for _ in range(2)]
    (first, second), (same, _) = ([next(stream)[0].rows for _ in range(2)] for stream in streams)
    assert first == same != second


def test_loss_is_reported_without_its_graph() -> None:
    loss = types.SimpleNamespace(detach=lambda: 0.5)
    losses = types.SimpleNamespace(float=lambda: types.SimpleNamespace(mean=lambda: loss))
    assert gpt.mean_loss(losses) == (loss, {"loss": 0.5})


def test_forward_step_gives_labels_to_the_model() -> None:
    def model(tokens: str, positions: str, mask: str, *, labels: str) -> tuple[str, ...]:
        return tokens, positions, mask, labels

    output, function = gpt.forward_step(iter([("tokens", "labels", "positions", "mask")]), model)
    assert output == ("tokens", "positions", "mask", "labels")
    assert function.func is gpt.mean_loss


def test_each_step_clears_the_gradients_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sizes: list[dict[str, Any]] = []

    def forward_backward(**keywords: Any) -> list[dict[str, float]]:
        calls.append("forward_backward")
        sizes.append(keywords)
        return [{"loss": 4.5 - len(sizes)}]

    put(monkeypatch, "megatron.core.pipeline_parallel.schedules", get_forward_backward_func=lambda: forward_backward)
    torch = types.SimpleNamespace(optim=types.SimpleNamespace(Adam=lambda parameters: Optimizer(calls)))
    batches: Iterator[Any] = iter(())
    assert gpt.train(torch, types.SimpleNamespace(parameters=tuple), batches, 2) == [3.5, 2.5]
    assert calls == ["zero_grad", "forward_backward", "step"] * 2
    (keywords, _) = sizes
    assert (keywords["data_iterator"], keywords["forward_step_func"]) == (batches, gpt.forward_step)
    assert (keywords["seq_length"], keywords["micro_batch_size"]) == (SEQUENCE, MICRO_BATCH)
    assert (keywords["num_microbatches"], keywords["forward_only"]) == (1, False)


def test_a_stage_has_its_ranks_parallel_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stage embeds, the last one has the loss; the model is moved to the rank's device."""
    moved: list[str] = []

    class Model(types.SimpleNamespace):
        def to(self, device: str) -> Model:
            moved.append(device)
            return self

    state = types.SimpleNamespace(
        get_tensor_model_parallel_world_size=lambda: 2,
        get_pipeline_model_parallel_world_size=lambda: 4,
        is_pipeline_first_stage=lambda: True,
        is_pipeline_last_stage=lambda: False,
    )
    put(monkeypatch, "torch", float32="float32")
    put(monkeypatch, "megatron.core", parallel_state=state)
    put(monkeypatch, "megatron.core.models.gpt.gpt_layer_specs", get_gpt_layer_local_spec=lambda: "local")
    put(monkeypatch, "megatron.core.models.gpt.gpt_model", GPTModel=Model)
    put(monkeypatch, "megatron.core.transformer.transformer_config", TransformerConfig=types.SimpleNamespace)
    monkeypatch.setattr(megatron, "device", lambda rank: f"device of {rank.rank}")
    model = gpt.build_model(Rank(1, 8, "cuda", "", Path()))
    assert (model.config.tensor_model_parallel_size, model.config.pipeline_model_parallel_size) == (2, 4)
    assert (model.pre_process, model.post_process) == (True, False)
    assert (model.vocab_size, model.max_sequence_length) == (VOCABULARY, SEQUENCE)
    assert moved == ["device of 1"]


def test_te_model_is_bf16_with_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layers have the experts of the settings; all parameters become bf16, as in Megatron-LM's wrapper."""
    moved: list[tuple[str, str]] = []

    class Model(types.SimpleNamespace):
        def __init__(self, **named: Any) -> None:
            super().__init__(**named)
            models.append(self)

        def to(self, device: str, kind: str) -> Model:
            moved.append((device, kind))
            return self

        def parameters(self) -> list[Any]:
            return [types.SimpleNamespace(numel=lambda: 3), types.SimpleNamespace(numel=lambda: 4)]

    class Config(types.SimpleNamespace):
        num_moe_experts, moe_grouped_gemm = None, False

    models: list[Model] = []
    put(monkeypatch, "torch", bfloat16="bf16")
    put(
        monkeypatch,
        "megatron.core.models.gpt.gpt_layer_specs",
        get_gpt_layer_with_transformer_engine_spec=lambda **experts: experts,
    )
    put(monkeypatch, "megatron.core.models.gpt.gpt_model", GPTModel=Model)
    put(monkeypatch, "megatron.core.transformer.transformer_config", TransformerConfig=Config)
    for name in ("start", "stop"):
        monkeypatch.setattr(megatron, name, lambda *_: None)
    monkeypatch.setattr(megatron, "device", lambda rank: "cuda:0")
    assert gpt.build(Rank(0, 1, "cuda", "", Path()), fp8="hybrid", num_moe_experts=4, moe_grouped_gemm=True) == 7
    (model,) = models
    assert (model.config.fp8, model.config.params_dtype) == ("hybrid", "bf16")
    assert model.transformer_layer_spec == {"num_experts": 4, "moe_grouped_gemm": True}
    assert moved == [("cuda:0", "bf16")]
