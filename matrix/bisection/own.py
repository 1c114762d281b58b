"""A command of the user's own as a failure of its own folder, and the draft of a catalog failure."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matrix.bisection.joint import BisectionAnswer
from matrix.bisection.noise import ProbeResult
from matrix.bisection.session import why
from matrix.catalog.codec import decode
from matrix.catalog.failure import Level, Signature
from matrix.catalog.folders import ENTRY, SITE, folder_name
from matrix.catalog.schema import read_toml
from matrix.catalog.versions import NONE
from matrix.errors import MatrixError
from matrix.store.paths import write_whole
from matrix.verdicts.record import Record
from matrix.verdicts.text import mask, one_line

DEADLINE: Final = "MEGATRIX_DEADLINE"
LARGEST: Final = 2**24  # bytes of a file named by the command whose content counts
TITLE: Final = 60  # characters of a command in a title
NIGHT_AXES: Final = {"bases": "base", "mcore": "mcore", "te": "te"}  # key of [night] -> part of a cell
ATTACHED: Final = 100  # lines of a file in the text of an issue
_ENTRY: Final = """\
id = {id}
title = {title}
references = []
axes = ["base", "mcore", "te", "driver"]
stand_ins = ["mcore-0.7"]
symptom = {symptom}
cause = {cause}
fix = "TODO"
{empty}
[[case]]
name = "command"
run = "run_command"
preload = false
levels = [{level}]
gpus = {gpus}
deadline = {deadline}
arguments = {{ {arguments} }}
"""
_REPRODUCTION: Final = '''\
"""Run the command of the entry in the cell."""

from pathlib import Path

from matrix.kit import command as commands


def run_command(rank, *, command, folder, metric="", repeats=1):
    return commands.run(rank, command, folder, metric, repeats, Path(__file__).with_name("files"))
'''
TODO: Final = "TODO"


@dataclass(frozen=True)
class OwnCommand:
    """A command to bisect: its words, the folder that it runs in, its deadline in seconds.

    `metric` is the regular expression of its number, "" where it passes or fails; `repeats` are its runs per probe.
    `ends` are the options that select the failing end, from which a signature is learned.
    """

    command: tuple[str, ...]
    folder: Path
    level: Level = Level.CPU
    deadline: int = 0
    metric: str = ""
    repeats: int = 1
    ends: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Return the failure's id. It depends on the content of the files that the command names."""
        files = [hashlib.sha256(path.read_bytes()).hexdigest() for path in self.named.values()]
        values = [*self.command, str(self.folder), self.level.value, self.metric, *self.ends, *files]
        content = json.dumps([*values, self.deadline, self.repeats])
        return f"own-{hashlib.sha256(content.encode(errors='surrogatepass')).hexdigest()[:12]}"

    @property
    def named(self) -> dict[str, Path]:
        """Return the files that the command names, by word, without large ones."""
        files = {word: self.folder / word for word in self.command if os.path.isfile(self.folder / word)}  # noqa: PTH113
        return {word: path for word, path in files.items() if path.stat().st_size <= LARGEST}

    @property
    def line(self) -> str:
        """Return the command as a shell's line, without secrets."""
        return mask(shlex.join(self.command))

    def write(self, root: Path, signatures: Sequence[Signature]) -> Path:
        """Write the failure's folder under `root`; return the path of its entry."""
        return self._write(root, self.entry(signatures))

    def _write(self, root: Path, entry: str) -> Path:
        """Write the entry, its reproduction and copies of the files below its folder that the command names."""
        folder = root / folder_name(self.id)
        write_whole(folder / "reproduction.py", _REPRODUCTION)
        for word, path in self.named.items():
            if not {"..", os.sep} & {*Path(word).parts}:
                (folder / "files" / word).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, folder / "files" / word)
        write_whole(folder / ENTRY, entry)
        return folder / ENTRY

    @property
    def attached(self) -> str:
        """Return the text files that the command names as Markdown, without secrets and long ones."""
        texts = {word: path.read_text(encoding="utf-8", errors="replace") for word, path in self.named.items()}
        short = {word: mask(text).splitlines() for word, text in texts.items() if "\0" not in text}
        return "".join(
            "\n".join([f"\n`{word}`:", "", *(f"    {line}" for line in lines), ""])
            for word, lines in short.items() if len(lines) <= ATTACHED
        )  # fmt: skip

    def signatures(self, root: Path) -> tuple[Signature, ...]:
        """Return the signatures of the entry that an earlier bisection wrote under `root`, () without one."""
        path = root / folder_name(self.id) / ENTRY
        return tables_of(read_toml(path), path) if path.is_file() else ()

    def draft(self, folder: Path, answer: BisectionAnswer, headlines: Sequence[str]) -> Path:
        """Write the draft of a catalog failure, with what the search measured; return its entry."""
        entry = read_toml(folder / "failures" / folder_name(self.id) / ENTRY)
        measured = measured_cells(answer)
        rules = "".join(dict.fromkeys(map(rule_text, measured))) + night_text(measured)
        signatures = tables_of(entry, folder)
        return self._write(folder / "draft", self.entry(signatures, f"{TODO}. Bisected: {'; '.join(headlines)}", rules))

    def entry(self, signatures: Sequence[Signature], cause: str = TODO, rules: str = "") -> str:
        """Return the text of failure.toml; `rules` are [[affected]] and [[works]] tables."""
        values: dict[str, Any] = {"command": list(self.command), "folder": str(self.folder)}
        if self.metric:
            values |= {"metric": self.metric, "repeats": self.repeats}
        given = {"signature": signatures, "affected": "[[affected]]" in rules}
        text = _ENTRY.format(
            id=toml(self.id),
            title=toml(f"{one_line(self.line, TITLE)}: {shown_by(signatures)}"),
            symptom=toml(f"{self.line} fails, in {self.folder}."),
            cause=toml(cause),
            empty="".join(f"{name} = []\n" for name, some in given.items() if not some),
            level=toml(self.level.value),
            gpus=int(self.level is Level.GPU),
            deadline=self.deadline,
            arguments=", ".join(f"{name} = {toml(value)}" for name, value in values.items()),
        )
        return "".join([text, *map(signature_text, signatures), rules])


