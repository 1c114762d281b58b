"""By which arguments of a training command a failure is reached; the options that describe a job and its machine.

Frameworks give the arguments of Megatron-LM names of their own: facts/settings.toml translates them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.schema import UNITS, read_toml
from matrix.ground.catalog.stack import Clause, component_title
from matrix.ground.catalog.versions import ORDERINGS, is_version, parse
from matrix.ground.errors import MatrixError, closest

TABLE: Final = Path(__file__).parent / "facts" / "settings.toml"
Arguments = Mapping[str, "str | bool"]  # option without "--" -> its value, True, or False for --no-OPTION


@dataclass(frozen=True)
class Setting:
    """A row of the table, whose head describes the fields."""

    names: tuple[str, ...]
    option: str
    source: str
    value: str = ""
    needs: str = ""
    inverted: bool = False


@dataclass(frozen=True)
class Recognised:
    """The names by which settings of Megatron are distinguished from other YAML, and the sections of other programs."""

    least: int
    source: str
    names: tuple[str, ...]
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class SettingsTable:
    """The table; tests/unit/ground/catalog/test_reach.py checks what it states."""

    setting: tuple[Setting, ...]
    recognised: Recognised


def dashed(name: str) -> str:
    """Return the name of a setting as an option: with "-" between its words."""
    return name.lstrip("-").replace("_", "-")


@cache
def settings_table() -> SettingsTable:
    """Return the table. Raises MatrixError where it is damaged."""
    return decode(SettingsTable, read_toml(TABLE), str(TABLE))


@cache
def _rows() -> tuple[Mapping[str, Setting], Mapping[str, Setting]]:
    """Return the rows that count by themselves, and those that need another setting, by name."""
    rows = [(dashed(name), row) for row in settings_table().setting for name in row.names]
    return {name: row for name, row in rows if not row.needs}, {name: row for name, row in rows if row.needs}


def translated(given: Arguments) -> dict[str, str | bool]:
    """Return settings as arguments of Megatron-LM; what the table does not name is an argument already."""
    plain, dependent = _rows()
    arguments: dict[str, str | bool] = {}
    for name, value in given.items():
        if row := plain.get(name):
            arguments[row.option] = not value if row.inverted and isinstance(value, bool) else value
        elif name not in dependent:
            arguments[name] = value
    for name, row in dependent.items():
        if given.get(name) is True and given.get(dashed(row.needs)):
            arguments[row.option] = row.value
    return arguments


def is_foreign(sections: Iterable[str]) -> bool:
    """Return whether one of the sections above a setting is that of another program."""
    return not set(settings_table().recognised.others).isdisjoint(sections)


def recognised(names: Iterable[str]) -> bool:
    """Return whether these names of settings are those of Megatron, NeMo, Megatron-Bridge or verl."""
    table = settings_table().recognised
    known_names = {dashed(name) for name in table.names} | {name for rows in _rows() for name in rows}
    return len(known_names & {dashed(name) for name in names}) >= table.least


DIGITS: Final = r"[0-9]{1,15}"  # a number of them is exact as a float, and so are its products with a unit


class OptionKind(str, Enum):
    """The form of a value."""

    TEXT = "text"
    COUNT = "count"  # a whole number
    SIZE = "size"  # bytes with a unit: 880G
    VERSION = "version"
    CAPABILITY = "capability"  # of a GPU: 9.0


@dataclass(frozen=True)
class JobOption:
    """The option --NAME METAVAR. Its text is one of `choices`, if there are any; a count is `least` or more.

    `argument` is the argument of the training command that states the value where the user gives none. `machine` names
    the field of Machine that the option sets; without it the option is an argument of the job.
    """

    name: str
    metavar: str
    help: str = ""
    kind: OptionKind = OptionKind.TEXT
    choices: tuple[str, ...] = ()
    least: int = 0
    default: str | None = None
    argument: str = ""
    machine: str = ""

    def read(self, text: str) -> str | int:
        """Return the value of a text. Raises MatrixError."""
        where, brief = f"--{self.name}", text if len(text) <= 40 else f"{text[:40]}... ({len(text)} characters)"
        if self.choices and text not in self.choices:
            expected = ", ".join(self.choices)
            raise MatrixError(f"no such {self.name}", got=text, expected=expected, fix=closest(text, self.choices))
        if self.kind is OptionKind.VERSION and not is_version(text):
            raise MatrixError("not a version", got=f"{where} {text}", expected=f"such as {where} 535.129.03")
        if self.kind is OptionKind.CAPABILITY and not re.fullmatch(r"\d{1,2}\.\d", text):
            raise MatrixError("not a compute capability", got=f"{where} {text}", expected=f"such as {where} 9.0")
        if self.kind is OptionKind.COUNT:
            if re.fullmatch(DIGITS, text) and int(text) >= self.least:
                return int(text)
            thousands = re.fullmatch(rf"({DIGITS})k", text, re.IGNORECASE)
            fix = f"{int(thousands[1]) * 1024} for {text}" if thousands else None
            expected = f"a whole number, {self.least} or more, of at most 15 digits"
            raise MatrixError("not a count", where=where, got=brief, expected=expected, fix=fix)
        if self.kind is OptionKind.SIZE:
            size = re.fullmatch(rf"({DIGITS}(?:\.{DIGITS})?)([KMGT])(?:i?B)?", text.strip(), re.IGNORECASE)
            bytes_ = int(float(size[1]) * UNITS[size[2].upper()]) if size else 0
            if bytes_ < 1:
                raise MatrixError("not a size", where=where, got=brief, expected="a number with K, M, G or T: 880G")
            return bytes_
        return text


@dataclass(frozen=True)
class PreflightOptions:
    """The table [preflight] of a failure whose folder has preflight.py.

    `subject` is a short name of what it judges. `variables` are the environment variables that it reads: no others are
    kept, since an environment holds secrets.
    """

    subject: str = ""
    variables: tuple[str, ...] = ()
    option: tuple[JobOption, ...] = ()


NO_OPTIONS: Final = PreflightOptions()


def read_options(
    options: Iterable[JobOption], texts: Mapping[str, str | None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the job and the fields of Machine; an option not given has its default or is left out.

    Raises MatrixError for a bad value and for a name that is no option.
    """
    arguments: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    by_name = {option.name: option for option in options}
    for name in texts:
        if name not in by_name:
            raise MatrixError("no such option", got=name, expected=", ".join(by_name) or "no options")
    for name, option in by_name.items():
        text = option.default if texts.get(name) is None else texts[name]
        if text is not None:
            (machine if option.machine else arguments)[option.machine or name] = option.read(text)
    return arguments, machine


