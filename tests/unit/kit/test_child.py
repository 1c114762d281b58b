"""What a process that a rank starts imports, hides and replaces."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from matrix.kit import child, command, cpu_device, te_extension
from matrix.kit.command import CommandError
from matrix.kit.rank import Rank
from matrix.prove.execution.ranks.rank_main import chain_of


def python(folder: Path, code: str, **given: Any) -> Any:
    workdir = Path(tempfile.mkdtemp(dir=folder.parent))  # each run of a rank has its own
    return command.run(Rank(0, 1, "cuda", "", workdir, **given), ["python", "-c", code], str(folder))


@pytest.fixture(autouse=True)
def cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH of a rank at level cpu."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))


def test_overlays_and_hidden_modules_apply(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "laid.py").write_text("print('laid over')")
    (overlay / "absent.py").write_text("")
    with pytest.raises(CommandError) as caught:
        python(tmp_path, "import laid, absent", overlays=(str(overlay),), hidden=("absent",))

    assert chain_of(caught.value)[0].type == "ModuleNotFoundError"
    assert capfd.readouterr().out.startswith("laid over\n")


def test_stand_ins_apply_at_the_first_import(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A process that does not import megatron has none."""
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron" / "__init__.py").write_text("import apex_absent\nprint(apex_absent.__version__)\n")
    given: dict[str, Any] = {"stand_ins": {"packages": ["apex_absent"]}, "overlays": (str(tmp_path),)}
    python(tmp_path, "import megatron", **given)
    assert capfd.readouterr().out == "0\n"
    with pytest.raises(CommandError):
        python(tmp_path, "import apex_absent", **given)


@pytest.mark.parametrize("engine", [True, False])
def test_an_attention_module_finds_a_gpu(monkeypatch: pytest.MonkeyPatch, engine: bool) -> None:
    """Modules of Transformer Engine require one when they are made, and read the version of cuDNN."""
    did: list[Any] = []
    monkeypatch.setattr(cpu_device, "install", lambda: did.append("cpu"))
    monkeypatch.setattr(cpu_device, "claim_gpu", lambda: did.append("gpu"))
    monkeypatch.setattr(te_extension, "install", lambda folder: did.append(folder.name))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: ModuleSpec(name, None) if engine else None)
    child._without_gpu()
    assert did == (["cpu", "site", "gpu"] if engine else ["cpu"])


def test_the_machines_own_site_module_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('of the machine')")
    python(tmp_path, "", overlays=(str(tmp_path),))
    assert capfd.readouterr().out == "of the machine\n"


def test_the_site_module_prepares_its_process(tmp_path: Path) -> None:
    """A process with the folder on PYTHONPATH hides what the rank hides, from its start."""
    folder = child.site_folder(Rank(1, 2, "cpu", "", tmp_path, hidden=("zipapp",)))
    assert folder == tmp_path / "site-1"
    code = "import sys; print(sys.modules.get('zipapp', 'importable'))"
    environ = {"PATH": "", "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == b"None\n"


def test_settings_name_device_hidden_and_stand_ins(tmp_path: Path) -> None:
    """The rest of a rank is of no use to a process that it starts."""
    rank = Rank(0, 2, "cpu", "file:///x", tmp_path, stand_ins={"packages": ["apex"]}, hidden=("apex",))
    settings = json.loads(child.settings_of(rank))
    assert settings == {"device": "cpu", "hidden": ["apex"], "stand_ins": {"packages": ["apex"]}}


@pytest.mark.parametrize(("device", "expected"), [("cpu", ["without a GPU", "installed"]), ("cuda", ["installed"])])
def test_preparation_runs_once(device: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first import of a prepared package; the import hook is removed."""
    calls: list[str] = []
    monkeypatch.setattr(child, "_without_gpu", lambda: calls.append("without a GPU"))
    monkeypatch.setattr("matrix.kit.absent_packages.install", lambda **_: calls.append("installed"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: ModuleSpec(name, None))
    hook = child._FirstImport({"device": device, "stand_ins": {}})
    monkeypatch.setattr(sys, "meta_path", [hook, *sys.meta_path])
    assert hook.find_spec("json") is None
    assert calls == []
    spec = hook.find_spec("megatron")
    assert (spec and spec.name, calls, hook in sys.meta_path) == ("megatron", expected, False)
