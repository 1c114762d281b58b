"""The clones of upstream repositories in the cache: bare, and without the contents of files that no case needs.

`fetch` gets all commits and folders of the branches and tags, and the files of the revisions that the catalog names.
Later reading needs no network: matrix.kit.git allows none. A clone is made under a temporary name and renamed when it
is complete, so that an interrupted one is never used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Final

from matrix.errors import MatrixError
from matrix.kit.git import Repository
from matrix.provision.commands import redacted
from matrix.provision.kernel import die_with_parent
from matrix.provision.overlays import default_root, locked

CONNECT_S: Final = 30.0  # seconds for a server's first answer; 1 s is usual. Override: MEGATRIX_CONNECT_TIMEOUT
STALL_S: Final = 60  # seconds with less than 1 kB/s after which git gives up an HTTP transfer
NOTE: Final = "megatrix.json"  # in a clone: what was fetched, when, from where
MB: Final = 1_000_000  # bytes
# MB of a fetched clone, measured 2026-11-21 from mirrors on the same disk; for the offer at the end of a night.
SIZE_MB: Final[Mapping[str, int]] = {"megatron-lm": 54, "transformer-engine": 23}
OPTIONS: Final = (
    *(
        "-c",
        "gc.auto=0",
        "-c",
        "maintenance.auto=false",
        "-c",
        "protocol.version=2",
        "-c",
        "fetch.writeCommitGraph=false",
    ),
    *("-c", "http.lowSpeedLimit=1000", "-c", f"http.lowSpeedTime={STALL_S}", "-c", f"core.hooksPath={os.devnull}"),
)
# They would select another repository.
LOCAL: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE",
                "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CEILING_DIRECTORIES")  # fmt: skip
WHOLE_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class Fetched:
    """What a fetched clone holds: its URL without password, the time (UTC, ISO 8601), the revisions with their files.

    `missing` are the revisions that the repository does not have.
    """

    url: str
    at: str
    revisions: tuple[str, ...]
    missing: tuple[str, ...] = ()


def folder_of(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of a clone in the cache, existing or not."""
    return default_root(environ) / "sources" / name


def note_of(folder: Path) -> Fetched | None:
    """Return what `fetch` noted in a clone, None for a clone that it did not make."""
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        return Fetched(note["url"], note["at"], tuple(note["revisions"]), tuple(note["missing"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def fetch(folder: Path, url: str, revisions: Iterable[str], say: Callable[[str], None]) -> Fetched:
    """Make or update the clone in `folder` from `url`, with the files of these revisions.

    `say` gets a line for each step. Raises MatrixError where the repository can't be reached; the clone is then as
    before.
    """
    url = local_url(url)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        for dead in folder.parent.glob(f"{folder.name}.*.making"):  # left by a killed process: the lock is held here
            shutil.rmtree(dead, ignore_errors=True)
        if folder.is_dir():
            return _Upstream(folder, url).fill(revisions, say)
        making = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".making", dir=folder.parent))
        try:
            fetched = _Upstream(making, url).fill(revisions, say)
            making.chmod(0o755)
            making.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)  # already renamed unless an error was raised
        return fetched


