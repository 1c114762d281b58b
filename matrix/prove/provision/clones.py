"""The clones of upstream repositories in the cache: bare, with all branches and tags.

Later reading needs no network: matrix.read.git allows none. A clone is made under a temporary name and renamed when it
is complete, so that an interrupted one is never used.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from matrix.ground.catalog.codec import MalformedError, decode_json
from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.regular_file import UnreadableError, read_regular
from matrix.ground.errors import MatrixError
from matrix.prove.provision.project import locked, making
from matrix.read.commands import NOT_STARTED, TIMED_OUT, redacted, run
from matrix.read.git import Repository

CONNECT_S: Final = 30.0  # seconds for a server's first answer; 1 s is usual. Override: MEGATRIX_CONNECT_TIMEOUT
STALL_S: Final = 60  # seconds with less than 1 kB/s after which git gives up an HTTP transfer
NOTE: Final = "megatrix.json"  # in a clone: what was fetched, when, from where
MB: Final = 1_000_000  # bytes
# MB of a fetched clone, measured 2026-11-22 from mirrors on the same disk; for the offer at the end of a night.
SIZE_MB: Final[Mapping[str, int]] = {"megatron-lm": 132, "transformer-engine": 27}
# MB of 26 and 38 tags without their history, from the same mirrors on 2026-11-29: 0.4 - 1.3 MB each.
REVISION_MB: Final[Mapping[str, float]] = {"megatron-lm": 1.3, "transformer-engine": 0.4}
SETTINGS: Final = (
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.version=2",
    "http.lowSpeedLimit=1000",
    f"http.lowSpeedTime={STALL_S}",
    f"core.hooksPath={os.devnull}",
)
FETCH: Final = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--recurse-submodules=no")
# They would select another repository.
LOCAL: Final = re.compile(
    r"GIT_(DIR|WORK_TREE|INDEX_FILE|(ALTERNATE_)?OBJECT_DIRECTOR(Y|IES)|COMMON_DIR|NAMESPACE|CEILING_DIRECTORIES)"
)
WHOLE_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
TAG: Final = re.compile(r"(core_)?v\d[\w.]*")


@dataclass(frozen=True)
class Fetched:
    """What a fetched clone holds: its URL without password, the time (UTC, ISO 8601), the revisions of the catalog.

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
        return decode_json(Fetched, read_regular(folder / NOTE))
    except (UnreadableError, MalformedError):
        return None


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def need_history(revisions: Iterable[str]) -> bool:
    """Return whether one is a branch or a part of an id: no server sends a commit by that."""
    return not all(TAG.fullmatch(revision) or WHOLE_ID.fullmatch(revision) for revision in revisions)


def expected_size(name: str, revisions: Collection[str]) -> int:
    """Return the bytes that a clone with these revisions is expected to have."""
    return int(MB * (SIZE_MB[name] if need_history(revisions) else REVISION_MB[name] * len(revisions)))


def fetch(
    folder: Path, url: str, revisions: Iterable[str], say: Callable[[str], None], *, history: bool = True
) -> Fetched:
    """Make or update the clone in `folder` from `url`; its note has which of these revisions it holds.

    Without `history` it gets these alone, tags and whole ids of commits, and not what precedes them. `say` gets a line
    for each step. Raises MatrixError where the repository can't be reached; the clone is then as before.
    """
    url = local_url(url)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if folder.is_dir():
            return _fill(folder, url, sorted(revisions), say, history)
        with making(folder) as temporary:
            return _fill(temporary, url, sorted(revisions), say, history)


def _fill(folder: Path, url: str, revisions: Sequence[str], say: Callable[[str], None], history: bool) -> Fetched:
    """Fetch branches and tags, or without `history` none but these revisions, into a bare clone; note what it has."""
    say(f"fetching {redacted(url)}")
    # The first question to the server, which must answer soon: its default branch.
    asked = ("HEAD", *(() if history else ("refs/tags/*",)))
    answer = _git(folder, url, "ls-remote", "--symref", "origin", *asked, seconds=connect_s(os.environ))
    if not (folder / "HEAD").is_file():
        _git(folder, url, "init", "--quiet", "--bare", "--template=", str(folder))
    tags = {*re.findall(r"\trefs/tags/(\S+)$", answer, re.MULTILINE)}
    names = ["heads/*", "tags/*"] if history else [f"tags/{revision}" for revision in revisions if revision in tags]
    options = ["--prune", "--force"] if history else ["--depth=1"]
    options += ["--unshallow"] * (history and (folder / "shallow").is_file())
    if names:
        _git(folder, url, *FETCH, *options, "origin", *(f"+refs/{name}:refs/{name}" for name in names))
    if head := re.search(r"^ref: (refs/heads/\S+)\tHEAD$", answer, re.MULTILINE):
        _git(folder, url, "symbolic-ref", "HEAD", head[1])
    with Repository(folder) as clone:
        for revision in revisions:  # on no branch: servers send a commit by its whole id
            if WHOLE_ID.fullmatch(revision) and not clone.commit(revision):
                _git(folder, url, *FETCH, *options[:1], "origin", f"+{revision}:refs/megatrix/{revision}", check=False)
        missing = tuple(revision for revision in revisions if not clone.commit(revision))
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    fetched = Fetched(redacted(url), at, tuple(sorted(set(revisions) - set(missing))), missing)
    part = folder / f"{NOTE}.part"
    part.write_text(json.dumps(asdict(fetched), indent=1) + "\n", encoding="utf-8")
    part.replace(folder / NOTE)
    return fetched


def _git(folder: Path, url: str, *arguments: str, seconds: float | None = None, check: bool = True) -> str:
    """Run git on a bare clone with this URL as its origin, which may contain a password and is not stored.

    The user's settings of git (proxies, certificates) apply, and git never prompts. It ends with this process.
    """
    environment = {
        "GIT_SSH_COMMAND": f"ssh -o BatchMode=yes -o ConnectTimeout={connect_s(os.environ):.0f}",
        **{name: value for name, value in os.environ.items() if not LOCAL.fullmatch(name)},
        "GIT_DIR": str(folder),
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    settings = [word for setting in (*SETTINGS, f"remote.origin.url={url}") for word in ("-c", setting)]
    result = run(["git", *settings, *arguments], environment=environment, seconds=seconds, follow=True)
    if result.code == NOT_STARTED:
        raise MatrixError("git is required to fetch a clone", got=result.err, fix="install git")
    if result.code == TIMED_OUT or (check and result.code):
        raise MatrixError(
            "this repository can't be fetched",
            where=redacted(url),
            got=result.complaint,
            expected="a repository that this machine reaches: https://, ssh://, file:// or a folder",
            fix="set the URL of a mirror, or copy a clone to this machine and name it: megatrix sources --help",
        )
    return result.out


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
