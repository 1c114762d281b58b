"""A risk of the workaround: with reset_attention_mask but no mask, tokens silently attend to other documents."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from matrix.kit import absent_packages
from matrix.kit import gpt_dataset as data

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

SEQUENCE = 6000  # tokens: more than a document, so that there is an end of one in every sample


class ResetMaskDropped(AssertionError):
    """reset_attention_mask is on, and the sample has no mask that separates its documents."""


class MaskDiffers(AssertionError):
    """The sample's mask is not causal within each document."""


def reset(rank: Rank, *, mask: bool) -> dict[str, Any]:
    """Take a sample of several documents with reset_attention_mask on; check that its mask separates them.

    A warning of upstream is raised as an error: the failure would not be silent then.
    """
    absent_packages.install(**rank.stand_ins)
    samples = data.dataset(rank.workdir, SEQUENCE, mask=mask, reset=True)
    data.leave_room(data.ROOM)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample = samples[0]
    ends = sample["tokens"] == data.Tokenizer.eod
    document = ends.cumsum(0) - ends.long()  # an end belongs to the document that it ends
    documents = int(document[-1]) + 1
    if sample.get("attention_mask") is None:
        raise ResetMaskDropped(f"reset_attention_mask is on, {documents} documents are in the sample, and no mask")
    position = document.new_ones(SEQUENCE).cumsum(0)
    hidden = (document[:, None] != document) | (position[:, None] < position)
    if not hidden.equal(sample["attention_mask"][0]):
        raise MaskDiffers(f"a mask of {tuple(sample['attention_mask'].shape)}, {documents} documents")
    return {"documents": documents}
