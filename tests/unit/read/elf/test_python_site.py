"""None"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.read.elf.dynamic_linker import LinkSite
from matrix.read.elf.load_facts import OpenStep, PackageImport, link_table
from matrix.read.elf.python_site import PythonSite, after_import, compiled_file, cuda_of, image_site, site_of, started
from tests.unit.read.elf.environments import SmallEnvironment
from tests.unit.read.elf.objects import library, needs_compiler, package


def interpreter(prefix: Path, minor: str = "3.11") -> Path:
    """Lay out the interpreter of a prefix, without content."""
    path = prefix / f"bin/python{minor}"
    path.parent.mkdir(parents=True)
    path.touch()
    (prefix / f"lib/python{minor}/site-packages").mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("name", "module", "minor"),
    [
        ("_C.cpython-310-x86_64-linux-gnu.so", "_C", "3.10"),
        ("_C.abi3.so", "_C", ""),
        ("libx.so", "libx", ""),
        ("libx.so.12", "", ""),
    ],
)
def test_names_state_module_and_python(name: str, module: str, minor: str) -> None:
    file = compiled_file(Path("/x", name), name)
    assert (file.module, file.minor) == (module, minor)


def test_virtual_environment_is_read_from_files(tmp_path: Path) -> None:
    base = interpreter(tmp_path / "base")
    bin_folder = tmp_path / "env/bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").symlink_to(base)
    (tmp_path / "env/pyvenv.cfg").write_text("include-system-site-packages = false\nversion = 3.11.7\n")
    own = tmp_path / "env/lib/python3.11/site-packages"
    package(own, "Some_Package", "1.2")
    package(tmp_path / "more", "some-package", "2.0")
    site = site_of(bin_folder / "python", {"PYTHONPATH": str(tmp_path / "more")})
    assert (site.program, site.minor, site.folders) == (base, "3.11", (tmp_path / "more", own))
    assert site.versions == {"some-package": "2.0"}
    (tmp_path / "env/pyvenv.cfg").write_text("include-system-site-packages = true\nversion = 3.11.7\n")
    assert tmp_path / "base/lib/python3.11/site-packages" in site_of(bin_folder / "python", {}).folders


def test_user_packages_come_before_those_of_the_system(tmp_path: Path) -> None:
    program = interpreter(tmp_path / "usr")
    home = tmp_path / "home/.local/lib/python3.11/site-packages"
    home.mkdir(parents=True)
    assert site_of(program, {"HOME": str(tmp_path / "home")}).folders[0] == home


def test_own_environment_has_its_packages() -> None:
    site = site_of(Path(sys.executable), os.environ)
    assert site.minor == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert {"pytest", "packaging"} <= site.versions.keys()


def test_files_of_packages_and_files_of_none(tmp_path: Path) -> None:
    interpreter(tmp_path)
    folder = tmp_path / "lib/python3.11/site-packages"
    (folder / "listed").mkdir()
    for name in ("listed/_C.abi3.so", "alone.so", "deep_ep.egg/deep_ep_cpp.so", "data/part.so"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    package(folder, "listed", "1.0", "listed/_C.abi3.so", "listed/gone.so", "listed/x.py")
    site = site_of(tmp_path / "bin/python3.11", {})
    names = {each.name: [file.name for file in each.files] for each in site.packages if each.name}
    assert names == {"listed": ["listed/_C.abi3.so"]}
    assert sorted(file.name for each in site.packages if not each.name for file in each.files) == [
        "alone.so",
        "deep_ep.egg/deep_ep_cpp.so",
    ]
    owner = site.owner(folder / "listed/_C.abi3.so")
    assert owner is not None
    assert owner.version == "1.0"
    assert site.owner(folder / "alone.so") is None


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(4 * 2**30)


@pytest.mark.parametrize("name", ["RECORD", "METADATA"])
@pytest.mark.parametrize(
    ("make", "got"), [(os.mkfifo, "FIFO"), (circle, "symbolic links"), (sparse, "4,294,967,296 bytes")]
)
def test_damaged_metadata_of_a_package_is_named(
    name: str, make: Callable[[Path], None], got: str, tmp_path: Path
) -> None:
    package(tmp_path, "damaged", "1.0", "damaged.so")
    path = tmp_path / "damaged-1.0.dist-info" / name
    path.unlink()
    make(path)
    (read,) = PythonSite(Path("/python"), "3.11", (tmp_path,), LinkSite(Path("/"))).packages
    ((unread, reason),) = read.unread
    assert (read.name, read.version, unread) == ("damaged", "1.0", path)
    assert got in reason


def test_image_is_read_inside_its_root(tmp_path: Path) -> None:
    interpreter(tmp_path / "opt/py")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python3").symlink_to("/opt/py/bin/python3.11")
    package(tmp_path / "opt/py/lib/python3.11/site-packages", "torch", "2.4.0")
    site = image_site(tmp_path, {})
    assert (site.program, site.versions) == (tmp_path / "opt/py/bin/python3.11", {"torch": "2.4.0"})


def test_folder_without_python_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="the image has no Python"):
        image_site(tmp_path, {})
    with pytest.raises(MatrixError, match="no folder"):
        image_site(tmp_path / "none", {})
    with pytest.raises(MatrixError, match="no Python environment"):
        site_of(tmp_path / "bin/python", {})


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
