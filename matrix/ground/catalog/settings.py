"""The names that frameworks give the arguments of Megatron-LM in their settings: a table, and its translation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.schema import read_toml
from matrix.ground.errors import MatrixError

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
    """The table. Raises MatrixError for a name with two meanings, and for a row that no setting could reach."""

    setting: tuple[Setting, ...]
    recognised: Recognised

    def __post_init__(self) -> None:
        plain = [dashed(name) for row in self.setting if not row.needs for name in row.names]
        for row in self.setting:
            problem = (
                (not row.source and "a setting without a source")
                or (not row.names and "a setting without a name")
                or (row.option != dashed(row.option) and "not the name of an argument")
                or (bool(row.needs) != bool(row.value) and "`needs` and `value` belong together")
                or (bool(row.needs) and dashed(row.needs) not in plain and "`needs` names no setting")
                or (any(plain.count(dashed(name)) > 1 for name in row.names) and "a name with two meanings")
            )
            if problem:
                raise MatrixError(str(problem), where=str(TABLE), got=row)


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
