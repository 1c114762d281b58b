"""Make a bundle: what the index and the clones have for its cases, with its size before anything is downloaded.

What is there already is not downloaded again: an interrupted bundle goes on where it was.
"""

from __future__ import annotations

import errno
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from matrix import __version__
from matrix.ground.catalog import distributions
from matrix.ground.catalog.machine import Toolkit
from matrix.ground.catalog.model import Wheels
from matrix.ground.catalog.regular_file import sha256
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.versions import NONE
from matrix.ground.errors import MatrixError
from matrix.prove.planning.case_request import Supplies
from matrix.prove.provision import bundle_folder, clones, host, project, thin_wheels
from matrix.prove.provision.bases import CELL_REQUIRES, requirements
from matrix.prove.provision.bundle_folder import LEFT_OUT, Bundle, BundleFile
from matrix.prove.provision.indexes import run_uv, site_options
from matrix.prove.provision.overlays import FLASH_ATTENTION, NO_WHEEL, OLDEST, PRELOADED
from matrix.prove.provision.resolution import GO_ON, NO_ANSWER, PARTIAL, Downloader, IndexFile, index_files
from matrix.read.commands import Runner, run
from matrix.read.trees import LAYOUTS

QUERIES: Final = 4  # of the index at a time
EMPTY: Final = 50_000  # bytes: a wheel that only requires others has 6 kB, the Python of Transformer Engine 400 kB
SHOWN_S: Final = 5.0  # s between lines of progress
GB: Final = 1e9  # bytes


@dataclass(frozen=True)
class BundleContents:
    """What a bundle has to hold: the wheel of this project, files of the index, clones; releases without a wheel.

    `clones` maps their names to revisions. With `sm`, its wheels are thin. `extensions` are the bytes of what is made
    for it.
    """

    project: Path
    files: tuple[IndexFile, ...]
    clones: Mapping[str, tuple[str, ...]]
    missing: Mapping[str, str] = field(default_factory=dict)
    sm: str = ""
    extensions: int = 0

    @property
    def size(self) -> int:
        """Return the bytes that it takes, as the index and earlier fetches state them, and thin ones as measured."""
        kept = sum(int(file.size * (thin_wheels.share(file.name) if self.sm else 1)) for file in self.files)
        kept += self.project.stat().st_size + self.extensions
        return kept + sum(clones.expected_size(name, revisions) for name, revisions in self.clones.items())

    @property
    def received(self) -> int:
        """Return the bytes that are downloaded from the index."""
        return sum(file.size for file in self.files)


