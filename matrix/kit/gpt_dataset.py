"""Megatron's own GPTDataset over a real indexed dataset on disk, and the memory of this process."""

from __future__ import annotations

import dataclasses
import resource
from collections import OrderedDict
from pathlib import Path
from typing import Any

TOKENS = 600_000  # in the corpus
SAMPLES = 4  # of a dataset; at 131072 tokens each they are smaller than the corpus
DOCUMENT = 5_000  # tokens, the last of them the end of the document
VOCABULARY = 1_024  # ids; an id takes 4 bytes on disk
ROOM = 5 * 2**29  # bytes that a case may allocate: 2 GiB for the peak at 16384 tokens, and a margin


class Tokenizer:
    """The attributes that the dataset reads from a tokenizer: vocabulary size, ids of end and padding, a name."""

    vocab_size = VOCABULARY
    eod = VOCABULARY - 1
    pad = VOCABULARY - 2
    unique_identifiers = OrderedDict(name="ids")  # noqa: RUF012  (the dataset reads it from the class)


def corpus(folder: Path) -> Path:
    """Write the corpus with Megatron's builder, once; return its prefix (PREFIX.bin, PREFIX.idx)."""
    import numpy
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    prefix = folder / "corpus"
    if not prefix.with_suffix(".idx").exists():
        folder.mkdir(parents=True, exist_ok=True)
        builder = IndexedDatasetBuilder(str(prefix.with_suffix(".bin")), dtype=numpy.int32)
        document = torch.arange(DOCUMENT) % Tokenizer.pad
        document[-1] = Tokenizer.eod
        for _ in range(TOKENS // DOCUMENT):
            builder.add_item(document)
            builder.end_document()
        builder.finalize(str(prefix.with_suffix(".idx")))
    return prefix


def dataset(folder: Path, sequence: int, *, mask: bool, reset: bool = False) -> Any:
    """Return Megatron's GPTDataset over the corpus with samples of `sequence` tokens.

    `mask` is create_attention_mask, `reset` reset_attention_mask and reset_position_ids.
    """
    import numpy
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    prefix = str(corpus(folder))
    fields = {field.name: field for field in dataclasses.fields(GPTDatasetConfig)}
    # 0.6 takes a blend as a list of prefixes, later releases as (prefixes, weights).
    old = "mock" in fields and fields["mock"].init
    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=sequence,
        blend=[prefix] if old else ([prefix], None),
        split="1",
        path_to_cache=str(folder / "index"),
        tokenizer=Tokenizer(),
        reset_position_ids=reset,
        reset_attention_mask=reset,
        eod_mask_loss=False,
        create_attention_mask=mask,
    )
    documents = numpy.arange(TOKENS // DOCUMENT, dtype=numpy.int32)
    return GPTDataset(IndexedDataset(prefix), prefix, documents, SAMPLES, Split.train, config)


def held(name: str) -> int:
    """Return a figure of /proc/self/status in bytes: VmSize (mapped), VmRSS (in memory), VmHWM (peak of VmRSS)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def leave_room(room: int) -> int:
    """Limit this process's address space to `room` bytes above its current mappings; return the limit in bytes.

    The mappings are mostly libraries: 0.7 GiB with a CPU build of torch, 3.2 GiB with a CUDA build. The process can
    still allocate `room` bytes, however much was mapped.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    cap = held("VmSize") + room
    cap = cap if hard == resource.RLIM_INFINITY else min(cap, hard)
    resource.setrlimit(resource.RLIMIT_AS, (cap, cap))
    return cap
