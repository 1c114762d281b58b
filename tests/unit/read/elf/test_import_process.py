from __future__ import annotations

from pathlib import Path

import pytest

from matrix.read.elf.import_process import after_import, cuda_of, started
from matrix.read.elf.load_facts import OpenStep, PackageImport, link_table
from tests.unit.read.elf.environments import SmallEnvironment
from tests.unit.read.elf.objects import library, needs_compiler

pytestmark = needs_compiler


def row(*steps: OpenStep) -> PackageImport:
    return PackageImport("some", steps, "test")


@pytest.fixture
def environment(tmp_path: Path) -> SmallEnvironment:
    return SmallEnvironment(tmp_path / "packages")


def opened(environment: SmallEnvironment, *steps: OpenStep) -> tuple[list[str], list[str]]:
    """Return the names of the files that steps open, and of what is missing."""
    base = started(environment.site())
    process, problems = after_import(base, environment.site(), row(*steps))
    return [each.elf.path.name for each in process.objects[len(base.objects) :]], [each.name for each in problems]


def test_first_pattern_with_files_counts(environment: SmallEnvironment) -> None:
    for name in ("libx.so.1", "libx.so.2"):
        library(environment.folder / "nvidia/x/lib", name)
    files = ("$X_HOME/**/libx.so*", "@site/nvidia/x/lib/libx.so.*[0-9]")
    assert opened(environment, OpenStep(files)) == (["libx.so.2"], [])
    assert opened(environment, OpenStep(files, every=True)) == (["libx.so.1", "libx.so.2"], [])
    library(environment.folder.parent / "home/deep", "libx.so.9")
    environment.variables["X_HOME"] = str(environment.folder.parent / "home")
    assert opened(environment, OpenStep(files)) == (["libx.so.9"], [])


def test_needed_step_without_files_is_a_problem(environment: SmallEnvironment) -> None:
    environment.folder.mkdir()
    assert opened(environment, OpenStep(("@site/libx.so*",), needed=True)) == ([], ["libx.so"])
    assert opened(environment, OpenStep(("@site/libx.so*",))) == ([], [])


def test_steps_after_failed_and_after_nothing(environment: SmallEnvironment) -> None:
    good, more = (library(environment.folder, name) for name in ("libgood.so", "libmore.so"))
    (environment.folder / "bad.so").write_bytes(b"no ELF file")
    first, second = OpenStep(("@site/bad.so",)), OpenStep((f"@site/{good.name}",), when="failed")
    assert opened(environment, first, second)[0] == ["libgood.so"]
    assert opened(environment, OpenStep((f"@site/{more.name}",)), second)[0] == ["libmore.so"]
    third = OpenStep((f"@site/{good.name}",), when="nothing")
    assert opened(environment, OpenStep(("@site/none.so",)), third)[0] == ["libgood.so"]
    assert opened(environment, OpenStep((f"@site/{more.name}",)), third)[0] == ["libmore.so"]
    fourth = OpenStep((f"@site/{good.name}",), unless=(f"@site/{more.name}",))
    assert opened(environment, fourth) == ([], [])


def test_torch_preloads_what_its_own_file_lists(environment: SmallEnvironment) -> None:
    """libtorch_global_deps.so can't find libcudnn.so.9 by its own path: torch/__init__.py then opens the wheel's."""
    cudnn = environment.nvidia("cudnn", "libcudnn.so.9", "9.1.0.70")
    environment.torch("12.1", f"-L{cudnn.parent}", "-l:libcudnn.so.9")
    (torch,) = (each for each in link_table().importing if each.package == "torch")
    process, problems = after_import(started(environment.site()), environment.site(), torch)
    assert problems == ()
    assert "libcudnn.so.9" in [each.elf.soname for each in process.objects]
    cudnn.unlink()
    (problem, *_) = after_import(started(environment.site()), environment.site(), torch)[1]
    assert problem.name == "libcudnn.so.9"


def test_cuda_of_torch(environment: SmallEnvironment) -> None:
    environment.folder.mkdir()
    assert cuda_of(environment.site()) == ""
    environment.torch("12.8")
    assert cuda_of(environment.site()) == "12.8"
