"""Dockerfiles and Containerfiles: the image they start from and what they install."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from posixpath import basename, dirname, join, normpath, relpath
from typing import Final

from matrix.ask.check.files.declared import (
    LARGEST,
    MOST,
    Declared,
    ImageUse,
    Open,
    UnreadKind,
    not_read,
    require_at_most,
    total,
)
from matrix.ask.check.files.shell import Shell
from matrix.ground.catalog.stack import Place

# Instructions that neither install nor start anything.
OTHERS: Final = frozenset({"LABEL", "MAINTAINER", "EXPOSE", "USER", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "SHELL"})
FLAG: Final = re.compile(r"(?:\s|\\\n)*--([\w-]+)(?:=(\S+))?(?=\s|\\\n)")
SPACE: Final = re.compile(r"(?:\s|\\\n)*")
DOCUMENT: Final = re.compile(r"<<-?['\"]?(\w{1,99})['\"]?")
# Folders that hold an environment of Python: a stage that copies one has its packages.
ENVIRONMENT: Final = re.compile(r"venv|site-packages|dist-packages|conda|^/usr/local/?(lib/?)?$|^/$")
# Folders for Dockerfiles: their build context is the folder above, as in `docker build -f docker/Dockerfile .`
CONTEXT: Final = re.compile(r"docker|container", re.IGNORECASE)
LEVELS: Final = 3  # of folders below that, such as docker/verl0.4/


@dataclass
class _Files:
    """The files of a stage that can be read: those that COPY, ADD and bind mounts take, and what they write."""

    folder: str = "/"
    copies: tuple[tuple[str, str, Open], ...] = ()  # path at the source, path in the image, what opens the source

    def copy(self, names: Sequence[str], source: Open) -> None:
        """Record SOURCE ... DESTINATION; `source` opens the files of the build context or of another stage."""
        self.copies += tuple((normpath(name), names[-1], source) for name in names[:-1])

    def open(self, name: str) -> tuple[str, str] | None:
        """Return a file by its path in the image, None for any other."""
        for source, place, open_source in reversed(self.copies):
            inside = relpath(join(self.folder, name), join(self.folder, place))
            if inside == "." or fnmatchcase(inside, basename(source)):
                path = source if inside == "." else join(dirname(source), inside)
            else:
                path = join(source, inside)
            if not normpath(path).startswith("..") and (opened := open_source(normpath(path))):
                return opened
        return None


@dataclass
class _Stage:
    """A stage as it is read: its shell, its files, what it declares, and how it starts."""

    context: Open
    shell: Shell
    files: _Files = field(default_factory=_Files)
    declared: Declared = field(default_factory=Declared)
    starts: dict[str, tuple[str, int]] = field(default_factory=dict)  # the last ENTRYPOINT and CMD, with their lines
    inherited: tuple[tuple[str, int], ...] = ()  # those of the stage before: an ENTRYPOINT drops its CMD
    built_with: Mapping[str, str] = field(default_factory=dict)  # --build-arg: they replace the values of ARG
    defaults: Mapping[str, list[str]] = field(default_factory=dict)  # ARG before the first FROM: a stage names them

    def follow(self, base: _Stage) -> None:
        """Start from another stage."""
        self.declared, self.starts, self.inherited = base.declared, dict(base.starts), tuple(base.starts.values())
        self.files = replace(base.files)
        self.shell.exported = set(base.shell.exported)
        self.shell.variables |= base.shell.variables
        self.shell.installs = replace(base.shell.installs)

    def read(self, instruction: str, operands: str, line: int, stages: Mapping[str, _Stage]) -> None:
        """Read one instruction but FROM."""
        if instruction == "ONBUILD":
            instruction, _, operands = operands.partition(" ")
            instruction = instruction.upper()
        if instruction in ("ARG", "ENV"):
            self.declared += _assign(self.shell, operands, line, exported=instruction == "ENV")
            if instruction == "ARG":
                names = dict(word.partition("=")[::2] for word in operands.split())
                defaults = {name: value for name, value in self.defaults.items() if names.get(name) == ""}
                given = {name: [value] for name, value in self.built_with.items() if name in names}
                self.shell.variables |= defaults | given
        elif instruction == "RUN":
            self.declared += self._run(operands, line, stages)
        elif instruction in ("CMD", "ENTRYPOINT"):
            if instruction == "ENTRYPOINT":
                self.starts = {name: start for name, start in self.starts.items() if start not in self.inherited}
            self.starts |= {instruction: (operands, line)}
        elif instruction == "WORKDIR":
            self.files.folder = join(self.files.folder, "".join(self.shell.words(operands)))
        elif instruction in ("COPY", "ADD"):
            self._copy(operands, line, stages)
        elif instruction not in OTHERS:
            place = Place(self.shell.where, line)
            self.declared += not_read(UnreadKind.FILE, f"an instruction that is not known: {instruction[:40]}", place)

    def has_environment_in(self, name: str) -> bool:
        """Return whether an environment of Python is made in the stage, and this folder has the working one."""
        return self.shell.installs.environments and not relpath(self.files.folder, name).startswith("..")

    def started(self) -> Declared:
        """Return what the stage declares, with the command that it starts."""
        forms = {name: (_json_words(operands), operands, line) for name, (operands, line) in self.starts.items()}
        entry, command = forms.get("ENTRYPOINT"), forms.get("CMD")
        if entry and entry[0] and command and command[0]:
            forms = {"ENTRYPOINT": ([*entry[0], *command[0]], "", command[2])}
        return total([self.declared, *(self._execute(*form, self.files) for form in forms.values())])

    def _execute(self, words: Sequence[str], operands: str, line: int, files: _Files) -> Declared:
        """Return what the words of the JSON form declare, or the text of a shell."""
        self.shell.open_file, self.shell.installs.folder = files.open, files.folder
        if words:
            return self.shell.run(words, Place(self.shell.where, line), self.shell.environ())
        return self.shell.read(operands, line)

    def _run(self, operands: str, line: int, stages: Mapping[str, _Stage]) -> Declared:
        files = replace(self.files)
        flags, operands, line = _flags(operands, line)
        for mount in (value for name, value in flags if name == "mount"):
            fields = dict(part.split("=", 1) for part in mount.split(",") if "=" in part)
            target = next((fields[key] for key in ("target", "dst", "destination") if key in fields), "")
            if fields.get("type", "bind") == "bind" and target:
                source = next((fields[key] for key in ("source", "src") if key in fields), ".")
                files.copy([source, target], self._source(fields.get("from", ""), stages))
        document = re.match(rf"(?ms){DOCUMENT.pattern}\n(.*?)^[ \t]{{0,99}}\1[ \t]{{0,99}}$", operands)
        if document and (not document[2].startswith("#!") or re.match(r"#!.{0,99}\b(ba|da|z)?sh\b", document[2])):
            return self._execute((), document[2], line + 1, files)
        return self._execute(_json_words(operands), operands, line, files)

    def _copy(self, operands: str, line: int, stages: Mapping[str, _Stage]) -> None:
        flags, paths, line = _flags(operands, line)
        head, _, body = paths.partition("\n")
        if ends := DOCUMENT.findall(head):
            self._write(ends, head.split()[-1], body, line)
            return
        quoted = [word for text in _json_words(paths) for word in self.shell.words(f'"{text}"')]
        names = quoted or self.shell.words(paths)
        origin = dict(flags).get("from", "")
        stage = stages.get(origin.lower())
        if stage and any(ENVIRONMENT.search(name) or stage.has_environment_in(name) for name in names[:-1]):
            self.declared += Declared(pins=stage.declared.pins, unread=stage.declared.unread)
        sources = [name if origin else name.lstrip("/") or "." for name in names[:-1]]
        self.files.copy([*sources, *names[-1:]], self._source(origin, stages))

    def _write(self, ends: Sequence[str], target: str, body: str, line: int) -> None:
        """Record the files that here-documents write, with their lines in the Dockerfile."""
        for end in ends:
            last_line = re.search(rf"^\s*{re.escape(end)}\s*$", body, re.MULTILINE)
            text, body = (body[: last_line.start()], body[last_line.end() + 1 :]) if last_line else (body, "")
            path = join(target, end) if target.endswith("/") else target
            opened = self.shell.where, "\n" * line + re.sub(r"^\t+", "", text, flags=re.MULTILINE)
            self.files.copies += ((".", path, {".": opened}.get),)
            line += text.count("\n") + 1

    def _source(self, origin: str, stages: Mapping[str, _Stage]) -> Open:
        """Return what opens the files of a stage, of the build context without one, and none of another image."""
        stage = stages.get(origin.lower())
        return stage.files.open if stage else _unknown if origin else self.context


def read_dockerfile(
    text: str, where: str, open_file: Open, built_with: Mapping[str, str] | None = None, target: str = ""
) -> Declared:
    """Return what the stage `target`, or the last one, declares, with the stages that it starts from.

    `built_with` has the values that a build gives to ARG.
    """
    require_at_most(LARGEST, len(text), "characters", where)
    open_file = _in_context(where, open_file)
    stages: dict[str, _Stage] = {}  # those before the current one
    values = built_with or {}
    arguments = stage = _Stage(open_file, Shell(where, open_file), built_with=values)  # of ARG before the first FROM
    number, name = -1, ""
    for count, (line, instruction, operands) in enumerate(_instructions(text), start=1):
        require_at_most(MOST, count, "instructions", where)
        if instruction != "FROM":
            stage.read(instruction, operands, line, stages)
            continue
        if number >= 0:
            stages |= dict.fromkeys((str(number), name), stage)
        if target.lower() in stages:
            break
        words = [word for word in arguments.shell.words(operands) if not word.startswith("--")] or [operands]
        base = stages.get(words[0].lower())
        stage = _Stage(open_file, Shell(where, open_file), built_with=values, defaults=arguments.shell.variables)
        if base:
            stage.follow(base)
        elif words[0] != "scratch":
            stage.declared = Declared(images=(ImageUse(words[0], Place(where, line)),))
        number += 1
        name = words[2].lower() if len(words) > 2 and words[1].lower() == "as" else str(number)
    return stage.started()


def _in_context(where: str, open_file: Open) -> Open:
    """Return what opens files of the build context: of the Dockerfile's folder, or of one above a folder `docker`."""
    folders = dirname(where).split("/")[-LEVELS:]
    levels = next((len(folders) - index for index, name in enumerate(folders) if CONTEXT.search(name)), 0)

    def opened(name: str) -> tuple[str, str] | None:
        candidates = (open_file(join("../" * level, name)) for level in range(levels + 1))
        return next(filter(None, candidates), None)

    return opened


