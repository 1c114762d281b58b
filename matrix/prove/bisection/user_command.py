"""A command of the user's own as a failure: in memory for the search, as a folder for its cells, as a catalog draft.

The draft has what a bisection measured, as ranges and as the cells of a night.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.failure import Failure, Level, Signature
from matrix.ground.catalog.folders import ENTRY, folder_name, with_site
from matrix.ground.catalog.loading import failure_of, read_shared
from matrix.ground.catalog.model import Catalog, Wheels
from matrix.ground.catalog.regular_file import read_regular, read_regular_text
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.stack import BASE, NAMED, PYTHON, TORCH, WRITER, Cell, Clause, component_named, short
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.record import Record
from matrix.ground.verdicts.text import MASKED, one_line
from matrix.kit.command import Repeats
from matrix.prove.bisection.axes import axis_word
from matrix.prove.bisection.joint import BisectionAnswer
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.probe_session import Bisection, why
from matrix.prove.bisection.search import ResultKind
from matrix.prove.store.paths import write_whole
from matrix.prove.store.secrets import bare, bare_bytes, values

LARGEST: Final = 2**24  # bytes of a file named by the command whose content counts
TITLE: Final = 60  # characters of a command in a title
ATTACHED: Final = 100  # lines of a file in the text of an issue
TODO: Final = "TODO"
ONCE: Final = Repeats()
_REPRODUCTION: Final = '''\
"""Run the command of the entry in the cell."""

from pathlib import Path

from matrix.kit import command as commands


def run_command(rank, *, command, folder, metric="", repeats=(1, 1, 0), shared=False):
    copies = Path(__file__).with_name("files")
    return commands.run(rank, command, folder, metric, commands.Repeats(*repeats), copies=copies, shared=shared)


def run_tests(rank, *, command, folder, **options):
    here = Path(__file__)
    again = here.with_name(commands.AGAIN)
    return commands.run_tests(rank, command, folder, again=again, copies=here.with_name("files"), **options)


def run_test(rank, *, command, folder, **options):
    return commands.run_test(rank, command, folder, copies=Path(__file__).with_name("files"), **options)
'''


@dataclass(frozen=True)
class OwnCommand:
    """A command to bisect: its words, the folder that it runs in, its deadline in seconds.

    `metric` is the regular expression of its number, "" where it passes or fails; `repeats` are its runs per probe.
    `ends` are the options that select the failing end, from which a signature is learned. With `shared` it runs in the
    folder itself, else each point in a copy. `overrides` are packages whose declared ranges do not count. `tested` are
    its results, where a run has several: the file of `junit`, the expressions of `numbers`, and the one `test` of it
    that decides.
    """

    command: tuple[str, ...]
    folder: Path
    level: Level = Level.CPU
    deadline: int = 0
    metric: str = ""
    repeats: Repeats = ONCE
    ends: tuple[str, ...] = ()
    shared_folder: bool = False
    overrides: tuple[str, ...] = ()
    tested: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Return the failure's id. It depends on the content of the files that the command names."""
        files = [hashlib.sha256(read_regular(path)).hexdigest() for path in self.named.values()]
        values = [*self.command, str(self.folder), self.level.value, self.metric, *self.ends, *files]
        content = json.dumps(
            [*values, self.deadline, astuple(self.repeats), self.shared_folder, self.overrides, *self.tested.items()]
        )
        return f"own-{hashlib.sha256(content.encode(errors='surrogatepass')).hexdigest()[:12]}"

    @property
    def named(self) -> dict[str, Path]:
        """Return the files that the command names, by word, without large ones."""
        files = {word: self.folder / word for word in self.command if os.path.isfile(self.folder / word)}  # noqa: PTH113
        return {word: path for word, path in files.items() if path.stat().st_size <= LARGEST}

    @property
    def text(self) -> str:
        """Return the words of the command, and the content of the files that it names."""
        contents = (read_regular(path).decode(errors="replace") for path in self.named.values())
        return "\n".join([*self.command, *contents])

    @property
    def line(self) -> str:
        """Return the command as a shell's line, without secrets."""
        return bare(shlex.join(bare(word, values()) for word in self.command), values())

    @property
    def shared(self) -> tuple[str, ...]:
        """Return the words of the command without secrets: one, where a quote is part of what is masked."""
        try:
            return tuple(shlex.split(self.line))
        except ValueError:
            return (self.line,)

    @property
    def attached(self) -> dict[str, str]:
        """Return the text files that the command names, by name, without secrets and long ones."""
        texts = {}
        for word, path in self.named.items():
            text = read_regular_text(path)
            if "\0" not in text and text.count("\n") <= ATTACHED:
                texts[word] = bare(text, values()).rstrip("\n")
        return texts

    def environ(self, environ: Mapping[str, str], *roots: Path) -> dict[str, str]:
        """Return the variables of the processes that run it: with the failures in `roots`, and its deadline."""
        deadline = {"MEGATRIX_DEADLINE": str(self.deadline)} if self.deadline else {}
        return {**with_site(environ, *roots), **deadline}

    def write(self, root: Path, entry: Mapping[str, Any], *, draft: bool = False) -> Path:
        """Write the folder of an entry under `root`: with its reproduction, and copies of the files below the folder.

        It has the command as it is given, so it is readable by its user alone. A draft is for others: secrets are
        masked in its files, and a file that is no text and has some is left out. Returns the path of its failure.toml.
        """
        folder, secrets = self.folder_in(root), values()
        folder.mkdir(mode=0o755 if draft else 0o700, parents=True, exist_ok=True)
        write_whole(folder / "reproduction.py", _REPRODUCTION)
        for word, path in self.named.items():
            content = read_regular(path)
            masked = bare_bytes(content, secrets) if draft else content
            if {"..", os.sep} & {*Path(word).parts} or (masked != content and b"\0" in content):
                continue
            (folder / "files" / word).parent.mkdir(parents=True, exist_ok=True)
            (folder / "files" / word).write_bytes(masked)
            shutil.copymode(path, folder / "files" / word)
        text = toml_of(entry)  # a TODO in a command must not make the search's own entry a draft
        write_whole(folder / ENTRY, text if draft else text.replace(TODO, "\\u0054ODO"))
        return folder / ENTRY

    def folder_in(self, root: Path) -> Path:
        """Return the failure's folder under `root`."""
        return root / folder_name(self.id)

    def written_signatures(self, root: Path) -> tuple[Signature, ...]:
        """Return the signatures of the entry that an earlier bisection wrote under `root`, () without one."""
        path = self.folder_in(root) / ENTRY
        return signatures_in(path, read_toml(path)) if path.is_file() else ()

    def add_to(self, catalog: Catalog, signatures: Sequence[Signature], root: Path) -> tuple[Catalog, Failure]:
        """Return the catalog with the failure of this command, and that failure; its folder is the one under `root`."""
        failure = failure_of(self.entry(signatures), self.folder_in(root) / ENTRY, read_shared())
        by_id = {entry.id: entry for entry in catalog.failures} | {failure.id: failure}
        failures = tuple(by_id[id] for id in sorted(by_id))
        return replace(catalog, failures=failures, site=(*catalog.site, root)), failure

    def entry(self, signatures: Sequence[Signature], **further: Any) -> dict[str, Any]:
        """Return the content of failure.toml; `further` are its texts, its affected and works tables and its night.

        It is no draft: the processes of the search read it.
        """
        arguments: dict[str, Any] = {"command": list(self.command), "folder": str(self.folder)}
        if self.metric:
            arguments["metric"] = self.metric
        if self.repeats != ONCE:
            arguments["repeats"] = [*astuple(self.repeats)]
        if self.shared_folder:
            arguments["shared"] = True
        arguments |= self.tested
        case = {
            "name": "command",
            "run": "run_test" if "test" in self.tested else "run_tests" if self.tested else "run_command",
            "preload": False,
            "picked": True,
            "levels": [self.level.value],
            "gpus": int(self.level is Level.GPU),
            "deadline": self.deadline,
            "arguments": arguments,
        }
        texts = [
            text
            for signature in signatures[:1]
            for text in (signature.exception, signature.signal, signature.exit_code and f"status {signature.exit_code}")
            if text
        ]
        return {
            "id": self.id,
            "title": f"{one_line(self.line, TITLE)}: {next(iter(texts), 'a failure')}",
            "references": [],
            **({"overrides": [*self.overrides]} if self.overrides else {}),
            "axes": ["base", "mcore", "te", "driver"],
            "stand_ins": ["mcore-0.7"],
            "symptom": f"{self.line} fails, in {self.folder}.",
            "cause": "",
            "fix": "",
            "case": [case],
            "signature": [*map(table_of, signatures)],
            "affected": [],
            **further,
        }