class Maker:
    """Makes a bundle in `folder`; `say` receives its progress."""

    def __init__(self, folder: Path, say: Callable[[str], None], run: Runner = run) -> None:
        self._folder, self._say, self._run = folder, say, run
        self._wheels = folder / "wheels"
        self._options = site_options()
        self._earlier: Bundle | None = None  # to which this is added

    def begin(self, request: Bundle) -> None:
        """Make the folder, or join what is in it. Raises MatrixError where another bundle or anything else is there."""
        if (self._folder / bundle_folder.MANIFEST).is_file():
            earlier = bundle_folder.read(self._folder)
            if earlier.request != request.request:
                raise MatrixError(
                    "another bundle",
                    where=str(self._folder),
                    got=" ".join(filter(None, earlier.request)),
                    expected=" ".join(filter(None, request.request)),
                    fix="name another --out, or remove this folder",
                )
            bundle_folder.join(self._folder, earlier)
        elif self._folder.exists() and (not self._folder.is_dir() or any(self._folder.iterdir())):
            raise MatrixError(
                "not a bundle",
                where=str(self._folder),
                got="other files",
                fix="name a folder that is empty, or that does not exist",
            )
        self._wheels.mkdir(parents=True, exist_ok=True)
        bundle_folder.write(self._folder, request)

    def add(self, request: Bundle, earlier: Path) -> None:
        """Join the complete bundle to which this one is added. Raises MatrixError for one that is not for it."""
        self._earlier = bundle_folder.read(earlier)
        fits = self._earlier.site == request.site and request.base != bundle_folder.HOST
        if not (fits and self._earlier.files):
            raise MatrixError(
                "--add needs a complete bundle for the same machine; that of host is made first",
                where=str(earlier),
                got=" ".join(filter(None, self._earlier.request)),
                expected=" ".join(filter(None, request.request)),
                fix="leave --add out for the first, with the same --level, --python and --sm",
            )
        if earlier == self._folder:
            bundle_folder.join(earlier, self._earlier)
        self._wheels.mkdir(parents=True, exist_ok=True)

    def kept(self, contents: BundleContents) -> int:
        """Return the bytes of the earlier bundle that stay as they are."""
        renewed = (bundle_folder.PROJECT, *(f"sources/{name}/" for name in contents.clones))
        files = self._earlier.files if self._earlier else {}
        return sum(file.size for name, file in files.items() if not name.startswith(renewed))

    def contents(
        self, request: Bundle, base: Wheels | None, needed: Supplies, extensions: int = 0, host: Toolkit | None = None
    ) -> BundleContents:
        """Return what the index has for a bundle; `host` is what is known of the torch of a host.

        Raises MatrixError where no index is reached or the base has none.
        """
        settings = read_toml(project.folder() / "pyproject.toml")["project"]
        tools = [*settings["dependencies"], *settings["optional-dependencies"]["desk"], *CELL_REQUIRES, "pip"]
        tools += distributions.te_builds().extension.tools if needed.builds else ()
        files = self._files_of(tools, request.python, "--no-build")
        toolkits, pins = [Toolkit(cuda=one.cuda) for one in distributions.te_builds().library], needed.releases
        own = ""  # the NCCL of the base
        if base:
            left_out = base.gpu_only if request.level == "cpu" else ()
            (self._folder / LEFT_OUT).write_text("\n".join(left_out))
            files += (of_base := self._files_of(requirements(base), request.python, exclude=left_out))
            nccl = re.search(r"nvidia_nccl_cu(\d+)-([\d.]+)-", " ".join(file.name for file in of_base))
            cuda, own = nccl.groups() if nccl else (NONE, "")
            host = Toolkit(cuda=cuda, torch=base.torch)
        if host:
            toolkits, shared = [host], distributions.shared_nccl(own, host)
            libraries = {wheel.package for wheel in distributions.nccl_sharing().wheel}
            unused = libraries - {shared.wheel.partition("==")[0] if shared else ""}
            pins = tuple(pin for pin in pins if pin[0] not in unused)
        missing: dict[str, str] = {}
        with ThreadPoolExecutor(QUERIES) as pool:
            queries = {"==".join(pin): pool.submit(self._release, *pin, request.python) for pin in pins}
            for te in needed.builds:
                queries[f"{distributions.PYTHON}=={te}"] = pool.submit(self._build, te, request.python, toolkits)
            for name, answer in queries.items():
                try:
                    files += answer.result()
                except MatrixError as error:
                    if any(text in str(error.got).lower() for text in NO_ANSWER):
                        raise
                    lines = str(error.got).splitlines()  # "No solution found", then its cause
                    missing[name] = lines[1 % len(lines)].strip()
        held = self._earlier.files if self._earlier else {}
        distinct = {file.name: file for file in files if f"wheels/{file.name}" not in held}
        return BundleContents(self._project(), (*distinct.values(),), needed.clones, missing, request.sm, extensions)

    def _files_of(
        self, requirements: Sequence[str], python: str, *options: str, exclude: Sequence[str] = ()
    ) -> list[IndexFile]:
        """Return the files of the index; the size of one for which it states none is its server's answer."""
        files = index_files(requirements, python, options, self._run, excluded=exclude)
        return [file if file.size else replace(file, size=Downloader(self._options).size(file.url)) for file in files]

    def _release(self, package: str, version: str, python: str) -> list[IndexFile]:
        """Return the wheels of a release from which an overlay is made (Overlays.lay)."""
        names = LAYOUTS[package].releases if package in LAYOUTS else (package,)
        files: list[IndexFile] = []
        for name in names:
            files += self._wheel(f"{name}=={version}", python, borrow=package == "megatron-core")
            if files[-1].size > EMPTY:
                break
        return files

    def _wheel(self, requirement: str, python: str, *, borrow: bool) -> list[IndexFile]:
        """Return the wheel of a release for a Python; with `borrow`, without one, that for an earlier Python."""
        try:
            return self._files_of([requirement], python, "--no-deps", "--no-build")
        except MatrixError as error:
            minor = int(python.partition(".")[2]) - 1
            if not borrow or not NO_WHEEL.search(str(error.got)) or minor < OLDEST:
                raise
        return self._wheel(requirement, f"3.{minor}", borrow=True)

    def _build(self, te: str, python: str, toolkits: Sequence[Toolkit]) -> list[IndexFile]:
        """Return the files from which a machine with one of these toolkits builds and imports a release.

        Raises MatrixError where none can. `Overlays.compile` uses them.
        """
        if not (able := [toolkit for toolkit in toolkits if not distributions.build_lack(te, toolkit)]):
            raise MatrixError("this release can't be built", got=distributions.build_lack(te, toolkits[0]))
        excluded, package = (*PRELOADED, FLASH_ATTENTION), distributions.te_builds().extension.package
        files = self._files_of([f"{package}=={te}"], python, "--no-deps", "--no-binary", package)
        for toolkit in able:
            wheels = distributions.requirements(te, toolkit.cuda or "")
            files += self._files_of(wheels, python, "--no-build", exclude=excluded)
        return files

    def check_space(self, contents: BundleContents, split: int) -> None:
        """Raise MatrixError if the disk has no room for what is not there yet and a part, or --split makes too many."""
        present = sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file()) - self.kept(contents)
        largest = max((file.size for file in contents.files), default=0)
        if split and largest > split * bundle_folder.MOST_PARTS:
            expected = f"at most {bundle_folder.MOST_PARTS:,} parts of a file"
            raise MatrixError("--split is too small", got=f"{split:,} bytes", expected=expected, fix='--split "1 GiB"')
        part = min(split, largest)
        unpacked = thin_wheels.UNPACKED * largest if contents.sm else 0
        needed, free = contents.size - present + part + unpacked, shutil.disk_usage(self._folder).free
        if needed > free:
            raise MatrixError(
                "the disk is too small for this bundle",
                where=str(self._folder),
                got=f"{free / GB:.2f} GB free",
                expected=f"{needed / GB:.2f} GB",
                fix=f"free {(needed - free) / GB:.2f} GB, or name an --out on another disk",
            )

    def make(self, request: Bundle, contents: BundleContents, split: int) -> Bundle:
        """Write the bundle and return it. Raises MatrixError where something can't be fetched, or the disk is full."""
        with room(self._folder):
            wheel = contents.project
            self._download(contents)
            sources = dict(map(self._clone, contents.clones, contents.clones.values()))
            earlier = self._earlier or request
            names = {wheel.name, *(file.name for file in contents.files)}
            for path in self._wheels.iterdir():
                if path.name not in names and f"wheels/{path.name}" not in earlier.files:  # uv could choose it
                    path.unlink()
            facts = {"python": request.python, "wheel": wheel.name, "sha256": sha256(wheel)}
            (self._folder / "start.py").write_text(project.script("start").format(**facts), encoding="utf-8")
            added = dict.fromkeys([*earlier.added, *([(request.base, request.select)] if self._earlier else [])])
            whole = replace(
                earlier,
                added=(*added,),
                clones={**earlier.clones, **sources},
                missing={**earlier.missing, **contents.missing},
                files=dict(self._files(contents)),
            )
            bundle_folder.write(self._folder, whole)
            return bundle_folder.split(self._folder, whole, split) if split else whole

    def _project(self) -> Path:
        """Build the wheel of this project, and return it."""
        if project.is_installed():
            return project.wheel(self._wheels)
        words = ["build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", str(self._wheels)]
        ended = run_uv(words, project.folder(), self._run)
        wheels = [*self._wheels.glob(f"megatrix-{__version__}-*.whl")]
        if ended.code or len(wheels) != 1:
            raise MatrixError("the wheel of this project can't be built", got=ended.complaint, fix=GO_ON)
        return wheels[0]

    def _download(self, contents: BundleContents) -> None:
        progress, size = Progress(contents.received, self._say), 0
        downloader = Downloader(self._options, progress.arrived)
        for file in sorted(contents.files, key=lambda file: -file.size):  # the small ones take longer by byte
            progress.begin(size)
            if not (contents.sm and thin_wheels.is_thin(self._wheels / file.name, contents.sm, file.sha256)):
                path = downloader.fetch(file, self._wheels)
                if contents.sm and path.suffix == ".whl":
                    for line in thin_wheels.described(path, thin_wheels.make_thin(path, contents.sm, file)):
                        self._say(line)
            size += file.size

    def _clone(self, name: str, revisions: Sequence[str]) -> tuple[str, str]:
        """Fetch these revisions, unless they are there; return the clone's variable and its folder in the bundle."""
        folder, settings = self._folder / "sources" / name, host.load_configuration()
        note = clones.note_of(folder)
        there = {*note.revisions, *note.missing} if note else set()
        if not {*revisions} <= there:
            revisions = sorted({*revisions} | there)
            url = settings.sources.get(name, settings.upstreams[name])
            clones.fetch(folder, url, revisions, self._say, history=clones.need_history(revisions))
        return host.variable(name), f"sources/{name}"

    def _files(self, contents: BundleContents) -> Iterator[tuple[str, BundleFile]]:
        """Yield the files of the bundle; of those of the index, the SHA-256 is known."""
        hashes = {} if contents.sm else {f"wheels/{file.name}": file.sha256 for file in contents.files}
        for path in sorted(self._folder.rglob("*")):
            name = path.relative_to(self._folder).as_posix()
            of_bundle = name in bundle_folder.TOPMOST or name.partition("/")[0] in bundle_folder.FOLDERS
            if of_bundle and path.is_file() and path.suffix not in (bundle_folder.LOCK, PARTIAL):
                yield name, BundleFile(path.stat().st_size, hashes.get(name) or sha256(path))