def _unknown(_: str) -> tuple[str, str] | None:
    return None


def _flags(operands: str, line: int) -> tuple[list[tuple[str, str]], str, int]:
    """Return the flags before the operands of an instruction, the operands, and the line where they start."""
    flags, position = list[tuple[str, str]](), 0
    while flag := FLAG.match(operands, position):
        flags.append((flag[1], flag[2] or ""))
        position = flag.end()
    space = SPACE.match(operands, position)
    position = space.end() if space else position
    return flags, operands[position:], line + operands.count("\n", 0, position)


def _assign(shell: Shell, operands: str, line: int, *, exported: bool) -> Declared:
    """Set the variables of ARG NAME[=VALUE] or ENV NAME=VALUE ... or ENV NAME VALUE; return what they declare."""
    if exported and not re.match(r"\w+=", operands):
        key, _, value = operands.partition(" ")
        operands = f'{key}="{value.strip()}"'
    before = set(shell.variables)
    declared = shell.read(f"export {operands}" if exported else operands if "=" in operands else "", line)
    if not exported:  # the value of an ARG stays inside the build
        shell.exported -= set(shell.variables) - before
    return declared


def _json_words(text: str) -> list[str]:
    """Return the words of an instruction in JSON form, [] for any other form."""
    try:
        words = json.loads(text) if text.startswith("[") else []
    except (ValueError, RecursionError):
        return []
    return words if all(isinstance(word, str) for word in words) else []


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, INSTRUCTION, operands); continued lines and here-documents belong to their instruction."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        first = number
        line = lines[number].strip()
        number += 1
        if not line or line.startswith("#"):
            continue
        parts = [line]
        while parts[-1].endswith("\\") and number < len(lines):
            following = lines[number].strip()
            number += 1
            if following and not following.startswith("#"):  # a comment or nothing between continued lines
                parts.append(following)
        whole = "\n".join(parts)
        for end in DOCUMENT.findall(whole):
            while number < len(lines):
                whole += "\n" + lines[number]
                number += 1
                if lines[number - 1].strip() == end:
                    break
        instruction, operands = (*whole.split(maxsplit=1), "")[:2]
        yield first + 1, instruction.upper(), operands.strip()