def table_of(signature: Signature) -> dict[str, Any]:
    """Return a signature as a [[signature]] table."""
    return {name: value for name, value in vars(signature).items() if value not in (None, False)}


def read_signatures(path: Path) -> tuple[Signature, ...]:
    """Return the [[signature]] tables of a file. Raises MatrixError."""
    content = read_toml(path)
    if set(content) != {"signature"} or not isinstance(content["signature"], list):
        raise MatrixError(
            "not a file of signatures", where=str(path), expected="[[signature]] tables, as in failure.toml"
        )
    return signatures_in(path, content)


def signatures_in(path: Path, content: Mapping[str, Any]) -> tuple[Signature, ...]:
    """Return the signatures in the content of a file. Raises MatrixError."""
    return decode(tuple[Signature, ...], content.get("signature", []), f"{path}: signature")


def toml_of(content: Mapping[str, Any]) -> str:
    """Return a table as TOML: its plain values, then its tables and lists of tables.

    Raises MatrixError for a text that is not UTF-8.
    """
    blocks: list[tuple[str, Mapping[str, Any]]] = []
    plain: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            blocks.append((f"\n[{name}]\n", value))
        elif value and isinstance(value, list) and isinstance(value[0], Mapping):
            blocks += [(f"\n[[{name}]]\n", table) for table in value]
        else:
            plain[name] = value
    return "".join(
        heading + "".join(f"{name} = {_toml_value(value)}\n" for name, value in table.items())
        for heading, table in [("", plain), *blocks]
    )


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml_key(name)} = {_toml_value(item)}' for name, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MatrixError(
            "not a text in UTF-8", got=ascii(value), expected="UTF-8: the command is kept as TOML"
        ) from error
    return text


