"""The limits of a rank are set before its body runs; what it returns must be JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.ground.errors import MatrixError
from matrix.kit.rank import LackError
from matrix.prove.execution.ranks.rank_main import READY, VALUE, encode_value, imported, impose, pass_gate, usage
from matrix.read.machine import cuda

NOTHING: dict[str, Any] = {"address_space": None, "shm": None, "memory_group": ""}


def test_impose_without_limits_sets_nothing() -> None:
    impose(NOTHING, set_limit=lambda *_: pytest.fail("set"), mount_shm=lambda _: pytest.fail("mounted"))


def test_address_space_limit_is_soft_and_hard() -> None:
    """A body can't raise it."""
    seen: list[object] = []
    impose({**NOTHING, "address_space": 5}, set_limit=lambda *given: seen.append(given))
    assert seen == [(resource.RLIMIT_AS, (5, 5))]


def refuse(*_: object) -> None:
    raise PermissionError(1, "not here")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"address_space": 5}, "RLIMIT_AS"),
        ({"shm": 5}, "/dev/shm"),
        ({"memory_group": "/proc/no such group"}, "memory cgroup"),
    ],
)
def test_limit_that_fails_raises_lack_error(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(LackError, match=message):
        impose({**NOTHING, **spec}, set_limit=refuse, mount_shm=refuse)


@pytest.mark.parametrize(
    ("value", "message"), [({1, 2}, "not JSON"), (float, "not JSON"), ("x" * VALUE, "returned too much")], ids=repr
)
def test_value_that_is_not_small_json_raises(value: Any, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        encode_value(value, "module:body", {})


@pytest.mark.parametrize(
    ("status", "card", "used"),
    [
        ("VmPeak:\t99 kB\nVmHWM:\t    2048 kB\n", None, {"memory": 2.0}),
        ("Name:\tpython\n", None, {}),  # a kernel without peaks
        ("", SimpleNamespace(is_initialized=lambda: False), {}),
        (
            "",
            SimpleNamespace(
                is_initialized=lambda: True, device_count=lambda: 2, max_memory_allocated=lambda device: device * 2**20
            ),
            {"gpu-memory": 1.0},
        ),
        ("", SimpleNamespace(is_initialized=lambda: True), {}),  # of a torch that can't report it
    ],
)
def test_usage_has_what_the_machine_reports(
    status: str, card: Any, used: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "status").write_text(status)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=card))

    assert usage(1.5, tmp_path / "status") == {"seconds": 1.5, **used}


def test_target_is_a_module_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "reproduction.py").write_text("def body(): return 1\n")
    assert imported(f"{tmp_path}/reproduction.py:body")() == 1
    assert imported("json:dumps") is json.dumps


def test_gate_adds_its_variables_after_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    (tmp_path / "gate").write_text('{"CUDA_VISIBLE_DEVICES": "GPU-7"}\n', encoding="utf-8")
    with (tmp_path / "result").open("wb") as result:
        pass_gate(tmp_path / "gate", result.fileno())
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-7"
    assert (tmp_path / "result").read_text(encoding="utf-8") == f"{READY}\n"


def test_cuda_that_started_before_the_gate_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has read CUDA_VISIBLE_DEVICES: the rank would use GPUs of other cases."""
    monkeypatch.setattr(cuda, "initialised", lambda: True)
    with (tmp_path / "result").open("wb") as result, pytest.raises(MatrixError, match="starts CUDA at its import"):
        pass_gate(tmp_path / "gate", result.fileno())
    assert (tmp_path / "result").read_bytes() == b""
