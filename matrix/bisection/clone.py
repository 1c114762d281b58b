"""A clone of an upstream repository, read for a bisection: its history, and the files of a commit by blob id.

Nothing is checked out, fetched or written. A bare clone is enough; uncommitted changes of a work tree are ignored.
Folders are cached by tree id: a folder that several commits share is read once.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

from matrix.errors import MatrixError
from matrix.provision import commands, sources, trees
from matrix.provision.commands import CommandResult
from matrix.provision.sources import Source, SourceKind
from matrix.verdicts.text import one_line

SUBJECT = 120  # characters shown of a commit's first line
FIELDS = "%H%x00%P%x00%cs%x00%s"  # commit, parents, date, subject


@dataclass(frozen=True)
class Commit:
    """One commit. `parents` are whole ids; `date` is YYYY-MM-DD, of the committer."""

    id: str
    parents: tuple[str, ...]
    date: str
    subject: str

    def __str__(self) -> str:
        return f"{self.id[:10]} ({self.date}) {one_line(self.subject, SUBJECT)}"


class Clone:
    """A context manager around one `git cat-file --batch` process, which reads all contents and ends on exit."""

    def __init__(self, path: str, package: str) -> None:
        self.package = package
        source = sources.parse(f"{path}@HEAD", package)  # raises MatrixError for a wrong path
        self.path, self._layout = source.location, source.layout
        self._trees: dict[str, list[tuple[str, bool, str]]] = {}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self._reader = subprocess.Popen(
            ["git", "-C", self.path, "cat-file", "--batch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    def __enter__(self) -> Clone:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reader.communicate()

    def source(self, commit: str) -> Source:
        """Return the source of a commit: PATH@COMMIT."""
        return Source(self.package, SourceKind.GIT, self.path, commit)

    def commit(self, revision: str) -> Commit:
        """Return the commit of a revision. Raises MatrixError when it is missing or belongs to another project."""
        contents = sources.inspect(self.source(revision))
        return self._log("-1", contents.identity.split()[1])[0]

    def version(self, commit: str) -> str:
        """Return the version that a commit declares, with the commit as local version."""
        read = self._text(commit)
        return f"{trees.declared(self._layout, f'{self.path}@{commit[:10]}', read)}+{commit[:7]}"

    def between(self, old: str, new: str) -> list[Commit]:
        """Return the commits that descend from `old` and that `new` descends from, parents first, both ends included.

        A commit that does not descend from `old` may lack a change that `old` has, and match the new end for that
        reason alone.
        """
        if old == new:
            return self._log("-1", old)
        inside = self._log("--topo-order", "--reverse", "--ancestry-path", f"{old}..{new}")
        return [*self._log("-1", old), *inside]

    def fork(self, one: str, other: str) -> str:
        """Return the merge base of two commits, "" where the histories are unrelated."""
        return self._git("merge-base", one, other).out.strip()

    def files(self, commit: str, part: Callable[[str], bool]) -> dict[str, str]:
        """Return path -> blob id of the package's files that `part` selects."""
        found: dict[str, str] = {}
        self._walk(f"{commit}:{self._layout.folder}", self._layout.folder, part, found)
        return found

    def blobs(self, files: Mapping[str, str]) -> dict[str, bytes]:
        """Return path -> content."""
        return {path: self.blob(id) for path, id in files.items()}

    def blob(self, id: str) -> bytes:
        """Return the content of a file."""
        return self._object(id)[1]

    def _walk(self, id: str, folder: str, part: Callable[[str], bool], found: dict[str, str]) -> None:
        if id not in self._trees:
            self._trees[id] = list(_entries(*self._object(id)))
        for name, is_folder, child in self._trees[id]:
            path = f"{folder}/{name}"
            if is_folder:
                self._walk(child, path, part, found)
            elif part(path):
                found[path] = child

    def _text(self, commit: str) -> trees.Read:
        def read(path: str) -> str | None:
            result = self._git("show", f"{commit}:{path}")
            return None if result.code else result.out

        return read

    def _object(self, name: str) -> tuple[str, bytes]:
        """Return (id, content) of the object that git resolves `name` to. Raises MatrixError when git can't read it."""
        requests, replies = self._reader.stdin, self._reader.stdout
        if requests is None or replies is None:  # Popen creates both
            raise RuntimeError("git cat-file has no pipes")
        try:
            requests.write(f"{name}\n".encode())
            requests.flush()
            head = replies.readline().split()
        except BrokenPipeError:
            head = []
        if len(head) != 3:
            got = b" ".join(head).decode(errors="replace") or "git cat-file ended"
            raise MatrixError(
                "git cannot read this object", where=self.path, got=got,
                fix="if the clone is partial or damaged: git fsck checks it, git fetch --refetch repairs it",
            )  # fmt: skip
        content = replies.read(int(head[2]))
        replies.read(1)
        return head[0].decode(), content

    def _log(self, *arguments: str) -> list[Commit]:
        result = self._git("log", f"--format={FIELDS}", *arguments)
        if result.code:
            raise MatrixError("git cannot list this history", where=self.path, got=result.complaint)
        rows = [line.split("\0", 3) for line in result.out.splitlines()]
        return [Commit(id, tuple(parents.split()), date, subject) for id, parents, date, subject in rows]

    def _git(self, *arguments: str) -> CommandResult:
        return sources.git(commands.run, self.path, *arguments)


def _entries(id: str, tree: bytes) -> list[tuple[str, bool, str]]:
    """Return (name, is a folder, id) of the entries of a raw tree object; submodules and links are left out."""
    size = len(id) // 2  # bytes of an id: SHA-1 or SHA-256
    found, place = [], 0
    while place < len(tree):
        space, end = tree.index(b" ", place), tree.index(b"\0", place)
        mode, name = tree[place:space], tree[space + 1 : end].decode("utf-8", "replace")
        child = tree[end + 1 : end + 1 + size].hex()
        if mode in (b"40000", b"100644", b"100755"):
            found.append((name, mode == b"40000", child))
        place = end + 1 + size
    return found
