"""What commands install, change or remove: pip, uv, poetry, pdm, pipenv, conda, git clone, files of site-packages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from posixpath import basename, join, normpath
from typing import Final

from packaging.utils import canonicalize_name

from matrix.ask.check.files.declared import Declared, Open, Statement, UnreadKind, load_yaml, not_read, total
from matrix.ask.check.files.requirements import (
    VALUED,
    from_location,
    read_arguments,
    read_conda,
    read_environment,
    read_pipfile_lock,
    read_pyproject,
    read_toml_lock,
)
from matrix.ground.catalog.stack import ABSENT, Place, component_named
from matrix.ground.errors import MatrixError

Reader = Callable[[str, str, Open], Declared]  # of a text, its path and what opens other files
PIP: Final = re.compile(r"pip[\d.]*|uv|poetry|pdm|pipenv")
CONDA: Final = frozenset({"conda", "mamba", "micromamba"})
# The lock file that a command installs, from the folder where it runs.
LOCKS: Final[Mapping[tuple[str, str], tuple[str, Reader]]] = {
    ("uv", "sync"): ("uv.lock", read_toml_lock),
    ("poetry", "install"): ("poetry.lock", read_toml_lock),
    ("poetry", "sync"): ("poetry.lock", read_toml_lock),
    ("pdm", "install"): ("pdm.lock", read_toml_lock),
    ("pdm", "sync"): ("pdm.lock", read_toml_lock),
    ("pipenv", "install"): ("Pipfile.lock", read_pipfile_lock),
    ("pipenv", "sync"): ("Pipfile.lock", read_pipfile_lock),
}
# A folder with a project: ".", "./x[extra]", "/opt/x", "~/x", "third_party/x".
PROJECT: Final = re.compile(r"(\.{1,2}(?=[/\[]|$)|[/~]|[\w.-]+/)[^\s:*=@<>]*")
ARCHIVES: Final = (".whl", ".tar.gz", ".zip")
UPGRADES: Final = frozenset({"-U", "--upgrade", "-I", "--ignore-installed", "--force-reinstall", "--reinstall"})
COPIES: Final = frozenset({"cp", "ln", "mv", "rsync"})  # their last word names what they write
EDITS: Final = COPIES | {"git", "patch", "sed", "tar", "unzip", "zipfile"}
SITE: Final = re.compile(r"(?:site|dist)-packages(?:/(\w[\w.-]*))?")
MODULES: Final = {"megatron": "megatron-core"}  # whose distribution has another name
INSTALLS: Final = re.compile(r"\bpip\b.{0,99}\binstall\b")  # in a program of Python
PIPED: Final = frozenset({"xargs", "parallel"})
PIPED_INSTALL: Final = re.compile(r"\b(?:pip[\d.]*|conda|mamba) install\b|\buv add\b")
NO_PROJECT: Final = frozenset({"--no-project", "--no-sync", "--script", "-s"})  # `uv run` installs no lock with these
REVISION: Final = frozenset({"-b", "--branch", "--revision"})


@dataclass
class Installs:
    """The folders of a script that hold clones, by name, with their URLs; the current folder."""

    folder: str = ""
    clones: dict[str, str] = field(default_factory=dict)
    fetched: str = ""
    environments: bool = False  # an environment of Python is made
    written: set[str] = field(default_factory=set)  # names of files that commands write, or change

    def read(self, words: Sequence[str], place: Place, open_file: Open) -> Declared | None:
        """Return what a command installs or removes, None for a command that does neither."""
        program, plain = basename(words[0]), [basename(word) for word in words[:8]]
        if program in PIPED and PIPED_INSTALL.search(" ".join(words)):
            return not_read(UnreadKind.PACKAGE, f"packages that {program} takes from a pipe", place)
        if program == "sed" and _in_place(words):
            self.written.update(plain)
        if program in ("cd", "pushd", "popd"):
            self.folder = join(self.folder, *words[1:2]) if program != "popd" else ""
            return Declared()
        if edited := _edited(plain, words, place):
            return edited
        if program == "git":
            return self._git(words[1:], place)
        if "setup.py" in plain and {"install", "develop"} & {*plain}:
            return self._project(".", place, open_file)
        self.environments |= "venv" in plain or "virtualenv" in plain or (program in CONDA and "create" in plain)
        for (_, first), (at, second) in pairwise((at, word) for at, word in enumerate(plain) if word[:1] != "-"):
            pair, rest = (first, second), words[at + 1 :]
            named = [word for word in rest if not word.startswith("-")]
            if pair in LOCKS and (pair[0] != "pipenv" or not named):
                return self._locked(*LOCKS[pair], place, open_file)
            if PIP.fullmatch(pair[0]) and pair[1] in ("install", "add"):
                return self._installed(rest, place, open_file)
            if PIP.fullmatch(pair[0]) and pair[1] in ("uninstall", "remove"):
                names = [canonicalize_name(word.partition("[")[0]) for word in named]
                return Declared(pins=tuple(Statement(name, ABSENT, place) for name in names))
            if pair == ("pip", "sync"):
                return read_arguments([part for word in named for part in ("-r", word)], place, open_file)
            if pair[0] in CONDA and pair[1] in ("env", "install", "create", "update"):
                return self._conda(rest, place, open_file)
        return not_read(UnreadKind.PACKAGE, "a program that runs pip", place) if _runs_pip(words) else None

    def synced(self, words: Sequence[str], place: Place, open_file: Open) -> Declared:
        """Return what `uv run` installs before its command: the lock of the project, if there is one, and `--with`."""
        if ("uv", "run") not in pairwise(map(basename, words)):
            return Declared()
        project = NO_PROJECT.isdisjoint(words) and open_file("uv.lock") is not None
        declared = self._locked(*LOCKS["uv", "sync"], place, open_file) if project else Declared()
        named = [after for word, after in pairwise(words) if word == "--with"]
        named += [word.removeprefix("--with=") for word in words if word.startswith("--with=")]
        return declared + read_arguments([name for names in named for name in names.split(",")], place, open_file)

    def _locked(self, name: str, read_lock: Reader, place: Place, open_file: Open) -> Declared:
        self.environments = True
        return _read(read_lock, name, name, place, open_file)

    def _installed(self, words: Sequence[str], place: Place, open_file: Open) -> Declared:
        requirements: list[str] = []
        projects = []
        for word in words:
            before = requirements[-1] if requirements else ""
            is_value = before in VALUED or before in ("-r", "-c", "--requirement", "--constraint")
            if PROJECT.fullmatch(word) and not is_value and not word.endswith(ARCHIVES):
                requirements = requirements[:-1] if before in ("-e", "--editable") else requirements
                projects.append(self._project(word.partition("[")[0], place, open_file))
            else:
                requirements.append(word)
        packages = read_arguments(requirements, place, open_file)
        changed = [word for word in requirements if basename(word) in self.written and open_file(word)]
        packages += total(not_read(UnreadKind.FILE, f"{word}: a command changes it before", place) for word in changed)
        if not UPGRADES.isdisjoint(words):
            packages = replace(packages, pins=tuple(pin.upgraded() for pin in packages.pins))
        return total([packages, *projects])

    def cloned(self, path: str) -> bool:
        """Return whether a path is in a clone, whose contents the command that made it states."""
        return not self.clones.keys().isdisjoint(normpath(join(self.folder, path)).split("/"))

    def _project(self, path: str, place: Place, open_file: Open) -> Declared:
        """Return what a project in a folder requires."""
        if self.cloned(path):
            return Declared()
        name = normpath(join(path, "pyproject.toml"))
        return _read(read_pyproject, name, f"{name} of a project", place, open_file)

    def _conda(self, words: Sequence[str], place: Place, open_file: Open) -> Declared:
        parts, rest = [], list(words)
        while rest:
            word = rest.pop(0)
            option, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
            if option in ("-f", "--file"):
                name = value if equals else "".join(rest[:1])
                parts.append(_read(_read_environments, name, name, place, open_file))
            if word in ("-c", "--channel", "-n", "--name", "-p", "--prefix", "-f", "--file"):
                del rest[:1]
            elif not word.startswith("-") and word not in ("create", "update"):
                parts.append(read_conda([word], place.path, open_file, place.line))
        return total(parts)

    def _git(self, words: Sequence[str], place: Place) -> Declared:
        options = {before: word for before, word in pairwise(words) if before.startswith("-")}
        names = [
            word
            for before, word in pairwise(["", *words])
            if not word.startswith("-") and before not in (*REVISION, "--depth", "-C", "-o", "--origin", "-j")
        ]
        revision = next((options[name] for name in REVISION if name in options), "")
        revision = revision or next((word.partition("=")[2] for word in words if word.startswith("--branch=")), "")
        url = self.clones.get(basename(self.folder)) or next(reversed(self.clones.values()), "")
        if names[:1] == ["clone"] and names[1:]:
            url = names[1]
            self.clones[basename((names[2:] or [url])[0].rstrip("/")).removesuffix(".git")] = url
        elif names[:1] == ["fetch"] and names[2:]:
            self.fetched = names[-1]
            return Declared()
        elif names[:1] in (["checkout"], ["switch"]) and names[1:]:
            revision = self.fetched if names[-1] == "FETCH_HEAD" else names[-1]
        else:
            return Declared()
        found = from_location(f"git+{url}@{revision}" if revision else f"git+{url}", place) if url else None
        return Declared(pins=(found,)) if found else Declared()


def _edited(programs: Sequence[str], words: Sequence[str], place: Place) -> Declared | None:
    """Return that a command changes installed files, of one component or of any; None for another command."""
    program = next(filter(EDITS.__contains__, programs), "")
    if not program or (program == "sed" and not _in_place(words)):
        return None
    for match in filter(None, map(SITE.search, words[-1:] if program in COPIES else words)):
        name = canonicalize_name(MODULES.get(match[1] or "", match[1] or ""))
        if not name or component_named(name):
            text = f"{program} changes {'installed packages' if not name else f'the installed {name}'}"
            return not_read(UnreadKind.PACKAGE, text, place, "check the environment itself: megatrix check")
    return None


def _in_place(words: Sequence[str]) -> bool:
    """Return whether sed changes the files that it reads."""
    return any(word.startswith(("-i", "--in-place")) for word in words)


def _runs_pip(words: Sequence[str]) -> bool:
    return "-c" in words and basename(words[0]).startswith("python") and INSTALLS.search(words[-1]) is not None


def _read(read_file: Reader, name: str, title: str, place: Place, open_file: Open) -> Declared:
    """Return what a file declares that a command installs; one that is missing or damaged is not read."""
    opened = open_file(name)
    if opened is None:
        return not_read(UnreadKind.FILE, f"{title} is missing", place)
    try:
        return read_file(opened[1], opened[0], open_file)
    except MatrixError as error:
        return not_read(UnreadKind.FILE, f"{title} can't be read: {error.what}", place)


def _read_environments(text: str, where: str, open_file: Open) -> Declared:
    """Return what the documents of conda's environment.yml declare."""
    declared = (read_environment(document, where, open_file) for document in load_yaml(text, where))
    return total(filter(None, declared))