CONDITION: Final = re.compile(r"(not )?--(no-)?([a-z0-9][a-z0-9-]*)(?: (==|!=|<=|>=|<|>) (\S+))?")
OPEN_VALUE: Final = re.compile(r"[$`]")  # a variable or a substitution that reading a script leaves as it is
SETTING: Final = re.compile(r"\+{0,2}((?:[\w-]+\.)+)(\w+)=(.*)", re.DOTALL)  # as hydra has them on its command line
# Options that Megatron-LM computes where they are not given: quotients of others (arguments.py, read in 0.4 - 0.19).
QUOTIENTS: Final = {"kv-channels": ("hidden-size", "num-attention-heads")}
SWITCH: Final = {"true": True, "false": False}


class Reach(IntEnum):
    """Whether a job reaches a failure, most certain first."""

    REACHED = 0
    OPEN = 1  # the arguments are not known, or something that they do not show decides
    MISSING = 2  # an argument is not given
    AVOIDED = 3  # an argument that is given excludes it


@dataclass(frozen=True)
class JobArguments:
    """The arguments of a command: option without "--" and "no-" -> its value, or True, or False for --no-OPTION.

    `complete` is False where a part of the command is not known, such as a variable that no file sets. `perhaps` are
    options of which a condition decides that nothing in the file shows.
    """

    given: Mapping[str, str | bool] = field(default_factory=dict)
    complete: bool = True
    perhaps: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, words: Iterable[str], perhaps: Collection[str] = ()) -> JobArguments:
        """Return the arguments among the words of a command: --name, --name VALUE, --name=VALUE, section.name=VALUE.

        `perhaps` are the words that the command may not have.
        """
        options: dict[str, str | bool] = {}
        undecided: dict[str, str | bool] = {}
        complete, name = True, ""
        for word in words:
            match = re.fullmatch(r"--([\w-]+)(?:=(.*))?", word, re.DOTALL)
            setting = None if match else SETTING.fullmatch(word)
            if match and match[2] is None:
                option = dashed(match[1])
                name, on = option.removeprefix("no-"), not option.startswith("no-")
                options[name] = on
            elif match or setting:
                name, (option, value) = "", match.groups() if match else setting.groups()[1:]  # type: ignore[union-attr]
                if not (setting and is_foreign(setting[1].split("."))):
                    options[dashed(option)] = SWITCH.get(value.lower(), value)
            elif name and options[name] is True:
                options[name] = SWITCH.get(word.lower(), word)
                name = ""
            elif OPEN_VALUE.search(word):
                complete = False
            if word in perhaps and (match or setting):
                undecided[dashed(option).removeprefix("no-")] = True
        return cls(translated(options), complete, frozenset(translated(undecided)))

    @property
    def values(self) -> dict[str, str]:
        """Return the options whose value is known."""
        options = ((name, raw) for name, raw in self.given.items() if name not in self.perhaps)
        return {name: raw for name, raw in options if isinstance(raw, str) and not OPEN_VALUE.search(raw)}

    def quotient(self, option: str) -> str | None:
        """Return the value of one of QUOTIENTS, None where the command does not give both of its parts as numbers."""
        dividend, divisor = (self.values.get(part, "") for part in QUOTIENTS[option])
        numbers = re.fullmatch(DIGITS, dividend) and re.fullmatch(DIGITS, divisor) and int(divisor)
        return str(int(dividend) // int(divisor)) if numbers else None

    @property
    def stated(self) -> dict[str, str]:
        """Return the values, and "" for each flag that is on."""
        flags = {name: "" for name, raw in self.given.items() if raw is True and name not in self.perhaps}
        return {**self.values, **flags}


@dataclass(frozen=True)
class Condition:
    """One condition on an argument: --flag, not --no-flag, --option == VALUE|VALUE, --count >= 4."""

    text: str
    option: str
    off: bool
    negated: bool
    operator: str
    operand: str

    @classmethod
    def parse(cls, text: str) -> Condition | None:
        """Return the condition that a text of an entry states, None for any other text."""
        match = CONDITION.fullmatch(text)
        if match is None or (match[4] and (match[1] or match[2])):
            return None
        if match[4] in ORDERINGS and not is_version(match[5]):
            return None
        return cls(text, match[3], bool(match[2]), bool(match[1]), match[4] or "", match[5] or "")

    def holds(self, arguments: JobArguments, defaults: Mapping[str, str]) -> bool | None:
        """Return whether the condition holds; None where the command does not show it."""
        value = arguments.given.get(self.option)
        if self.option in arguments.perhaps:
            return None
        if value is None and self.option in QUOTIENTS and (value := arguments.quotient(self.option)) is None:
            return None
        if isinstance(value, str) and OPEN_VALUE.search(value) and self.operator:
            return None
        if value is None and not arguments.complete:
            return None
        return self._fits(defaults.get(f"--{self.option}") if value is None else value)

    def _fits(self, value: str | bool | None) -> bool:
        if not self.operator:
            return ((value is False) if self.off else value not in (None, False)) is not self.negated
        if not isinstance(value, str):
            return self.operator == "!="
        if self.operator in ORDERINGS:
            return is_version(value) and ORDERINGS[self.operator](parse(value), parse(self.operand))
        return (value in self.operand.split("|")) is (self.operator == "==")


@dataclass(frozen=True)
class ReachedBy(Clause):
    """The arguments that reach a failure in the cells of the clause; all conditions must hold.

    `defaults` are values of options that are not given. `when` is a condition that no argument shows. `usual`: most
    jobs do this, so that a stack alone, without a command, counts as reaching it. `wheels`: `when` holds where wheels
    alone have CUDA (toolkit=none). `layouts` are the smallest ones whose numbers deviate so (docs/parity.md).
    """

    arguments: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    when: str = ""
    usual: bool = False
    wheels: bool = False
    layouts: tuple[str, ...] = ()

    @property
    def on_arguments(self) -> tuple[Condition, ...]:
        """Return the conditions; the catalog's checks refuse a text that is none."""
        return tuple(condition for condition in map(Condition.parse, self.arguments) if condition)

    def reached(self, arguments: JobArguments | None) -> Reached:
        """Return whether a command with these arguments reaches the failure; None: no command is known."""
        known = JobArguments() if arguments is None else arguments
        results = {condition: condition.holds(known, self.defaults) for condition in self.on_arguments}
        needed = _texts(condition for condition in results if not condition.holds(JobArguments(), self.defaults))
        if arguments is None:
            reach = Reach.OPEN if self.when or needed else Reach.REACHED
            return Reached(reach, needed, self.when, self.usual, self.switches)
        failed = [condition for condition, holds in results.items() if holds is False]
        avoided = _texts(condition for condition in failed if condition.option in known.given)
        if avoided:
            return Reached(Reach.AVOIDED, tuple(_shown(one, known) for one in failed if one.text in avoided))
        if failed:
            return Reached(Reach.MISSING, _texts(failed), self.when, switches=self.switches)
        unknown = _texts(condition for condition, holds in results.items() if holds is None)
        given = sum(bool(holds) and condition.option in known.given for condition, holds in results.items())
        if unknown or self.when:
            return Reached(Reach.OPEN, unknown, self.when, switches=self.switches, given=given)
        return Reached(Reach.REACHED, needed, switches=self.switches, given=given)

    @property
    def switches(self) -> tuple[str, ...]:
        """Return the flags that a job can add to avoid the failure."""
        return tuple(condition.text.removeprefix("not ") for condition in self.on_arguments if condition.negated)


@dataclass(frozen=True)
class Reached:
    """Whether a job reaches a failure.

    `by` are the conditions that decide: those that hold, are missing or exclude it. `when` is a condition that no
    argument shows. `switches` are flags that avoid the failure. `given` counts the conditions that options of the
    command's own fulfil.
    """

    reach: Reach = Reach.REACHED
    by: tuple[str, ...] = ()
    when: str = ""
    usual: bool = False
    switches: tuple[str, ...] = ()
    given: int = field(default=0, compare=False)

    @property
    def certain(self) -> bool:
        """Return whether the failure counts as reached."""
        return self.reach is Reach.REACHED or (self.reach is Reach.OPEN and self.usual)

    @property
    def needs(self) -> str:
        """Return what must hold besides the versions, or what excludes the failure."""
        text = str(self)
        if self.reach is Reach.AVOIDED:
            return f"the command has {' and '.join(self.by)}"
        if self.reach is Reach.REACHED:
            return text and f"reached by {text}"
        if self.reach is Reach.MISSING:
            return f"only with {text}"
        return f"with {text}" if self.by else f"only {text}"

    def __str__(self) -> str:
        parts = [" and ".join(self.by), self.when]
        return ", when ".join(part for part in parts if part) if self.by else self.when and f"when {self.when}"


def reached(
    ways: Iterable[ReachedBy], depends: Callable[[ReachedBy], Sequence[str] | None], arguments: JobArguments | None
) -> Reached:
    """Return the most certain of the ways that match; without any the failure is always reached.

    `depends` returns the unknown components on which a way depends, None where it does not match: one that may match
    is never certain, and comes after those that do.
    """
    open_ways = sorted(
        ((way, names) for way in ways if (names := depends(way)) is not None), key=lambda way: bool(way[1])
    )
    results = [_left_open(way, names, arguments) if names else way.reached(arguments) for way, names in open_ways]
    return min(results, key=lambda result: (not result.certain, result.reach), default=Reached())


def _left_open(way: ReachedBy, names: Iterable[str], arguments: JobArguments | None) -> Reached:
    """Return how a way is reached that only some versions of these components have."""
    usual = way.reached(arguments)
    bounds = {name: way.bounds[name].text for name in names if name in way.bounds}
    versions = " and ".join(f"{component_title(name)} is {text}" for name, text in bounds.items())
    return replace(usual, reach=max(usual.reach, Reach.OPEN), usual=False, when=usual.when or versions)


def _texts(conditions: Iterable[Condition]) -> tuple[str, ...]:
    return tuple(condition.text for condition in conditions)


def _shown(condition: Condition, arguments: JobArguments) -> str:
    value = arguments.given[condition.option]
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{condition.option}"
    return f"--{condition.option} {value}"
