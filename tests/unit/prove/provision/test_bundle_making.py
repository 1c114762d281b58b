"""Bundles made from an index of this test: its wheels are files, uv's answers are written here."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from matrix import __version__
from matrix.ground.catalog.machine import Toolkit
from matrix.ground.catalog.model import Wheels
from matrix.ground.catalog.regular_file import sha256
from matrix.ground.errors import MatrixError
from matrix.prove.planning.case_request import Supplies
from matrix.prove.provision import bundle_folder, bundle_making, host, project
from matrix.prove.provision.bundle_folder import Bundle
from matrix.prove.provision.bundle_making import BundleContents, Maker, Progress, described, requested
from matrix.prove.provision.resolution import Downloader, IndexFile
from matrix.read.commands import CommandResult, run
from matrix.read.elf.elf_file import CUBIN
from tests.unit.catalogs import real
from tests.unit.prove.provision.makers import make_clone
from tests.unit.prove.provision.test_thin_wheels import fat_binary, fat_wheel
from tests.unit.read.elf.objects import needs_compiler

NEEDED = Supplies((("megatron-core", "0.8.0"), ("transformer-engine", "1.9.0"), ("absent", "1.0")), {}, ())


def ignore(line: str) -> None:
    """Drop a line of progress."""


class Index:
    """Answers as uv does: what is in `wheels`, by requirement and Python; it counts the questions."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked, self.excluded = folder, list[str](), ""
        self.wheels = {"megatron-core==0.8.0 3.11": 70, "transformer-engine==1.9.0 3.12": 60}
        self.wheels |= {"transformer-engine-cu12==1.9.0 3.12": 90_000, "transformer-engine-torch==2.8.0 3.12": 30}
        self.of_torch = ["nvidia_nccl_cu12"]
        self.down = False

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        if "build" in command:
            folder = Path(command[command.index("--out-dir") + 1])
            (folder / f"megatrix-{__version__}-py3-none-any.whl").write_bytes(b"the project")
            return CommandResult(0)
        excluded, text = Path(command[-1]).read_text(), Path(command[command.index("--excludes") - 1]).read_text()
        requirements = text.split("\n")[0]
        self.asked.append(requirements)
        if requirements.startswith("torch"):
            self.excluded = excluded
        if self.down:
            return CommandResult(2, "", "error: Failed to fetch: `https://index.example/simple/torch/`")
        if "--no-deps" not in command:
            names = re.findall(r"(?m)^[\w-]+", text)
            return CommandResult(0, "".join(self.lock(name, 500) for name in [*names, *self.of_torch]))
        python = command[command.index("--python-version") + 1]
        if size := self.wheels.get(f"{requirements} {python}"):
            return CommandResult(0, self.lock(requirements.partition("==")[0], size))
        return CommandResult(1, "", f"error: {requirements} has no wheels with a matching Python ABI tag")

    def lock(self, name: str, size: int) -> str:
        path = self.folder / f"{name}-1-py3-none-any.whl"
        path.write_bytes(name.encode().ljust(size, b"."))
        wheel = f'{{ url = "{path.as_uri()}", hashes = {{ sha256 = "{sha256(path)}" }} }}'
        return f'[[packages]]\nname = "x"\nwheels = [{wheel}]\n'


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    (tmp_path / "index").mkdir()
    monkeypatch.setattr(bundle_making, "site_options", dict)
    return Index(tmp_path / "index")


def request(base: str = "torch-2.4.0", level: str = "cpu", select: str = "") -> Bundle:
    return requested(level, "3.12", base, select)


def wheels_of(base: str) -> Wheels:
    entry = real().base(base)
    assert isinstance(entry, Wheels)
    return entry


def begun(index: Index, tmp_path: Path, lines: list[str] | None = None) -> Maker:
    maker = Maker(tmp_path / "b", (lines if lines is not None else []).append, index)
    maker.begin(request())
    return maker