Measured = tuple[Record, ProbeResult]


def draft(own: OwnCommand, answer: BisectionAnswer, headlines: Sequence[str]) -> dict[str, Any]:
    """Return the entry of a catalog failure, with what the search measured."""
    cause = f"{TODO}. Bisected: {'; '.join(headlines)}"
    if own.shared != own.command:
        cause += f". {TODO}: pass what is {MASKED} in variables"
    cells = measured_cells(answer)
    rules = measured_rules(answer.subject.catalog, cells, ranges(answer))
    entry = replace(own, command=own.shared).entry(answer.subject.failure.signature, cause=cause, fix=TODO, **rules)
    used = {name for record, _ in cells for name in NAMED if record.cell.stack.version(name)}
    return entry | {"id": own.id, "axes": [BASE, *(short(name) for name in NAMED if name in used)]}


def measured_cells(answer: BisectionAnswer) -> list[Measured]:
    """Return a record and the result of each released cell that a search probed; commits have no rule in a catalog.

    Of two stacks, the mixtures with packages of their own are left out: a cell of a failure names each package. So are
    cells with a package that no rule can name.
    """
    compared, cells = answer.comparison, list[Measured]()
    for bisection in answer.bisections.values():
        if not bisection.axis.clone:
            tallies = bisection.result.tallies.items()
            cells += [(bisection.records[index][-1], tally.settled or ProbeResult.SKIP) for index, tally in tallies]
    cells = [(record, result) for record, result in cells if can_be_named(record.cell)]
    packages = {record.cell.packages for record, _ in cells}
    for mixture, result in compared.attribution.probed.items() if compared else ():
        record = compared.records.get(mixture) if compared else None
        if record and (record.cell.packages in packages or not (packages or record.cell.packages)):
            cells.append((record, result))
    return [(record, result) for record, result in cells if result is not ProbeResult.SKIP]


