"""A catalog entry: one upstream failure, its affected cells, its signatures, its cases and their limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.reach import NO_OPTIONS, JobArguments, PreflightOptions, Reached, ReachedBy, reached
from matrix.ground.catalog.schema import Identifier, Month, Pattern, Size, VersionText
from matrix.ground.catalog.stack import ABSENT, COMPONENT_KEYS, DECIDED, SM, TOOLKIT, Clause, Decide, Stack, undecided
from matrix.ground.catalog.versions import Range

MIB: Final = 2**20  # bytes
GIB: Final = 2**30  # bytes


@dataclass(frozen=True)
class Limits:
    """Limits in bytes, None = no limit.

    `address_space` applies to each process (RLIMIT_AS): its mappings, libraries included, can be much larger than the
    memory it uses. `memory` applies to all ranks of the job and their child processes together (a memory cgroup). `shm`
    gives each rank its own /dev/shm of that size.
    """

    address_space: Size | None = None
    memory: Size | None = None
    shm: Size | None = None


NO_LIMITS: Final = Limits()


PARITY: Final = "parity"  # the `run` of a case without a reproduction of its own
LAUNCHERS: Final = ("torchrun", "mpirun")  # launchers of a case's ranks


class Level(str, Enum):
    """The level of a reproduction, from static reading to the full stack; a report never shows one as another."""

    CONTRACT = "contract"  # both APIs are read statically
    CPU = "cpu"  # real upstream code, gloo / Open MPI, no GPU
    GPU = "gpu"  # the full stack


class Expectation(str, Enum):
    """The catalog's expectation for a cell."""

    BROKEN = "broken"
    WORKS = "works"
    UNKNOWN = "unknown"


class CaseNeed(str, Enum):
    """A requirement of a case, besides its GPUs, its memory limit and its launcher; most are for level gpu."""

    DATASET_HELPER = "dataset-helper"  # megatron-core's compiled one, which some overlays lack, at every level
    CUDA_TORCH = "cuda-torch"  # a torch built with CUDA, at level cpu; level gpu always needs it
    COMPILED_TE = "compiled-te"  # any; where the cell names a Transformer Engine, it is that one
    MEGATRON_LM = "megatron-lm"  # the clone: what it runs is in no wheel
    MULTICAST = "multicast"  # CUDA Multicast on each of its GPUs
    NO_MULTICAST = "no-multicast"  # a machine whose GPUs are without: no variable hides it
    NCCL = "nccl"  # more than collectives: gloo sends and receives no CUDA tensors
    WHOLE_CARD = "whole-card"  # no other case on its GPU meanwhile: it may use all of its memory
    PEERS = "peers"  # access between GPUs, as userbuffers ask for it: where ranks share a GPU, a stand-in answers


@dataclass(frozen=True)
class LayoutSignature:
    """What deviates first between a layout and one rank: a quantity (docs/parity.md), and of which parameter.

    `layout` is the text that begins the message of the comparison: "attention=mla tp=2" (docs/parity.md).
    `parameter` is searched in the name of the parameter, or of what is logged; None for a quantity of the whole model.
    """

    layout: str
    quantity: str
    parameter: Pattern | None = None


@dataclass(frozen=True)
class Signature:
    """The signature of a failure; every given key must hold, in one exception of the chain or in the log.

    `exception` is a class name. `message` is searched in that exception's text. `frame` is "file.py:function", the end
    of a path and the function that raised that exception; `through`, one at any depth of its traceback. `signal` is a
    name such as "SIGSEGV". `stack` is a function ("name", "class::name") on the stack of a native crash in the log, at
    any depth; with `signal`, of that signal. `log` is searched in the end of the log of the rank to blame.
    `own`: this project's own check raises the exception, so no training log contains it. `any_program`: it is the same
    failure whichever program prints it, so that a log needs no other trace of Megatron's stack.
    `shared` names other causes that show it too, with their threads: alone it makes this failure one of several.
    `not_with` is searched in the lines of a log that state why (clues of facts/kinds.toml): one rules the failure out.
    `parity` states what the comparison of a layout with one rank reports first, and sets `exception`, `message`, `own`.
    """

    name: Identifier
    exception: str | None = None
    message: Pattern | None = None
    frame: str | None = None
    through: str | None = None
    signal: str | None = None
    stack: str | None = None
    exit_code: int | None = None
    log: Pattern | None = None
    own: bool = False
    any_program: bool = False
    shared: str = ""
    not_with: Pattern | None = None
    parity: LayoutSignature | None = None

    def __post_init__(self) -> None:
        if self.parity:
            parameter = rf"of [^;]*(?:{self.parity.parameter})" if self.parity.parameter else "deviates by"
            message = Pattern(f"^{re.escape(self.parity.layout)}: {self.parity.quantity} {parameter}")
            for key, value in (("exception", "ParityDeviation"), ("message", message), ("own", True)):
                object.__setattr__(self, key, value)

    @property
    def keys(self) -> int:
        """Return how many parts of a log it compares."""
        names = ("exception", "message", "frame", "through", "signal", "stack", "exit_code", "log")
        return sum(getattr(self, name) is not None for name in names)

    @property
    def place(self) -> str:
        """Return where the exception is raised, "" where the signature does not say."""
        return f"in {self.frame}" if self.frame else f"below {self.through}" if self.through else ""


