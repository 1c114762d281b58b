"""Dockerfiles and Containerfiles: the image they start from and what they install."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from posixpath import basename, dirname, join, normpath, relpath

from matrix.catalog.place import Place
from matrix.check.files.declared import LARGEST, MOST, Declared, ImageUse, Open, require_at_most
from matrix.check.files.shell import Shell


@dataclass
class _Files:
    """The files of a stage that can be read: those that COPY, ADD and bind mounts take from the build context."""

    context: Open
    folder: str = "/"
    copies: tuple[tuple[str, str], ...] = ()  # path in the context, path in the image

    def copy(self, words: list[str]) -> None:
        """Record COPY SOURCE ... DESTINATION."""
        names = [word for word in words if not word.startswith("--")]
        if not any(word.startswith("--from=") for word in words):
            self.copies += tuple((normpath(one.lstrip("/") or "."), names[-1]) for one in names[:-1])

    def open(self, name: str) -> tuple[str, str] | None:
        """Return a file of the context by its path in the image, None for any other."""
        for source, place in reversed(self.copies):
            inside = relpath(join(self.folder, name), join(self.folder, place))
            if inside == "." or fnmatchcase(inside, basename(source)):
                path = source if inside == "." else join(dirname(source), inside)
            else:
                path = join(source, inside)
            if not normpath(path).startswith("..") and (found := self.context(normpath(path))):
                return found
        return None


def read_dockerfile(text: str, where: str, open_file: Open) -> Declared:
    """Return what the last stage declares, with the stages that it starts from."""
    stages: dict[str, tuple[Declared, Shell, _Files]] = {}
    arguments: dict[str, list[str]] = {}  # of ARG before the first FROM
    files = _Files(open_file)
    shell, stage, name, number = Shell(where, files.open), Declared(), "", 0
    require_at_most(LARGEST, len(text), "characters", where)
    for count, (line, instruction, rest) in enumerate(_instructions(text), start=1):
        require_at_most(MOST, count, "instructions", where)
        place = Place(where, line)
        if instruction == "FROM":
            stages[name] = stage, shell, files
            if not number:
                arguments = dict(shell.variables)
            files = _Files(open_file)
            shell = Shell(where, files.open, dict(arguments))
            words = [word for word in shell.words(rest) if not word.startswith("--")]
            image = words[0] if words else ""
            name = words[2].lower() if len(words) > 2 and words[1].lower() == "as" else str(number)
            number += 1
            stage = Declared(images=(ImageUse(image, place),) if image else ())
            if image.lower() in stages:
                stage, parent, inherited = stages[image.lower()]
                files.folder, files.copies = inherited.folder, inherited.copies
                shell.exported = set(parent.exported)
                shell.variables |= {key: parent.variables[key] for key in parent.exported if key in parent.variables}
        elif instruction in ("ARG", "ENV"):
            _assign(shell, rest, exported=instruction == "ENV")
        elif instruction in ("RUN", "CMD", "ENTRYPOINT"):
            stage += _run(shell, replace(files), rest, line, place)
        elif instruction == "WORKDIR":
            files.folder = join(files.folder, "".join(shell.words(rest)))
        elif instruction in ("COPY", "ADD"):
            files.copy(_operands(shell, rest))
    return stage


def _run(shell: Shell, files: _Files, rest: str, line: int, place: Place) -> Declared:
    for mount in re.findall(r"(?:^|\s)--mount=(\S+)", rest.partition("\n")[0]):
        fields = dict(part.split("=", 1) for part in mount.split(",") if "=" in part)
        target = next((fields[key] for key in ("target", "dst", "destination") if key in fields), "")
        if fields.get("type", "bind") == "bind" and target and "from" not in fields:
            source = next((fields[key] for key in ("source", "src") if key in fields), ".")
            files.copy([source, target])
    shell.open_file = files.open
    rest = re.sub(r"^(?:--\w+=\S+\s+)+", "", rest)
    if words := _json_words(rest):
        return shell.run(words, place, shell.environ())
    document = re.match(r"<<-?['\"]?(\w+)['\"]?\n(.*?)^\s*\1\s*$", rest, re.DOTALL | re.MULTILINE)
    return shell.read(document[2], line + 1) if document else shell.read(rest, line)


def _assign(shell: Shell, rest: str, *, exported: bool) -> None:
    """Set the variables of ARG NAME[=VALUE] or ENV NAME=VALUE ... or ENV NAME VALUE."""
    if exported and not re.match(r"\w+=", rest):
        key, _, value = rest.partition(" ")
        rest = f'{key}="{value.strip()}"'
    before = set(shell.variables)
    shell.read(f"export {rest}" if exported else rest if "=" in rest else "")
    if not exported:  # the value of an ARG stays inside the build
        shell.exported -= set(shell.variables) - before


def _operands(shell: Shell, rest: str) -> list[str]:
    """Return the flags and paths of COPY and ADD, whose paths may be a JSON list."""
    flags, paths = re.fullmatch(r"((?:--\S+\s+)*)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]  # matches any text
    words = [word for text in _json_words(paths) for word in shell.words(f'"{text}"')]
    return [*flags.split(), *words] if words else shell.words(rest)


def _json_words(text: str) -> list[str]:
    """Return the words of an instruction in JSON form, [] for any other form."""
    try:
        words = json.loads(text) if text.startswith("[") else []
    except (ValueError, RecursionError):
        return []
    return words if all(isinstance(word, str) for word in words) else []


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, INSTRUCTION, rest); continued lines and here-documents belong to their instruction."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        first = at
        line = lines[at].strip()
        at += 1
        if not line or line.startswith("#"):
            continue
        held = [line]
        while held[-1].endswith("\\") and at < len(lines):
            following = lines[at].strip()
            at += 1
            if not following.startswith("#"):  # a comment between continued lines
                held.append(following)
        whole = "\n".join(held)
        for end in re.findall(r"<<-?['\"]?(\w+)['\"]?", whole):
            while at < len(lines):
                whole += "\n" + lines[at]
                at += 1
                if lines[at - 1].strip() == end:
                    break
        instruction, _, rest = whole.partition(" ")
        yield first + 1, instruction.upper(), rest.strip()
