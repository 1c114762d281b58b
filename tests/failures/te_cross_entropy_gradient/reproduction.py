"""Compare the gradient of Transformer Engine's fused cross entropy with torch's; triton interprets the kernels."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TOKENS, VOCABULARY = 4, 8
SEED = 1
TOLERANCE = 1e-6  # of gradients near 1, in float32
PACKAGES = ("", ".common", ".common.triton", ".pytorch", ".pytorch.triton")


class FirstTokensWeight(AssertionError):
    """Each token's gradient has the weight of the first token."""


class WrongGradient(AssertionError):
    """The gradient is wrong in another way."""


def gradient(rank: Rank, *, first: float) -> float:
    """Return the norm of the gradient of the logits. `first`: the weight of the first token; others have 1."""
    import torch

    kernels = _kernels(rank)
    generator = torch.Generator().manual_seed(SEED)
    logits = torch.randn(TOKENS, 1, VOCABULARY, generator=generator)
    labels = torch.randint(0, VOCABULARY, (TOKENS, 1), generator=generator)
    weights = torch.tensor([[first], *[[1.0]] * (TOKENS - 1)])
    leaf = logits.clone().requires_grad_()
    losses = torch.nn.functional.cross_entropy(leaf.flatten(0, 1), labels.flatten(), reduction="none")
    (unweighted,) = torch.autograd.grad(losses.sum(), leaf)
    _, saved = kernels.cross_entropy_forward(logits.clone(), labels, 0.0, False, None, -100)[:2]
    computed = kernels.cross_entropy_backward(saved, weights)
    expected = unweighted * weights[..., None]
    figures = f"the norm of the gradient is {float(computed.norm()):.4f}, of torch's {float(expected.norm()):.4f}"
    if torch.allclose(computed, expected, atol=TOLERANCE):
        return float(computed.norm())
    if torch.allclose(computed, unweighted * first, atol=TOLERANCE):
        raise FirstTokensWeight(figures)
    raise WrongGradient(figures)


def _kernels(rank: Rank) -> Any:
    """Return the module of the kernels, below empty packages: the real ones load the compiled library."""
    os.environ["TRITON_INTERPRET"] = "1"  # read where a kernel is decorated
    os.environ["TRITON_CACHE_DIR"] = str(rank.workdir / "triton")
    spec = importlib.util.find_spec("transformer_engine")
    folders = (spec and spec.submodule_search_locations) or ()
    for package in PACKAGES:
        module = types.ModuleType(f"transformer_engine{package}")
        module.__path__ = [str(Path(folder, *package.split(".")[1:])) for folder in folders]
        sys.modules[module.__name__] = module
    return importlib.import_module("transformer_engine.pytorch.triton.cross_entropy")
