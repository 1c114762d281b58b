"""Renew the recorded facts of packages: files and declared ranges of the index, and what tags of clones state.

    python -m tests.package_facts                      what differs from matrix/ground/catalog/facts/distributions.toml
    python -m tests.package_facts --write [NAME ...]   write the releases of these packages, of all by default
    python -m tests.package_facts --tags transformer-engine=CLONE flash-attn=CLONE
        what tags of clones state, beside the catalog: Transformer Engine's window of flash-attn versions, its minimum
        of cuDNN and of CUDA on Blackwell; the torch, CUDA and Python of the compiled wheels that a release attaches
        (matrix/ground/catalog/facts/builds.toml)

pip lists the files of a package (`pip index versions -vv`), with its own configuration. The metadata of one wheel for
each release is read beside it (PEP 658); no wheel is downloaded, nothing of a package is executed. The exit status is 1
where a release that is recorded is different now, or a tag contradicts the catalog.
"""

from __future__ import annotations

import argparse
import io
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from matrix.ground.catalog.distributions import IndexedRelease, Package, read_distributions
from matrix.ground.catalog.failure import Failure
from matrix.ground.catalog.loading import FACTS, load
from matrix.ground.catalog.schema import VersionText
from matrix.ground.errors import MatrixError
from matrix.prove.provision.indexes import site_options

MARK: Final = "# The lines below are written by `python -m tests.package_facts --write`.\n"
LINK: Final = re.compile(
    r"((?:https?|file)://\S+?\.(?:whl|tar\.gz))(?:#\S*)?(?: \(from \S+\))?(?: \(requires-python:(\S+)\))?"
)
TIMEOUT_S: Final = 60.0  # s for one metadata file; 0.2 s seen
WINDOW: Final = re.compile(r'max_version = PkgVersion\("([^"]+)"\)')
# In README.rst: "* cuDNN 9.3 or later", "* cuDNN: 9.3+"; "12.8+ (Blackwell)", "CUDA 12.8+ for Blackwell".
MINIMUMS: Final = {
    "cudnn": re.compile(r"^ *\* cuDNN:? (\d+\.\d+)(?:\+| or later)", re.MULTILINE),
    "cuda": re.compile(r"(\d+\.\d+)\+ (?:\(|for )Blackwell"),
}
WINDOW_FILES: Final = (
    "transformer_engine/pytorch/attention/dot_product_attention/utils.py",
    "transformer_engine/pytorch/attention.py",
    "transformer_engine/pytorch/dot_product_attention/utils.py",
)
WORKFLOWS: Final = {
    "transformer-engine": ".github/workflows/attach-wheels-to-release.yml",
    "flash-attn": ".github/workflows/publish.yml",
}


@dataclass(frozen=True)
class Link:
    """A file of the index: where it is, its release, and the Pythons that it declares."""

    url: str
    version: Version
    requires_python: str
    tags: tuple[str, ...] = ()  # of a wheel

    @property
    def machines(self) -> set[str]:
        """Return the architectures of Linux that a wheel is for, {""} for any; empty for another system."""
        platforms = {tag.rpartition("-")[2] for tag in self.tags}
        linux = {platform for platform in platforms if "linux" in platform}
        return {""} if "any" in platforms else {"aarch64" if "aarch64" in name else "x86_64" for name in linux}

    @property
    def pythons(self) -> set[str]:
        """Return the minors of CPython that a wheel is for, {""} for any; none for PyPy and a build without the GIL."""
        interpreters = {(tag.split("-")[0], tag.split("-")[1]) for tag in self.tags}
        return {
            f"3.{name[3:]}" if name.startswith("cp3") and name[3:] and abi != "abi3" else ""
            for name, abi in interpreters
            if name.startswith(("cp3", "py")) and not re.fullmatch(r"cp3\d+t", abi)
        }


def links(printed: str) -> Iterator[Link]:
    """Yield the files that `pip index versions -vv` printed, each once."""
    for url, python in dict(LINK.findall(printed)).items():
        name = url.rpartition("/")[2].replace("%2B", "+")
        try:
            if name.endswith(".whl"):
                _, version, _, tags = parse_wheel_filename(name)
                yield Link(url, version, python, tuple(sorted(map(str, tags))))
            else:
                yield Link(url, parse_sdist_filename(name)[1], python)
        except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
            continue


