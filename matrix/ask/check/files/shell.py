"""Shell scripts and sbatch files: what they install, the images they name, the commands they start.

The script is read, not run: variables that it sets are expanded, command substitutions stay as they are. A condition
on values that the file states decides; of any other one all branches are read, and what they remove is not known.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from posixpath import basename
from typing import Final

from matrix.ask.check.files.conditions import Conditions, is_test
from matrix.ask.check.files.declared import (
    LARGEST,
    MOST,
    Declared,
    ImageUse,
    Open,
    UnreadKind,
    UserCommand,
    not_read,
    pin,
    require_at_most,
    total,
)
from matrix.ask.check.files.installs import CONDA, Installs
from matrix.ground.catalog.stack import Place
from matrix.ground.verdicts.text import MASKED, mask

LONGEST: Final = 2**16  # characters of an expanded word; X=$X$X doubles with each line
LONGEST_COMMAND: Final = 2**20  # characters of the words of one command, as of Linux (ARG_MAX is 2 MiB)
DEEPEST: Final = 10  # srun bash -c "srun bash -c ..." has four; real scripts nest two shells
BRANCHES: Final = frozenset({"if", "then", "else", "elif", "fi", "case", "esac"})
SKIPPED: Final = BRANCHES | {"do", "done", "while", "until", "!", "{", "}"}
PREFIXES: Final = frozenset({"time", "exec", "nohup", "command", "sudo"})
DECLARE: Final = frozenset({"export", "local", "readonly", "declare", "typeset"})
SHELLS: Final = frozenset({"bash", "sh", "zsh", "dash"})
STARTERS: Final = frozenset(
    {"torchrun", "mpirun", "mpiexec", "srun", "accelerate", "deepspeed", "uv", "python", "python3", "megatron", "swift"}
)
COMPONENTS: Final = frozenset({"srun", "mpirun", "mpiexec"})  # launchers of several commands with ":" between them
HET_GROUP: Final = ("--het-group", "--pack-group")
SOURCES: Final = ("source", ".")
SCRIPT: Final = re.compile(r"\.(sh|bash|sbatch|slurm)$")
NO_SCRIPT: Final = re.compile(r"(?!)")
# Scripts of the machine, which set paths and modules but install nothing.
ELSEWHERE: Final = re.compile(
    r"^(/etc/|~/\.|\$\{?HOME\}?/\.)|(^|/)(\.?\w*rc|\.?(bash_)?profile|conda\.sh|modules?\.sh|setvars\.sh|nvidia_entrypoint\.sh)$"
)
# The folder of the script itself, as scripts name it; its files are looked up beside the file that is read.
FOLDER: Final = re.compile(r"^(\$\(.*\)|`.*`|\$\{?\w+\}?)/", re.DOTALL)
CONTAINERS: Final = frozenset({"docker", "podman", "enroot", "apptainer", "singularity"})
IMAGE_OPTION: Final = re.compile(r"--container-image(?:=(.*))?")
ENVIRONMENT_FILE: Final = re.compile(r"--(?:container-image|environment)(?:=(.*))?")  # of Slurm: a file names the image
IMAGE_WORD: Final = re.compile(r"nvcr\.io[/#]|\.(sif|simg|sqsh)$|^docker://|^[\w.-]+(/[\w.-]+)+:[\w.-]+$")
MODULES: Final = re.compile(r"torch|megatron|transformer-?engine|nemo|conda", re.IGNORECASE)  # of Environment Modules
FETCHES: Final = frozenset({"curl", "wget"})
# Installers of tools: they bring no package of a stack.
TOOLS: Final = re.compile(
    r"//(astral\.sh|sh\.rustup\.rs|deb\.nodesource\.com|get\.docker\.com|install\.python-poetry\.org)(/|$|\s)"
)
CHECKOUT: Final = re.compile(r"megatron-lm", re.IGNORECASE)
BUILDS: Final = re.compile(r"(^|/)(build|autogen|configure|bootstrap|make)[\w-]*\.sh$")  # as a clone has for itself
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
    r"\$(?:\{(?P<braced>\w+|@)(?P<array>\[[@*]\])?(?::?(?P<how>[-=])(?P<default>(?:[^{}]|\{[^{}]*\})*))?\}|(?P<name>\w+|@))"
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


@dataclass(frozen=True)
class _Command:
    """A command: its words, the lines and texts of its here-documents, the operator behind it, its place."""

    words: tuple[_Word, ...]
    documents: tuple[tuple[int, str], ...]
    operator: str
    place: Place
    written: tuple[str, ...] = ()  # the files of its redirections

    @property
    def defines(self) -> str:
        """The function whose definition begins here, "" for any other command: name() {, function name {."""
        texts = [word.text for word in self.words if word.text != "{"]
        header = texts[1:] if texts[:1] == ["function"] else texts if self.operator == "(" else []
        return header[0] if len(header) == 1 else ""


@dataclass
class Shell:
    """The state of a shell while a script is read: its variables, and the names that it exports."""

    where: str
    open_file: Open
    variables: dict[str, list[str]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    installs: Installs = field(default_factory=Installs)
    components: list[dict[str, list[str]]] = field(default_factory=list)  # variables of a heterogeneous job's parts
    scripts: tuple[str, ...] = ()  # that are being read
    depth: int = 0
    count: int = 0  # of the commands read
    undecided: bool = False  # whether the command that is read runs
    doubtful: set[str] = field(default_factory=set)  # variables with another value where it does not run
    perhaps: set[str] = field(default_factory=set)  # options that are assigned only where a command may not run
    certain: set[str] = field(default_factory=set)  # those that are assigned anywhere else
    functions: dict[str, tuple[_Command, ...]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)  # functions

    def read(self, text: str, first_line: int = 1) -> Declared:
        """Return what a script declares; `first_line` is the number of its first line in the file."""
        require_at_most(LARGEST, len(text), "characters", self.where)
        newlines = [newline.start() for newline in re.finditer("\n", text)]

        def line_of(position: int) -> int:
            return first_line + bisect_right(newlines, position - 1)

        declared = self._follow(
            _Command(
                tuple(words),
                tuple((line_of(start), content) for start, content in documents),
                operator,
                Place(self.where, line_of(words[0].position)),
                tuple(outputs),
            )
            for words, documents, operator, outputs in _commands(text)
        )
        if not self.depth:  # a function that nothing in the file calls may be called from elsewhere
            uncalled = [body for name, body in self.functions.items() if name not in self.called]
            self.functions.clear()
            declared += total(list(map(self._follow, uncalled)))
        return declared

    def _follow(self, commands: Iterable[_Command]) -> Declared:
        """Return what commands declare, in order; those of a function when it is called."""
        parts, conditions, piped, outer, stream = (
            list[Declared](),
            Conditions(),
            list[str](),
            self.undecided,
            iter(commands),
        )
        for command in stream:
            if name := command.defines:
                self.functions[name] = _body(stream, command)
                continue
            self.count += 1
            require_at_most(MOST, self.count, "commands", self.where)
            words = command.words
            keywords = list(takewhile(BRANCHES.__contains__, (word.text for word in words)))
            for keyword in keywords:
                conditions.enter(keyword)
            runs, inner = conditions.runs, words[len(keywords) :]
            self._decide(undecided=outer or runs is None)
            declared = self._command(inner, command.place) if runs is not False else Declared()
            parts.append(declared if runs else _perhaps(declared))
            texts = [word.text for word in inner]
            self.installs.written.update(map(basename, command.written))
            if runs is not False:
                parts.append(_fetched(piped, texts, command.place))
            piped = texts if command.operator == "|" else []
            conditions.leave(
                [text for word in inner for text in self._expand(word)] if is_test(texts) else texts, command.operator
            )
            if command.documents and runs is not False and _reads_input([word.text for word in words]):
                parts += [self._document(text, line) for line, text in command.documents]
        self.undecided = outer
        return total(parts)

    def _invoke(self, name: str, words: Sequence[str]) -> Declared:
        """Return what a function declares that is called with these words."""
        positional = {"@": [*words], **{str(at): [word] for at, word in enumerate(words, start=1)}}
        outer = {key: value for key, value in self.variables.items() if key == "@" or key.isdecimal()}
        self.called.add(name)
        self.variables = {**{key: value for key, value in self.variables.items() if key not in outer}, **positional}
        declared = self._follow(self.functions[name])
        self.variables = {**{key: value for key, value in self.variables.items() if key not in positional}, **outer}
        return declared

    def _decide(self, *, undecided: bool) -> None:
        """Begin a command; after one that may not run, a variable of which it set another value has none."""
        self.undecided = undecided
        if not undecided:
            for name in self.doubtful:
                self.variables.pop(name, None)
            self.doubtful.clear()

    def _document(self, text: str, line: int) -> Declared:
        """Return what a here-document declares that a shell runs."""
        if self.depth > DEEPEST:
            return not_read(UnreadKind.FILE, f"shells start each other {DEEPEST} deep", Place(self.where, line))
        self.depth += 1
        try:
            return self.read(text, line)
        finally:
            self.depth -= 1

    def words(self, text: str) -> list[str]:
        """Return the words of a text, with the variables that are set."""
        self.read(f"words=({text})")
        return self.variables.pop("words", [])

    def _command(self, command_words: Sequence[_Word], place: Place) -> Declared:
        words, local = list(command_words), {}
        while words and words[0].text in SKIPPED | PREFIXES:
            words.pop(0)
        if words and words[0].text == "for":
            return Declared()
        declares = bool(words) and words[0].text in DECLARE
        if declares:
            names = [word.text.partition("=")[0] for word in words[1:]]
            self.exported.update(names if words[0].text == "export" else ())
            words = [word for word in words[1:] if "=" in word.text]
        while words and (assignment := ASSIGNMENT.fullmatch(words[0].text)):
            word, name = words.pop(0), assignment[1]
            value = (
                self._bounded(text for one in word.array for text in self._expand(one))
                if word.array is not None
                else [self._joined(word).partition("=")[2]]
            )
            (self.perhaps if self.undecided else self.certain).update(" ".join(value).split())
            before = self.variables.get(name, [])
            if assignment[2]:
                value = [*before, *value] if word.array is not None else ["".join([*before, *value])]
            elif self.undecided and before not in ([], value):
                self.doubtful.add(name)
            if not POSITIONAL.fullmatch(" ".join(value)):  # an option of the script: its default counts
                local[name] = [MASKED] if mask(f"{name}=x") != f"{name}=x" else value  # others' files set it, too
        checkouts = self.checkouts(local.get("PYTHONPATH", []), place)
        if not words:
            self.variables |= local
            return checkouts
        expanded = self._bounded(text for word in words for text in self._expand(word))
        return checkouts + self.run(expanded, place, self.environ() | scalars(local))

    def checkouts(self, path: Iterable[str], place: Place) -> Declared:
        """Return the working copies of Megatron-LM on a PYTHONPATH: they come before an installed megatron-core."""
        folders = [folder.rstrip("/") for text in path for folder in text.split(":")]
        copies = [folder for folder in folders if CHECKOUT.match(basename(folder)) and not self.installs.cloned(folder)]
        return Declared(pins=tuple(pin("megatron-core", "", place, f"==={copy}") for copy in copies))

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
            return self.installs.synced(words, place, self.open_file) + self._run(words, place, environ)
        finally:
            self.depth -= 1

    def _run(self, words: Sequence[str], place: Place, environ: Mapping[str, str]) -> Declared:
        program, rest = basename(words[0]), list(words[1:])
        if program == "set" and rest[:1] == ["--"]:
            self.variables |= {"@": rest[1:], **{str(at): [word] for at, word in enumerate(rest[1:], start=1)}}
            return Declared()
        if words[0] in self.functions:
            return self._invoke(words[0], rest)
        if program == "eval":
            return self._document(" ".join(rest), place.line)
        if program in COMPONENTS and ":" in rest:  # several commands of one step, each with options of its own
            colon = rest.index(":")
            further = [program, *rest[colon + 1 :]]
            return self.run(words[: colon + 1], place, environ) + self.run(further, place, environ)
        if program in SHELLS and rest[:1] and rest[0].startswith("-") and "c" in rest[0]:
            passed = {name: [value] for name, value in environ.items()}
            variables, exported = {**self.variables, **passed}, self.exported | passed.keys()
            shell = replace(self, variables=variables, exported=exported, doubtful=set())
            declared = shell.read(" ".join(rest[1:2]), place.line)
            self.count = shell.count
            return declared
        if (installed := self.installs.read(words, place, self.open_file)) is not None:
            return installed
        if program == "module" and {"load", "add"} & {*rest[:1]} and MODULES.search(" ".join(rest)):
            return not_read(UnreadKind.FILE, f"what {' '.join(words)[:100]} brings is not read", place)
        if (script := _script_of(words)) is not None:
            return self._call(script, place, in_place=words[0] in SOURCES)
        if activated := _activated(words):
            text = f"what the environment {activated} contains is not read"
            return Declared() if self.installs.environments else not_read(UnreadKind.FILE, text, place)
        images = tuple(ImageUse(one, place) for one in _images(program, rest))
        environ = {**environ, **self._component(rest)} if program in COMPONENTS else environ
        scripts = SCRIPT if program in COMPONENTS | CONTAINERS else NO_SCRIPT
        inner = next((n for n, word in enumerate(rest) if basename(word) in SHELLS or scripts.search(word)), None)
        starts = program in STARTERS or any(word.endswith(".py") for word in rest)
        if inner is not None:  # srun ... bash -c "torchrun ...": the options of a launcher belong to the command
            declared = self.run(rest[inner:], place, environ)
            return Declared(images=images) + (_prefixed(words[: inner + 1], declared) if starts else declared)
        command = UserCommand(tuple(words), place, dict(environ), frozenset(words) & (self.perhaps - self.certain))
        return Declared(images=images, commands=(command,) if starts else ())

    def _call(self, name: str, place: Place, *, in_place: bool) -> Declared:
        """Return what a script declares that a command starts, or reads in this shell."""
        cloned = self.installs.cloned(name)
        if ELSEWHERE.search(name) or (cloned and BUILDS.search(name)):
            return Declared()
        opened = None if cloned else self.open_file(name) or self.open_file(FOLDER.sub("", name))
        if opened is None:
            why = "of a clone is not read" if cloned else "is missing"
            return not_read(UnreadKind.FILE, f"the script {name} {why}", place)
        path, text = opened
        if path in self.scripts:
            return Declared()
        shell = replace(self, where=path, scripts=(*self.scripts, path))
        if not in_place:
            shell.functions, shell.called, shell.doubtful = {}, set(), set()
            passed = self.exported & self.variables.keys()
            shell.variables, shell.exported = {name: self.variables[name] for name in passed}, passed
            shell.installs = replace(self.installs)
        declared = shell.script(text)
        self.count = shell.count
        return declared

    def _component(self, words: Sequence[str]) -> dict[str, str]:
        """Return the variables of the component of a heterogeneous job in which a step runs."""
        numbers = [int(value) for option, value in _options(words) if option in HET_GROUP and value.isdecimal()]
        return scalars(self.components[numbers[0]]) if numbers and numbers[0] < len(self.components) else {}

    def script(self, text: str) -> Declared:
        """Return what a script declares, with the options of sbatch in it."""
        images, components = [], [dict[str, list[str]]()]
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith("#SBATCH"):
                words = line.partition(" #")[0].split()[1:]
                images += [ImageUse(image, Place(self.where, number)) for image in _images("sbatch", words)]
                if words[:1] in (["hetjob"], ["packjob"]):
                    components.append({})
                for option, value in _options(words):
                    components[-1] |= {name: [value] for name in SLURM.get(option, ())}
        self.components = components
        self.variables |= components[0]  # a script runs in the first component
        self.exported.update(components[0])
        return Declared(images=tuple(images)) + self.read(text)

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
        end = 0
        for variable in _VARIABLE.finditer(text):
            yield [text[end : variable.start()]]
            end = variable.end()
            name = variable["braced"] or variable["name"]
            array = "@" if name == "@" else variable["array"]
            values = self.variables.get(name)
            if values is None and (default := variable["default"]) is not None:
                # Braces do not nest any deeper: the pattern would not have matched.
                default = re.sub(r"^([\"'])(.*)\1$", r"\2", default)
                parts = self._substitute(default, quoted=True, whole=True)
                values = ["".join(one for part in parts for one in part)]
                if variable["how"] == "=":
                    self.variables[name] = values
            if values is None:
                values = [variable[0]]
            elif quoted and (whole or not array or "@" not in array):
                values = [" ".join(values)]
            elif not quoted:
                values = " ".join(values).split() if not array else values
            yield values
        yield [text[end:]]


def read_script(text: str, where: str, open_file: Open) -> Declared:
    """Return what a shell script or sbatch file declares."""
    return Shell(where, open_file).script(text)


_SECTION: Final = re.compile(r"^[ \t]{0,99}%(\w{1,99})", re.MULTILINE)
_FROM: Final = re.compile(r"^[ \t]{0,99}from[ \t]{0,99}:[ \t]{0,99}(\S+)", re.MULTILINE | re.IGNORECASE)


def read_definition(text: str, where: str, open_file: Open) -> Declared:
    """Return what a definition file of Apptainer declares: the image that it is made from, and what it runs."""
    shell, parts, sections = Shell(where, open_file), list[Declared](), list(_SECTION.finditer(text))
    header = text[: sections[0].start()] if sections else text
    images = [
        ImageUse(line[1], Place(where, text.count("\n", 0, line.start(1)) + 1)) for line in _FROM.finditer(header)
    ]
    for section, end in zip(sections, [*(section.start() for section in sections[1:]), len(text)], strict=True):
        if section[1] in ("post", "environment", "runscript"):
            body = text[section.end() : end].partition("\n")[2]  # behind the options of the section
            parts.append(shell.read(body, text.count("\n", 0, section.end()) + 2))
    return total([Declared(images=tuple(images)), *parts])


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of --option=value, --option value, -N value and -N4."""
    for place, word in enumerate(words):
        option, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        yield option, value if equals else words[place + 1] if place + 1 < len(words) else ""


def _script_of(words: Sequence[str]) -> str | None:
    """Return the script that a command starts or reads, None for any other command."""
    named = [word for word in words[1:] if not word.startswith("-")]
    if words[0] in SOURCES or basename(words[0]) in SHELLS:
        return None if not named or named[0].endswith("/activate") else named[0]
    if basename(words[0]) == "sbatch":
        return next((word for word in named if SCRIPT.search(word)), None)
    return words[0] if SCRIPT.search(words[0]) else None


def _activated(words: Sequence[str]) -> str:
    """Return the environment of Python that a command activates, "" for any other command."""
    if words[0] in SOURCES and words[1:] and words[1].endswith("/activate"):
        return words[1].removesuffix("/bin/activate")
    if basename(words[0]) in CONDA and words[1:2] == ["activate"]:
        return "".join(words[2:3]) or "base"
    return ""


def scalars(variables: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the values of the variables that are no arrays."""
    return {name: values[0] for name, values in variables.items() if len(values) == 1}


def _body(commands: Iterator[_Command], definition: _Command) -> tuple[_Command, ...]:
    """Return the commands of a function, up to its closing brace."""
    body, depth = list[_Command](), sum(word.text == "{" for word in definition.words)
    for command in commands:
        depth += {"{": 1, "}": -1}.get(command.words[0].text, 0)
        body.append(command)
        if depth <= 0:
            break
    return tuple(body)


def _perhaps(declared: Declared) -> Declared:
    """Return what a command declares that may not run: whether a package that it removes is installed is not known."""
    pins = tuple(replace(pin.left_open(), perhaps=True) for pin in declared.pins)
    return replace(declared, pins=pins, images=tuple(replace(image, perhaps=True) for image in declared.images))


def _prefixed(prefix: Sequence[str], declared: Declared) -> Declared:
    return replace(declared, commands=tuple(replace(one, words=(*prefix, *one.words)) for one in declared.commands))


def _images(program: str, words: Sequence[str]) -> Iterator[str]:
    pattern = ENVIRONMENT_FILE if program in ("sbatch", "srun") else IMAGE_OPTION
    for place, word in enumerate(words):
        if option := pattern.fullmatch(word):
            value = option[1] if option[1] is not None else words[place + 1] if place + 1 < len(words) else ""
            if value:
                yield value
    uses = {"run", "pull", "import", "exec", "shell"} & {*words}
    if uses and not CONTAINERS.isdisjoint((program, *map(basename, words))):
        yield from (word for word in words if IMAGE_WORD.search(word) and not word.startswith("-"))


def _fetched(source: Sequence[str], words: Sequence[str], place: Place) -> Declared:
    """Return that a program of the network is not read that a shell runs; those of some tools install no package."""
    addresses = [word for word in source if "://" in word or "$" in word]
    runs = not FETCHES.isdisjoint(map(basename, source)) and not SHELLS.isdisjoint(map(basename, words))
    if not runs or TOOLS.search(" ".join(addresses)):
        return Declared()
    return not_read(UnreadKind.FILE, f"what {' '.join(source)[:100]} fetches, and a shell runs, is not read", place)


def _reads_input(words: Sequence[str]) -> bool:
    """Return whether a command starts a shell that runs its standard input."""
    return basename(next((word for word in reversed(words) if not word.startswith("-")), "")) in SHELLS


def _commands(text: str) -> Iterator[tuple[list[_Word], list[tuple[int, str]], str, list[str]]]:
    """Yield the commands of a script as their words, the positions and texts of here-documents, the operator behind,
    and the files that they write."""
    scanner = _Scanner(text)
    words, outputs = list[_Word](), list[str]()
    while (token := scanner.next()) is not None:
        if isinstance(token, _Word):
            words.append(token)
        elif re.search("[<>]", token):
            file = scanner.next() if "&" not in token[1:] else None
            outputs += [file.text] if isinstance(file, _Word) and ">" in token else []
        elif words:
            yield words, scanner.taken_documents(), token, outputs
            words, outputs = [], []
        else:
            scanner.taken_documents()
    if words:
        yield words, scanner.taken_documents(), "", outputs


class _Scanner:
    """Splits a script into words and operators."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._in_array = text, 0, False
        self._documents: list[str] = []  # ends of here-documents that start after the current line
        self._read: list[tuple[int, str]] = []  # positions and texts of those before it

    def next(self) -> _Word | str | None:
        """Return the next word or operator, None at the end."""
        pieces: list[tuple[str, bool, bool]] = []
        start = self._at
        while self._at < len(self._text):
            piece = _PIECE.match(self._text, self._at)
            if piece is None:
                break
            kind, text = piece.lastgroup, piece[0]
            if kind in ("end", "quote"):
                kind = "heredoc"
            if kind in ("space", "operator", "heredoc") or (kind == "comment" and not pieces):
                starts_array = pieces and kind == "operator" and text == "(" and pieces[-1][0].endswith("=")
                if starts_array and not self._in_array:  # an array in an array is an error for bash
                    return self._array(pieces, start)
                if pieces:
                    return _Word(tuple(pieces), start)
                self._at = start = piece.end()
                if kind == "heredoc":
                    self._documents.append(piece["end"])
                elif kind == "operator":
                    if text == "\n":
                        self._skip_documents()
                    return text
                continue
            self._at = piece.end()
            pieces.append(self._piece(kind or "", text))
        return _Word(tuple(pieces), start) if pieces else None

    def _piece(self, kind: str, text: str) -> tuple[str, bool, bool]:
        if kind == "single":
            return text[1:-1], True, True
        if kind == "double":
            text = re.sub(r'\\(["\\$`\n])', lambda pair: "" if pair[1] == "\n" else pair[1], text[1:-1])
            return text, True, False
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

    def taken_documents(self) -> list[tuple[int, str]]:
        """Return the positions and texts of the here-documents that ended since the last call."""
        documents, self._read = self._read, []
        return documents

    def _skip_documents(self) -> None:
        for end in self._documents:
            last_line = re.compile(rf"^[ \t]*{re.escape(end)}[ \t]*$", re.MULTILINE).search(self._text, self._at)
            self._read.append((self._at, self._text[self._at : last_line.start() if last_line else None]))
            self._at = last_line.end() if last_line else len(self._text)
        self._documents.clear()