# Bytes of a GPU that a rank is taken to use: the tiny models took under 2 GiB (an H100, 2026-11-22).
CARD: Final = Size(4 * GIB)


@dataclass(frozen=True)
class Case:
    """One way to reproduce a failure: the function that each rank runs, its arguments and the number of ranks.

    `run` is a function of the folder's reproduction.py, or MODULE:FUNCTION of another module there; it receives a
    matrix.kit.rank.Rank and `arguments`. "parity" is the kit's comparison of the layout in `arguments` with one rank.
    At level contract nothing runs: both APIs are read (Failure.contract), or the folder's preflight.py judges the cell.
    `limits` bound the memory of the ranks. `gpus` are required at level gpu, one for each rank, and `needs`. `card` are
    the bytes of a GPU that a rank uses at most: cases that fit one GPU share it, unless they need `whole-card`.
    `bases` are the bases that it runs on above level contract; without them, every base of wheels. `releases` are,
    by component, those that have the code it runs; `sm` is the GPU that it needs.
    `launcher` starts the ranks (execution/ranks/job.py). `packages` ("NAME==VERSION", from PyPI) are laid over the
    base. `deadline` is its limit in seconds where the usual one (matrix.prove.execution.reproduction) is
    lower; `catalog check` refuses one that is not above it.
    `write`, a function like `run`, writes the checkpoint that the case reads: it runs with the writer's packages, on as
    many ranks, and both functions find the folder in Rank.checkpoint.
    `picked`: the case does not depend on the cell, and runs only where `pick` names it.
    `preload` is false where the ranks only start another process: they import nothing beforehand, and a red run is not
    repeated in fresh interpreters.
    `rehearsal` are the arguments with small sizes for a rehearsal of level gpu on a machine without GPUs (docs/gpu.md);
    `no_rehearsal` is the reason why there is none.
    """

    name: Identifier
    levels: tuple[Level, ...]
    run: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 1
    gpus: int = 0
    card: Size = CARD
    limits: Limits = NO_LIMITS
    bases: tuple[Identifier, ...] = ()
    releases: Mapping[str, Range] = field(default_factory=dict, metadata=COMPONENT_KEYS)
    launcher: str = LAUNCHERS[0]
    packages: tuple[str, ...] = ()
    picked: bool = False
    needs: tuple[CaseNeed, ...] = ()
    deadline: int = 0
    write: str = ""
    preload: bool = True
    rehearsal: Mapping[str, Any] = field(default_factory=dict)
    no_rehearsal: str = ""

    @property
    def function(self) -> tuple[str, str]:
        """Return the module in the failure's folder and its function that each rank runs."""
        return _function(self.run)

    @property
    def writer(self) -> tuple[str, str]:
        """Return the module in the failure's folder and its function that writes the checkpoint."""
        return _function(self.write)

    def part(self, gpus: int) -> int:
        """Return the bytes of a GPU that the case holds, 0 where it holds whole ones: on `gpus` of them."""
        return 0 if gpus != 1 or CaseNeed.WHOLE_CARD in self.needs else self.card * self.ranks

    def is_for(self, stack: Stack) -> bool:
        """Return whether the stack's releases are in the case's ranges; its GPUs are a requirement of the machine."""
        bounds = [(name, bound) for name, bound in self.releases.items() if name != SM]
        return all((version := stack.version(name)) and version in bound for name, bound in bounds)


def _function(text: str) -> tuple[str, str]:
    if text == PARITY:
        return "matrix.kit.parity.campaign", "deviation"
    module, _, function = text.rpartition(":")
    return module or "reproduction", function


@dataclass(frozen=True)
class OpenPackage:
    """A version of a further package that the failure's cells name; `requires` ("NAME==VERSION") are laid with it."""

    name: Identifier
    version: VersionText
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule(Clause):
    """An item of `affected` or `works`: a clause, limited to `cases` if it names any.

    One cell can thus be broken in the case that provokes the failure and work in its control, the workaround.
    """

    cases: tuple[Identifier, ...] = ()

    def applies_to(self, case: str) -> bool:
        """Return whether the rule names the case; without a case, whether it names none."""
        return case in self.cases if case else not self.cases

    def __str__(self) -> str:
        return super().__str__() + (f" in case {', '.join(self.cases)}" if self.cases else "")


