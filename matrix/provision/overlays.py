"""Overlays: a package set laid over a base without rebuilding it, as a folder at the front of sys.path.

A folder is named by the digest of its inputs and never changes: every cell, run and process that needs the same
packages shares it. Creating one requires uv; finding one takes milliseconds and requires neither uv nor a network. One
that was damaged since is made anew: the manifest has the size, time and hash of each file.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from matrix.errors import MatrixError
from matrix.provision import extension
from matrix.provision.commands import Runner, run
from matrix.provision.helpers import build_helper, compiler
from matrix.provision.indexes import site_environment
from matrix.provision.sources import Contents, Source, SourceKind, inspect, unpack
from matrix.provision.trees import sha256

MANIFEST = "overlay.json"
NO_WHEEL = re.compile(r"has no (usable )?wheels")  # uv's error for a release without a wheel for a Python
OLDEST = 10  # the oldest minor of Python 3 that this project runs on
HELPER = "megatron/core/datasets/helpers"  # start of the paths of the compiled dataset helper
LAYOUT = 3  # version of the manifest and the folder; incremented when either changes, so that overlays are rebuilt


@dataclass(frozen=True)
class OverlaySpec:
    """The packages of an overlay, and its base.

    With `toolkit`, what the build depends on besides its source, Transformer Engine is built with its extension.
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

    def __init__(self, root: Path, run: Runner = run, in_base: extension.RunInBase | None = None) -> None:
        self.root, self.run = root / "overlays", run
        self._in_base = in_base or extension.run_here(run)

    def provide(self, spec: OverlaySpec) -> Overlay:
        """Return the overlay, created if missing; concurrent processes create it once.

        Raises MatrixError when a source is missing, cannot be installed for this Python, or contradicts the base.
        """
        contents = [inspect(source) for source in spec.sources]
        digest, ingredients = identify(contents, spec)
        folder = self.root / digest
        manifest = intact(folder)
        if manifest is None:
            self.root.mkdir(parents=True, exist_ok=True)
            with locked(self.root / f"{digest}.lock"):
                manifest = intact(folder) or self.make(folder, contents, spec, ingredients)
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
        """Create one overlay in a temporary folder, rename it and return its manifest; the caller holds its lock."""
        damaged = folder.exists()
        for dead in self.root.glob(f"{folder.name}.*.making"):  # left by a killed process: the lock is held here
            shutil.rmtree(dead)
        making = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".making", dir=self.root))
        try:
            missing = "; ".join(filter(None, [self.lay(content, making, spec, damaged) for content in contents]))
            packages = {name: vars(package) for name, package in installed(making).items()}
            files = {str(path.relative_to(making)): state(path) for path in sorted(making.rglob("*")) if path.is_file()}
            manifest = {"packages": packages, "no helper": missing, "made from": ingredients, "files": files}
            manifest["digest"] = digest_of(manifest)
            (making / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            making.chmod(0o755)  # mkdtemp's 0700 would deny access to a container's user
            for path in (*making.rglob("*"), making):  # so that a folder that survives a power cut has its files
                flush(path)
            if damaged:  # a process that imports from it finds the same files there again
                folder.rename(making.with_name(f"{folder.name}.damaged.making"))
            making.rename(folder)
            flush(self.root)
            return json.loads(json.dumps(manifest))  # type: ignore[no-any-return]  # as `intact` reads it
        finally:
            shutil.rmtree(making, ignore_errors=True)  # already renamed unless an error was raised
            shutil.rmtree(self.root / f"{folder.name}.damaged.making", ignore_errors=True)

    def lay(self, content: Contents, folder: Path, spec: OverlaySpec, damaged: bool) -> str:
        """Put one package into `folder`; return why its compiled helper is missing, "" if nothing is missing.

        For an overlay that was `damaged` wheels are fetched again: uv's cache may share the damaged file.
        """
        source = content.source
        if source.kind is SourceKind.PYPI:
            for name in source.layout.releases:
                wanted = f"{name}=={source.revision}"
                library = name in source.layout.libraries
                try:
                    self.install(wanted, folder, spec.python, damaged or library)
                except MatrixError as error:
                    if source.package != "megatron-core" or not NO_WHEEL.search(str(error.got)):
                        raise
                    return self.borrow(wanted, folder, spec.python, damaged, error)
                for compiled in folder.rglob("*.so") if library else ():
                    compiled.unlink()  # no overlay can use it; without uv's cache, it takes no disk
                if (folder / source.layout.folder).is_dir():
                    break
        elif source.kind is SourceKind.WHEEL:
            self.install(source.location, folder, spec.python, damaged)
        elif spec.toolkit:
            tree = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".making", dir=self.root))
            try:
                extension.build(content, tree, folder, str(spec.interpreter or "python3"), self._in_base)
            finally:
                shutil.rmtree(tree, ignore_errors=True)
        else:
            unpack(content, folder)
            if source.package == "megatron-core":
                if spec.interpreter is None:
                    return "no compiled dataset helper: the interpreter of the base is not available"
                return build_helper(folder, spec.interpreter, self.run, self.root.parent / "helpers")
        return ""

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
        """Install a wheel into `folder` with uv: wheels only, so that nothing is compiled for another Python."""
        environment = {**os.environ, **site_environment(), "UV_PYTHON_DOWNLOADS": "never"}
        # --directory: the current folder may hold uv settings of another project.
        options = ["--quiet", "--no-deps", "--no-build", "--directory", str(folder), "--target", str(folder)]
        options += ["--python", sys.executable, "--python-version", python, *["--no-cache"] * no_cache]
        result = self.run([*uv(environment), "pip", "install", *options, wanted], environment=environment)
        if result.code:
            raise MatrixError(
                f"uv cannot install this for Python {python}",
                where=wanted,
                got=result.complaint,
                fix="check the version, and that the package index is reachable",
            )


