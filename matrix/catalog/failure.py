"""A catalog entry: one upstream failure, where it shows, how it is recognised and how it is reproduced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from matrix.catalog.cell import Cell, Clause
from matrix.catalog.limits import NO_LIMITS, Limits
from matrix.catalog.schema import Identifier, Pattern, VersionText
from matrix.catalog.versions import NONE, Range

LAUNCHERS: Final = ("torchrun", "mpirun")  # what starts the ranks of a case


class Level(str, Enum):
    """How real a reproduction is; a report never shows one level as another."""

    CONTRACT = "contract"  # both sides' API read statically
    CPU = "cpu"  # real upstream code, gloo / Open MPI, no GPU
    GPU = "gpu"  # the full stack


class Expectation(str, Enum):
    """What the catalog says of a cell."""

    BROKEN = "broken"
    WORKS = "works"
    UNKNOWN = "unknown"


class Axis(str, Enum):
    """An axis that a failure may depend on; torch, CUDA and Python belong to the base."""

    BASE = "base"
    MCORE = "mcore"
    TE = "te"
    DRIVER = "driver"


class Package(str, Enum):
    """A package under test."""

    MCORE = "megatron-core"
    TE = "transformer-engine"


@dataclass(frozen=True)
class Signature:
    """How a failure is recognised; every key that is given must hold, in one exception of the chain or in the log.

    `exception` is a class name; `message` is searched in that exception's text; `frame` is "file.py:function", the end
    of a path and the function, in which that exception was raised; `signal` is "SIGSEGV"; `stack` is a function
    ("name", "class::name") that a native crash in the log went through, at any depth, by that signal if one is given;
    `log` is searched in the end of the log of the rank to blame.
    """

    name: Identifier
    exception: str | None = None
    message: Pattern | None = None
    frame: str | None = None
    signal: str | None = None
    stack: str | None = None
    exit_code: int | None = None
    log: Pattern | None = None


@dataclass(frozen=True)
class Case:
    """One way to reproduce: what each rank runs, with which arguments, on how many ranks.

    `run` is a function of the folder's reproduction.py, or MODULE:FUNCTION of another module there; it gets a
    matrix.kit.rank.Rank and `arguments`. At level contract nothing runs: both sides' API is read (Failure.contract), or
    the folder's preflight.py judges the cell. `limits` bound what the ranks may take.
    `gpus` are needed at level gpu. `bases` are those that it runs on, where it runs (level contract only reads);
    without, any that tox makes. `mcore` are the releases that have what it runs, None = all. `launcher` starts the
    ranks (matrix.execution.ranks.job). `packages` ("NAME==VERSION", from PyPI) are laid over the base.
    `picked`: it depends on nothing that cells differ by, and runs where `pick` names it, only.
    """

    name: Identifier
    levels: tuple[Level, ...]
    run: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 1
    gpus: int = 0
    limits: Limits = NO_LIMITS
    bases: tuple[Identifier, ...] = ()
    mcore: Range | None = None
    launcher: str = LAUNCHERS[0]
    packages: tuple[str, ...] = ()
    picked: bool = False

    @property
    def function(self) -> tuple[str, str]:
        """Return the module of the failure's folder and the function in it that each rank runs."""
        module, _, function = self.run.rpartition(":")
        return module or "reproduction", function

    def is_for(self, cell: Cell) -> bool:
        """Say whether the cell's megatron-core has what the case runs."""
        return self.mcore is None or cell.mcore in self.mcore


@dataclass(frozen=True)
class Rule(Clause):
    """What `affected` and `works` are made of: a clause that may speak of some `cases` alone.

    So one cell can be broken in the case that provokes the failure and work in its control, the way round it.
    """

    cases: tuple[Identifier, ...] = ()

    def speaks_of(self, case: str) -> bool:
        """Say whether the rule names the case; without a case, whether it names none."""
        return case in self.cases if case else not self.cases

    def __str__(self) -> str:
        return super().__str__() + (f" in case {', '.join(self.cases)}" if self.cases else "")


@dataclass(frozen=True)
class Masked:
    """Where the failure `by` is expected to be broken, this one is out of reach, in `cases` or in all: not planned."""

    by: Identifier
    reason: str
    cases: tuple[Identifier, ...] = ()


@dataclass(frozen=True)
class ContractCall:
    """The call that breaks, found by reading both sides at level contract.

    `callee` is searched in the callee's dotted path. `kind` is how it breaks: "definite", it raises; "misbound", an
    argument lands on another parameter than its caller means, and nothing raises.
    """

    callee: Pattern
    kind: str = "definite"


