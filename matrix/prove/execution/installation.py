"""The installation that a pytest process runs in: the interpreter of a base, its packages, and the machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matrix.ground.cases.cells import on_python
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.model import GIVEN, HOST, LABEL, Base, Catalog, ReaderBase, Wheels
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.case_request import cases_here, with_host
from matrix.prove.planning.selection import select
from matrix.prove.planning.statistics import Durations
from matrix.prove.provision import bases, host
from matrix.prove.provision.host import LocalSite
from matrix.read.machine import installed

AXES: Final = ("torch", "megatron-core", "transformer-engine")  # the packages of a cell


@dataclass(frozen=True)
class Installation:
    """The catalog, the id of the base in it, the packages of this interpreter, and this machine."""

    catalog: Catalog
    base: str
    environment: PythonEnvironment
    host: LocalSite

    @classmethod
    def current(cls, base: str) -> Installation:
        """Return that of this process; with "" for the base, the packages of this interpreter are added as one."""
        environment, catalog = installed.current(), load()
        if not base or base.startswith(GIVEN):
            label = os.environ.get(LABEL, "")
            catalog = with_host(catalog, environment.packages, environment.minor, label, id=base or HOST)
        return cls(catalog, catalog.base(base or HOST).id, environment, host.look())

    @property
    def header(self) -> str:
        """Return the line of the pytest header: the base, and the installed packages of the cell's axes."""
        versions = [f"{name} {self.environment.packages[name]}" for name in AXES if name in self.environment.packages]
        return f"megatrix: base {self.base}: {', '.join([f'Python {self.environment.python}', *versions])}"

    def here(self, planned: Planned) -> Planned:
        """Return a case in the cell of this environment, whose Python may not be the base's first."""
        return on_python(self.catalog, planned, self.environment.minor)

    def cases(self, selection: str) -> list[Planned]:
        """Return the cases of this base that can be planned here; `selection` "" selects all."""
        levels = (Level.CONTRACT, Level.CPU, *((Level.GPU,) if self.host.machine.listed else ()))
        cases: Sequence[Planned] = cases_here(self.catalog, self.base, self.environment.packages, levels)
        cases = Durations(self.catalog, {}).timed(map(self.here, cases))
        return select(cases, selection) if selection else cases

    @property
    def entry(self) -> Base | None:
        """Return the base in the catalog, None for the host."""
        return self.catalog.find_base(self.base)

    @property
    def python_note(self) -> str:
        """Return which Python ran in place of the base's first, "" if it is that one."""
        entry, python = self.entry, self.environment
        preferred = entry.pythons[0] if isinstance(entry, (Wheels, ReaderBase)) else python.minor
        return "" if preferred == python.minor else f"ran on Python {python.python}, not {preferred}"

    @property
    def better_python(self) -> str:
        """Return the command that installs the base's preferred Python, where another stands in for it; else ""."""
        entry = self.entry
        if not isinstance(entry, Wheels) or self.environment.minor not in entry.fallbacks:
            return ""
        return f"; Python {entry.pythons[0]} can run it: {bases.python_command(entry.pythons[0])}"