class _Upstream:
    """A bare clone and the URL of its upstream repository, which may contain a password and is stored without it."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url

    def fill(self, revisions: Iterable[str], say: Callable[[str], None]) -> Fetched:
        """Fetch the branches, the tags and the files of these revisions."""
        head = self._head()
        say(f"fetching {redacted(self._url)}")
        if not (self._folder / "HEAD").is_file():
            self._git("init", "--quiet", "--bare", "--template=", str(self._folder))
            for key, value in (
                ("core.repositoryFormatVersion", "1"),
                ("extensions.partialClone", "origin"),
                ("remote.origin.promisor", "true"),
                ("remote.origin.partialCloneFilter", "blob:none"),
            ):
                self._git("config", key, value)
        self._fetch("--prune", "--force", "origin", "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        if head:
            self._git("symbolic-ref", "HEAD", head)
        with Repository(self._folder) as clone:
            commits = {revision: clone.commit(revision) for revision in revisions}
            alone = [name for name, commit in commits.items() if not commit and WHOLE_ID.fullmatch(name)]
            for name in alone:  # on no branch: servers send a commit by its whole id
                self._fetch("origin", f"+{name}:refs/megatrix/{name}", check=False)
                commits[name] = clone.commit(name)
        found = sorted({commit for commit in commits.values() if commit})
        blobs = self._missing(found)
        if blobs:
            say(f"fetching {len(blobs):,} files of {len(found)} revisions")
            self._fetch("--stdin", "origin", given="\n".join(blobs) + "\n")
        if left := self._missing(found):
            raise MatrixError(
                "the repository did not send all files", where=redacted(self._url), got=f"{len(left):,} are missing",
                fix="use a server that sends objects by id: git 2.26 or later, protocol 2",
            )  # fmt: skip
        missing = tuple(sorted(name for name, commit in commits.items() if not commit))
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        fetched = Fetched(redacted(self._url), at, tuple(sorted(commits.keys() - set(missing))), missing)
        part = self._folder / f"{NOTE}.part"
        part.write_text(json.dumps(asdict(fetched), indent=1) + "\n", encoding="utf-8")
        part.replace(self._folder / NOTE)
        return fetched

    def _head(self) -> str:
        """Return the default branch; the first question to the server, which must answer soon."""
        limit = connect_s(os.environ)
        answer = self._git("ls-remote", "--symref", "origin", "HEAD", seconds=limit)
        found = re.search(r"^ref: (refs/heads/\S+)\tHEAD$", answer, re.MULTILINE)
        return found[1] if found else ""

    def _missing(self, commits: Sequence[str]) -> list[str]:
        """Return the ids of the files of these commits that the clone lacks."""
        if not commits:
            return []
        with Repository(self._folder) as clone:
            listed = clone.git("rev-list", "--objects", "--no-object-names", "--no-walk", "--missing=print", *commits)
        if listed.returncode:
            raise MatrixError("git cannot list the files", where=str(self._folder), got=listed.stderr.strip())
        return [line[1:] for line in listed.stdout.splitlines() if line.startswith("?")]

    def _fetch(self, *arguments: str, given: str = "", check: bool = True) -> None:
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--recurse-submodules=no", "--filter=blob:none")
        noop = ("-c", "fetch.negotiationAlgorithm=noop") if given else ()  # single files need no common history
        self._git(*noop, "fetch", *options, *arguments, given=given, check=check)

    def _git(self, *arguments: str, given: str = "", seconds: float | None = None, check: bool = True) -> str:
        """Run git in its own process group, which is killed after `seconds` or on Ctrl-C, and return its output.

        git ends with this process, also after kill -9; its transport then finds its pipe closed.
        """
        try:
            process = subprocess.Popen(
                ["git", *OPTIONS, "-c", f"remote.origin.url={self._url}", *arguments],
                env=self._environment(), start_new_session=True, text=True,
                preexec_fn=partial(die_with_parent, os.getpid()),  # this process has one thread
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace",
            )  # fmt: skip
        except OSError as error:
            raise MatrixError("git is required to fetch a clone", got=error, fix="install git") from None
        try:
            out, err = process.communicate(given, timeout=seconds)
            late = False
        except subprocess.TimeoutExpired:
            out, err, late = "", f"no answer within {seconds:.0f} s", True
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its transport too, which would hold the pipes
                process.communicate()
        if late or (check and process.returncode):
            raise MatrixError(
                "this repository can't be fetched", where=redacted(self._url),
                got=redacted("\n".join(err.strip().splitlines()[-4:])) or f"git exited with {process.returncode}",
                expected="a repository that this machine reaches: https://, ssh://, file:// or a folder",
                fix="set the URL of a mirror, or copy a clone to this machine and name it: megatrix sources --help",
            )  # fmt: skip
        return out

    def _environment(self) -> dict[str, str]:
        """Return the environment with the user's settings of git (proxies, certificates) and without any prompt."""
        kept = {name: value for name, value in os.environ.items() if name not in LOCAL}
        return {
            "GIT_SSH_COMMAND": f"ssh -o BatchMode=yes -o ConnectTimeout={connect_s(os.environ):.0f}",
            **kept,
            "GIT_DIR": str(self._folder),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_LAZY_FETCH": "1",  # over plain HTTP files git otherwise starts itself for ever
            "LC_ALL": "C",
        }


def connect_s(environ: Mapping[str, str]) -> float:
    """Return the seconds of MEGATRIX_CONNECT_TIMEOUT, CONNECT_S without it."""
    text = environ.get("MEGATRIX_CONNECT_TIMEOUT", "")
    try:
        seconds = float(text or CONNECT_S)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise MatrixError("not a time", where="MEGATRIX_CONNECT_TIMEOUT", got=text, expected="seconds, such as 30")
    return seconds


def local_url(url: str) -> str:
    """Return a folder as an absolute file:// URL, which git fetches by the same protocol; other URLs unchanged.

    Raises MatrixError for a text that git would take as an option or a command.
    """
    if url.startswith("-") or "::" in url.partition("/")[0]:
        raise MatrixError("not a repository's URL", got=redacted(url), expected="https://, ssh://, file:// or a folder")
    path = Path(url).expanduser()
    return path.absolute().as_uri() if path.is_dir() else url


def age(at: str, now: float | None = None) -> str:
    """Return the time since `at` (ISO 8601): "3 days"."""
    try:
        seconds = (time.time() if now is None else now) - datetime.fromisoformat(at).timestamp()
    except ValueError:
        return "unknown"
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' * (count > 1)}"
    return "less than a minute"