def test_bundle_holds_what_was_stated(index: Index, tmp_path: Path) -> None:
    maker = begun(index, tmp_path)
    contents = maker.contents(request(), wheels_of("torch-2.4.0"), NEEDED)
    made = maker.make(request(), contents, 0)
    assert bundle_folder.verified(tmp_path / "b") == made
    assert {"wheels/torch-1-py3-none-any.whl", "wheels/transformer-engine-cu12-1-py3-none-any.whl", "start.py"} <= {
        *made.files
    }
    assert made.size - contents.size == sum(made.files[name].size for name in ("start.py", "left-out.txt"))


def test_release_without_a_wheel_is_borrowed_or_missing(index: Index, tmp_path: Path) -> None:
    """Megatron-core's of an earlier Python serves, as in an overlay; others are stated."""
    contents = begun(index, tmp_path).contents(request(), None, NEEDED)
    assert "megatron-core-1-py3-none-any.whl" in [file.name for file in contents.files]
    assert [*contents.missing] == ["absent==1.0"]
    assert "absent==1.0" in described(contents)[1]


def test_library_is_left_out_where_unneeded(index: Index, tmp_path: Path) -> None:
    index.wheels["transformer-engine==1.9.0 3.12"] = 80_000
    contents = begun(index, tmp_path).contents(request(), None, NEEDED)
    assert "transformer-engine-cu12==1.9.0" not in index.asked
    assert "transformer-engine-1-py3-none-any.whl" in [file.name for file in contents.files]


def test_unreachable_index_is_an_error(index: Index, tmp_path: Path) -> None:
    index.down = True
    with pytest.raises(MatrixError, match="the index has no such files"):
        begun(index, tmp_path).contents(request(), None, NEEDED)


@pytest.mark.parametrize(("level", "excluded"), [("cpu", "triton"), ("gpu", "")])
def test_level_cpu_has_no_packages_for_gpus(level: str, excluded: str, index: Index, tmp_path: Path) -> None:
    maker = Maker(tmp_path / "b", ignore, index)
    maker.begin(request(level=level))
    maker.contents(request(level=level), wheels_of("torch-2.4.0"), Supplies((), {}, ()))
    assert index.excluded.partition("\n")[0] == excluded


BUILD = Supplies((), {}, ("2.8.0",))
LIBRARIES = ("transformer-engine-cu12", "transformer-engine-cu13")


@pytest.mark.parametrize(
    ("base", "of_torch", "libraries"),
    [
        ("torch-2.4.0", ["nvidia_nccl_cu12"], LIBRARIES[:1]),
        ("host", [], LIBRARIES[:1]),  # of CUDA 13, the index has none
    ],
)
def test_build_is_supplied_with_all_it_needs(
    base: str, of_torch: list[str], libraries: tuple[str, ...], index: Index, tmp_path: Path
) -> None:
    index.of_torch = of_torch
    wheels = None if base == "host" else wheels_of(base)
    contents = begun(index, tmp_path).contents(request(), wheels, BUILD)
    names = {file.name.partition("-1-")[0] for file in contents.files}
    needed = {"transformer-engine", "transformer-engine-torch", "ninja", "pybind11", "setuptools", "onnx", "einops"}
    assert needed <= names
    assert {*LIBRARIES} & names == {*libraries}
    assert contents.missing == {}


def test_host_has_the_library_of_each_cuda(index: Index, tmp_path: Path) -> None:
    index.wheels["transformer-engine-torch==2.9.0 3.12"] = 30
    contents = begun(index, tmp_path).contents(request(), None, Supplies((), {}, ("2.9.0",)))
    assert {*LIBRARIES} <= {file.name.partition("-1-")[0] for file in contents.files}


def test_known_host_has_libraries_of_its_cuda(index: Index, tmp_path: Path) -> None:
    """--compile names its torch: of NCCL and Transformer Engine it needs those of one CUDA."""
    index.of_torch = []
    index.wheels["transformer-engine-torch==2.9.0 3.12"] = 30
    index.wheels |= {f"nvidia-nccl-cu{major}==2.32.3 3.12": 90_000 for major in (12, 13)}
    needed = Supplies((("nvidia-nccl-cu12", "2.32.3"), ("nvidia-nccl-cu13", "2.32.3")), {}, ("2.9.0",))
    host = Toolkit(cuda="13.0", torch="2.11.0+cu130")
    contents = begun(index, tmp_path).contents(request(), None, needed, host=host)
    names = {file.name.partition("-1-")[0] for file in contents.files}
    assert {name for name in names if "cu1" in name} == {"nvidia-nccl-cu13", "transformer-engine-cu13"}