@dataclass(frozen=True)
class StackCell:
    """The cell of a report, as far as the report names it."""

    base: Identifier
    mcore: VersionText
    te: VersionText | None = None
    driver: VersionText | None = None
    sm: VersionText | None = None
    gpus: VersionText | None = None


@dataclass(frozen=True)
class Stack:
    """The stack of a report, always part of a night. `gpus` is how many it needs; an axis it does not name is None."""

    name: str
    text: str
    cell: StackCell
    gpus: int


@dataclass(frozen=True)
class StandIn:
    """What a case runs with in place of a compiled package that is absent; see matrix/kit/absent_packages.py."""

    when: Clause
    reason: str
    packages: tuple[str, ...]
    missing: tuple[str, ...] = ()
    provided: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Build:
    """A build that is no release and that this failure is about: a commit, taken from a clone that a site names.

    `source` is "megatron-lm@REVISION" or "transformer-engine@REVISION"; see matrix/provision/configuration.py.
    """

    package: Package
    version: VersionText  # what the build says of itself, the commit as local version
    source: str
    note: str


@dataclass(frozen=True)
class NightShare:
    """What a night takes of a failure's cells where all are too many: these bases and releases, and all builds.

    An axis that is left out is not narrowed.
    """

    reason: str
    bases: tuple[Identifier, ...] = ()
    te: tuple[VersionText, ...] = ()
    mcore: tuple[VersionText, ...] = ()


@dataclass(frozen=True)
class Pick:
    """What a night takes by name: these cases, or all, in this cell. The one way in for cells on an image."""

    base: Identifier
    reason: str
    mcore: str = NONE
    te: str = NONE
    cases: tuple[Identifier, ...] = ()


@dataclass(frozen=True)
class Workaround:
    """A way round; `verified` says what was run, "" if nothing was."""

    text: str
    verified: str = ""


@dataclass(frozen=True)
class Claim:
    """What a public write-up says, beside what was measured."""

    source: str
    text: str
    measured: str


@dataclass(frozen=True)
class Failure:
    """One entry. `axes` are those that matter for it; on the others its cells say "none".

    A cell in `affected` is expected broken, one in `works` to work; in neither, nothing is known of it. Rules that name
    a case go before those that name none. `clones` says why PyPI's packages won't do, "" if they do: what runs is then
    taken from the site's clones, a release at its tag. `contract` is the call that level contract reads, `stack` the
    stacks of its reports, `folder` where the entry and its reproduction are.
    """

    id: Identifier
    title: str
    references: tuple[str, ...]
    axes: tuple[Axis, ...]
    symptom: str
    cause: str
    fix: str
    signature: tuple[Signature, ...]
    affected: tuple[Rule, ...]
    works: tuple[Rule, ...] = ()
    masked: tuple[Masked, ...] = ()
    stand_in: tuple[StandIn, ...] = ()
    case: tuple[Case, ...] = ()
    build: tuple[Build, ...] = ()
    night: NightShare | None = None
    pick: tuple[Pick, ...] = ()
    clones: str = ""
    workaround: tuple[Workaround, ...] = ()
    claim: Claim | None = None
    contract: ContractCall | None = None
    stack: tuple[Stack, ...] = ()
    folder: Path = field(default=Path(), metadata={"toml": False})

    def expectation(self, cell: Cell, case: str = "") -> Expectation:
        """Return what the catalog says of a case in `cell`; without a case, of the failure as a whole."""
        return self.ruling(cell, case)[0]

    def ruling(self, cell: Cell, case: str = "") -> tuple[Expectation, Rule | None]:
        """Return the expectation and the rule that it comes from."""
        for named in (case, "") if case else ("",):
            for expectation, rules in ((Expectation.BROKEN, self.affected), (Expectation.WORKS, self.works)):
                for rule in rules:
                    if rule.speaks_of(named) and rule.matches(cell):
                        return expectation, rule
        return Expectation.UNKNOWN, None

    def case_named(self, name: str) -> Case:
        """Return the case of that name. Raises KeyError."""
        return {case.name: case for case in self.case}[Identifier(name)]

    def builds(self, package: Package) -> dict[str, Build]:
        """Return the builds of a package by version."""
        return {build.version: build for build in self.build if build.package is package}

    def stand_in_for(self, cell: Cell) -> StandIn | None:
        """Return the stand-in that a case on `cell` runs with at level cpu, None if it needs none."""
        return next((stand_in for stand_in in self.stand_in if stand_in.when.matches(cell)), None)