def recorded_of(package: Package, files: Iterable[Link], read: Callable[[str], str]) -> Iterator[IndexedRelease]:
    """Yield the releases of a package that are recorded, oldest first; `read` returns the metadata of a wheel."""
    by_version: dict[Version, list[Link]] = {}
    for file in files:
        if not file.version.is_prerelease and not file.version.local:
            by_version.setdefault(file.version, []).append(file)
    versions = sorted(by_version)[-package.newest if package.newest else 0 :]
    for version in versions:
        if package.oldest and version < Version(package.oldest):
            continue
        wheels = [file for file in by_version[version] if file.tags and file.machines and file.pythons]
        sdists = [file for file in by_version[version] if not file.tags]
        if not wheels and not sdists:
            continue
        python = (wheels or sdists)[0].requires_python.replace("&gt;", ">").replace("&lt;", "<")
        pythons = {minor for file in wheels for minor in file.pythons}
        machines = {machine for file in wheels for machine in file.machines}
        yield IndexedRelease(
            package=package.name,
            version=VersionText(str(version)),
            wheel=bool(wheels),
            sdist=bool(sdists),
            pythons=() if "" in pythons else tuple(sorted(pythons, key=Version)),
            machines=() if "" in machines else tuple(sorted(machines)),
            requires_python=python,
            requires=tuple(_kept(package, read(_usual(wheels).url))) if wheels and package.keep else (),
        )


def _usual(wheels: Sequence[Link]) -> Link:
    """Return the wheel whose metadata counts: for x86_64 or any machine, of the newest Python."""
    return max(
        wheels, key=lambda file: (bool({"x86_64", ""} & file.machines), sorted(map(len, file.pythons)), file.url)
    )


def _kept(package: Package, metadata: str) -> Iterator[str]:
    for text in HeaderParser().parsestr(metadata).get_all("Requires-Dist") or ():
        name = canonicalize_name(Requirement(text).name)
        if any(fnmatch(name, pattern) for pattern in package.keep):
            yield str(Requirement(text))


class RemoteFile(io.RawIOBase):
    """A file of the index, of which parts are read by range requests."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self._url, self._context, self._place = url, context, 0
        with urllib.request.urlopen(
            urllib.request.Request(url, method="HEAD"), timeout=TIMEOUT_S, context=context
        ) as reply:
            self._size = int(reply.headers["Content-Length"])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def readinto(self, buffer: Any) -> int:
        last = min(self._place + len(buffer), self._size) - 1
        if last < self._place:
            return 0
        request = urllib.request.Request(self._url, headers={"Range": f"bytes={self._place}-{last}"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._context) as reply:
            if reply.status != 206:
                raise MatrixError("the index answers no range requests", where=self._url)
            part = reply.read()
        buffer[: len(part)] = part
        self._place += len(part)
        return len(part)


class Reader:
    """Reads the metadata of a wheel beside it in the index, or in it by range requests, with pip's certificates."""

    def __init__(self) -> None:
        self._context = ssl.create_default_context(cafile=site_options().get("cert"))

    def __call__(self, url: str) -> str:
        """Return the metadata of a wheel. Raises MatrixError where the index has none."""
        try:
            with urllib.request.urlopen(f"{url}.metadata", timeout=TIMEOUT_S, context=self._context) as reply:
                text: str = reply.read().decode()
                return text
        except urllib.error.HTTPError:
            return self._inside(url)
        except OSError as error:
            raise MatrixError("the index does not answer", got=error, where=url) from None

    def _inside(self, url: str) -> str:
        with zipfile.ZipFile(io.BufferedReader(RemoteFile(url, self._context), 1 << 16)) as archive:
            name = next(
                name for name in archive.namelist() if name.count("/") == 1 and name.endswith(".dist-info/METADATA")
            )
            return archive.read(name).decode()


def listed(name: str) -> str:
    """Return what pip prints of the files of a package, of every Python and platform."""
    command = [sys.executable, "-m", "pip", "index", "versions", "-vv", name]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise MatrixError(f"pip lists no files of {name}", got=ended.stderr[-400:], fix=" ".join(command[1:]))
    return ended.stdout + ended.stderr


def changes(before: Iterable[IndexedRelease], after: Iterable[IndexedRelease]) -> Iterator[str]:
    """Yield what is new, gone or different, one release a line."""
    old = {(release.package, release.version): release for release in before}
    new = {(release.package, release.version): release for release in after}
    for key in sorted(old.keys() | new.keys()):
        name = "==".join(key)
        if key not in old:
            yield f"new: {name}"
        elif key not in new:
            yield f"gone: {name}"
        elif old[key] != new[key]:
            parts = [
                f"{field}: {value!r}, recorded: {getattr(old[key], field)!r}"
                for field, value in vars(new[key]).items()
                if value != getattr(old[key], field)
            ]
            yield f"different: {name}: {'; '.join(parts)}"


def written(text: str, releases: Iterable[IndexedRelease]) -> str:
    """Return distributions.toml with these releases below its mark."""
    tables = []
    for release in releases:
        lines = [f'package = "{release.package}"', f'version = "{release.version}"']
        lines += [f"{name} = true" for name in ("wheel", "sdist") if getattr(release, name)]
        for name in ("pythons", "machines", "requires"):
            if values := getattr(release, name):
                lines.append(f"{name} = [{', '.join(map(_quoted, values))}]")
        if release.requires_python:
            lines.append(f"requires_python = {_quoted(release.requires_python)}")
        tables.append("\n".join(["[[release]]", *lines, ""]))
    return "\n".join([text.partition(MARK)[0] + MARK, *tables])


