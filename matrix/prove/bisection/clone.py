"""A clone of an upstream repository, read for a bisection: its history, and the files of a commit by blob id.

Nothing is checked out, fetched or written. A bare clone is enough; uncommitted changes of a work tree are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType

from matrix.ground.verdicts.text import one_line
from matrix.read import package_source, trees
from matrix.read.git import Repository
from matrix.read.package_source import Source, SourceKind

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


class Clone(AbstractContextManager["Clone"]):
    """A clone whose commits are read; a context manager around its repository."""

    def __init__(self, path: str, package: str, *, compiled: bool = False) -> None:
        self.package = package
        source = package_source.parse(f"{path}@HEAD", package)  # raises MatrixError for a wrong path
        self.path, self._layout = source.location, source.layout
        self.taken = self._layout.taken(compiled=compiled)  # the paths of all that a cell gets from a commit
        self._repository = Repository(self.path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._repository.__exit__(kind, error, traceback)

    def source(self, commit: str) -> Source:
        """Return the source of a commit: PATH@COMMIT."""
        return Source(self.package, SourceKind.GIT, self.path, commit)

    def commit(self, revision: str) -> Commit:
        """Return the commit of a revision. Raises MatrixError when it is missing or belongs to another project."""
        contents = package_source.inspect(self.source(revision))
        return self._log("-1", contents.identity.split()[1])[0]

    def version(self, commit: str) -> str:
        """Return the version that a commit declares, with the commit as local version."""
        text_of = self._repository.text(commit)
        return f"{trees.declared(self._layout, f'{self.path}@{commit[:10]}', text_of)}+{commit[:7]}"

    def content(self, commit: str) -> tuple[str, ...]:
        """Return the ids of all that a cell gets from a commit: equal ones are equal commits."""
        return tuple(self._repository.id(f"{commit}:{path}") for path in self.taken)

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
        return self._repository.git("merge-base", one, other).stdout.strip()

    def files(self, commit: str, part: Callable[[str], bool]) -> dict[str, str]:
        """Return path -> blob id of the package's files that `part` selects."""
        return self._repository.files(commit, self._layout.folder, part)

    def blobs(self, files: Mapping[str, str]) -> dict[str, bytes]:
        """Return path -> content."""
        return {path: self.blob(id) for path, id in files.items()}

    def blob(self, id: str) -> bytes:
        """Return the content of a file."""
        return self._repository.object(id)[1]

    def _log(self, *arguments: str) -> list[Commit]:
        rows = self._repository.history(FIELDS, *arguments)
        return [Commit(id, tuple(parents.split()), date, subject) for id, parents, date, subject in rows]
