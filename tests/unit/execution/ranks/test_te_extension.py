"""The stand-in for Transformer Engine's compiled extension: names can be read, nothing can be used."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from matrix.kit import te_extension
from matrix.kit.te_extension import StandInError

CONSTANTS = "class DType(IntEnum):\n    kByte = 0\n    kFloat32 = 4\n"


@pytest.fixture
def extension(tmp_path: Path) -> Any:
    """The module, beside a Transformer Engine that declares an enumeration of its own."""
    (tmp_path / "pytorch").mkdir()
    (tmp_path / "pytorch" / "constants.py").write_text(CONSTANTS)
    loader = te_extension._Empty({"device_supports_multicast": False}, tmp_path)
    return loader.create_module(ModuleSpec(te_extension.EXTENSION, loader))


def test_nothing_passes_by_it(extension: Any) -> None:
    """A function refuses, and so does a class: an object of it would let upstream go on without the extension."""
    with pytest.raises(StandInError, match=r"transformer_engine_torch.gemm is a stand-in"):
        extension.gemm()
    with pytest.raises(StandInError, match=r"transformer_engine_torch.CommOverlapHelper is a stand-in"):
        extension.CommOverlapHelper("group")


def test_what_says_how_it_was_built_or_what_the_device_can_do_is_answered(extension: Any) -> None:
    assert extension.device_supports_multicast() is False


def test_an_enumeration_has_the_members_that_upstream_declares(extension: Any) -> None:
    assert extension.DType.__members__ == ["kByte", "kFloat32"]
    assert extension.DType.kByte != extension.DType.kFloat32


def test_pip_is_answered_for_this_one_package_alone(tmp_path: Path) -> None:
    run = te_extension._located(lambda command, **_: command, tmp_path)
    answer: subprocess.CompletedProcess[str] = run([sys.executable, "-m", "pip", "show", "transformer_engine"])
    assert answer.stdout == f"Location: {tmp_path}\n"
    assert run(["git", "status"]) == ["git", "status"]


def test_packages_that_only_define_are_found_with_all_that_is_in_them() -> None:
    finder = te_extension._AnyFinder(["nowhere_of_test"])
    sys.meta_path.append(finder)
    try:
        import nowhere_of_test.language as tl  # type: ignore[import-not-found]

        assert callable(tl.jit(lambda: None))
        assert finder.find_spec("json") is None
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith("nowhere_of_test")]:
            del sys.modules[name]
