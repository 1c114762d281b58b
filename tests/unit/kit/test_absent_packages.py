"""A stand-in can be imported and subclassed, not used."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from collections.abc import Iterator

import pytest

from matrix.kit import absent_packages

NAME = "no_such_compiled_package"


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    hooks, modules = [*sys.meta_path], {*sys.modules}
    yield
    sys.meta_path[:] = hooks
    for name in {*sys.modules} - modules:
        del sys.modules[name]


def test_every_name_is_importable_and_none_usable() -> None:
    absent_packages.install([NAME])
    module = importlib.import_module(f"{NAME}.pytorch.attention")
    assert isinstance(type("Mine", (module.DotProduct,), {}), absent_packages.AbsentClass)
    with pytest.raises(RuntimeError, match="its stand-in can be imported, not used"):
        module.DotProduct()
    with pytest.raises(RuntimeError):
        module.SplitAlongDim.apply()


def test_missing_module_stays_missing() -> None:
    absent_packages.install([NAME], missing=[f"{NAME}.fused"])
    with pytest.raises(ModuleNotFoundError, match="left out of the stand-in"):
        importlib.import_module(f"{NAME}.fused")


def test_provided_name_is_the_substitute() -> None:
    absent_packages.install([NAME], provided={f"{NAME}.io.loads": "json:loads", "another.name": "json:dumps"})
    assert importlib.import_module(f"{NAME}.io").loads is json.loads


def test_version_is_below_every_release() -> None:
    absent_packages.install([NAME])
    assert importlib.metadata.version(NAME) == importlib.import_module(NAME).__version__ == "0"


def test_installed_package_is_not_replaced() -> None:
    absent_packages.install(["json"])
    assert importlib.import_module("json") is json


def test_hidden_package_gets_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, NAME, None)  # what hides a module
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    absent_packages.install([NAME])
    assert isinstance(importlib.import_module(NAME), absent_packages.AbsentModule)
