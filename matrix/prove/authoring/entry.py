"""Checks of one entry beyond those of loading the catalog, and the JSON schema of failure.toml for editors.

An editor completes keys and marks a wrong value; `megatrix catalog check` remains the judge.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from matrix.ground.catalog.failure import PARITY, Case, Expectation, Failure, Level
from matrix.ground.catalog.folders import ENTRY
from matrix.ground.catalog.loading import TODO
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.regular_file import read_regular
from matrix.ground.catalog.schema import Identifier, Month
from matrix.ground.catalog.versions import SIDES, ReleaseBoundary
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.judge import judge
from matrix.ground.verdicts.outcome import Outcome
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.signature_match import matched, shows
from matrix.kit.preflight import FILE, preflight_of
from matrix.prove.authoring import examples
from matrix.prove.execution.preflights import read_case
from matrix.prove.execution.reproduction import DEADLINE_S, brief
from matrix.prove.planning.night import night, pairwise
from matrix.prove.provision.project import ROOT

TEXT: Final = {"type": "string"}
PLAIN: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}
PATTERNS: Final = {Identifier: "^[A-Za-z0-9][A-Za-z0-9._+-]*$", Month: r"^20\d\d-(0[1-9]|1[0-2])$"}


def entry_schema() -> dict[str, Any]:
    """Return the schema: that of Failure, with the keys that loading turns into others (`each`, ...)."""
    definitions: dict[str, Any] = {}
    _of(Failure, definitions)
    entry, case = definitions["Failure"], definitions["Case"]
    entry["properties"]["stand_ins"] = {"type": "array", "items": TEXT, "description": "names in kit/shared.toml"}
    entry["properties"]["boundary"] = _of(Mapping[str, ReleaseBoundary], definitions)
    entry["required"].remove("axes")
    night = definitions["NightShare"]["properties"]
    for name in ("mcore", "te"):
        night[name] = {"anyOf": [{"const": SIDES}, night[name]]}
    variant = {"allOf": [{"$ref": "#/$defs/Case"}], "description": "keys of one of several cases of this table"}
    case["properties"]["each"] = {"type": "array", "items": variant}
    case["properties"]["limits"] = {"anyOf": [TEXT, case["properties"]["limits"]]}
    case["required"] = []  # a variant has the others
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "failure.toml of Megatrix",
        "$ref": "#/$defs/Failure",
        "$defs": definitions,
    }


def _of(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the plain data of a type; that of a dataclass is put among the definitions."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        schemas = [_of(part, definitions) for part in parts if part is not NoneType]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    if origin is tuple:
        return {"type": "array", "items": _of(parts[0], definitions)}
    if origin is not None:
        return {"type": "object", "additionalProperties": _of(parts[1], definitions)}
    if hint is Any:
        return {}
    if dataclasses.is_dataclass(hint) and not hasattr(hint, "from_plain"):
        name = str(getattr(hint, "__name__", ""))
        if name not in definitions:
            definitions[name] = {}  # before its fields, which may name it
            definitions[name] |= _table(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if hint in PATTERNS:
        return TEXT | {"pattern": PATTERNS[hint]}
    return {"type": PLAIN[hint]} if hint in PLAIN else TEXT  # a version, a range, a pattern, a size


def _table(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    properties: dict[str, Any] = {}
    required: list[str] = []
    further: Any = False
    for field in dataclasses.fields(kind):
        if keyed := field.metadata.get("keys"):
            item = _of(get_args(hints[field.name])[1], definitions)
            properties = dict.fromkeys(sorted(keyed.words()), item) | properties
            further = item  # a package that components.toml does not name
        elif field.metadata.get("plain", True) and hints[field.name] is not Path:
            properties[field.name] = _of(hints[field.name], definitions)
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                required.append(field.name)
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "properties": properties,
        "required": required,
        "additionalProperties": further,
    }


DEEPEST: Final = 10  # modules that import a function from the next; entries have two


@dataclass(frozen=True)
class EntryProblem:
    """A problem of an entry, where it is, and its fix."""

    where: str
    what: str
    fix: str

    @property
    def of_example(self) -> bool:
        """Return whether a run that reproduces the failure may solve it: an example is missing."""
        return self.where.startswith(("examples/", "signature "))

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n  fix: {self.fix}"


def whole_night(catalog: Catalog) -> list[Planned]:
    """Return the planned night at all levels."""
    return night(catalog, pairwise, tuple(Level))


def problems(catalog: Catalog, failure: Failure, planned: Sequence[Planned]) -> list[EntryProblem]:
    """Return the problems of one entry; `planned` is the planned night, of all failures or of this one.

    Its claims at level contract are judged where nothing else is wrong.
    """
    reported = list[EntryProblem]()
    for group in (
        _case_problems(failure),
        _module_problems(failure),
        _rule_problems(failure),
        _night_problems(catalog, failure, planned),
        _example_problems(catalog, failure),
        todo_problems(failure.folder),
    ):
        try:
            reported.extend(group)
        except MatrixError as error:  # a module that is no Python: what comes after it in the group is not checked
            reported.append(EntryProblem(error.where or ENTRY, error.what, f"correct it: {error.got}"))
    return reported or [*claim_problems(catalog, failure, planned)]


def todo_problems(folder: Path) -> Iterator[EntryProblem]:
    """Yield what the template or a draft leaves to the author."""
    for path in (folder / ENTRY, folder / "reproduction.py"):
        lines = read_regular(path).decode("utf-8", "replace").splitlines() if path.is_file() else []
        for number, line in enumerate(lines, start=1):
            if TODO in line:
                yield EntryProblem(f"{path.name}:{number}", line.strip(), f"replace the {TODO}")


def _case_problems(failure: Failure) -> Iterator[EntryProblem]:
    for case in failure.case:
        where = f"case {case.name}"
        if Level.CONTRACT in case.levels and not failure.contract and not (failure.folder / FILE).is_file():
            yield EntryProblem(where, "nothing judges it at level contract", f"add [contract], or {FILE}")
        if 0 < case.deadline <= DEADLINE_S:
            text = f"deadline = {case.deadline} has no effect: every case has {DEADLINE_S:.0f} s"
            yield EntryProblem(where, text, "leave it out, or name a longer one")
        if set(case.levels) != {Level.CONTRACT}:
            yield from _function_problems(failure, case, where)


def _function_problems(failure: Failure, case: Case, where: str) -> Iterator[EntryProblem]:
    """Yield where the function of a case is missing, or does not take the case's arguments."""
    module, name = case.function
    path = (ROOT if case.run == PARITY else failure.folder).joinpath(*module.split(".")).with_suffix(".py")
    if not path.is_file():
        yield EntryProblem(where, f"{path.name} does not exist", f"write it in {failure.folder}")
        return
    function = find_function(path, name)
    if function is None:
        yield EntryProblem(where, f"{path.name} has no function {name}", "define it, or correct `run`")
        return
    positional, keywords = function.args.args, function.args.kwonlyargs
    if not positional:
        yield EntryProblem(where, f"{name} takes no rank", f"def {name}(rank: Rank, ...)")
    # By name: the parameters after the rank, and whether each has a default.
    optional = [number >= len(positional) - len(function.args.defaults) for number in range(len(positional))]
    parameters = dict(zip([argument.arg for argument in positional], optional, strict=True))
    parameters.pop(positional[0].arg if positional else "", None)
    parameters |= {key.arg: value is not None for key, value in zip(keywords, function.args.kw_defaults, strict=True)}
    for argument in case.arguments:
        if argument not in parameters and function.args.kwarg is None:
            fix = f"one of: {', '.join(parameters) or 'none'}"
            yield EntryProblem(where, f"{name} has no argument {argument}", fix)
    for parameter in (*positional, *keywords):
        allowed = list(_literals(parameter.annotation))
        value = case.arguments.get(parameter.arg)
        if allowed and value is not None and value not in allowed:
            fix = f"one of: {', '.join(map(repr, allowed))}"
            yield EntryProblem(where, f"{name} does not take {parameter.arg} = {str(value)[:80]!r}", fix)
    for argument in sorted(name for name, has_default in parameters.items() if not has_default):
        if argument not in case.arguments:
            yield EntryProblem(where, f"{name} needs the argument {argument}", f"arguments = {{ {argument} = ... }}")


