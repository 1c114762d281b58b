"""Shell scripts and sbatch files: what they install, the images they name, the commands they start.

The script is read, not run: variables that it sets are expanded, command substitutions stay as they are. All branches
of a condition are read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from posixpath import basename
from typing import Final

from matrix.catalog.place import Place
from matrix.check.files.declared import (
    LARGEST,
    MOST,
    Declared,
    ImageUse,
    Open,
    UnreadKind,
    UserCommand,
    not_read,
    require_at_most,
    total,
)
from matrix.check.files.requirements import from_location, read_arguments

LONGEST: Final = 2**16  # characters of an expanded word; X=$X$X doubles with each line
LONGEST_COMMAND: Final = 2**20  # characters of the words of one command, as of Linux (ARG_MAX is 2 MiB)
DEEPEST: Final = 10  # srun bash -c "srun bash -c ..." has four; real scripts nest two shells
SKIPPED: Final = frozenset({"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}"})
PREFIXES: Final = frozenset({"time", "exec", "nohup", "command", "sudo"})
DECLARE: Final = frozenset({"export", "local", "readonly", "declare", "typeset"})
SHELLS: Final = frozenset({"bash", "sh", "zsh", "dash"})
STARTERS: Final = frozenset(
    {"torchrun", "mpirun", "mpiexec", "srun", "accelerate", "deepspeed", "uv", "python", "python3"}
)
CONTAINERS: Final = frozenset({"docker", "podman", "enroot", "apptainer", "singularity"})
IMAGE_OPTION: Final = re.compile(r"--container-image(?:=(.*))?")
POSITIONAL: Final = re.compile(r"\$\{?[1-9]\}?")
ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)

# A piece of a word, an operator, a comment or a here-document's start; the rest is white space.
_PIECE: Final = re.compile(
    r"""(?P<space>(?:[ \t\r]|\\\n)+)
    |(?P<comment>\#[^\n]*)
    |(?P<single>'[^']*')
    |(?P<double>"(?:\\.|[^"\\])*")
    |(?P<heredoc><<-?\s*(?P<quote>['"]?)(?P<end>\w+)(?P=quote))
    |(?P<operator>\n|;;|&&|\|\||\d*&?[<>]+(?:&[\d-]+)?|[;&|()])
    |(?P<variable>\$\{(?:[^{}]|\{[^{}]*\})*\}|\$\w+|\$[@*#?])
    |(?P<substitution>\$\(\(?|`)
    |(?P<escaped>\\.)
    |(?P<plain>[^\s'"\\;&|()<>`$]+|.)""",
    re.VERBOSE | re.DOTALL,
)
# Of ${NAME:-a ${OTHER}}, too: the default may contain another variable.
_VARIABLE: Final = re.compile(
    r"\$(?:\{(?P<braced>\w+)(?P<array>\[[@*]\])?(?::?(?P<how>[-=])(?P<default>(?:[^{}]|\{[^{}]*\})*))?\}|(?P<name>\w+))"
)
# Variables that sbatch sets by its options; a script passes them on to launchers.
SLURM: Final = {
    "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "-n": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "-c": ("SLURM_CPUS_PER_TASK",),
    "--cpus-per-task": ("SLURM_CPUS_PER_TASK",),
}


@dataclass(frozen=True)
class _Word:
    """Pieces of a word: text, and whether it is quoted (no word splitting) or literal (no expansion either)."""

    pieces: tuple[tuple[str, bool, bool], ...]
    position: int
    array: tuple[_Word, ...] | None = None

    @property
    def text(self) -> str:
        return "".join(text for text, _, _ in self.pieces)


@dataclass
class Shell:
    """The state of a shell while a script is read: its variables, and the names that it exports."""

    where: str
    open_file: Open
    variables: dict[str, list[str]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    cloned: str = ""
    depth: int = 0
    count: int = 0  # of the commands read

    def read(self, text: str, first_line: int = 1) -> Declared:
        """Return what a script declares; `first_line` is the number of its first line in the file."""
        require_at_most(LARGEST, len(text), "characters", self.where)
        newlines = [found.start() for found in re.finditer("\n", text)]
        parts = []
        for words in _commands(text):
            self.count += 1
            require_at_most(MOST, self.count, "commands", self.where)
            line = first_line + bisect_right(newlines, words[0].position - 1)
            parts.append(self._command(words, Place(self.where, line)))
        return total(parts)

    def words(self, text: str) -> list[str]:
        """Return the words of a text, with the variables that are set."""
        self.read(f"words=({text})")
        return self.variables.pop("words", [])

    def _command(self, given: Sequence[_Word], place: Place) -> Declared:
        words, local = list(given), {}
        while words and words[0].text in SKIPPED | PREFIXES:
            words.pop(0)
        if words and words[0].text in ("for", "case", "function"):
            return Declared()
        declares = bool(words) and words[0].text in DECLARE
        if declares:
            names = [word.text.partition("=")[0] for word in words[1:]]
            self.exported.update(names if words[0].text == "export" else ())
            words = [word for word in words[1:] if "=" in word.text]
        while words and (found := ASSIGNMENT.fullmatch(words[0].text)):
            word, name = words.pop(0), found[1]
            value = (
                self._bounded(text for one in word.array for text in self._expand(one))
                if word.array is not None
                else [self._joined(word).partition("=")[2]]
            )
            if found[2]:
                before = self.variables.get(name, [])
                value = [*before, *value] if word.array is not None else ["".join([*before, *value])]
            if not POSITIONAL.fullmatch(" ".join(value)):  # an option of the script: its default counts
                local[name] = value
        if not words:
            self.variables |= local
            return Declared()
        expanded = self._bounded(text for word in words for text in self._expand(word))
        return self.run(expanded, place, self.environ() | scalars(local))

    def environ(self) -> dict[str, str]:
        """Return the exported variables; a shell exports no arrays."""
        return scalars({name: self.variables[name] for name in self.exported if name in self.variables})

    def run(self, words: Sequence[str], place: Place, environ: Mapping[str, str]) -> Declared:
        """Return what one command with expanded words declares."""
        if not words:
            return Declared()
        if self.depth > DEEPEST:
            return not_read(UnreadKind.FILE, f"shells start each other {DEEPEST} deep", place)
        self.depth += 1
        try:
            return self._run(words, place, environ)
        finally:
            self.depth -= 1

    def _run(self, words: Sequence[str], place: Place, environ: Mapping[str, str]) -> Declared:
        program, rest = basename(words[0]), list(words[1:])
        if program in SHELLS and rest[:1] and rest[0].startswith("-") and "c" in rest[0]:
            found = self.read(" ".join(rest[1:2]), place.line)
            commands = tuple(replace(one, environ={**environ, **one.environ}) for one in found.commands)
            return replace(found, commands=commands)
        if (arguments := _pip(words)) is not None:
            return read_arguments(arguments, place, self.open_file)
        if program == "git":
            return self._git(rest, place)
        images = tuple(ImageUse(one, place) for one in _images(program, rest))
        inner = next((index for index, word in enumerate(rest) if basename(word) in SHELLS), None)
        starts = program in STARTERS or any(word.endswith(".py") for word in rest)
        if inner is not None:  # srun ... bash -c "torchrun ...": the options of a launcher belong to the command
            found = self.run(rest[inner:], place, environ)
            return Declared(images=images) + (_prefixed(words[: inner + 1], found) if starts else found)
        return Declared(images=images, commands=(UserCommand(tuple(words), place, dict(environ)),) if starts else ())

    def _git(self, words: Sequence[str], place: Place) -> Declared:
        names = [word for word in words[1:] if not word.startswith("-")]
        if words[:1] == ["clone"]:
            branch = next((words[n + 1] for n, word in enumerate(words[:-1]) if word in ("-b", "--branch")), "")
            branch = branch or next((w.partition("=")[2] for w in words if w.startswith("--branch=")), "")
            self.cloned = next((name for name in names if "/" in name and name != branch), "")
            found = from_location(f"git+{self.cloned}@{branch}", place) if self.cloned and branch else None
            return Declared(pins=(found,)) if found else Declared()
        if words[:1] in (["checkout"], ["switch"]) and self.cloned and names:
            found = from_location(f"git+{self.cloned}@{names[-1]}", place)
            return Declared(pins=(found,)) if found else Declared()
        return Declared()

    def _bounded(self, words: Iterable[str]) -> list[str]:
        """Return the words. Raises MatrixError where no process could get all of them: arrays may double, too."""
        length, bounded = 0, []
        for word in words:
            length += len(word) + 1
            require_at_most(LONGEST_COMMAND, length, "characters in the words of one command", self.where)
            bounded.append(word)
        return bounded

    def _joined(self, word: _Word) -> str:
        return " ".join(self._expand(word, split=False))[:LONGEST]

    def _expand(self, word: _Word, *, split: bool = True) -> list[str]:
        """Return the words that a word becomes: unquoted values are split at white space, arrays at their items."""
        done: list[str] = [""]
        for text, quoted, literal in word.pieces:
            # "a ${ARRAY[@]}" is one word here, as its author meant it; "${ARRAY[@]}" alone is one word for each item.
            whole = quoted and not _VARIABLE.fullmatch(text)
            parts = [[text]] if literal else self._substitute(text, quoted=quoted or not split, whole=whole)
            for values in parts:
                done[-1] += values[0] if values else ""
                done += values[1:]
        kept = self._bounded(one[:LONGEST] for one in done)
        quoted_at_all = any(quoted for _, quoted, _ in word.pieces)
        return [one for one in kept if one or quoted_at_all]

    def _substitute(self, text: str, *, quoted: bool, whole: bool) -> Iterator[list[str]]:
        at = 0
        for found in _VARIABLE.finditer(text):
            yield [text[at : found.start()]]
            at = found.end()
            name, array = found["braced"] or found["name"], found["array"]
            values = self.variables.get(name)
            if values is None and (default := found["default"]) is not None:
                # Braces do not nest any deeper: the pattern would not have matched.
                parts = self._substitute(default, quoted=True, whole=True)
                values = ["".join(one for part in parts for one in part)]
                if found["how"] == "=":
                    self.variables[name] = values
            if values is None:
                values = [found[0]]
            elif quoted and (whole or not array or "@" not in array):
                values = [" ".join(values)]
            elif not quoted:
                values = " ".join(values).split() if not array else values
            yield values
        yield [text[at:]]


def read_script(text: str, where: str, open_file: Open) -> Declared:
    """Return what a shell script or sbatch file declares."""
    directives, shell = Declared(), Shell(where, open_file)
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#SBATCH"):
            words = line.partition(" #")[0].split()[1:]
            directives += Declared(
                images=tuple(ImageUse(one, Place(where, number)) for one in _images("sbatch", words))
            )
            for option, value in _options(words):
                names = SLURM.get(option, ())
                shell.variables |= {name: [value] for name in names}
                shell.exported.update(names)
    return directives + shell.read(text)


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of --option=value, --option value, -N value and -N4."""
    for place, word in enumerate(words):
        option, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        yield option, value if equals else words[place + 1] if place + 1 < len(words) else ""


def scalars(variables: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the values of the variables that are no arrays."""
    return {name: values[0] for name, values in variables.items() if len(values) == 1}


def _prefixed(prefix: Sequence[str], found: Declared) -> Declared:
    return replace(found, commands=tuple(replace(one, words=(*prefix, *one.words)) for one in found.commands))


def _pip(words: Sequence[str]) -> Sequence[str] | None:
    """Return the arguments of pip install, uv pip install, uv add or python -m pip install; None for others."""
    plain = [basename(word) for word in words[:6]]
    for lead in (["install"], ["add"]):
        for place, word in enumerate(plain[:-1]):
            if re.fullmatch(r"pip[\d.]*|uv|poetry", word) and plain[place + 1] == lead[0]:
                return words[place + 2 :]
    return None


def _images(program: str, words: Sequence[str]) -> Iterator[str]:
    for place, word in enumerate(words):
        if option := IMAGE_OPTION.fullmatch(word):
            value = option[1] if option[1] is not None else words[place + 1] if place + 1 < len(words) else ""
            if value:
                yield value
    if program in ("docker", "podman", "enroot", "apptainer", "singularity") and {"run", "pull", "import", "exec"} & {
        *words
    }:
        yield from (word for word in words if re.search(r"nvcr\.io[/#]", word) and not word.startswith("-"))


def _commands(text: str) -> Iterator[list[_Word]]:
    """Yield the commands of a script as their words."""
    scanner = _Scanner(text)
    words: list[_Word] = []
    while (token := scanner.next()) is not None:
        if isinstance(token, _Word):
            words.append(token)
        elif re.search("[<>]", token):
            if "&" not in token[1:]:
                scanner.next()  # the file of a redirection
        elif words:
            yield words
            words = []
    if words:
        yield words


class _Scanner:
    """Splits a script into words and operators."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._in_array = text, 0, False
        self._documents: list[str] = []  # ends of here-documents that start after the current line

    def next(self) -> _Word | str | None:
        """Return the next word or operator, None at the end."""
        pieces: list[tuple[str, bool, bool]] = []
        start = self._at
        while self._at < len(self._text):
            found = _PIECE.match(self._text, self._at)
            if found is None:
                break
            kind, text = found.lastgroup, found[0]
            if kind in ("end", "quote"):
                kind = "heredoc"
            if kind in ("space", "operator", "heredoc") or (kind == "comment" and not pieces):
                starts_array = pieces and kind == "operator" and text == "(" and pieces[-1][0].endswith("=")
                if starts_array and not self._in_array:  # an array in an array is an error for bash
                    return self._array(pieces, start)
                if pieces:
                    return _Word(tuple(pieces), start)
                self._at = start = found.end()
                if kind == "heredoc":
                    self._documents.append(found["end"])
                elif kind == "operator":
                    if text == "\n":
                        self._skip_documents()
                    return text
                continue
            self._at = found.end()
            pieces.append(self._piece(kind or "", text))
        return _Word(tuple(pieces), start) if pieces else None

    def _piece(self, kind: str, text: str) -> tuple[str, bool, bool]:
        if kind == "single":
            return text[1:-1], True, True
        if kind == "double":
            return re.sub(r'\\(["\\$`\n])', lambda found: "" if found[1] == "\n" else found[1], text[1:-1]), True, False
        if kind == "escaped":
            return text[1:], True, True
        if kind == "substitution":
            return text + self._to_end_of_substitution(text), False, True
        return text, False, False

    def _to_end_of_substitution(self, opening: str) -> str:
        start, depth = self._at, opening.count("(")
        while self._at < len(self._text):
            character = self._text[self._at]
            self._at += 1
            if opening == "`":
                if character == "`":
                    break
                continue
            if character in "'\"" and (closing := self._text.find(character, self._at)) != -1:
                self._at = closing + 1
            depth += {"(": 1, ")": -1}.get(character, 0)
            if depth == 0:
                break
        return self._text[start : self._at]

    def _array(self, pieces: list[tuple[str, bool, bool]], start: int) -> _Word:
        """Return the word NAME=(...), whose items may be on several lines."""
        self._at += 1
        self._in_array, items = True, []
        while (token := self.next()) is not None and token != ")":  # noqa: S105  (a token of the shell)
            if isinstance(token, _Word):
                items.append(token)
        self._in_array = False
        return _Word(tuple(pieces), start, tuple(items))

    def _skip_documents(self) -> None:
        for end in self._documents:
            found = re.compile(rf"^\s*{re.escape(end)}\s*$", re.MULTILINE).search(self._text, self._at)
            self._at = found.end() if found else len(self._text)
        self._documents.clear()