def intact(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of an overlay whose files are as they were made, None for a damaged or missing one.

    Files that were added (compiled modules) do not count. A file is read only if its time differs: 112 - 355 files take
    2 - 60 ms on two busy cores.
    """
    try:
        if not (folder / MANIFEST).is_file():  # reading a FIFO would never end
            return None
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest.pop("digest") != digest_of(manifest):
            return None
        for name, (size, time, digest) in manifest["files"].items():
            found = (folder / name).stat()
            same = S_ISREG(found.st_mode) and found.st_size == size  # reading a FIFO would never end
            if not same or (found.st_mtime_ns != time and sha256(folder / name) != digest):
                return None
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    return manifest


def state(path: Path) -> tuple[int, int, str]:
    """Return the size in bytes, the time in ns and the SHA-256 of a file."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, sha256(path)


def digest_of(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def default_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache folder: $MEGATRIX_CACHE, $XDG_CACHE_HOME/megatrix or ~/.cache/megatrix."""
    if environ.get("MEGATRIX_CACHE"):
        return Path(environ["MEGATRIX_CACHE"]).expanduser().absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "megatrix")


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
    }
    digest = hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:20]
    return digest, {**ingredients, "sources": [str(content.source) for content in contents]}


def installed(folder: Path) -> dict[str, PackageMetadata]:
    """Return canonical name -> metadata for every distribution in `folder`."""
    return {
        canonicalize_name(one.metadata["Name"]): PackageMetadata(
            one.version,
            (one.metadata.get_all("Requires-Python") or [""])[0],
            one.requires or [],
        )
        for one in importlib.metadata.distributions(path=[str(folder)])
    }


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
            have = preloaded.get(canonicalize_name(needed.name))
            counts = (
                have is not None
                and needed.name not in overridden
                and (needed.marker is None or needed.marker.evaluate(environment))
            )
            if counts and not needed.specifier.contains(have or "", prereleases=True):
                reasons.append(
                    f"{name} {package.version} requires {needed.name}{needed.specifier}, the base has {have}"
                )
    return reasons


def uv(environ: Mapping[str, str]) -> list[str]:
    """Return the command that starts uv: $UV, which uv itself sets, PATH, or the package of this Python."""
    found = environ.get("UV") or shutil.which("uv", path=environ.get("PATH"))
    if found:
        return [found]
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    raise MatrixError(
        "uv is required to create an overlay", got="no uv on PATH", expected="uv, or the release installed in the base",
        fix="pip install uv",
    )  # fmt: skip


def flush(path: Path) -> None:
    """Flush a file or folder to the disk (65 ms for the 244 of a megatron-core, on an SSD)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; the system releases it when the holder dies."""
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
