"""The site's index: whether requirements resolve with all that they require, and to which files (uv), and a package's
releases (pip).

Wheels alone count: nothing is built. Of a package that is source alone, the caller gives the requirements in its place.

The files are downloaded with pip's proxy, certificates and passwords, resumed, and checked by SHA-256: pip itself
stores nothing before the last file of a command has arrived, and keeps a second copy in its cache.
"""

from __future__ import annotations

import base64
import http.client
import os
import platform
import re
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from matrix.ground.catalog.regular_file import sha256
from matrix.ground.catalog.schema import toml_table
from matrix.ground.errors import MatrixError
from matrix.prove.provision.bundle_folder import BLOCK
from matrix.prove.provision.indexes import pip_environment, run_uv, uv_variable
from matrix.read.commands import NOT_STARTED, TIMED_OUT, CommandResult, Runner, redacted, run

TRIES: Final = 4  # of a file; each goes on where the last one stopped
TIMEOUT_S: Final = 60.0  # s without a byte; pip's `timeout` overrides it
PARTIAL: Final = ".partial"  # suffix of a file that has not arrived
GO_ON: Final = "run the same command again: it goes on where it was"


@dataclass(frozen=True)
class IndexFile:
    """A file of an index: its name, URL, size in bytes and SHA-256."""

    name: str
    url: str
    size: int
    sha256: str


class Downloader:
    """Downloads with the options of pip install (matrix.prove.provision.indexes.site_options).

    `arrived` is called with the number of bytes of each block.
    """

    def __init__(self, options: Mapping[str, str], arrived: Callable[[int], None] = lambda count: None) -> None:
        self._options, self._arrived = options, arrived
        self._timeout = float(options.get("timeout") or TIMEOUT_S)

    def size(self, url: str) -> int:
        """Return the bytes of a file, of which the index states none. Raises MatrixError where nobody does."""
        try:
            with self._open(urllib.request.Request(url, method="HEAD")) as answer:  # noqa: S310
                return int(answer.headers["Content-Length"])
        except (OSError, http.client.HTTPException, TypeError, ValueError) as error:
            raise _failed(url, error) from None

    def fetch(self, file: IndexFile, folder: Path) -> Path:
        """Return the file in `folder`, downloaded unless it is there. Raises MatrixError, and OSError of the disk."""
        path = folder / file.name
        if path.is_file() and path.stat().st_size == file.size and sha256(path) == file.sha256:
            return path
        part = folder / f"{file.name}{PARTIAL}"
        for attempt in range(TRIES):
            try:
                self._receive(file, part)
                break
            except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                if attempt == TRIES - 1 or (isinstance(error, urllib.error.HTTPError) and error.code < 500):
                    raise _failed(file.url, error) from None
                time.sleep(attempt)
        if sha256(part) != file.sha256:
            got = f"{part.stat().st_size:,} bytes, SHA-256 {sha256(part)}"
            part.unlink()
            expected = f"{file.size:,} bytes, SHA-256 {file.sha256}"
            raise MatrixError("a download is damaged", where=redacted(file.url), got=got, expected=expected, fix=GO_ON)
        return part.replace(path)

    def _receive(self, file: IndexFile, part: Path) -> None:
        """Append to `part` what is missing in it."""
        start = part.stat().st_size if part.is_file() else 0
        request = urllib.request.Request(file.url, headers={"Range": f"bytes={start}-"} if start else {})  # noqa: S310
        try:
            answer = self._open(request)
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # it is all there
                return
            raise
        with answer, part.open("ab") as writing:
            if start and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                writing.truncate(0)
            while block := answer.read(BLOCK):
                writing.write(block)
                self._arrived(len(block))
        if (missing := file.size - part.stat().st_size) > 0:
            raise http.client.IncompleteRead(b"", missing)

    def _open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        host = urlsplit(request.full_url).hostname or ""
        context = ssl.create_default_context(cafile=self._options.get("cert"))
        if client := self._options.get("client-cert"):
            context.load_cert_chain(client)
        if host in (name.partition(":")[0] for name in self._options.get("trusted-host", "").split()):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
        if proxy := self._options.get("proxy"):
            handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
        if password := self._passwords().get(host):
            request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(password.encode()).decode()}")
        return urllib.request.build_opener(*handlers).open(request, timeout=self._timeout)  # type: ignore[no-any-return]

    def _passwords(self) -> dict[str, str]:
        """Return host -> USER:PASSWORD of the URLs of pip's indexes that have one."""
        names = ("index-url", "extra-index-url", "find-links")
        urls = [urlsplit(url) for name in names for url in self._options.get(name, "").split() if "@" in url]
        return {url.hostname or "": unquote(url.netloc.rpartition("@")[0]) for url in urls}


