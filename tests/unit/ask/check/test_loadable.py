from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from matrix.ask.check import environment
from matrix.cli.main import main
from matrix.ground.catalog import loading
from matrix.prove.provision.overlays import lay_wheels
from matrix.read.commands import CommandResult
from matrix.read.elf.python_site import started
from tests.schemas import items_of
from tests.unit.read.elf.environments import SmallEnvironment
from tests.unit.read.elf.objects import module, needs_compiler, package

pytestmark = needs_compiler


@pytest.fixture
def image(tmp_path: Path) -> SmallEnvironment:
    """An unpacked image: the interpreter of this process with a torch and an extension for another torch."""
    root = tmp_path / "image"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/python3.11").write_bytes(Path(os.path.realpath("/proc/self/exe")).read_bytes())
    (root / "usr/bin/python3").symlink_to("/usr/bin/python3.11")
    for library in started(SmallEnvironment(tmp_path).site()).objects[1:]:
        target = root / "lib64" / library.elf.path.name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(library.elf.path.read_bytes())
    environment = SmallEnvironment(root / "usr/lib/python3.11/site-packages")
    environment.torch()
    environment.uses_torch("flash-attn", "flash_attn_2_cuda", "2.8.3", "_ZN3c105ErrorC2Ev")
    return environment


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["check", "--json", *arguments])
    (item,) = items_of(capsys.readouterr().out, "check")
    return status, item


def test_image_is_checked_by_its_files(image: SmallEnvironment, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(image.folder.parents[3])
    status, answer = checked(capsys, "--root", root)
    assert (status, answer["answer"]) == (1, "breaks")
    assert answer["stack"]["components"]["torch"] == "2.4.0"
    findings = {finding["package"]: finding for finding in answer["loading"]["findings"]}
    assert findings["flash-attn"]["path"].startswith(root)
    assert main(["check", "--root", root]) == 1
    out = capsys.readouterr().out
    assert "DOES NOT LOAD: flash-attn 2.8.3" in out
    assert "  $ python -m pip uninstall -y flash-attn" in out
    assert main(["check", "--brief", "--root", root]) == 1
    assert "DOES NOT LOAD: flash-attn 2.8.3" in capsys.readouterr().out
    assert main(["check", "--format", "github", "--root", root]) == 1
    assert "flash-attn 2.8.3" in capsys.readouterr().out


def test_image_and_words_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--root", str(tmp_path), "torch=2.4.1"]) == 2
    assert main(["check", "--loadable", "torch=2.4.1"]) == 2
    assert "wheels are read of files" in capsys.readouterr().err


def test_own_environment_loads(capsys: pytest.CaptureFixture[str]) -> None:
    _, answer = checked(capsys, "--loadable")
    assert answer["loading"]["findings"] == []
    assert answer["loading"]["extensions"] > 0


class Index:
    """Stands for uv: lays out a small torch and flash-attn; has no wheel of one package, and none of others."""

    def __init__(self, message: str = "") -> None:
        self.message = message

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        wanted, folder = [word for word in command if "==" in word], Path(command[command.index("--target") + 1])
        if self.message:
            return CommandResult(2, err=self.message)
        if "transformer-engine-torch==2.9.0" in wanted:
            return CommandResult(1, err="Because transformer-engine-torch==2.9.0 has no usable wheels, ...")
        small = SmallEnvironment(folder)
        for word in wanted:
            if word.startswith("torch=="):
                small.torch()
            elif word.startswith("flash-attn=="):
                small.torch()
                small.uses_torch("flash-attn", "flash_attn_2_cuda", "2.8.3", "absent")
        return CommandResult(0)


def lock(tmp_path: Path) -> str:
    path = tmp_path / "requirements.txt"
    path.write_text("torch==2.4.0\nflash-attn==2.8.3\ntransformer-engine-torch==2.9.0\n")
    return str(path)


def test_wheels_of_a_lock_are_read(tmp_path: Path) -> None:
    (answer,) = environment.locked_inputs(loading.load(), [lock(tmp_path)], "", partial(lay_wheels, run=Index()))
    assert answer.loading is not None
    assert [finding.package for finding in answer.loading.findings] == ["flash-attn"]
    (unread,) = [item for item in answer.stack.unread if "was not read" in item.text]
    assert "it has no wheel for this Python" in unread.text
    assert unread.remedy == environment.AFTERWARDS


def test_without_a_network_each_package_is_unknown(tmp_path: Path) -> None:
    lay = partial(lay_wheels, run=Index("error: failed to fetch"))
    (answer,) = environment.locked_inputs(loading.load(), [lock(tmp_path)], "", lay)
    unread = [item.text for item in answer.stack.unread if "was not read: error: failed to fetch" in item.text]
    assert len(unread) == 3


def test_bad_input_is_a_message_each(image: SmallEnvironment, capsys: pytest.CaptureFixture[str]) -> None:
    """A truncated file, 4 GB without content, FIFOs, a circle of links, another machine: none ends the check."""
    names = ["_truncated", "_sparse", "_fifo", "_circle", "_machine", "_list"]
    for name in names:
        package(image.folder, name, "1.0", f"{name}.abi3.so")
    whole = module(image.folder.parent / "other", "x", "_truncated").read_bytes()
    (image.folder / "_truncated.abi3.so").write_bytes(whole[:2000])
    other = bytearray(module(image.folder.parent / "other", "y", "_machine").read_bytes())
    other[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64
    (image.folder / "_machine.abi3.so").write_bytes(other)
    (record,) = image.folder.glob("_list-*.dist-info/RECORD")
    record.unlink()
    os.mkfifo(record)
    with (image.folder / "_sparse.abi3.so").open("wb") as file:
        file.truncate(4 * 2**30)
    os.mkfifo(image.folder / "_fifo.abi3.so")
    (image.folder / "_circle.abi3.so").symlink_to("_circle.abi3.so")
    _, answer = checked(capsys, "--root", str(image.folder.parents[3]))
    found = {finding["package"].strip("-"): finding["what"] for finding in answer["loading"]["findings"]}
    assert "a segment ends at" in found["truncated"] or "can't be loaded" in found["truncated"]
    assert "no ELF file" in found["sparse"]
    assert "FIFO" in found["fifo"]
    assert "symbolic links" in found["circle"]
    assert "a file for aarch64" in found["machine"]
    assert "RECORD can't be read: a FIFO" in found["list"]


def test_command_line_starts_nothing_of_the_image(image: SmallEnvironment, tmp_path: Path) -> None:
    """Programs of the image would leave a file: its python is a script that does."""
    mark = tmp_path / "started"
    program = image.folder.parents[2] / "bin/python3.11"
    program.unlink()
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    line = [sys.executable, "-m", "matrix", "check", "--root", str(image.folder.parents[3])]
    subprocess.run(line, capture_output=True, check=False)
    assert not mark.exists()
