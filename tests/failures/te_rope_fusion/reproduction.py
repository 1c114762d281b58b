"""Build megatron-core's configuration with the rotary embedding that Transformer Engine applies.

megatron-core and Transformer Engine's Python are real; Transformer Engine's compiled extension is a stand-in.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING

from matrix.kit import cpu_device, te_extension

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

NAMES = ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd")  # what megatron-core takes from APEX


def configure(rank: Rank, *, fused: bool, apex: bool = False) -> list[str]:
    """Return the modules of the fused functions, [] where the configuration asks for none.

    APEX is hidden, or with `apex` replaced by a module with the functions that megatron-core imports.
    """
    cpu_device.install()
    te_extension.install(rank.workdir / "te")
    functional = types.ModuleType("apex.transformer.functional")
    functional.__dict__.update(dict.fromkeys(NAMES, types.SimpleNamespace(__module__=functional.__name__)))
    sys.modules["apex.transformer.functional"] = functional if apex else None  # type: ignore[assignment]
    # An ImportError of the module itself would end in the same message: here it is raised.
    importlib.import_module("megatron.core.extensions.transformer_engine")
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer import TransformerConfig

    TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2, apply_rope_fusion=fused)
    return [getattr(rope_utils, name).__module__ for name in NAMES] if fused else []