def _failed(url: str, error: Exception) -> MatrixError:
    got = getattr(error, "reason", None) or error or type(error).__name__
    return MatrixError("this file can't be downloaded", where=redacted(url), got=redacted(str(got)), fix=GO_ON)


SECONDS: Final = 120.0  # s for a resolution; 1 - 10 s seen, most of it reading metadata
LINUX: Final = ("--python-platform", "x86_64-manylinux_2_28")
# In uv's errors where nothing is decided: no network, or a package that is source alone.
NO_ANSWER: Final = (
    *("error sending request", "failed to fetch", "could not connect", "dns error", "timed out"),
    *("network connectivity is disabled", "building from source is disabled"),
)


@dataclass(frozen=True)
class Resolution:
    """The answer of the resolver: the pins of all packages, or the problem.

    `decided` is False where it has no answer: there is no uv, no index answers in time, or a package would have to be
    built for it.
    """

    pins: tuple[str, ...] = ()
    problem: str = ""
    decided: bool = True


def resolve(
    requirements: Sequence[str], python: str, run: Runner = run, environ: Mapping[str, str] = os.environ
) -> Resolution:
    """Return how uv resolves requirements for Linux and a minor of Python, with wheels alone."""
    if not uv_variable(environ):
        return Resolution(problem="there is no uv: pip install uv", decided=False)
    result = _compile(requirements, python, ["--no-build", *LINUX], run, environ)
    if result.code:
        unanswered = any(text in result.complaint.lower() for text in NO_ANSWER)
        decided = not unanswered and result.code not in (TIMED_OUT, NOT_STARTED)
        return Resolution(problem=result.complaint, decided=decided)
    return Resolution(tuple(line for line in result.out.splitlines() if "==" in line))


def _compile(
    requirements: Sequence[str],
    python: str,
    options: Sequence[str],
    run: Runner,
    environ: Mapping[str, str],
    excluded: Iterable[str] | None = None,
) -> CommandResult:
    """Return the result of `uv pip compile` for a minor of Python."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "requirements.in"
        path.write_text("\n".join(requirements) + "\n")
        words = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python", sys.executable]
        words += ["--python-version", python, *options, str(path)]
        return run_uv(words, Path(name), run, environ, seconds=SECONDS, excluded=excluded)


def listed_releases(
    package: str, python: str, run: Runner = run, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return the final releases of a package with a wheel for a minor of Python, newest first; () without an answer.

    uv lists none; pip, in an environment that uv makes once, does so in 1 s. It is given uv's indexes.
    """
    environment = {**environ, **pip_environment(environ)}
    words = ["tool", "run", "--python", sys.executable, "pip", "index", "versions", package]
    words += ["--python-version", python, "--only-binary", ":all:"]
    with tempfile.TemporaryDirectory() as name:
        result = run_uv(words, Path(name), run, environment, seconds=SECONDS)
    listed = re.search(r"(?m)^Available versions: (.+)$", result.out)
    return tuple(listed[1].split(", ")) if listed and result.code == 0 else ()


def index_files(
    requirements: Sequence[str],
    python: str,
    options: Sequence[str] = (),
    run: Runner = run,
    environ: Mapping[str, str] = os.environ,
    excluded: Iterable[str] | None = None,
) -> tuple[IndexFile, ...]:
    """Return the files of the site's index to which requirements resolve; size 0 where the index states none.

    Options of uv: "--no-deps" for these files alone, "--no-binary NAME" for a source distribution. Raises MatrixError.
    """
    target = ["--python-platform", f"{platform.machine()}-manylinux_2_28"]
    result = _compile(requirements, python, ["--format", "pylock.toml", *target, *options], run, environ, excluded)
    if result.code:
        raise MatrixError(
            "the index has no such files",
            where=", ".join(requirements),
            got=result.complaint,
            fix="check the versions and --python, and that the package index is reachable",
        )
    files = []
    for package in toml_table(result.out, "uv's lock").get("packages", ()):
        entry = (package.get("wheels") or [package.get("sdist") or package.get("archive")])[0]
        url = entry.get("url") or Path(entry["path"]).absolute().as_uri()
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        files.append(IndexFile(name, url, entry.get("size", 0), entry["hashes"]["sha256"]))
    return tuple(files)
