from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import MatrixError
from matrix.prove.provision.indexes import uv
from matrix.prove.provision.overlays import (
    MANIFEST,
    Overlay,
    Overlays,
    OverlaySpec,
    PackageMetadata,
    contradictions,
    installed,
    lay_flash_attention,
)
from matrix.read.commands import CommandResult, python_code, run
from matrix.read.package_source import Source, SourceKind, parse
from tests.profiles import tries
from tests.unit.prove.provision.makers import FolderUv, make_clone, make_tree, make_wheel

RELEASE = Source("megatron-core", SourceKind.PYPI, revision="0.9.0")
SPEC = OverlaySpec((RELEASE,), "3.10", {"torch": "2.4.0", "numpy": "1.26.4"})


@pytest.fixture(autouse=True)
def any_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a path for uv: the tests fake uv, and the machine need not have it."""
    monkeypatch.setenv("UV", "/tools/uv")


@pytest.fixture
def index(tmp_path: Path) -> FolderUv:
    """A uv whose index has megatron-core 0.9.0, 0.15.3 and a release of 0.16.1 for newer Pythons."""
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "0.9.0")
    make_wheel(wheels, "0.15.3", requires=["torch>=2.6.0", "numpy<2.0.0"])
    make_wheel(wheels, "0.16.1", python=">=3.12")
    return FolderUv(wheels, tmp_path / "log")


def forbidden(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
) -> CommandResult:
    raise AssertionError(f"unexpected command: {command}")


def release(version: str) -> OverlaySpec:
    return replace(SPEC, sources=(replace(RELEASE, revision=version),))


def test_an_overlay_is_a_folder_for_sys_path(tmp_path: Path, index: FolderUv) -> None:
    overlay = Overlays(tmp_path, index).provide(SPEC)

    assert (overlay.path / "megatron/core/__init__.py").is_file()
    assert overlay.packages == {"megatron-core": "0.9.0"}
    assert overlay.path.name == overlay.digest
    assert overlay.no_helper == ""


def test_a_second_provide_runs_nothing(tmp_path: Path, index: FolderUv) -> None:
    first = Overlays(tmp_path, index).provide(SPEC)

    assert Overlays(tmp_path, forbidden).provide(SPEC) == first


def test_bases_share_an_overlay(tmp_path: Path, index: FolderUv) -> None:
    first = Overlays(tmp_path, index).provide(SPEC)

    assert Overlays(tmp_path, forbidden).provide(replace(SPEC, base={"torch": "2.3.1"})) == first


def test_another_python_or_version_is_another_overlay(tmp_path: Path, index: FolderUv) -> None:
    overlays = Overlays(tmp_path, index)
    specs = SPEC, replace(SPEC, python="3.11"), replace(release("0.15.3"), base={})

    assert len({overlays.provide(spec).digest for spec in specs}) == index.installs == 3


def test_uv_installs_wheels_for_the_bases_python(tmp_path: Path, index: FolderUv) -> None:
    Overlays(tmp_path, index).provide(SPEC)

    words = index.log.read_text().split()
    assert {"--no-deps", "--no-build", "--python-version", "3.10", "megatron-core==0.9.0"} <= set(words)


def test_uv_gets_the_indexes_of_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///site")
    monkeypatch.delenv("UV_INDEX", raising=False)
    received: dict[str, str] = {}

    def recording(
        command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        received.update(environment or {})
        return CommandResult(1)

    with pytest.raises(MatrixError):
        Overlays(tmp_path, recording).provide(SPEC)

    assert (received["UV_INDEX"], received["UV_PYTHON_DOWNLOADS"]) == ("file:///site", "never")


def test_a_failed_installation_leaves_no_folder(tmp_path: Path, index: FolderUv) -> None:
    with pytest.raises(MatrixError) as caught:
        Overlays(tmp_path / "cache", index).provide(release("0.9.99"))

    assert "megatron-core==0.9.99: uv cannot install this for Python 3.10" in str(caught.value)
    assert "error: no solution" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert [path.name for path in (tmp_path / "cache/overlays").iterdir() if path.suffix != ".lock"] == []


def test_other_content_of_a_release_is_refused(tmp_path: Path, index: FolderUv) -> None:
    """After a purge of the cache: by the index that has changed, not by a user's wheel of that version."""
    made = Overlays(tmp_path, index).provide(SPEC).path
    shutil.rmtree(made)
    Overlays(tmp_path, index).provide(SPEC)
    wheel = make_wheel(index.wheels, "0.9.0", code="import os\n")
    shutil.rmtree(made)

    with pytest.raises(MatrixError, match="another content under the same version") as refused:
        Overlays(tmp_path, index).provide(SPEC)
    Overlays(tmp_path, index).provide(replace(SPEC, sources=(parse(str(wheel), MCORE),)))

    assert refused.value.where == "megatron_core-0.9.0"
    assert not made.exists()
    (record,) = (tmp_path / "contents" / "overlays").iterdir()
    record.unlink()  # the fix that the error names
    assert Overlays(tmp_path, index).provide(SPEC).path == made


