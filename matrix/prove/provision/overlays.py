"""Overlays: a package set laid over a base without rebuilding it, as a folder at the front of sys.path.

A folder is named by the digest of its inputs and never changes: every cell, run and process that needs the same
packages shares it. Creating one requires uv; finding one takes milliseconds and requires neither uv nor a network. One
that was damaged since is made anew: the manifest has the size, time and hash of each file.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import re
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from matrix.ground.catalog import distributions
from matrix.ground.catalog.regular_file import UnreadableError, read_regular, sha256
from matrix.ground.errors import MatrixError
from matrix.prove.provision import te_wheels
from matrix.prove.provision.indexes import run_uv
from matrix.prove.provision.project import keep_contents, locked, making, script
from matrix.prove.provision.te_wheels import build_helper, compiler
from matrix.read.commands import CommandResult, Runner, run
from matrix.read.package_source import Contents, Source, SourceKind, inspect, unpack

MANIFEST = "overlay.json"
WHEELS_S = 3600.0  # s for the wheels of a lock file with torch and CUDA: 3 GB
NO_WHEEL = re.compile(r"has no (usable )?wheels")  # uv's error for a release without a wheel for a Python
OLDEST = 10  # the oldest minor of Python 3 that this project runs on
HELPER = "megatron/core/datasets/helpers"  # start of the paths of the compiled dataset helper
PRELOADED = ("torch", "numpy")  # the forkserver imports them, so they belong to the base
FLASH_ATTENTION = "flash-attn"
# Of 1.9 - 1.11's attention.py: it imports these names from a flash-attn of 2.0.6 or later, and refuses every model with
# attention without one; setup.py takes up to 2.4.2. None is called: NVTE_FLASH_ATTN=0 leaves the other backends.
STAND_IN = "2.4.2"
LAYOUT = 3  # version of the manifest and the folder; incremented when either changes, so that overlays are rebuilt


@dataclass(frozen=True)
class OverlaySpec:
    """The packages of an overlay, and its base.

    With `toolkit`, what the build depends on besides its source, Transformer Engine's source tree is built with its
    extension; with `build`, a release has its compiled library, and its extension is built for `interpreter`.
    `python` is the base's minor ("3.10"). `base` holds the packages that the base preloads (torch, numpy), name ->
    version: an overlay must not replace them. With `interpreter`, the python of the base, the dataset helper of a
    megatron-core source tree is compiled; without it the overlay has a note. `overridden` are packages of the base for
    which declared ranges do not count.
    """

    sources: tuple[Source, ...]
    python: str
    base: Mapping[str, str]
    interpreter: Path | None = None
    overridden: tuple[str, ...] = ()
    toolkit: str = ""
    build: te_wheels.ReleaseBuild | None = None


@dataclass(frozen=True)
class PackageMetadata:
    """Metadata of one package of an overlay; `python` is its Requires-Python, `requires` its Requires-Dist."""

    version: str
    python: str = ""
    requires: Sequence[str] = ()


@dataclass(frozen=True)
class Overlay:
    """A finished overlay. `packages` maps canonical names to versions.

    `no_helper` is the reason why megatron-core's compiled dataset helper is missing, "" if nothing is missing.
    """

    path: Path
    digest: str
    packages: Mapping[str, str]
    no_helper: str = ""


class Overlays:
    """The overlays of one machine, under `root`, usually default_root().

    `run` runs uv, git and the compiler, `in_base` a build that takes place inside the base, by default here.
    """

    def __init__(self, root: Path, run: Runner = run, in_base: te_wheels.RunInBase | None = None) -> None:
        self.root, self.run = root / "overlays", run
        self._in_base = in_base or te_wheels.run_here(run)

    def provide(self, spec: OverlaySpec) -> Overlay:
        """Return the overlay, created if missing; concurrent processes create it once.

        Raises MatrixError when a source is missing, cannot be installed for this Python, or contradicts the base.
        """
        contents = [inspect(source) for source in spec.sources]
        digest, ingredients = identify(contents, spec)
        folder = self.root / digest
        manifest = intact(folder)
        try:
            if manifest is None:
                with locked(self.root / f"{digest}.lock"):
                    manifest = intact(folder) or self.make(folder, contents, spec, ingredients)
        except OSError as error:
            raise MatrixError(
                "the overlay can't be made",
                where=str(error.filename or folder),
                got=error.strerror,
                expected=f"files and folders of its own in {self.root}",
                fix="remove what is there, or set MEGATRIX_CACHE to another folder",
            ) from error
        packages = {name: PackageMetadata(**values) for name, values in manifest["packages"].items()}
        reasons = contradictions(packages, spec.base, spec.python, spec.overridden)
        if reasons:
            raise MatrixError(
                "this overlay contradicts its base",
                where=" + ".join(f"{content.source.package} {content.version}" for content in contents),
                got="; ".join(reasons),
                expected="packages that do not replace what the base preloads",
                fix="use a base that has these versions",
            )
        versions = {name: package.version for name, package in packages.items()}
        return Overlay(folder, digest, versions, manifest["no helper"])

    def make(
        self, folder: Path, contents: Sequence[Contents], spec: OverlaySpec, ingredients: object
    ) -> dict[str, Any]:
        """Create one overlay, or a damaged one anew, and return its manifest; the caller holds its lock."""
        damaged = folder.exists()
        with making(folder) as temporary:
            no_helper = "; ".join(filter(None, [self.lay(content, temporary, spec, damaged) for content in contents]))
            packages = {name: vars(package) for name, package in installed(temporary).items()}
            paths = sorted(path for path in temporary.rglob("*") if path.is_file())
            files = {str(path.relative_to(temporary)): state(path) for path in paths}
            manifest = {"packages": packages, "no helper": no_helper, "made from": ingredients, "files": files}
            manifest["digest"] = digest_of(manifest)
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        return json.loads(json.dumps(manifest))  # type: ignore[no-any-return]  # as `intact` reads it

    def lay(self, content: Contents, folder: Path, spec: OverlaySpec, damaged: bool) -> str:
        """Put one package into `folder`; return why its compiled helper is missing, "" if nothing is missing.

        For an overlay that was `damaged` wheels are fetched again: uv's cache may share the damaged file.
        """
        source = content.source
        if spec.build and spec.interpreter:
            self.compile(spec.build, spec.interpreter, folder, spec)
        elif source.kind is SourceKind.PYPI:
            for name in source.layout.releases:
                requirement = f"{name}=={source.revision}"
                library = name in source.layout.libraries
                try:
                    self.install(requirement, folder, spec.python, damaged or library)
                except MatrixError as error:
                    if source.package != "megatron-core" or not NO_WHEEL.search(str(error.got)):
                        raise
                    return self.borrow(requirement, folder, spec.python, damaged, error)
                for compiled in folder.rglob("*.so") if library else ():
                    compiled.unlink()  # no overlay can use it; without uv's cache, it takes no disk
                if (folder / source.layout.folder).is_dir():
                    break
        elif source.kind is SourceKind.WHEEL:
            self.install(source.location, folder, spec.python, damaged)
        elif spec.toolkit:
            with tempfile.TemporaryDirectory(".making", f"{folder.name}.", self.root) as tree:
                te_wheels.build(content, Path(tree), folder, str(spec.interpreter or "python3"), self._in_base)
        else:
            unpack(content, folder)
            if source.package == "megatron-core":
                if spec.interpreter is None:
                    return "no compiled dataset helper: the interpreter of the base is not available"
                return build_helper(folder, spec.interpreter, self.run, self.root.parent / "helpers")
        return ""

    def compile(self, build: te_wheels.ReleaseBuild, interpreter: Path, folder: Path, spec: OverlaySpec) -> None:
        """Put a release of Transformer Engine there: its Python, library and built extension, and what they require.

        The base has torch and numpy. Up to 1.11 it needs flash-attn, which has no wheel: a stand-in is there.
        """
        install = partial(install_for, spec.python, self.run)
        wheel = te_wheels.provide(build, interpreter, self.run, install)
        wheels = [*distributions.requirements(build.te, build.cuda), str(wheel)]
        install(wheels, folder, {*spec.base, FLASH_ATTENTION})
        packages = installed(folder)
        if any(Requirement(text).name == FLASH_ATTENTION for package in packages.values() for text in package.requires):
            lay_flash_attention(folder)

    def borrow(self, wanted: str, folder: Path, python: str, damaged: bool, refusal: MatrixError) -> str:
        """Install megatron-core's wheel for an earlier Python, without its only compiled module, the dataset helper.

        Returns why the helper is missing. Raises `refusal` if there is no such wheel, or it has further compiled
        modules.
        """
        for minor in range(int(python.partition(".")[2]) - 1, OLDEST - 1, -1):
            try:
                self.install(wanted, folder, f"3.{minor}", damaged)
            except MatrixError:
                continue
            compiled = list(folder.rglob("*.so"))
            if all(path.relative_to(folder).as_posix().startswith(HELPER) for path in compiled):
                for path in compiled:
                    path.unlink()
                return f"no compiled dataset helper: this release has no wheel for Python {python}, only for 3.{minor}"
            break
        raise refusal

    def install(self, wanted: str, folder: Path, python: str, no_cache: bool = False) -> None:
        """Install a wheel for a Python into `folder`. Raises MatrixError where there is none."""
        install_for(python, self.run, [wanted], folder, no_cache=no_cache)
        if "==" in wanted:  # a release: a wheel of a user may have the version of one
            keep_contents(self.root.parent / "contents" / "overlays", folder, wanted.partition("==")[0])


def install_for(
    python: str,
    run: Runner,
    wanted: Sequence[str],
    folder: Path,
    excluded: Collection[str] | None = None,
    *,
    no_cache: bool = False,
) -> None:
    """Install wheels for a minor of Python, with what they require if `excluded` is given. Raises MatrixError."""
    options = ["--python-version", python, *["--no-cache"] * no_cache]
    result = install_wheels(wanted, folder, run, options, excluded=excluded)
    if result.code:
        raise MatrixError(
            f"uv cannot install this for Python {python}",
            where=" ".join(wanted),
            got=result.complaint,
            fix="check the version, and that the package index is reachable",
        )


def lay_flash_attention(folder: Path) -> None:
    """Put a stand-in for flash-attn there: metadata of a version that every release accepts, and what they import."""
    metadata = f"Metadata-Version: 2.1\nName: {FLASH_ATTENTION}\nVersion: {STAND_IN}\n"
    files = {f"flash_attn-{STAND_IN}.dist-info/METADATA": metadata, "flash_attn/__init__.py": ""}
    files |= {f"{name}.py": script("flash_attn") for name in ("flash_attn/flash_attn_interface", "flash_attn_2_cuda")}
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def install_wheels(
    wanted: Sequence[str],
    folder: Path,
    run: Runner,
    options: Sequence[str] = (),
    seconds: float | None = None,
    excluded: Collection[str] | None = None,
) -> CommandResult:
    """Install wheels into `folder` with uv: nothing is compiled or executed.

    With `excluded`, also what they require, without these packages.
    """
    words = ["pip", "install", "--quiet", "--no-build", "--target", str(folder), "--python", sys.executable]
    words += [*options, *wanted, *["--no-deps"] * (excluded is None)]
    return run_uv(words, folder, run, seconds=seconds, excluded=excluded)


def lay_wheels(folder: Path, wanted: Sequence[str], run: Runner = run) -> str:
    """Lay out the wheels of releases in a folder; return why not, "" where all are there."""
    result = install_wheels(wanted, folder, run, seconds=WHEELS_S)
    if not result.code:
        return ""
    if NO_WHEEL.search(result.err):
        return "it has no wheel for this Python, and is compiled where it is installed"
    return re.sub(r"\s+", " ", result.complaint)


def intact(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of an overlay whose files are as they were made, None for a damaged or missing one.

    Files that were added (compiled modules) do not count. A file is read only if its time differs: 112 - 355 files take
    2 - 60 ms on two busy cores.
    """
    try:
        manifest: dict[str, Any] = json.loads(read_regular(folder / MANIFEST))
        if manifest.pop("digest") != digest_of(manifest):
            return None
        for name, (size, time, digest) in manifest["files"].items():
            status = (folder / name).stat()
            if not S_ISREG(status.st_mode) or status.st_size != size:  # reading a FIFO would never end
                return None
            if status.st_mtime_ns != time and sha256(folder / name) != digest:
                return None
    except (UnreadableError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    return manifest


def state(path: Path) -> tuple[int, int, str]:
    """Return the size in bytes, the time in ns and the SHA-256 of a file."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, sha256(path)


def digest_of(plain: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain data, such as a manifest."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def identify(contents: Sequence[Contents], spec: OverlaySpec) -> tuple[str, object]:
    """Return the overlay's digest and what it was computed from, for the manifest.

    A wheel fits one Python minor and platform, so both count; the base does not: bases share overlays.
    """
    trees = any(content.source.kind in (SourceKind.GIT, SourceKind.TREE) for content in contents)
    ingredients = {
        "layout": LAYOUT,
        "contents": [[content.identity, content.version, content.metadata] for content in contents],
        "python": spec.python,
        "platform": sysconfig.get_platform(),
        # Whether a tree gets its compiled helper: a compiler installed later makes another overlay.
        "helper": [spec.interpreter is not None, compiler() is not None] if trees else None,
        **({"toolkit": [spec.toolkit, dict(spec.base)]} if spec.toolkit else {}),
        **({"build": [spec.build.name, STAND_IN]} if spec.build else {}),
    }
    return digest_of(ingredients)[:20], {**ingredients, "sources": [str(content.source) for content in contents]}


def installed(folder: Path) -> dict[str, PackageMetadata]:
    """Return canonical name -> metadata for every distribution in `folder`."""
    packages: dict[str, PackageMetadata] = {}
    for distribution in importlib.metadata.distributions(path=[str(folder)]):
        name, python = distribution.metadata["Name"], distribution.metadata.get_all("Requires-Python") or [""]
        packages[canonicalize_name(name)] = PackageMetadata(
            distribution.version, python[0], distribution.requires or []
        )
    return packages


def contradictions(
    packages: Mapping[str, PackageMetadata], base: Mapping[str, str], python: str, overridden: Collection[str] = ()
) -> list[str]:
    """Return the reasons why these packages cannot be laid over the base; empty when they can.

    A requirement counts when its marker holds on the base's Python without any extra. Pre-releases are compared as
    PEP 440 orders them: torch 2.4.0a0+3bcc3cddb5 is older than 2.4.0.
    """
    preloaded: dict[str, str] = {canonicalize_name(name): version for name, version in base.items()}
    # The patch number is unknown and hardly ever matters; a high one satisfies lower bounds such as >=3.10.2.
    full = f"{python}.99"
    environment = {"python_version": python, "python_full_version": full, "extra": ""}
    reasons = [f"{name} belongs to the base ({preloaded[name]})" for name in packages if name in preloaded]
    for name, package in packages.items():
        if not SpecifierSet(package.python).contains(full):
            reasons.append(f"{name} {package.version} requires Python {package.python}, the base has {python}")
        for needed in map(Requirement, package.requires):
            version = preloaded.get(canonicalize_name(needed.name))
            if version is None or needed.name in overridden:
                continue
            counts = needed.marker is None or needed.marker.evaluate(environment)
            if counts and not needed.specifier.contains(version, prereleases=True):
                requirement = f"{needed.name}{needed.specifier}"
                reasons.append(f"{name} {package.version} requires {requirement}, the base has {version}")
    return reasons