def requested(level: str, python: str, base: str, select: str, sm: str = "") -> Bundle:
    """Return the bundle of a request, before it has files. Raises MatrixError for a wrong compute capability."""
    gpu = thin_wheels.capability(sm) if sm else ""
    return Bundle(__version__, level, python, base, platform.machine(), select, sm=gpu)


class Progress:
    """Reports how many of `total` bytes are there, and how long the rest takes."""

    def __init__(self, total: int, say: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self._total, self._say, self._now = total, say, now
        self._began = self._shown = now()
        self._there = self._file = self._received = 0

    def begin(self, there: int) -> None:
        """Begin the next file; the bytes of those before it are there."""
        self._there, self._file = there, 0

    def arrived(self, count: int) -> None:
        """Count received bytes of this file; a line at most every SHOWN_S."""
        self._file += count
        self._received += count
        time_s = self._now()
        if time_s - self._shown >= SHOWN_S:
            self._shown, arrived, rate = time_s, self._there + self._file, self._received / (time_s - self._began)
            seconds = max(self._total - arrived, 0) / rate
            self._say(
                f"{arrived / GB:.2f} of {self._total / GB:.2f} GB, {rate / 1e6:.1f} MB/s, about {seconds:.0f} s left"
            )


@contextmanager
def room(folder: Path) -> Iterator[None]:
    """Raise MatrixError for a full disk in place of OSError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise MatrixError(
            "the disk is full", where=str(error.filename or folder), got=error.strerror, fix=f"free some space; {GO_ON}"
        ) from None


def described(contents: BundleContents, most: int = 4) -> list[str]:
    """Return what the bundle holds and its size in words, the largest files named."""
    largest = sorted(contents.files, key=lambda file: -file.size)[:most]
    names = ", ".join(f"{file.name.partition('-')[0]} {file.size / GB:.2f}" for file in largest)
    count, repositories = len(contents.files), f", and clones: {', '.join(contents.clones)}" if contents.clones else ""
    lines = [f"{contents.size / GB:.2f} GB: {count} distributions ({names}){repositories}"]
    if contents.sm:
        got = f"{contents.received / GB:.2f} GB are downloaded"
        lines += [f"{got}; code of other GPUs than those of compute capability {contents.sm} is left out"]
    return lines + [
        f"not in it, its cases are unavailable there: {name}: {why}" for name, why in contents.missing.items()
    ]
