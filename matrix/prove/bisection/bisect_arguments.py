"""What a user requests of a bisection: the question, and how to search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.failure import Level, Signature
from matrix.ground.catalog.regular_file import read_regular_text
from matrix.ground.errors import MatrixError
from matrix.kit.command import Repeats, last_printed
from matrix.prove.bisection.ends import of_log
from matrix.prove.bisection.noise import LEAST, Noise
from matrix.prove.bisection.question import BisectionQuestion
from matrix.prove.bisection.user_command import ONCE, OwnCommand, read_signatures
from matrix.prove.store.paths import Paths
from matrix.prove.store.secrets import bare, values

# Extra points that are probed at the end, outside the searched range; reading one takes under a second.
CHECKS_READ: Final = 6
BATCH_S: Final = 10.0  # seconds of the runs of one rank
PARTS: Final = 8  # parts of the error that a search of 64 points spends, one on each point: further runs are rare
CHECKS_MEASURED: Final = 2  # the same for a measured number: each costs several runs


@dataclass(frozen=True)
class BisectArguments:
    """What a user requests: the question, and how to search.

    `shows` is the probability that a run shows the failure, `checks` the number of extra points (None: by the kind of
    probe). With `fresh`, stored results are ignored. The rest is for a command: `signature` is a file of signatures,
    `log` one that ends with the failure, `metric` the expression of a number, `worse_than` the part of it that matters
    (0.05), `repeats` the runs of which the mean is one number, `deadline` the seconds of a run. With `shared_folder`
    all points run in the caller's folder; `override` are packages whose declared ranges do not count.
    """

    question: BisectionQuestion
    out: Path
    at_once: int = 1
    shows: float = 1.0
    confidence: float = 0.95
    checks: int | None = None
    fresh: bool = False
    signature: str = ""
    log: str = ""
    metric: str = ""
    worse_than: float = 0.0
    repeats: int = 1
    deadline: int = 0
    shared_folder: bool = False
    override: Sequence[str] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> BisectArguments:
        """Return the request that the options of `megatrix bisect` make, by name; further ones are left out."""
        question: dict[str, Any] = {field.name: options[field.name] or "" for field in fields(BisectionQuestion)}
        further = {field.name: options[field.name] for field in fields(cls) if field.name != "question"}
        return cls(BisectionQuestion(**question), **{**further, "override": tuple(options["override"])})

    def command(self, folder: Path) -> OwnCommand | None:
        """Return the command to bisect, which runs in `folder`; None for a failure of the catalog.

        Raises MatrixError for options that do not fit.
        """
        question = self.question
        if not question.own:
            if not question.failure:
                raise MatrixError("nothing to bisect", expected="the id of a failure, or a command: -- COMMAND ...")
            if self.signature or self.log or self.metric or self.deadline:
                raise MatrixError(
                    "--signature, --log, --metric and --deadline are for a command", expected="-- COMMAND ..."
                )
            return None
        if question.failure or question.case or question.level == Level.CONTRACT.value:
            raise MatrixError(
                "a command is bisected instead of a failure",
                got=question.failure or (question.case and f"--case {question.case}") or "--level contract",
                expected="no failure, no --case, --level cpu or gpu",
            )
        if not (question.good and question.bad):
            raise MatrixError("a command needs both ends", expected="--good X --bad Y: it passes at X and fails at Y")
        kinds = [bool(self.metric), bool(self.signature), bool(self.log)]
        if bool(self.metric) != bool(self.worse_than) or sum(kinds) > 1:
            raise MatrixError(
                "a number is compared, or a signature",
                expected="--metric REGEX --worse-than 5%, --signature FILE or --log FILE",
            )
        fixed = ("bad", "axis", "base", "torch", "mcore", "te", "driver", "compile", "pin")
        ends = tuple(f"{name}={getattr(question, name)}" for name in fixed)
        level = Level(question.level or Level.CPU.value)
        return OwnCommand(
            *(tuple(question.own), folder, level, self.deadline, self.metric, self.runs, ends),
            *(self.shared_folder, tuple(self.override)),
        )

    @property
    def runs(self) -> Repeats:
        """Return how often one rank runs the command: while that is short, so that a session starts once for many."""
        seconds = min(BATCH_S, self.deadline / 4) if self.deadline else BATCH_S
        if self.metric:
            return Repeats(self.repeats, self.repeats if self.repeats > 1 else LEAST, seconds)
        if self.shows == 1:
            return ONCE
        return Repeats(1, Noise(self.shows).tries(1 - (1 - self.confidence) / PARTS), seconds)


def given_signatures(arguments: BisectArguments) -> tuple[Signature, ...]:
    """Return the signatures of --signature, or that of the failure with which the log of --log ends.

    Raises MatrixError.
    """
    if arguments.signature:
        return read_signatures(Path(arguments.signature))
    if not arguments.log:
        return ()
    lines = bare(read_regular_text(Path(arguments.log)), values()).splitlines()
    signature = of_log(last_printed(lines), lines)
    if signature is None:
        raise MatrixError("this log shows no failure", where=arguments.log, got="no line", expected="a traceback")
    return (signature,)


def folder_of(arguments: BisectArguments, own: OwnCommand) -> Path:
    """Return the folder of what a bisection writes about a command."""
    return Paths(arguments.out).bisections.absolute() / own.id