def test_files_of_a_killed_process_are_removed(tmp_path: Path, index: FolderUv) -> None:
    overlays = Overlays(tmp_path, index)
    digest = overlays.provide(SPEC).digest
    (tmp_path / "overlays" / digest / MANIFEST).unlink()
    (tmp_path / "overlays" / digest).rename(tmp_path / "overlays" / f"{digest}.x.making")

    overlays.provide(SPEC)

    assert list((tmp_path / "overlays").glob("*.making")) == []
    assert index.installs == 2


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def loop_at(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [dangling, loop_at, Path.touch, os.mkfifo])
@pytest.mark.parametrize("name", ["{}", "{}.replaced.making", "{}.x.making"])
def test_content_in_place_of_an_overlay_is_replaced(
    tmp_path: Path, index: FolderUv, name: str, make: Callable[[Path], object]
) -> None:
    digest = Overlays(tmp_path / "other", index).provide(SPEC).digest
    folder = tmp_path / "cache" / "overlays"
    (folder / digest).mkdir(parents=True)
    place = folder / name.format(digest)
    if place.is_dir():
        place.rmdir()
    make(place)
    assert (Overlays(tmp_path / "cache", index).provide(SPEC).path / MODULE).is_file()
    assert sorted(path.name for path in folder.iterdir()) == [digest, f"{digest}.lock"]


def test_lock_that_is_a_fifo_does_not_block(tmp_path: Path, index: FolderUv) -> None:
    digest = Overlays(tmp_path / "other", index).provide(SPEC).digest
    (tmp_path / "cache" / "overlays").mkdir(parents=True)
    os.mkfifo(tmp_path / "cache" / "overlays" / f"{digest}.lock")
    assert Overlays(tmp_path / "cache", index).provide(SPEC).digest == digest


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("overlays", dangling),
        ("overlays", loop_at),
        ("overlays", Path.touch),
        ("overlays/{}.lock", Path.mkdir),
        ("overlays/{}.lock", loop_at),
    ],
)
def test_unusable_overlay_folder_is_an_error(
    tmp_path: Path, index: FolderUv, name: str, make: Callable[[Path], object]
) -> None:
    place = tmp_path / "cache" / name.format(Overlays(tmp_path / "other", index).provide(SPEC).digest)
    place.parent.mkdir(parents=True)
    make(place)
    with pytest.raises(MatrixError, match="the overlay can't be made"):
        Overlays(tmp_path / "cache", index).provide(SPEC)


MODULE = "megatron/core/__init__.py"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def same_size(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


def one_bit(path: Path) -> None:
    path.write_text(path.read_text().replace("0.9.0", "0.9.1"))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (MANIFEST, Path.unlink),
        (MANIFEST, cut),
        (MANIFEST, one_bit),
        *((MANIFEST, partial(Path.write_text, data=text)) for text in ("", "[]", "{}", '{"digest": 1}')),
        (MODULE, Path.unlink),
        (MODULE, cut),
        (MODULE, same_size),
        ("megatron_core-0.9.0.dist-info/METADATA", Path.unlink),
    ],
)
def test_a_damaged_overlay_is_made_anew(
    tmp_path: Path, index: FolderUv, name: str, damage: Callable[[Path], object]
) -> None:
    """uv fetches again: its cache may share the damaged file."""
    overlay = Overlays(tmp_path, index).provide(SPEC)
    whole = (overlay.path / MODULE).read_text()
    damage(overlay.path / name)

    assert Overlays(tmp_path, index).provide(SPEC) == overlay
    assert (overlay.path / MODULE).read_text() == whole
    assert ["--no-cache" in line for line in index.log.read_text().splitlines()] == [False, True]
    assert Overlays(tmp_path, forbidden).provide(SPEC) == overlay
    assert [path.name for path in overlay.path.parent.iterdir() if path.suffix != ".lock"] == [overlay.digest]


