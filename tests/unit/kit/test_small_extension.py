"""Compiling a small extension: its command, and the lack of a compiler, of headers and of torch."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path

import pytest

from matrix.kit import small_extension
from matrix.kit.rank import LackError

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the system has its programs; a torch is on sys.path."""
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(os, "defpath", f"{folder}:/usr/bin:/bin")
    return folder


def compiler(programs: Path, body: str) -> None:
    """Put a c++ that runs this shell script before the system's."""
    (programs / "c++").write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    (programs / "c++").chmod(0o755)


def test_extension_is_linked_to_torchs_library(programs: Path, tmp_path: Path) -> None:
    """The module has the name that Python imports, its source the given code, its command macros and libraries."""
    compiler(programs, 'for word; do last=$word; done; echo "$*" > "$last"')
    built = small_extension.build(tmp_path, "lent", "int one;", macros=["ABI=1"], libraries=["c10"])
    assert built == tmp_path / f"lent{SUFFIX}"
    source = (tmp_path / "lent.cpp").read_text(encoding="utf-8")
    assert "int one;" in source
    assert "PyInit_lent" in source
    words, torch = built.read_text(encoding="utf-8").split(), tmp_path / "lib" / "torch"
    assert {"-DABI=1", "-lc10", f"-I{torch / 'include'}", f"-L{torch / 'lib'}", "-Wl,--no-as-needed"} <= set(words)


def test_missing_compiler_is_a_lack(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "defpath", str(programs))
    with pytest.raises(LackError, match="needs a C\\+\\+ compiler"):
        small_extension.build(tmp_path, "lent", "")


def test_failing_compiler_is_a_lack(programs: Path, tmp_path: Path) -> None:
    compiler(programs, "echo 'Python.h: No such file' >&2; exit 1")
    with pytest.raises(LackError, match=r"headers of Python: Python\.h: No such file"):
        small_extension.build(tmp_path, "lent", "")


def test_missing_torch_is_a_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LackError, match="needs torch"):
        small_extension.build(tmp_path, "lent", "")