def _literals(annotation: ast.expr | None) -> Iterator[object]:
    """Yield the values of each Literal[...] in an annotation."""
    for node in ast.walk(annotation) if annotation else ():
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
            yield from (value.value for value in ast.walk(node.slice) if isinstance(value, ast.Constant))


def find_function(path: Path, name: str, depth: int = 0) -> ast.FunctionDef | None:
    """Return a function of a file, or None; an import from the kit or the same folder is followed.

    Raises MatrixError for a file that is no Python, and for modules that import the function from each other.
    """
    if depth > DEEPEST:
        raise MatrixError(f"{name} is only imported", where=str(path), got=f"{depth} imports", expected=f"def {name}")
    try:
        tree = ast.parse(read_regular(path), str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MatrixError("not Python", where=str(path), got=str(error) or type(error).__name__) from None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    start = path.parent if node.level else ROOT  # a failure may import the kit
                    target = start.joinpath(*node.module.split(".")).with_suffix(".py")
                    return find_function(target, alias.name, depth + 1) if target.is_file() else None
    return None


def _module_problems(failure: Failure) -> Iterator[EntryProblem]:
    """Yield the problems of preflight.py, which is imported, and of chart.py."""
    if (failure.folder / FILE).is_file():
        try:
            preflight_of(failure.folder)
        except Exception as error:
            yield EntryProblem(FILE, f"the import fails: {type(error).__name__}: {error}", "correct it")
    elif failure.preflight.option:
        yield EntryProblem(ENTRY, "[preflight] has options, and the folder has no preflight", f"add {FILE}")
    chart = failure.folder / "chart.py"
    if chart.is_file() and find_function(chart, "picture") is None:
        yield EntryProblem(
            chart.name, "the function picture is missing", "def picture(values) -> str: the HTML, escaped"
        )


def _rule_problems(failure: Failure) -> Iterator[EntryProblem]:
    if failure.affected and all(rule.cases for rule in failure.affected):
        yield EntryProblem(
            "affected",
            "every rule names cases: `check` never shows this failure, and it can mask no other",
            "add a rule without `cases` for the cells in which it happens by default",
        )


def _night_problems(catalog: Catalog, failure: Failure, cases: Sequence[Planned]) -> Iterator[EntryProblem]:
    bases = failure.night.bases if failure.night else ()
    if not failure.affected or (bases and not any(base.night for base in catalog.made if base.id in bases)):
        return  # nothing is known to break, or `reason` states why it is in no night
    planned = [case for case in cases if case.failure == failure.id]
    expectations, names = {case.expectation for case in planned}, {case.case for case in planned}
    sides = [side for side in (Expectation.BROKEN, Expectation.WORKS) if failure.case and side not in expectations]
    missing = [f"expects {side.value}: the night tests one direction only" for side in sides]
    missing += [
        f"is {case.name}: its bases and releases exclude each other" for case in failure.case if case.name not in names
    ]
    for text in missing:
        yield EntryProblem(
            "night", f"no case of the night {text}", "widen [night] or `works`, or name a cell with [[pick]]"
        )


def claim_problems(catalog: Catalog, failure: Failure, planned: Sequence[Planned]) -> Iterator[EntryProblem]:
    """Yield the cases of level contract that are red or that nothing judges: both sides are read, nothing runs."""
    for item in planned:
        if item.failure == failure.id and item.level is Level.CONTRACT:
            outcome = read_case(failure, failure.case_named(item.case), item.cell)
            verdict = judge(failure, item.expectation, outcome, catalog.failures).verdict
            if verdict.colour in ("red", "unavailable"):
                text = f"expected {item.expectation.value}, {verdict.value}: {brief(outcome)}"
                yield EntryProblem(item.key, text, "correct the rule: megatrix contract --mcore V --te V lists calls")


def _example_problems(catalog: Catalog, failure: Failure) -> Iterator[EntryProblem]:
    outcomes: dict[str, dict[str, Outcome]] = {examples.SHOWS: {}, examples.LOOK_ALIKES: {}}
    for kind, files in outcomes.items():
        for path in sorted((failure.folder / "examples" / kind).glob("*.json")):
            where = f"examples/{kind}/{path.name}"
            try:
                files[where] = examples.read(path)
            except (UnicodeDecodeError, MatrixError) as error:
                yield EntryProblem(where, f"not an outcome: {error}", "megatrix catalog keep RUN")
    for where, outcome in outcomes[examples.SHOWS].items():
        matches = [entry.id for entry in catalog.failures if entry.id != failure.id and matched(entry, outcome)]
        if matched(failure, outcome) is None:
            yield EntryProblem(where, "does not show this failure", "correct the signature, or move it to look_alikes")
        if matches:
            yield EntryProblem(where, f"shows {', '.join(matches)} as well", "narrow the signature of one of them")
    for where, outcome in outcomes[examples.LOOK_ALIKES].items():
        if signature := matched(failure, outcome):
            yield EntryProblem(where, f"shows this failure (signature {signature.name})", "narrow the signature")
    for signature in failure.signature:
        if not any(shows(outcome, signature) for outcome in outcomes[examples.SHOWS].values()):
            fix = f"megatrix catalog keep RUN, or write one beside {failure.folder / ENTRY}"
            yield EntryProblem(f"signature {signature.name}", "no example shows it", fix)
    if not outcomes[examples.LOOK_ALIKES]:
        fix = "megatrix catalog keep RUN writes the mechanical ones"
        yield EntryProblem("examples/look_alikes", "there are none", fix)
