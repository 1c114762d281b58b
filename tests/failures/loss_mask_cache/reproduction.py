"""Serve the samples of a GPTDataset, one of them with padding; compare each loss mask with the sample's own text."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from matrix.kit import absent_packages
from matrix.kit import gpt_dataset as data

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

SEQUENCE = 3000  # tokens of a sample: the second sample has the end of the first document
DOCUMENTS = 2  # 10000 tokens: three samples and a third of one


class PadsWithTheEnd(data.Tokenizer):
    """A tokenizer whose padding is its end of a document."""

    pad = data.Tokenizer.eod


class LossMaskWrong(AssertionError):
    """Loss masks of samples leave out what is padding in another sample."""


class LossMaskDiffers(AssertionError):
    """A loss mask is wrong in another way."""


def serve(rank: Rank, *, first: bool, eod_mask_loss: bool = False, pad_in_text: bool = False) -> dict[str, Any]:
    """Take each sample once, the one with padding first or second, and compare its loss mask.

    The sample with padding is the partial last one or, with `pad_in_text`, the one with the end of a document as label.
    """
    absent_packages.install(**rank.stand_ins)
    import torch

    samples = dataset(rank, eod_mask_loss=eod_mask_loss, pad_in_text=pad_in_text)
    numbers = range(len(samples))
    padding = torch.stack([text(samples, number)[1:] == samples._pad_token_id for number in numbers])
    ends = torch.stack([text(samples, number)[:-1] == data.Tokenizer.eod for number in numbers])
    own = ~padding & ~(ends & eod_mask_loss)
    padded = [number for number in numbers if padding[number].any()]
    whole = [number for number in numbers if number not in padded]
    order = [*padded, *whole] if first else [whole[0], *padded, *whole[1:]]

    masks = {number: samples[number]["loss_mask"].bool() for number in order}
    wrong = [number for number in order if not masks[number].equal(own[number])]
    if not all(masks[number].equal(own[number] & ~padding.any(0)) for number in wrong):
        raise LossMaskDiffers(f"samples {wrong} of {order}; with padding: {padded}")
    if wrong:
        lost = sum(int((own[number] & ~masks[number]).sum()) for number in wrong)
        raise LossMaskWrong(f"{len(wrong)} of {len(order)} samples lose {lost} tokens to the padding of another")
    return {"samples": len(order), "padding": int(padding.sum())}


def dataset(rank: Rank, *, eod_mask_loss: bool, pad_in_text: bool) -> Any:
    """Return a GPTDataset of two documents that keeps its partial last sample, or has its pad id in the text."""
    import numpy
    from megatron.core.datasets.utils import Split

    kit = data.dataset(rank.workdir, SEQUENCE, mask=False)
    config = dataclasses.replace(
        kit.config,
        eod_mask_loss=eod_mask_loss,
        drop_last_partial_validation_sequence=pad_in_text,
        tokenizer=PadsWithTheEnd() if pad_in_text else data.Tokenizer(),
    )
    documents = numpy.arange(DOCUMENTS, dtype=numpy.int32)
    return type(kit)(kit.dataset, str(data.corpus(rank.workdir)), documents, None, Split.valid, config)


def text(samples: Any, number: int) -> Any:
    """Return the text of a sample with its padding, one token longer than the sample; all documents are the same."""
    import numpy
    import torch

    written = torch.from_numpy(numpy.concatenate([samples.dataset[document] for document in range(DOCUMENTS)]))
    start = int(samples.shuffle_index[number]) * SEQUENCE
    part = written[start : start + SEQUENCE + 1]
    return torch.nn.functional.pad(part, (0, SEQUENCE + 1 - len(part)), value=samples._pad_token_id)