@pytest.mark.parametrize(
    ("te", "of_torch", "reason"),
    [
        ("2.8.0", ["nvidia_nccl_cu13"], "no library of it for CUDA 13"),
        ("2.8.0", [], "torch here is built without CUDA"),
        ("2.18.0", ["nvidia_nccl_cu12"], "with torch 2.4.0 it can't be imported"),
    ],
)
def test_release_that_cant_be_built_is_named(
    te: str, of_torch: list[str], reason: str, index: Index, tmp_path: Path
) -> None:
    """As in a night: it is unavailable there, with the same reason."""
    index.of_torch = of_torch
    contents = begun(index, tmp_path).contents(request(), wheels_of("torch-2.4.0"), Supplies((), {}, (te,)))
    assert reason in contents.missing[f"transformer-engine=={te}"]


def test_second_run_downloads_nothing(index: Index, tmp_path: Path) -> None:
    for _ in range(2):
        maker = begun(index, tmp_path)
        contents = maker.contents(request(), None, NEEDED)
        times = {path: path.stat().st_mtime_ns for path in (tmp_path / "b/wheels").glob("transformer*.whl")}
        maker.make(request(), contents, 100)
    assert len(times) == 2
    assert times.items() <= {path: path.stat().st_mtime_ns for path in (tmp_path / "b/wheels").iterdir()}.items() | {
        (path, time) for path, time in times.items() if not path.exists()
    }


def test_file_of_an_earlier_version_is_removed(index: Index, tmp_path: Path) -> None:
    maker = begun(index, tmp_path)
    (tmp_path / "b/wheels/megatrix-0.0-py3-none-any.whl").write_bytes(b"")
    made = maker.make(request(), maker.contents(request(), None, NEEDED), 0)
    assert not [name for name in made.files if "megatrix-0.0" in name]
    assert not (tmp_path / "b/wheels/megatrix-0.0-py3-none-any.whl").exists()


