"""Take a sample of training data from behind 2 GiB."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from matrix.kit import gpt_dataset as data

from .reproduction import TWO_GIB, checked, sparse

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

SAMPLE = 2**20  # tokens


def serve(rank: Rank) -> list[int]:
    """Take the sample of a GPTDataset that starts at 2 GiB of one document; return its first tokens."""
    import numpy
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    small = data.dataset(rank.workdir / "small", SAMPLE // 8, mask=False)
    config = dataclasses.replace(small.config, sequence_length=SAMPLE)
    prefix = str(sparse(rank.workdir, [TWO_GIB + SAMPLE + 1], hole=TWO_GIB))
    documents = numpy.zeros(1, dtype=numpy.int32)
    samples = type(small)(IndexedDataset(prefix), prefix, documents, None, Split.train, config)
    number = int(numpy.flatnonzero(samples.shuffle_index == TWO_GIB // SAMPLE)[0])
    return checked(samples[number]["tokens"][:4])