@dataclass(frozen=True)
class Ruling:
    """What the rules of a failure say of a stack.

    `rule` is the one that decides, None where none does: the expectation is then UNKNOWN. `may_break` are the rules of
    `affected` that match if the unknown components named with them are in their bounds; no earlier rule matches.
    """

    expectation: Expectation = Expectation.UNKNOWN
    rule: Rule | None = None
    may_break: tuple[tuple[Rule, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Masked:
    """A failure that hides this one: where `by` is expected broken, `cases` (default: all) are not planned.

    `when` limits it to some of these cells.
    """

    by: Identifier
    reason: str
    cases: tuple[Identifier, ...] = ()
    when: Clause = field(default_factory=Clause)


@dataclass(frozen=True)
class ContractCall:
    """The breaking call, found by reading both APIs at level contract.

    `callee` is searched in the callee's dotted path. `kind` is how the call breaks: "definite", it raises; "misbound",
    an argument binds to another parameter than the caller intends, and nothing raises. `caller` is searched in the
    name of the calling function, None = any.
    """

    callee: Pattern
    kind: str = "definite"
    caller: Pattern | None = None


@dataclass(frozen=True)
class CellName:
    """A cell as an entry names it: a base, and the versions of the components that it names."""

    base: Identifier
    versions: Mapping[str, VersionText] = field(default_factory=dict, metadata=COMPONENT_KEYS)


@dataclass(frozen=True)
class ReportedStack:
    """A report, whose cell is always part of a night. `gpus` is the number of GPUs that it needs."""

    name: str
    text: str
    cell: CellName
    gpus: int


@dataclass(frozen=True)
class StandIn:
    """A substitute for compiled packages that are absent from a cell; see matrix/kit/absent_packages.py."""

    when: Clause
    reason: str
    packages: tuple[str, ...]
    missing: tuple[str, ...] = ()
    provided: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Build:
    """A build that is no release but that this failure concerns: a commit, taken from a clone that the site configures.

    `source` is "megatron-lm@REVISION" or "transformer-engine@REVISION"; see matrix/prove/provision/host.py.
    """

    package: str
    version: VersionText  # the version that the build reports, with the commit as local version
    source: str
    note: str


@dataclass(frozen=True)
class NightShare:
    """The part of a failure's cells that a night runs where all are too many: these bases and releases, and all builds.

    `releases` are, by component, those of the night; they count for writers, too. What is left out is not restricted.
    With bases that are in no night alone, the failure is in none: its cases run by --select.
    """

    reason: str
    bases: tuple[Identifier, ...] = ()
    releases: Mapping[str, tuple[VersionText, ...]] = field(default_factory=dict, metadata=COMPONENT_KEYS)


@dataclass(frozen=True)
class Pick(CellName):
    """A cell that a night includes by name, with these cases or all. The only way to plan cells on an image."""

    reason: str = field(kw_only=True)
    cases: tuple[Identifier, ...] = ()


@dataclass(frozen=True)
class Workaround:
    """A workaround; `verified` names the run that verified it, "" if there was none.

    One that `fails` is proposed elsewhere, and `verified` names the run that refuted it.
    """

    text: str
    verified: str = ""
    fails: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim of a public write-up, with the measurement."""

    source: str
    text: str
    measured: str


@dataclass(frozen=True)
class Failure:
    """One entry. `axes` are those that it depends on: BASE and components; its cells lack the others.

    A cell in `affected` is expected broken, one in `works` to work; one in neither is unknown. Rules that name a case
    take precedence over those that name none. `reached_by` are the arguments of a training command that reach it, each
    sufficient; without any it is always reached. `clones` is the reason why PyPI's packages are unsuitable, "" if they
    are suitable: the packages then come from the site's clones, a release at its tag. `callees` are those of the calls
    that level contract finds where this failure is expected: they are this failure, no other break. `package` are the
    open packages of its cells, one of each name. `overrides` are packages whose versions users override: ranges that a
    release of megatron-core declares for them, and rules of facts/constraints.toml, exclude no cell. `unfit`: `megatrix
    fit` chooses no releases with it, although training may go on. `race`: it shows at random, in cases of other
    failures too; these run once more.
    `contract` is the call that level contract reads, `preflight` the options of its preflight.py, `stack` the stacks of
    its reports, `folder` the folder of the entry and its reproduction.
    `topic` is an id of facts/topics.toml, `first_seen` the month of the first public report ("2025-04"), "" where none
    is known.
    `upstream` is "not reported" where no thread is about it: `references` are then related ones, and docs/upstream has
    a text to file.
    """

    id: Identifier
    title: str
    references: tuple[str, ...]
    axes: tuple[str, ...]
    symptom: str
    cause: str
    fix: str
    signature: tuple[Signature, ...]
    affected: tuple[Rule, ...]
    works: tuple[Rule, ...] = ()
    reached_by: tuple[ReachedBy, ...] = ()
    masked: tuple[Masked, ...] = ()
    stand_in: tuple[StandIn, ...] = ()
    case: tuple[Case, ...] = ()
    build: tuple[Build, ...] = ()
    night: NightShare | None = None
    pick: tuple[Pick, ...] = ()
    clones: str = ""
    package: tuple[OpenPackage, ...] = ()
    overrides: tuple[Identifier, ...] = ()
    unfit: bool = False
    race: bool = False
    workaround: tuple[Workaround, ...] = ()
    claim: Claim | None = None
    contract: ContractCall | None = None
    callees: tuple[Pattern, ...] = ()
    preflight: PreflightOptions = NO_OPTIONS
    upstream: str = ""
    topic: Identifier = field(default=Identifier())
    first_seen: Month = field(default=Month())
    stack: tuple[ReportedStack, ...] = ()
    folder: Path = field(default=Path(), metadata={"plain": False})

    def expectation(self, stack: Stack, case: str = "") -> Expectation:
        """Return the expectation of a case in a stack; without a case, of the failure as a whole."""
        return self.ruling(stack, case).expectation

    def ruling(self, stack: Stack, case: str = "", decide: Decide = undecided) -> Ruling:
        """Return what the rules say of a case in a stack, the first that matches; `decide` as in Clause.depends_on."""
        may_break: list[tuple[Rule, tuple[str, ...]]] = []
        if case not in self._rules:
            self._rules[case] = self._rules_of(case)
        for expectation, rule in self._rules[case]:
            depends = rule.depends_on(stack, decide)
            if depends == ():
                return Ruling(may_break=tuple(may_break)) if may_break else Ruling(expectation, rule)
            if depends and expectation is Expectation.BROKEN:
                may_break.append((rule, depends))
        return Ruling(may_break=tuple(may_break))

    def _rules_of(self, case: str) -> list[tuple[Expectation, Rule]]:
        """Return the rules for a case in the order in which they decide: those that name it, then those for all."""
        rules = [(Expectation.BROKEN, rule) for rule in self.affected]
        rules += [(Expectation.WORKS, rule) for rule in self.works]
        names = (case, "") if case else ("",)
        return [(expectation, rule) for name in names for expectation, rule in rules if rule.applies_to(name)]

    @cached_property
    def _rules(self) -> dict[str, list[tuple[Expectation, Rule]]]:
        """The rules by case: a night asks for 500,000 rulings."""
        return {}

    @property
    def open(self) -> list[str]:
        """Return the packages that its rules or its cells name, canonical, in order."""
        bounds = (name for rule in (*self.affected, *self.works) for name in rule.bounds)
        packages = (name for name in bounds if name not in DECIDED)
        return list(dict.fromkeys([*packages, *(package.name for package in self.package)]))

    def reach(self, stack: Stack, arguments: JobArguments | None, decide: Decide = undecided) -> Reached:
        """Return whether a command with these arguments reaches the failure in a stack; None: no command is known.

        `decide` judges an unknown component of which something is known.
        """
        ways = self.reached_by
        if stack[TOOLKIT] is ABSENT:
            ways = tuple(replace(way, when="") if way.wheels else way for way in ways)
        return reached(ways, lambda way: way.depends_on(stack, decide), arguments)

    @property
    def workarounds(self) -> tuple[Workaround, ...]:
        """Return the workarounds that no run refuted."""
        return tuple(workaround for workaround in self.workaround if not workaround.fails)

    @property
    def is_gate(self) -> bool:
        """Return whether it is a gate: cases that must pass everywhere, of no known failure."""
        return bool(self.case) and not self.affected

    @property
    def silent(self) -> bool:
        """Return whether training goes on with other results: only this project's own checks raise."""
        return all(signature.own for signature in self.signature)

    def case_named(self, name: str) -> Case:
        """Return the case of that name. Raises KeyError."""
        return {case.name: case for case in self.case}[Identifier(name)]

    def builds(self, package: str) -> dict[str, Build]:
        """Return the builds of a package by version."""
        return {build.version: build for build in self.build if build.package == package}

    def stand_in_for(self, stack: Stack) -> StandIn | None:
        """Return the stand-in that a case in a stack uses, None if it needs none."""
        return next((stand_in for stand_in in self.stand_in if stand_in.when.matches(stack)), None)
