"""The modules of each provider, by name and by file."""

from __future__ import annotations

import pytest

from matrix.contract.provider import MEGATRON_CORE, TORCH, TRANSFORMER_ENGINE, Provider, provider_of
from matrix.errors import MatrixError
from tests.unit.contract.sources import breaks, project, torch


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("torch", TORCH),
        ("te", TRANSFORMER_ENGINE),
        ("transformer-engine", TRANSFORMER_ENGINE),
        ("transformer_engine", TRANSFORMER_ENGINE),
        ("mcore", MEGATRON_CORE),
    ],
)
def test_provider_is_found_by_any_of_its_names(name: str, provider: Provider) -> None:
    assert provider_of(name) is provider


def test_other_package_is_refused() -> None:
    with pytest.raises(MatrixError, match="no API of this package is recorded"):
        provider_of("numpy")


@pytest.mark.parametrize(
    ("path", "is_covered"),
    [
        ("torch:distributed.checkpoint.load", True),
        ("torch.distributed.fsdp:fully_shard", True),
        ("torch.optim:Adam", True),
        ("torch:compile", True),
        ("torch.nn.functional:linear", True),
        ("torchvision:ops", True),  # beside the package: nothing is known about it
    ],
)
def test_uses_that_a_surface_may_have_are_covered(path: str, is_covered: bool) -> None:
    assert TORCH.covers(path) is is_covered


@pytest.mark.parametrize(
    ("provider", "path", "is_sparse"),
    [
        (TORCH, "torch:compile", True),
        (TORCH, "torch:optim.Adam", False),
        (TORCH, "torch.distributed:barrier", False),
        (TORCH, "torchvision:ops", False),
        (TRANSFORMER_ENGINE, "transformer_engine_torch:f", False),
    ],
)
def test_used_names_alone_are_recorded_of_sparse_modules(provider: Provider, path: str, is_sparse: bool) -> None:
    assert provider.is_sparse(path) is is_sparse


def test_unrecorded_modules_are_unknown() -> None:
    fork = project("import torch\nimport torch.nn.gone\ntorch.nn.functional.gone(1)\n", TORCH)

    assert breaks(fork, torch({})) == []


def test_modules_beside_the_recorded_ones_exist() -> None:
    fork = project("import torch.distributed as d\nd.nn.functional.f(1)\nd.gone(1)\n", TORCH)

    assert breaks(fork, torch({"nn/__init__.py": ""})) == [
        ("definite", "module 'torch.distributed' has no attribute 'gone'")
    ]


def test_missing_recorded_module_is_found() -> None:
    fork = project("import torch.distributed.tensor\n", TORCH)

    assert breaks(fork, torch({})) == [("definite", "No module named 'torch.distributed.tensor'")]