def test_clones_are_bare_and_whole(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = make_clone(tmp_path / "theirs")
    sources = {"megatron-lm": str(clone)}
    monkeypatch.setattr(host, "load_configuration", lambda: SimpleNamespace(sources=sources, upstreams=sources))
    lines: list[str] = []
    for _ in range(2):
        maker = begun(index, tmp_path, lines)
        made = maker.make(request(), BundleContents(maker._project(), (), {"megatron-lm": ("core_v0.9.0",)}), 0)
    assert made.clones == {"MEGATRIX_MEGATRON_LM": "sources/megatron-lm"}
    assert "sources/megatron-lm/HEAD" in made.files
    assert len([line for line in lines if line.startswith("fetching")]) == 1


@needs_compiler
def test_thin_bundle_has_hashes_of_its_files(index: Index, tmp_path: Path) -> None:
    """A thin wheel is there after an interruption; its SHA-256 is not that of the index."""
    file = fat_wheel(tmp_path / "index", fat_binary((CUBIN, 80, b"x" * 200_000), (CUBIN, 90, b"y" * 64)))
    lines: list[str] = []
    for _ in range(2):
        thin, maker = replace(request(), sm="9.0"), Maker(tmp_path / "b", lines.append, index)
        maker.begin(thin)
        made = maker.make(thin, BundleContents(maker._project(), (file,), {}, sm="9.0"), 0)
        assert bundle_folder.verified(tmp_path / "b") == made
    assert made.files[f"wheels/{file.name}"].sha256 != file.sha256
    assert len([line for line in lines if "symbols left out" in line]) == 1
    assert [path.name for path in (tmp_path / "b").iterdir() if path.is_dir()] == ["wheels"]
    with pytest.raises(MatrixError, match="another bundle"):
        Maker(tmp_path / "b", ignore, index).begin(request())


@pytest.mark.parametrize(("select", "what"), [("", None), ("mcore==0.8.0", "another bundle")])
def test_folder_of_another_bundle_is_refused(select: str, what: str | None, index: Index, tmp_path: Path) -> None:
    begun(index, tmp_path)
    maker = Maker(tmp_path / "b", ignore, index)
    if what is None:
        maker.begin(request(select=select))
        return
    with pytest.raises(MatrixError, match=what):
        maker.begin(request(select=select))


def test_base_is_added_to_a_bundle(index: Index, tmp_path: Path) -> None:
    """What is there stays and is not stated again; adding once more changes nothing."""
    first, folder = request("host"), tmp_path / "b"
    maker = Maker(folder, ignore, index)
    maker.begin(first)
    one = maker.make(first, maker.contents(first, None, NEEDED), 0)
    sums: list[int] = []
    for _ in range(2):
        adding = Maker(folder, ignore, index)
        adding.add(request(), folder)
        contents = adding.contents(request(), wheels_of("torch-2.4.0"), NEEDED)
        both = adding.make(request(), contents, 0)
        sums.append(adding.kept(contents) + contents.size)
        assert bundle_folder.verified(folder) == both
        assert (both.base, both.added) == ("host", (("torch-2.4.0", ""),))
        assert {*one.files} < {*both.files}
    added = {*both.files} - {*one.files}
    assert {file.name for file in contents.files} == set()
    assert "wheels/torch-1-py3-none-any.whl" in added
    assert sums == [both.size - both.files["left-out.txt"].size, both.size]
    with pytest.raises(MatrixError, match="--add needs a complete bundle for the same machine"):
        Maker(folder, ignore, index).add(replace(request(), sm="9.0"), folder)


def test_folder_with_other_files_is_refused(index: Index, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear")
    for path in ("mine", "mine/letter.txt"):
        with pytest.raises(MatrixError, match="not a bundle") as raised:
            Maker(tmp_path / path, ignore, index).begin(request())
        assert raised.value.fix
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_small_disk_is_refused_before_the_download(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = begun(index, tmp_path)
    contents = BundleContents(maker._project(), (IndexFile("a.whl", "file:///a", 3 * 10**9, ""),), {})
    assert replace(contents, extensions=9).size == contents.size + 9
    for free, split, fits in ((4 * 10**9, 0, True), (6 * 10**9, 2**40, True), (2 * 10**9, 0, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        if fits:
            maker.check_space(contents, split)
            continue
        with pytest.raises(MatrixError, match="the disk is too small for this bundle") as raised:
            maker.check_space(contents, 0)
        assert "free 1.00 GB" in str(raised.value.fix)


def test_full_disk_is_an_error_with_a_fix(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = begun(index, tmp_path)
    contents = maker.contents(request(), None, NEEDED)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a.whl")

    monkeypatch.setattr(Downloader, "fetch", full)
    with pytest.raises(MatrixError, match="the disk is full") as raised:
        maker.make(request(), contents, 0)
    assert "it goes on where it was" in str(raised.value.fix)


def test_progress_states_the_rest() -> None:
    lines: list[str] = []
    times = iter([0.0, 2.0, 10.0])
    progress = Progress(3 * 10**9, lines.append, lambda: next(times))
    progress.begin(10**9)
    progress.arrived(10**6)
    progress.arrived(10**9 - 10**6)
    assert lines == ["2.00 of 3.00 GB, 100.0 MB/s, about 10 s left"]


@pytest.mark.parametrize("path", ["start.py", "./start.py", "../bundle/start.py", "../link/start.py", "../link.py"])
def test_modules_beside_start_are_not_run(tmp_path: Path, path: str) -> None:
    """pip and Python check nothing of such a file, and no manifest lists it."""
    folder = tmp_path / "bundle"
    (folder / "wheels").mkdir(parents=True)
    (folder / "start.py").write_text(project.script("start").format(python="3.10", wheel="a.whl", sha256="0"))
    for name in ("hashlib", "pathlib"):
        (folder / f"{name}.py").write_text("raise SystemExit('foreign code ran')\n")
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "link.py").symlink_to(folder / "start.py")

    ended = run(["env", "-C", str(folder), sys.executable, path])
    assert "wheels/a.whl is missing or damaged" in ended.err