def shown_by(signatures: Sequence[Signature]) -> str:
    """Return the exception, signal or status of the first signature, "a failure" without one."""
    if not signatures:
        return "a failure"
    found = signatures[0]
    return found.exception or found.signal or (f"status {found.exit_code}" if found.exit_code else "a failure")


def toml(value: Any) -> str:
    """Return a text, a whole number or a list of these as TOML. Raises MatrixError for a text that is not UTF-8."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MatrixError(
            "not a text in UTF-8", got=ascii(value), expected="UTF-8: the command is kept as TOML"
        ) from error
    return text


def signature_text(signature: Signature) -> str:
    """Return a signature as TOML."""
    given = {name: value for name, value in vars(signature).items() if value not in (None, False)}
    return "\n[[signature]]\n" + "".join(f"{name} = {toml(value)}\n" for name, value in given.items())


def signatures_in(path: Path) -> tuple[Signature, ...]:
    """Return the [[signature]] tables of a file. Raises MatrixError."""
    content = read_toml(path)
    if set(content) != {"signature"} or not isinstance(content["signature"], list):
        raise MatrixError(
            "not a file of signatures", where=str(path), expected="[[signature]] tables, as in failure.toml"
        )
    return tables_of(content, path)


def tables_of(content: Mapping[str, Any], path: Path) -> tuple[Signature, ...]:
    """Return the signatures in the content of a file. Raises MatrixError."""
    tables = content.get("signature", [])
    return tuple(decode(Signature, item, f"{path}: signature[{place}]") for place, item in enumerate(tables))


def measured_cells(answer: BisectionAnswer) -> list[tuple[Record, ProbeResult]]:
    """Return a record and the result of each released cell that a search probed; commits have no rule in a catalog."""
    compared = answer.comparison
    cells = [(compared.records[taken], seen) for taken, seen in compared.attribution.probed.items()] if compared else []
    for bisection in answer.bisections.values():
        if not bisection.axis.clone:
            tallies = bisection.result.tallies
            cells += [
                (bisection.records[place][-1], tally.settled or ProbeResult.SKIP) for place, tally in tallies.items()
            ]
    return cells


def rule_text(one: tuple[Record, ProbeResult]) -> str:
    """Return the rule of a measured cell as TOML, "" for a skip."""
    record, seen = one
    if seen is ProbeResult.SKIP:
        return ""
    cell = record.cell
    bounds = {name: f"=={value}" for name in ("mcore", "te") if (value := getattr(cell, name)) != NONE}
    where = "".join(f"{name} = {toml(value)}\n" for name, value in bounds.items())
    kind = "affected" if seen is ProbeResult.BAD else "works"
    reason = f"measured: {one_line(why(record), 100)}"
    return f"\n[[{kind}]]\nbase = [{toml(cell.base)}]\n{where}reason = {toml(reason)}\n"


def night_text(measured: Sequence[tuple[Record, ProbeResult]]) -> str:
    """Return the share of a night that has the measured cells, as TOML; "" for none."""
    cells = [record.cell for record, _ in measured]
    values = {name: sorted({getattr(cell, one) for cell in cells} - {NONE}) for name, one in NIGHT_AXES.items()}
    lines = "".join(f"{name} = {toml(some)}\n" for name, some in values.items() if some)
    return f'\n[night]\nreason = "the releases that the bisection probed"\n{lines}' if cells else ""


@contextmanager
def site(root: Path, deadline: int) -> Iterator[None]:
    """Make this process, and those that it starts, load the failures in `root`, and use a deadline."""
    before = {name: os.environ.get(name) for name in (SITE, DEADLINE)}
    os.environ[SITE] = os.pathsep.join(filter(None, [before[SITE], str(root)]))
    if deadline:
        os.environ[DEADLINE] = str(deadline)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
