"""Read a git repository without running anything that it configures, and without a network.

A clone may belong to anyone. git runs commands that a repository names: filters, hooks, fsmonitor, textconv, gpg, and,
for the missing objects of a partial clone, its remote's transport. Therefore objects are read as they are stored
(cat-file, never archive, checkout or log), no configuration but the repository's own is read, its keys that start a
process are overridden, and no protocol is allowed. The owner of the repository does not matter.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from matrix.ground.catalog.regular_file import read_regular_text
from matrix.ground.errors import MatrixError
from matrix.read.commands import NOT_STARTED, TIMED_OUT, CommandResult, run

# Seconds for one answer of git; listing 10,000 commits takes 0.3 s. Without a limit a FIFO in a clone blocks for ever.
ANSWER_S: Final = 120.0
OBJECT_S: Final = 20.0  # for a commit's id or one object, also on a slow file system
LARGEST: Final = 2**28  # bytes of an object; zeros of 10 GB are 10 MB in a clone
MOST: Final = 200_000  # files and folders of a commit; Megatron-LM has 3,000
OPTIONS: Final = (
    *("--no-pager", "--no-replace-objects", "--no-optional-locks", "--literal-pathspecs"),
    *("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "log.showSignature=false"),
)
SETTINGS: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",  # git 2.39.4; before it, GIT_ALLOW_PROTOCOL alone stops the transport of a missing object
    "GIT_ALLOW_PROTOCOL": "",  # none
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
INCOMPLETE: Final = (
    "if it is a partial clone, `megatrix sources fetch` makes one with all that cases need; "
    "else git fsck checks it, git fetch --refetch repairs it"
)


class Repository(AbstractContextManager["Repository"]):
    """A clone, bare or not, at its top folder; a context manager. Methods raise MatrixError where git can't read it.

    One `git cat-file --batch` process, started at first use, reads all objects. Trees are cached by id: a folder that
    several commits share is read once.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._trees: dict[str, list[tuple[str, bool, str]]] = {}
        self._reader: subprocess.Popen[bytes] | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._reader:
            self._reader.communicate()
            self._reader = None

    def git(self, *arguments: str, seconds: float = ANSWER_S) -> CommandResult:
        """Run a plumbing command that reads. Raises MatrixError without git, a repository, or an answer in time."""
        result = run(["git", *OPTIONS, *arguments], environment=self._environment(), seconds=seconds)
        if result.code == NOT_STARTED:
            raise _without_git(result.err)
        if result.code == TIMED_OUT:
            raise self._unreadable(f"no answer of git {arguments[0]}: {result.err}")
        return result

    def commit(self, revision: str) -> str:
        """Return the id of a revision's commit, "" where the clone has none."""
        output = self.git("rev-parse", "--verify", "--quiet", f"{revision}^0", seconds=OBJECT_S)
        return "" if output.code else output.out.strip()

    def refs(self) -> list[str]:
        """Return the short names of the branches and tags. Raises MatrixError where this is no clone."""
        names = self.git("for-each-ref", "--format=%(refname:short)")
        if names.code:
            raise self._unreadable(names.err.strip())
        return names.out.split()

    def history(self, form: str, *arguments: str) -> list[list[str]]:
        """Return the commits that `git rev-list` lists: the fields of each, which a NUL separates in `form`."""
        listing = self.git("rev-list", f"--format={form}", *arguments)
        if listing.code:
            raise MatrixError("git cannot list this history", where=self.path, got=listing.err.strip())
        return [line.split("\0") for line in listing.out.split("\n") if "\0" in line]

    def text(self, commit: str) -> Callable[[str], str | None]:
        """Return a function of a path: the text of that file in a commit, None without one."""

        def read(path: str) -> str | None:
            blob = self._ask(f"{commit}:{path}")
            return blob[1].decode("utf-8", "replace") if blob else None

        return read

    def object(self, name: str) -> tuple[str, bytes]:
        """Return (id, content) of the object that git resolves `name` to. Raises MatrixError for a missing one."""
        reply = self._ask(name)
        if reply is None:
            raise MatrixError("git cannot read this object", where=self.path, got=f"{name} missing", fix=INCOMPLETE)
        return reply

    def id(self, name: str) -> str:
        """Return the id of the object that git resolves `name` to, "" for a missing one."""
        reply = self._ask(name)
        return reply[0] if reply else ""

    def files(self, commit: str, folder: str, part: Callable[[str], bool] = lambda path: True) -> dict[str, str]:
        """Return path -> blob id of the files under `folder` ("": all) that `part` selects; no links, no submodules.

        Raises MatrixError for more than MOST files, which a tree of a few kB can name.
        """
        contents: dict[str, str] = {}
        trees, count = [(f"{commit}:{folder}", folder)], 0
        while trees:
            tree, above = trees.pop()
            for name, is_folder, id in self._tree(tree, above):
                count += 1
                path = f"{above}/{name}" if above else name
                if is_folder:
                    trees.append((id, path))
                elif part(path):
                    contents[path] = id
            if count > MOST:
                raise MatrixError("this commit has too many files", where=f"{self.path}@{commit[:10]}", got=f"> {MOST}")
        return contents

    def write(self, commit: str, folder: str, target: Path, part: Callable[[str], bool] = lambda path: True) -> None:
        """Write the files under `folder` of a commit below `target`. Raises MatrixError for a path that leaves it."""
        for path, id in self.files(commit, folder, part).items():
            try:
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                (target / path).write_bytes(self.object(id)[1])
            except OSError as error:
                where = f"{self.path}@{commit[:10]}: {path}"
                raise MatrixError("a file of this commit can't be written", where=where, got=error.strerror) from None

    def write_submodules(self, commit: str, folder: str, target: Path) -> list[str]:
        """Write the submodules of a commit that are in `folder` below `target`; return those that the clone lacks.

        Their repositories are in the clone's own git folder, where `git submodule update --init` puts them.
        """
        lacks = []
        for line in self.git("ls-tree", commit, f"{folder}/").out.splitlines():
            kind, _, path = line.partition("\t")
            inner = Path(self._environment()["GIT_DIR"], "modules", path)
            if not kind.startswith("160000"):
                continue
            if ".." in Path(path).parts or git_folder(inner) is None:
                lacks.append(path)
                continue
            with Repository(inner) as repository:
                repository.write(kind.split()[2], "", target / path)
        return lacks

    def _tree(self, id: str, folder: str) -> list[tuple[str, bool, str]]:
        """Return (name, is a folder, id) of the files and folders of a tree."""
        if id not in self._trees:
            kind, content = self.object(id)
            try:
                self._trees[id] = list(_entries(len(kind) // 2, content))
            except ValueError as error:
                raise MatrixError("not a folder of a commit", where=f"{self.path}: {folder}", got=error) from None
        return self._trees[id]

    def _ask(self, name: str) -> tuple[str, bytes] | None:
        """Return (id, content) of an object, None for a missing one."""
        reader = self._reader = self._reader or self._start()
        if reader.stdin is None or reader.stdout is None:  # Popen creates both
            raise RuntimeError("git cat-file has no pipes")
        try:
            reader.stdin.write(f"{name}\n".encode())
            reader.stdin.flush()
            # One request at a time: what is buffered here was read.
            if not select.select([reader.stdout], [], [], OBJECT_S)[0]:
                reader.kill()
                raise self._unreadable(f"no answer of git cat-file within {OBJECT_S:.0f} s: {name}")
            head = reader.stdout.readline().split()
        except BrokenPipeError:
            head = []
        if not head:
            raise MatrixError("git cannot read this object", where=self.path, got="git cat-file ended", fix=INCOMPLETE)
        if len(head) != 3 or not head[2].isdigit():
            return None  # "NAME missing"
        if int(head[2]) > LARGEST:
            reader.kill()
            raise self._unreadable(f"{name} has {int(head[2]):,} bytes; {LARGEST:,} are read at most")
        content = reader.stdout.read(int(head[2]))
        reader.stdout.read(1)
        return head[0].decode(), content

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            command, pipe = ["git", *OPTIONS, "cat-file", "--batch"], subprocess.PIPE
            options: dict[str, Any] = {"env": self._environment(), "stderr": subprocess.DEVNULL}
            return subprocess.Popen(command, stdin=pipe, stdout=pipe, **options)
        except OSError as error:
            raise _without_git(error) from None

    def _environment(self) -> Mapping[str, str]:
        """Return this process's environment without GIT_*: set by a git hook, it would select another repository."""
        folder = git_folder(Path(self.path))
        if folder is None:
            raise self._unreadable("not a git repository: no .git in it, and not bare")
        variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        # The work tree is never used; naming one overrides core.worktree, which may not exist.
        return {**variables, **SETTINGS, "GIT_DIR": str(folder), "GIT_WORK_TREE": str(folder)}

    def _unreadable(self, got: str) -> MatrixError:
        return MatrixError("git cannot read this clone", where=self.path, got=got)


def git_folder(path: Path) -> Path | None:
    """Return the git folder of a clone, a linked work tree or a bare clone; None for another folder."""
    inner = path / ".git"
    if inner.is_file():  # a linked work tree, or a submodule
        text = read_regular_text(inner)
        return path / text.removeprefix("gitdir:").strip() if text.startswith("gitdir:") and "\0" not in text else None
    if inner.is_dir():
        return inner
    return path if (path / "objects").is_dir() and (path / "HEAD").is_file() else None


def _entries(size: int, tree: bytes) -> Iterator[tuple[str, bool, str]]:
    """Yield (name, is a folder, id) of a raw tree object, without submodules and links; ids have `size` bytes.

    Raises ValueError for another object, and for a name that would leave the folder, which no git writes.
    """
    offset = 0
    while offset < len(tree):
        space, end = tree.index(b" ", offset), tree.index(b"\0", offset)
        mode, name = tree[offset:space], tree[space + 1 : end].decode("utf-8", "replace")
        if name in ("", ".", "..") or "/" in name:
            raise ValueError(f"the file name {name[:80]!r}")
        if mode == b"40000" or mode.startswith(b"100"):
            yield name, mode == b"40000", tree[end + 1 : end + 1 + size].hex()
        offset = end + 1 + size


def _without_git(error: object) -> MatrixError:
    return MatrixError("git is required to read a clone", got=error, fix="install git, or give a folder or wheel")
