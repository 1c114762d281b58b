"""The stand-in for Transformer Engine's compiled extension: names exist, calls raise."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from matrix.kit import te_extension
from matrix.kit.te_extension import StandInError

CONSTANTS = "class DType(IntEnum):\n    kByte = 0\n    kFloat32 = 4\n"
ATTENTION = "class FusedAttnBackend(IntEnum):\n    FP8 = int(NVTE_Fused_Attn_Backend.NVTE_FP8)\n"


@pytest.fixture
def extension(tmp_path: Path) -> Any:
    """Return the module for a Transformer Engine that declares one enumeration."""
    (tmp_path / "pytorch" / "cpp_extensions").mkdir(parents=True)
    (tmp_path / "pytorch" / "cpp_extensions" / "fused_attn.py").write_text(ATTENTION)
    (tmp_path / "pytorch" / "constants.py").write_text(CONSTANTS)
    loader = te_extension._Empty({"device_supports_multicast": False}, {}, tmp_path)
    return loader.create_module(ModuleSpec(te_extension.EXTENSION, loader))


def test_functions_and_classes_raise_when_called(extension: Any) -> None:
    """A class raises too: with an instance upstream would continue without the extension."""
    with pytest.raises(StandInError, match=r"transformer_engine_torch.gemm is a stand-in"):
        extension.gemm()
    with pytest.raises(StandInError, match=r"transformer_engine_torch.CommOverlapHelper is a stand-in"):
        extension.CommOverlapHelper("group")


def test_configured_queries_return_their_value(extension: Any) -> None:
    assert extension.device_supports_multicast() is False
    assert "device_supports_multicast" in extension.__all__


def test_enumeration_has_upstreams_members(extension: Any) -> None:
    assert extension.DType.__members__ == ["kByte", "kFloat32"]
    assert extension.NVTE_Fused_Attn_Backend.__members__ == ["NVTE_FP8"]
    assert extension.DType.kByte != extension.DType.kFloat32


def test_pip_show_is_replaced_for_one_package(tmp_path: Path) -> None:
    run = te_extension._located(lambda command, **_: command, tmp_path)
    shown: subprocess.CompletedProcess[str] = run([sys.executable, "-m", "pip", "show", "transformer_engine"])
    assert shown.stdout == f"Location: {tmp_path}\n"
    assert run(["git", "status"]) == ["git", "status"]


def test_any_finder_provides_all_names_of_a_package() -> None:
    finder = te_extension.AnyFinder(["nowhere_of_test"])
    sys.meta_path.append(finder)
    try:
        import nowhere_of_test.language as tl  # type: ignore[import-not-found]

        assert callable(tl.jit(lambda: None))
        assert finder.find_spec("json") is None
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith("nowhere_of_test")]:
            del sys.modules[name]


@pytest.mark.parametrize(("file", "found"), [("transformer_engine_torch.cpython-312.so", True), ("common.so", False)])
def test_a_built_package_needs_no_stand_in(tmp_path: Path, file: str, found: bool) -> None:
    (tmp_path / file).touch()
    spec = ModuleSpec("transformer_engine", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]

    assert te_extension.compiled(spec) is found


def test_capability_is_none_at_import_alone() -> None:
    """Transformer Engine 1.11 reads it when it is imported; a function later gets torch's."""
    program = "def capability():\n    return properties(0)\nat_import = capability()\n"
    names: dict[str, Any] = {"properties": te_extension._none_at_import(lambda *_: "torch's own")}
    exec(compile(program, "attention.py", "exec"), names)
    assert names["at_import"] is te_extension.NO_GPU
    assert names["capability"]() == "torch's own"


def test_version_of_cudnn_is_answered_by_default(tmp_path: Path) -> None:
    """Transformer Engine 2.20 compares it at import; a case may have its own."""
    for answers, expected in ((None, 91_200), ({"get_cudnn_version": 90_800}, 90_800)):
        loader = te_extension._Empty(answers or {}, {}, tmp_path)
        assert loader.create_module(ModuleSpec(te_extension.EXTENSION, loader)).get_cudnn_version() == expected


def test_triton_has_a_driver_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own raises "0 active drivers" where a kernel is tuned when it is defined."""
    active: list[Any] = []
    runtime = types.SimpleNamespace(driver=types.SimpleNamespace(set_active=active.append))
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: ModuleSpec(name, None) if name == "triton" else None)
    te_extension._replace_driver()
    assert active[0].get_benchmarker()(lambda: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    te_extension._replace_driver()
    assert len(active) == 1


def test_older_triton_keeps_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of torch 2.2 has no function to replace it: AttributeError in each case of Transformer Engine there."""
    monkeypatch.setitem(sys.modules, "triton.runtime", types.SimpleNamespace(driver=object()))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: ModuleSpec(name, None))
    te_extension._replace_driver()