DEEP = "[" * 100_000 + "]" * 100_000


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def become_folder(path: Path) -> None:
    path.unlink()
    (path / "more").mkdir(parents=True)


def become_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_text(text: str) -> Callable[[Path], object]:
    return partial(Path.write_text, data=text)


def change_byte(place: int, value: int) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        content = bytearray(path.read_bytes() or b"\1")
        content[place % len(content)] ^= value
        path.write_bytes(content[: len(content) if value % 2 else place % len(content)])

    return change


DAMAGES = st.one_of(
    st.sampled_from([Path.unlink, loop, become_folder, become_fifo, *map(become_text, (DEEP, "", "nan", "\0"))]),
    st.builds(change_byte, st.integers(0, 10_000), st.integers(1, 255)),
)


@tries(10)
@given(files=st.lists(st.tuples(st.integers(0, 3), DAMAGES), min_size=1, max_size=3, unique_by=lambda one: one[0]))
@example(files=[(0, become_text(DEEP))])
@example(files=[(0, become_fifo)])
@example(files=[(2, become_fifo)])
def test_damaged_overlay_is_never_used(
    files: list[tuple[int, Callable[[Path], object]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every file that an import reads is as it was made; the first file is the manifest."""
    folder = tmp_path_factory.mktemp("overlay")
    make_wheel(folder / "wheels", "0.9.0")
    index = FolderUv(folder / "wheels", folder / "log")
    overlay = Overlays(folder, index).provide(SPEC)
    paths = sorted((path for path in overlay.path.rglob("*") if path.is_file()), key=lambda path: path.name != MANIFEST)
    whole = {path: path.read_bytes() for path in paths[1:]}
    for place, damage in files:
        damage(paths[place])

    assert Overlays(folder, index).provide(SPEC) == overlay
    assert {path: path.read_bytes() for path in whole} == whole


def test_a_copied_overlay_with_other_times_is_intact(tmp_path: Path, index: FolderUv) -> None:
    overlay = Overlays(tmp_path, index).provide(SPEC)
    os.utime(overlay.path / MODULE, (0, 0))
    (overlay.path / "megatron/core/helpers.so").touch()
    assert Overlays(tmp_path, forbidden).provide(SPEC) == overlay


def provide(root: Path, index: FolderUv) -> Overlay:
    return Overlays(root, index).provide(SPEC)


def test_concurrent_processes_create_an_overlay_once(tmp_path: Path, index: FolderUv) -> None:
    slow = replace(index, seconds=0.5)

    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        overlays = [future.result(timeout=60) for future in [pool.submit(provide, tmp_path, slow) for _ in range(6)]]

    assert len({overlay.path for overlay in overlays}) == 1
    assert index.installs == 1


def test_the_manifest_has_its_inputs(tmp_path: Path, index: FolderUv) -> None:
    overlay = Overlays(tmp_path, index).provide(SPEC)

    manifest = json.loads((overlay.path / MANIFEST).read_text())

    assert manifest["made from"]["sources"] == ["0.9.0"]
    assert manifest["made from"]["python"] == "3.10"


def test_a_contradiction_lists_every_reason(tmp_path: Path, index: FolderUv) -> None:
    with pytest.raises(MatrixError) as caught:
        Overlays(tmp_path, index).provide(replace(release("0.15.3"), base={"torch": "2.4.0", "numpy": "2.1.0"}))

    assert "megatron-core 0.15.3 requires torch>=2.6.0, the base has 2.4.0" in str(caught.value)
    assert "megatron-core 0.15.3 requires numpy<2.0.0, the base has 2.1.0" in str(caught.value)


def test_an_existing_overlay_is_checked_again(tmp_path: Path, index: FolderUv) -> None:
    Overlays(tmp_path, index).provide(replace(release("0.15.3"), base={}))

    with pytest.raises(MatrixError, match="contradicts its base"):
        Overlays(tmp_path, forbidden).provide(release("0.15.3"))


def test_a_base_with_old_python_is_refused(tmp_path: Path, index: FolderUv) -> None:
    with pytest.raises(MatrixError, match=r"requires Python >=3.12, the base has 3.10"):
        Overlays(tmp_path, index).provide(release("0.16.1"))


@pytest.mark.parametrize(
    ("requirement", "base", "contradicts"),
    [
        ("torch>=2.6.0", "2.6.0+cpu", False),
        ("torch>=2.4", "2.4.0a0+3bcc3cddb5", True),
        ("torch>=2.4.0a0", "2.4.0a0+3bcc3cddb5", False),
        ("torch", "2.4.0a0+3bcc3cddb5", False),
        ("Torch<2", "2.4.0", True),
        ("torch<2; extra == 'dev'", "2.4.0", False),
        ("torch<2; python_version < '3.10'", "2.4.0", False),
        ("torch<2; python_version >= '3.10' and extra == ''", "2.4.0", True),
        ("torch<2; python_full_version >= '3.10.2'", "2.4.0", True),
        ("torchvision<0.1", "2.4.0", False),
    ],
)
def test_a_requirement_may_contradict_the_base(requirement: str, base: str, contradicts: bool) -> None:
    packages = {"megatron-core": PackageMetadata("1.0", requires=[requirement])}

    assert bool(contradictions(packages, {"torch": base}, "3.10")) is contradicts


versions = st.builds(
    lambda numbers, end: ".".join(map(str, numbers)) + end,
    st.lists(st.integers(0, 30), min_size=1, max_size=3),
    st.sampled_from(["", "rc1", "a0+1234abc", ".dev3", ".post1", "+cpu"]),
)


@given(versions, versions)
def test_an_exact_requirement_contradicts_every_other_version(wanted: str, have: str) -> None:
    public = Version(wanted).public
    packages = {"megatron-core": PackageMetadata("1.0", requires=[f"torch=={public}"])}

    same = Version(Version(have).public) == Version(public)
    assert bool(contradictions(packages, {"torch": have}, "3.10")) is not same


def test_a_package_of_the_base_is_refused() -> None:
    reasons = contradictions({"numpy": PackageMetadata("2.0.0")}, {"NumPy": "1.26.4"}, "3.10")

    assert reasons == ["numpy belongs to the base (1.26.4)"]


def test_a_wheel_file_is_installed_as_it_is(tmp_path: Path, index: FolderUv) -> None:
    wheel = make_wheel(tmp_path / "mine", "0.9.1")
    spec = replace(SPEC, sources=(parse(str(wheel), "megatron-core"),))

    overlay = Overlays(tmp_path, index).provide(spec)
    make_wheel(tmp_path / "mine", "0.9.1", requires=["torch"])

    assert overlay.packages == {"megatron-core": "0.9.1"}
    assert Overlays(tmp_path, index).provide(spec).digest != overlay.digest


@pytest.mark.parametrize(("version", "installs"), [("1.10.0", 1), ("1.9.0", 2)])
def test_library_of_transformer_engine_is_left_out(tmp_path: Path, version: str, installs: int) -> None:
    """Its wheel of up to 1 GB is installed only for releases whose other wheel has no Python, and not kept by uv."""
    python, library = ["transformer_engine/__init__.py"], "transformer_engine/libtransformer_engine.so"
    make_wheel(tmp_path / "wheels", "1.10.0", name="transformer_engine", files=python)
    make_wheel(tmp_path / "wheels", "1.9.0", name="transformer_engine")
    make_wheel(tmp_path / "wheels", "1.9.0", name="transformer_engine_cu12", files=[*python, library])
    index = FolderUv(tmp_path / "wheels", tmp_path / "log")

    spec = replace(SPEC, sources=(Source("transformer-engine", SourceKind.PYPI, revision=version),))
    overlay = Overlays(tmp_path, index).provide(spec)

    assert (overlay.path / python[0]).is_file()
    assert index.installs == installs
    calls = [line for line in index.log.read_text().splitlines() if "transformer-engine-cu12" in line]
    assert (len(calls), all("--no-cache" in call for call in calls)) == (installs - 1, True)
    assert list(overlay.path.rglob("*.so")) == []


def test_a_revision_becomes_an_overlay_without_uv(tmp_path: Path) -> None:
    clone = make_clone(tmp_path / "Megatron-LM")
    overlays = Overlays(tmp_path, FolderUv(tmp_path, tmp_path / "log"))

    overlay = overlays.provide(replace(SPEC, sources=(parse(f"{clone}@feature/x@2", "megatron-core"),)))

    assert (overlay.path / "megatron/core/model.py").read_text() == "LAYERS = 3\n"
    assert overlay.packages["megatron-core"].startswith("0.9.0rc0+")
    assert overlay.no_helper == "no compiled dataset helper: the interpreter of the base is not available"
    assert not (tmp_path / "log").exists()


def test_a_wheel_for_another_python_has_no_helper(tmp_path: Path) -> None:
    """megatron-core < 0.14 has no wheel for Python 3.12; all but its compiled dataset helper is pure Python."""
    helper = "megatron/core/datasets/helpers.cpython-311-x86_64-linux-gnu.so"
    make_wheel(tmp_path / "wheels", "0.9.0", files=[helper])
    index = FolderUv(tmp_path / "wheels", tmp_path / "log", pythons=("3.10", "3.11"))

    overlay = Overlays(tmp_path, index).provide(replace(SPEC, python="3.12"))

    assert (overlay.path / "megatron/core/__init__.py").is_file()
    assert not (overlay.path / helper).exists()
    assert overlay.no_helper == ("no compiled dataset helper: this release has no wheel for Python 3.12, only for 3.11")


@pytest.mark.parametrize(
    ("compiled", "pythons"), [(["megatron/core/kernels.so"], ("3.11",)), ([], ("3.13",))], ids=["compiled", "newer"]
)
def test_no_other_wheel_fits(tmp_path: Path, compiled: list[str], pythons: tuple[str, ...]) -> None:
    """One with a further compiled module; none for an earlier Python."""
    make_wheel(tmp_path / "wheels", "0.9.0", files=compiled)

    with pytest.raises(MatrixError, match=r"uv cannot install this for Python 3\.12"):
        Overlays(tmp_path, FolderUv(tmp_path / "wheels", tmp_path / "log", pythons=pythons)).provide(
            replace(SPEC, python="3.12")
        )


def test_a_changed_working_tree_makes_another_overlay(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "Megatron-LM")
    overlays = Overlays(tmp_path, forbidden)
    spec = replace(SPEC, sources=(parse(str(tree), "megatron-core"),))

    first, again = overlays.provide(spec), overlays.provide(spec)
    (tree / "megatron/core/model.py").write_text("LAYERS = 5\n")
    changed = overlays.provide(spec)

    assert first == again
    assert (first.path / "megatron/core/model.py").read_text() == "LAYERS = 2\n"
    assert (changed.path / "megatron/core/model.py").read_text() == "LAYERS = 5\n"


def test_a_trees_own_requirements_count(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "Megatron-LM")
    (tree / "pyproject.toml").write_text('[project]\ndependencies = ["torch>=2.6.0"]\n')

    with pytest.raises(MatrixError, match=r"requires torch>=2.6.0, the base has 2.4.0"):
        Overlays(tmp_path, forbidden).provide(replace(SPEC, sources=(parse(str(tree), "megatron-core"),)))


def test_an_available_interpreter_makes_another_overlay(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "Megatron-LM")
    spec = replace(SPEC, sources=(parse(str(tree), "megatron-core"),))

    plain = Overlays(tmp_path, forbidden).provide(spec)
    with_python = Overlays(tmp_path, forbidden).provide(replace(spec, interpreter=Path("/env/bin/python")))

    assert with_python.no_helper == "no compiled dataset helper: megatron/core/datasets/helpers.cpp is not in this tree"
    assert plain.digest != with_python.digest


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({"MEGATRIX_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, Path("/c")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/megatrix")),
        ({}, Path.home() / ".cache/megatrix"),
    ],
)
def test_overlays_live_in_the_cache(environ: dict[str, str], root: Path) -> None:
    assert default_root(environ) == root


def test_the_variable_uv_locates_uv() -> None:
    assert uv({"UV": "/tools/uv", "PATH": ""}) == ["/tools/uv"]


def test_missing_uv_is_an_error_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(MatrixError, match="pip install uv"):
        uv({"PATH": ""})


@pytest.mark.parametrize("required", ["2.0.6, <=2.4.2, !=2.0.9, !=2.1.0", "2.0.6, <=2.6.3, !=2.0.9, !=2.1.0"])
def test_flash_attention_stand_in_is_accepted(tmp_path: Path, required: str) -> None:
    """By the ranges and imports of Transformer Engine 1.9 - 1.11: metadata alone ended each model with attention."""
    lay_flash_attention(tmp_path)
    assert SpecifierSet(f">={required}").contains(installed(tmp_path)["flash-attn"].version)
    program = (
        "from flash_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, "
        "_flash_attn_varlen_forward, _flash_attn_varlen_backward\n"
        "from flash_attn_2_cuda import varlen_bwd\nimport os\nprint(os.environ['NVTE_FLASH_ATTN'])"
    )
    ended = run(python_code(sys.executable, program), environment={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert ended.out == "0\n"
