"""Judge a job on a machine with the preflights, from the stack, the machine's facts and the user's options. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from matrix.catalog.failure import Failure
from matrix.catalog.stack import BASE, DRIVER, MCORE, SM, TE, TORCH, Stack
from matrix.catalog.versions import is_version, parse
from matrix.check.job import ANY_SIZE, UserJob
from matrix.errors import MatrixError
from matrix.kit.launch import VARIABLES, Launcher, World, environment_of, world_of
from matrix.kit.options import Option, count, one_of, read
from matrix.kit.preflight import Answer, Machine, Preflight, Report, TrainingJob, unjudged

if TYPE_CHECKING:
    from matrix.check.facts import HostFacts

LAUNCHERS: Final = tuple(launcher.value for launcher in Launcher if launcher is not Launcher.NONE)


def _version(text: str, where: str) -> str:
    if not is_version(text):
        raise MatrixError("not a version", got=f"{where} {text}", expected=f"such as {where} 535.129.03")
    return text


def _capability(text: str, where: str) -> str:
    if not re.fullmatch(r"\d{1,2}\.\d", text):
        raise MatrixError("not a compute capability", got=f"{where} {text}", expected=f"such as {where} 9.0")
    return text


OPTIONS: Final = (
    Option("driver", "VERSION", "the kernel driver of the job's machine (default: this one's)", _version),
    Option("sm", "CAPABILITY", "the compute capability of its GPUs, such as 9.0", _capability),
    Option("launcher", "NAME", f"launcher of the job: {', '.join(LAUNCHERS)}", one_of(*LAUNCHERS)),
    Option("world-size", "N", "number of processes of the job", count(1)),
)


@dataclass(frozen=True)
class Assumed:
    """The values of the user's options: `general` of OPTIONS, `given` the texts of those of preflights."""

    general: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)


def options_of(known: Iterable[Preflight]) -> list[Option]:
    """Return the options of the command: OPTIONS, and those of these preflights."""
    return [*OPTIONS, *(option for one in known for option in one.options)]


def assume(given: Mapping[str, str | None], known: Iterable[Preflight]) -> Assumed:
    """Return the assumptions from the texts given for `options_of(known)`. Raises MatrixError for an invalid value."""
    texts = {name: text for name, text in given.items() if text is not None}
    general, _ = read(OPTIONS, {name: text for name, text in texts.items() if name in {one.name for one in OPTIONS}})
    own = {name: text for name, text in texts.items() if name not in general}
    for one in known:
        names = {option.name for option in one.options}
        read(one.options, {name: text for name, text in own.items() if name in names})
    return Assumed(general, own)


def examine(
    preflight: Preflight,
    stack: Stack,
    job: UserJob,
    host: HostFacts | None,
    assumed: Assumed,
    failures: Iterable[Failure],
) -> Report:
    """Return the report of one preflight on a job; `host` is its machine, None where that is unknown.

    An error gets the id of the entry of `failures` whose signature it matches. A release that is not recorded, and a
    preflight that fails, make the report unjudged.
    """
    from matrix.contract import calling  # 0.1 s: it is not needed for a stack without a job

    try:
        options = {option.name for option in preflight.options}
        texts = {
            **preflight.given(job.arguments.values if job.arguments else {}, job.per_host),
            **{name: text for name, text in assumed.given.items() if name in options},
        }
        arguments, machine = read(preflight.options, texts)
        report = preflight.examine(
            training_job(stack, job, host, assumed, arguments),
            replace(machine_of(stack, host, assumed), **machine),
            calling,
        )
    except MatrixError as error:
        report = unjudged(preflight.subject, error.brief)
    except Exception as error:  # of one entry; the others are still of use
        report = unjudged(preflight.subject, f"its preflight failed: {type(error).__name__}: {error}")
    return replace(report, answers=tuple(_named(answer, failures) for answer in report.answers))


def _named(answer: Answer, failures: Iterable[Failure]) -> Answer:
    """Return the answer with the id of the catalog entry whose signature its error matches."""
    if answer.error is None:
        return answer
    from matrix.verdicts.outcome import Outcome, OutcomeKind, Raised
    from matrix.verdicts.signature_match import owner

    raised = Raised(answer.error.type, answer.error.message)
    found = owner(failures, Outcome(OutcomeKind.RAISED, chain=(raised,)))
    return replace(answer, failure=found.id) if found else answer


def training_job(
    stack: Stack, job: UserJob, host: HostFacts | None, assumed: Assumed, arguments: Mapping[str, Any]
) -> TrainingJob:
    """Return the job as it would be started. An image's torch has its mpi backend, as the ones of NGC have."""
    interpreter = host.interpreter if host else None
    own = interpreter is not None and interpreter.packages.get(TORCH) == stack.version(TORCH)
    environ = {**(host.environ if host else {}), **job.environ}
    in_image = str(stack[BASE]).startswith("ngc-")
    return TrainingJob(
        te=stack.version(TE) or "",
        mcore=stack.version(MCORE) or "",
        torch_mpi=(interpreter.torch_mpi if own and interpreter else None) or in_image or None,
        te_mpi=interpreter.built_with_mpi if own and interpreter else None,
        world=_world(job, host, assumed),
        environ={name: value for name, value in environ.items() if name not in VARIABLES},
        arguments=arguments,
    )


def _world(job: UserJob, host: HostFacts | None, assumed: Assumed) -> World:
    """Return the world of the job: of the options, else of its command, else of this process."""
    launcher, size = assumed.general.get("launcher"), assumed.general.get("world-size")
    current = job.world if job.world.size is not None else world_of(host.environ) if host else job.world
    if not (launcher or size):
        return current
    if not launcher and current.size is None:
        return world_of({})  # a size without a launcher implies nothing about MPI
    gpus = len(host.cuda.gpus) if host else 0
    count_ = size or current.size or max(gpus, ANY_SIZE)
    return world_of(environment_of(Launcher(launcher) if launcher else current.launcher, count_))


def machine_of(stack: Stack, host: HostFacts | None, assumed: Assumed) -> Machine:
    """Return the machine with the weakest of its GPUs; facts that depend on a stated value are unknown."""
    stated: dict[str, Any] = {name: version for name in (DRIVER, SM) if (version := stack.version(name))}
    stated |= {name: assumed.general[name] for name in (DRIVER, SM) if name in assumed.general}
    if host is None:
        return Machine(**stated)
    gpus = host.cuda.gpus
    sm = min((gpu.sm for gpu in gpus), key=parse, default=None)
    found = {"driver": host.driver, "sm": sm}
    other = {axis for axis, value in stated.items() if value != found[axis]}
    return Machine(
        **{**found, **stated},
        cuda=None if "driver" in other else host.cuda.version,
        multicast=all(gpu.multicast for gpu in gpus) if gpus and not other else None,
        memory=host.limit or host.memory,
        shm=host.shm,
    )
