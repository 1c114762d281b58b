"""Read the sentinels of a T5 tokenizer of transformers through megatron-core's wrapper."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

SENTINELS = ["<extra_id_0>", "<extra_id_1>"]
VOCABULARY = ["<pad>", "</s>", "<unk>", "a", "tiny", "vocabulary", "of", "ten", *SENTINELS]


class SentinelsWrong(AssertionError):
    """The ids are not those of the vocabulary."""


def sentinels(rank: Rank) -> list[int]:
    """Return the ids of the sentinels."""
    from megatron.core.tokenizers.text.libraries.huggingface_tokenizer import HuggingFaceTokenizer
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({word: number for number, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    words.save(str(rank.workdir / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>"}
    (rank.workdir / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    wrapper = HuggingFaceTokenizer(str(rank.workdir), additional_special_tokens=SENTINELS, use_fast=True)
    ids = list(wrapper.additional_special_tokens_ids)
    if ids != [VOCABULARY.index(sentinel) for sentinel in SENTINELS]:
        raise SentinelsWrong(f"{ids} instead of those of {SENTINELS}")
    return ids
