"""The flow of upstream's example run_simple_mcore_train_loop.py, with its dataset and its loader, on TP=2."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from matrix.kit import gpt, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

SAMPLES = 1000  # of the mock dataset, as in the example
STEPS = 5


def train_save_load(rank: Rank) -> dict[str, Any]:
    """Train on megatron-core's mock dataset, save, load, compare; return what gpt.round_trip returns."""
    torch = megatron.start(rank, tensor_parallel=2)
    model = gpt.build_model(rank)
    gpt.train(torch, model, loader(rank, torch), STEPS)
    compared = gpt.round_trip(rank, torch, model)
    megatron.stop()
    return compared


def loader(rank: Rank, torch: Any) -> Iterator[Any]:
    """Yield (tokens, labels, position ids, attention mask) from MockGPTDataset through a DataLoader."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset

    # 0.6.0 needs the argument `mock`; later releases detect that there are no data and lack the argument.
    field = {one.name: one for one in dataclasses.fields(GPTDatasetConfig)}.get("mock")
    config = GPTDatasetConfig(
        **({"mock": True} if field and field.init else {}),
        random_seed=0,
        sequence_length=gpt.SEQUENCE,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        split="1",
        tokenizer=NullTokenizer(),
        path_to_cache=str(rank.workdir / "index"),
    )
    dataset = BlendedMegatronDatasetBuilder(MockGPTDataset, [SAMPLES, None, None], lambda: True, config).build()[0]
    shuffled = torch.utils.data.DataLoader(
        dataset, batch_size=gpt.MICRO_BATCH, shuffle=True, generator=torch.Generator().manual_seed(7)
    )
    device = megatron.device(rank)
    for batch in shuffled:
        yield tuple(batch[key].to(device) for key in ("tokens", "labels", "position_ids", "attention_mask"))


class NullTokenizer:
    """The attributes that the dataset reads from a tokenizer: vocabulary size, ids of end and padding, a name."""

    vocab_size = gpt.SEQUENCE
    eod = gpt.SEQUENCE - 1
    pad = eod
    unique_identifiers = OrderedDict(name="null")  # noqa: RUF012  (the dataset reads it from the class)
