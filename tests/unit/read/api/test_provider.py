"""The modules of each provider, by name and by file."""

from __future__ import annotations

import pytest

from matrix.ground.errors import MatrixError
from matrix.read.api import recording
from matrix.read.api.guard import Config, Guard
from matrix.read.api.provider import (
    MEGATRON_CORE,
    PROVIDERS,
    TORCH,
    TRANSFORMER_ENGINE,
    Arguments,
    Calls,
    Provider,
    Site,
    Use,
    provider_of,
    providers_in,
)
from tests.unit.read.api.sources import breaks, project, torch


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


def test_row_of_a_plain_package_is_its_name() -> None:
    plain = providers_in([{"package": "fused-adam"}])["fused-adam"]
    assert (plain.key, plain.title, plain.top) == ("fused-adam", "fused-adam", "fused_adam")
    assert plain.owns("fused_adam.ops")
    assert not plain.owns("fused_adam_cuda")
    assert plain.holds("fused_adam/ops/__init__.py")
    assert not plain.holds("tests/fused_adam/x.py")


@pytest.mark.parametrize("row", [{"package": "a", "file": "a/.*"}, {"package": "a", "files": "("}])
def test_broken_row_is_refused(row: dict[str, str]) -> None:
    with pytest.raises(MatrixError, match="not a provider"):
        providers_in([row])


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)
def test_every_provider_and_its_callers_are_recorded(provider: Provider) -> None:
    assert recording.recorded_surfaces(provider)
    assert all(recording.recorded_consumers(provider, consumer) for consumer in provider.consumers)


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


CALL = Use("call", "te:get", Site("a.py", 1, "f"), True, arguments=Arguments(("x",), (("k", True),)))


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (CALL._replace(site=Site("b.py", 2, "g")), True),
        (CALL._replace(guard=Config("c"), here=Config("c")), True),
        (CALL._replace(swallowed=("TypeError",), effect="x = None", fallback=True, refused=("ImportError",)), True),
        (CALL._replace(kind="attribute"), False),
        (CALL._replace(path="te:other"), False),
        (CALL._replace(arguments=None), False),
        (CALL._replace(arguments=Arguments(("y",), (("k", True),))), False),
        (CALL._replace(arguments=Arguments(("x",), (("k", True),), starred=True)), False),
        (CALL._replace(bound="Linear"), False),
        (CALL._replace(signature="(a)"), False),
        (CALL._replace(unpacks=2), False),
    ],
)
def test_form_is_what_decides_whether_a_use_fits(other: Use, is_same: bool) -> None:
    places = list(Calls("1", (CALL, other)).forms.values())

    assert places == ([[0, 1]] if is_same else [[0], [1]])


@pytest.mark.parametrize("guards", [(Config("a"), Config("b")), (Config("a"), False)])
def test_keywords_under_different_guards_have_one_form(guards: tuple[Guard, Guard]) -> None:
    uses = [CALL._replace(arguments=Arguments(keywords=(("k", guard),))) for guard in guards]
    calls = Calls("1", (*uses, CALL._replace(arguments=Arguments(keywords=(("k", True),)))))

    assert [[name for name, _ in form.arguments.keywords] for form in calls.forms if form.arguments] == [["k"], ["k"]]
    assert list(calls.forms.values()) == [[0, 1], [2]]


@pytest.mark.parametrize(("site", "text"), [(Site("a.py", 3, "C.f"), "a.py:3 C.f"), (Site("a.py", 3), "a.py:3")])
def test_site_is_path_line_and_function(site: Site, text: str) -> None:
    assert str(site) == text