def _quoted(text: str) -> str:
    return f"'{text}'" if '"' in text else f'"{text}"'


def shown(clone: str, revision: str, path: str) -> str:
    """Return a file of a revision of a clone, "" where it has none."""
    command = ["git", "-C", clone, "show", f"{revision}:{path}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def windows(clone: str, tags: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (tag, the newest flash-attn that it uses) of Transformer Engine."""
    for tag in tags:
        texts = [shown(clone, tag, path) for path in WINDOW_FILES]
        if match := next((match for text in texts if (match := WINDOW.search(text))), None):
            yield tag, match[1]


def minimums(clone: str, tags: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (tag, component, the oldest that it states) of Transformer Engine's README."""
    for tag in tags:
        text = shown(clone, tag, "README.rst")
        for component, stated in MINIMUMS.items():
            if match := stated.search(text):
                yield tag, component, match[1]


def unlike_minimums(failures: Iterable[Failure], stated: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield where a rule on releases that do not fit bounds a component otherwise than a tag states."""
    rules = [rule for entry in failures if entry.unfit for rule in entry.affected if not rule.cases]
    for tag, component, oldest in stated:
        version = _release(tag)
        texts = {
            rule.bounds[component].text
            for rule in rules
            if component in rule.bounds and version in rule.bounds["transformer-engine"]
        }
        if texts - {f"<{oldest}"}:
            yield f"{tag}: {component} {oldest} or later; catalog: {', '.join(sorted(texts))}"


def _release(tag: str) -> str:
    version = str(Version(tag.removeprefix("v")))
    return version + ".0" * (2 - version.count("."))


def contradictions(failures: Iterable[Failure], stated: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield where the window of versions that the catalog's rules state is not that of a tag."""
    sides = {"transformer-engine", "flash-attn"}
    rules = [rule for entry in failures for rule in entry.works if not rule.cases and sides == set(rule.bounds)]
    for tag, newest in stated:
        version = _release(tag)
        for rule in rules:
            if version in rule.bounds["transformer-engine"] and newest not in rule.bounds["flash-attn"]:
                yield f"{tag}: the window ends at {newest}; catalog: {rule.bounds['flash-attn'].text}"


def matrix_of(workflow: str) -> dict[str, list[str]]:
    """Return the versions of Python, torch and CUDA for which a workflow of a release compiles wheels."""
    rows = re.findall(r'^\s*"?(python|torch|cuda)-version"?: *(\[[^\]$]*\])', workflow, flags=re.MULTILINE)
    values: dict[str, list[str]] = {}
    for name, text in rows:
        values.setdefault(name, re.findall(r"\d[\w.]*", text))
    return values


def print_tags(clones: Mapping[str, str]) -> int:
    """Print what tags of clones state; return how many contradict the catalog."""
    count = 0
    for name, clone in clones.items():
        printed = subprocess.run(
            ["git", "-C", clone, "tag", "--sort=v:refname"], capture_output=True, text=True, check=True
        )
        tags = [tag for tag in printed.stdout.split() if re.fullmatch(r"v\d+(\.\d+)+(\.post\d+)?", tag)]
        for tag in tags:
            if matrix := matrix_of(shown(clone, tag, WORKFLOWS[name])):
                parts = "; ".join(f"{key} {' '.join(row)}" for key, row in matrix.items())
                print(f"{name} {tag}: wheels for {parts}")
        if name == "transformer-engine":
            failures = load().failures
            differing = [
                *contradictions(failures, windows(clone, tags)),
                *unlike_minimums(failures, minimums(clone, tags)),
            ]
            print(f"{name}: {len(tags)} tags read", *differing, sep="\n")
            count += len(differing)
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what changed; with --write, write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages (default: all of the table)")
    parser.add_argument("--write", action="store_true", help="write what the index has now")
    parser.add_argument("--tags", nargs="+", metavar="NAME=CLONE", default=[], help="read tags of clones instead")
    parser.add_argument("--facts", type=Path, default=FACTS, help="the folder of the tables (default: the catalog's)")
    options = parser.parse_args(arguments)
    path = options.facts / "distributions.toml"
    try:
        if options.tags:
            return 1 if print_tags(dict(word.split("=", 1) for word in options.tags)) else 0
        table = read_distributions(path)
        renewed, read = [], Reader()
        for package in table.package:
            if options.names and package.name not in options.names:
                renewed += [release for release in table.release if release.package == package.name]
            else:
                renewed += recorded_of(package, links(listed(package.name)), read)
    except MatrixError as error:
        print(error, file=sys.stderr)
        return 2
    differing = list(changes(table.release, renewed))
    print("\n".join(differing) or "nothing changed")
    if options.write:
        path.write_text(written(path.read_text(encoding="utf-8"), renewed), encoding="utf-8")
    return 1 if any(not line.startswith("new: ") for line in differing) else 0


if __name__ == "__main__":
    sys.exit(main())
