"""Start of userbuffers: upstream's function, extracted from its file, and the settings around it."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
import types
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from matrix.kit import userbuffers
from matrix.kit.rank import LackError, Rank
from matrix.kit.userbuffers import function_of

FILE = """
import nowhere.to.be.found
import json as notation, os
from nowhere import get_args

def other():
    return get_args()

def start():
    if get_args() is None:
        raise ValueError("no arguments")
    return notation.dumps(get_args())
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a package whose modules must not be imported."""
    folder = tmp_path / "upstream_of_test"
    (folder / "training").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "training" / "initialize.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder.name


def test_the_function_runs_with_its_imports(package: str) -> None:
    start = function_of(package, ("training/initialize.py",), "start", {"get_args": lambda: [1]})
    assert start() == "[1]"
    assert f"{package}.training" not in sys.modules


def test_tracebacks_show_upstream_s_lines(package: str) -> None:
    start = function_of(package, ("training/initialize.py",), "start", {"get_args": lambda: None})
    with pytest.raises(ValueError, match="no arguments") as caught:
        start()
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (Path(frame.filename).name, frame.lineno, frame.name) == ("initialize.py", 11, "start")


def test_a_missing_file_or_function_raises(package: str) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        function_of(package, ("elsewhere.py",), "start", {})
    with pytest.raises(LookupError, match="stop"):
        function_of(package, ("training/initialize.py",), "stop", {})


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace torch by one whose process groups do nothing, and Transformer Engine by none."""
    for name in ("transformer_engine", "transformer_engine.pytorch"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = types.SimpleNamespace(base=types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.module", module)
    torch = MagicMock()
    torch.distributed.get_backend.return_value = "nccl"
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setenv("TMPDIR", "")
    monkeypatch.setenv("OMPI_MCA_mpi_param_check", "")
    monkeypatch.setenv("OMPI_MCA_btl_sm_backing_directory", "")


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(("multicast", "expected"), [(True, None), (False, "1")])
def test_multicast_needs_an_unset_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, multicast: bool, expected: str | None
) -> None:
    """Transformer Engine 1.6 - 1.12 tests only whether UB_SKIPMC exists: 0 switches multicast off, too."""
    monkeypatch.setenv("UB_SKIPMC", "0")
    seen = []

    def start() -> None:
        seen.append(os.environ.get("UB_SKIPMC"))
        sys.modules["torch"].distributed.new_group(backend="nccl")

    userbuffers.started(Rank(0, 2, "cuda", "file:///store", tmp_path), start, False, multicast)
    assert seen == [expected]


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(("backend", "library"), [("nccl", "NCCL"), ("mpi", "MPI")])
def test_a_backend_that_torch_lacks_is_lacking(tmp_path: Path, backend: str, library: str) -> None:
    """The wheels of PyPI have no MPI: megatron-core before 0.10 raises RuntimeError there, which is not its failure."""
    distributed = sys.modules["torch"].distributed
    setattr(distributed, f"is_{backend}_available", lambda: False)
    rank = Rank(0, 2, "cuda", "file:///store", tmp_path)
    with pytest.raises(LackError, match=f"needs {library} for this bootstrap backend"):
        userbuffers.started(rank, lambda: distributed.new_group(backend=backend), False)


@pytest.mark.usefixtures("no_torch")
def test_backend_is_lacking_before_upstream_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformer Engine raises RuntimeError where torch has no MPI: that is not the failure."""
    sys.modules["torch"].distributed.is_mpi_available = lambda: False
    monkeypatch.setattr(userbuffers, "function_of", lambda *_: lambda: pytest.fail("upstream was called"))
    with pytest.raises(LackError, match="needs MPI for this bootstrap backend"):
        userbuffers.through_megatron(Rank(0, 2, "cuda", "file:///store", tmp_path), bootstrap="mpi")


@pytest.mark.usefixtures("no_torch")
def test_userbuffers_are_destroyed_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    base = types.SimpleNamespace(destroy_ub=lambda: calls.append("destroyed"))
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.module", types.SimpleNamespace(base=base))
    rank = Rank(0, 2, "cuda", "file:///store", tmp_path)
    userbuffers.started(rank, lambda: sys.modules["torch"].distributed.new_group(backend="nccl"), False)
    assert calls == ["destroyed"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_faulthandler_is_off_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Before Python 3.14 it prints no C stack, and prevents Open MPI from printing one."""
    calls = []
    monkeypatch.setattr(faulthandler, "disable", lambda: calls.append("disabled"))
    monkeypatch.setattr(os, "environ", {})
    userbuffers.prepare_open_mpi(Rank(0, 2, device, "file:///store", tmp_path), parameter_checks=False)
    assert calls == (["disabled"] if device == "cuda" else [])


NAMES = ("OMPI_MCA_mpi_param_check", "TMPDIR", "OMPI_MCA_btl_sm_backing_directory")


@pytest.mark.parametrize(("device", "disables"), [("cpu", 0), ("cuda", 1)])
def test_files_are_in_the_ranks_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, disables: int
) -> None:
    """On a GPU the crash is printed by Open MPI, not by faulthandler."""
    for name in NAMES:
        monkeypatch.setenv(name, "")
    disabled: list[None] = []
    monkeypatch.setattr(faulthandler, "disable", lambda: disabled.append(None))
    userbuffers.prepare_open_mpi(Rank(0, 1, device, "", tmp_path), parameter_checks=True)
    assert [os.environ[name] for name in NAMES] == ["1", str(tmp_path), str(tmp_path)]
    assert len(disabled) == disables