def measured_rules(
    catalog: Catalog, cells: Sequence[Measured], along: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return the rules of measured cells, and the picks that run them again; `along` are rules that cover several."""
    rules: dict[str, list[dict[str, Any]]] = {name: [dict(rule) for rule in along.get(name, ())] for name in TABLES}
    picks: list[dict[str, Any]] = []
    for record, result in cells:
        cell, table = record.cell, rules[TABLES[result is ProbeResult.GOOD]]
        if not any(decode(Clause, rule).matches(cell.stack) for rule in table):
            table.append({**bounds_of(catalog, cell), "reason": f"measured: {one_line(why(record), 100)}"})
        pick = {"base": cell.base, **versions_of(cell), "cases": ["command"], "reason": "the bisection probed it"}
        if pick not in picks:
            picks.append(pick)
    packages = sorted({(name, str(record.cell.stack[name])) for record, _ in cells for name in record.cell.packages})
    tables = [{"name": name, "version": version} for name, version in packages]
    return {**rules, "pick": picks, **({"package": tables} if tables else {})}


TABLES = ("affected", "works")


def ranges(answer: BisectionAnswer) -> dict[str, list[dict[str, Any]]]:
    """Return the two rules of each change: from it to the bad end, and from the good end up to it."""
    rules: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for component, bisection in answer.bisections.items():
        if bisection.axis.clone or not bisection.sides or component == BASE:
            continue
        cells = {index: records[-1].cell for index, records in bisection.records.items()}
        if not can_be_named(cells[0]):
            continue
        indices = 0, bisection.result.candidates[0], len(bisection.axis.points) - 1
        oldest, change, newest = (cells[index].stack[component] for index in indices)
        fixed = bounds_of(answer.subject.catalog, cells[0], without=component)
        sides = [f">={change},<={newest}", f">={oldest},<{change}"]
        if bisection.result.kind is ResultKind.FIRST_FIXED:
            sides.reverse()
        for name, bound in zip(TABLES, sides, strict=True):
            rules[name].append({**fixed, short(component): bound, "reason": reason_of(bisection)})
    return rules


def can_be_named(cell: Cell) -> bool:
    """Return whether an entry can name each package of a cell: those of components.toml."""
    return all(map(component_named, cell.packages))


def reason_of(bisection: Bisection) -> str:
    """Return how many points of an axis a search measured."""
    word, count = axis_word(bisection.axis.component), len(bisection.axis.points)
    return f"bisected: {len(bisection.result.tallies)} of {count} points of {word} measured"


def bounds_of(catalog: Catalog, cell: Cell, without: str = "") -> dict[str, Any]:
    """Return the conditions that a cell alone meets, except on the component `without`."""
    base, bounds = catalog.find_base(cell.base), dict[str, Any]()
    if not isinstance(base, Wheels):
        bounds["base"] = [cell.base]
    elif without != TORCH:
        bounds[TORCH] = f"=={base.torch}"
    if base and base.id in catalog.by_python and without != PYTHON:
        bounds[PYTHON] = f"=={cell.stack[PYTHON]}"
    return bounds | {name: f"=={version}" for name, version in versions_of(cell, without).items()}


def versions_of(cell: Cell, without: str = "") -> dict[str, str]:
    """Return the versions that a cell lays over its base, by short name."""
    names: Iterable[str] = (*NAMED, *WRITER, *cell.packages)
    versions = {name: cell.stack.version(name) for name in names if name != without}
    return {short(name): version for name, version in versions.items() if version}
