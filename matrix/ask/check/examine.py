"""Judge a job on a machine with the preflights, from the stack, the machine's facts and the user's options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from matrix.ask.check.training_job import ANY_SIZE, UserJob
from matrix.ground.catalog.failure import Failure
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, PythonEnvironment
from matrix.ground.catalog.reach import JobOption, OptionKind, PreflightOptions, read_options
from matrix.ground.catalog.stack import BASE, DRIVER, MCORE, SM, TE, TORCH, Stack
from matrix.ground.errors import MatrixError
from matrix.kit.launch import VARIABLES, Launcher, World, environment_of, world_of
from matrix.kit.preflight import Answer, Report, TrainingJob, preflight_of, unjudged

if TYPE_CHECKING:
    from matrix.ask.check.job_site import JobSite

LAUNCHERS: Final = tuple(launcher.value for launcher in Launcher if launcher is not Launcher.NONE)


OPTIONS: Final = (
    JobOption("driver", "VERSION", "the kernel driver of the job's machine (default: this one's)", OptionKind.VERSION),
    JobOption("sm", "CAPABILITY", "the compute capability of its GPUs, such as 9.0", OptionKind.CAPABILITY),
    JobOption("launcher", "NAME", f"launcher of the job: {', '.join(LAUNCHERS)}", choices=LAUNCHERS),
    JobOption("world-size", "N", "number of processes of the job", OptionKind.COUNT, least=1),
)


@dataclass(frozen=True)
class Assumed:
    """The values of the user's options: `general` of OPTIONS, `given` the texts of those of preflights."""

    general: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)


def options_of(preflights: Iterable[PreflightOptions]) -> list[JobOption]:
    """Return the options of the command: OPTIONS, and those of these preflights."""
    return [*OPTIONS, *(option for preflight in preflights for option in preflight.option)]


def assume(given: Mapping[str, str | None], preflights: Iterable[PreflightOptions]) -> Assumed:
    """Return the assumptions from the texts given for `options_of`. Raises MatrixError for an invalid value."""
    general = {option.name: option.read(text) for option in OPTIONS if (text := given.get(option.name)) is not None}
    texts = {name: text for name, text in given.items() if text is not None and name not in general}
    for option in options_of(preflights):
        if option.name in texts:
            option.read(texts[option.name])
    return Assumed(general, texts)


def examine(
    failure: Failure,
    stack: Stack,
    job: UserJob,
    site: JobSite | None,
    assumed: Assumed,
    failures: Iterable[Failure],
) -> Report:
    """Return the report of a failure's preflight on a job; `site` is where it starts, None where that is unknown.

    An error gets the id of the entry of `failures` whose signature it matches. A release that is not recorded, and a
    preflight that fails, make the report unjudged.
    """
    from matrix.kit import contracts  # 0.1 s: it is not needed for a stack without a job

    options, command = failure.preflight.option, job.arguments.values if job.arguments else {}
    texts = {option.name: assumed.given.get(option.name, command.get(option.argument)) for option in options}
    try:
        arguments, machine = read_options(options, texts)
        report = preflight_of(failure.folder)(
            training_job(stack, job, site, assumed, arguments),
            replace(machine_of(stack, site, assumed), **machine),
            contracts,
        )
    except MatrixError as error:
        report = unjudged(error.brief)
    except Exception as error:  # of one entry; the others are still of use
        report = unjudged(f"its preflight failed: {type(error).__name__}: {error}")
    return replace(report, answers=tuple(_named(answer, failures) for answer in report.answers))


def _named(answer: Answer, failures: Iterable[Failure]) -> Answer:
    """Return the answer with the id of the catalog entry whose signature its error matches."""
    if answer.error is None:
        return answer
    from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
    from matrix.ground.verdicts.signature_match import owner

    raised = Raised(answer.error.type, answer.error.message)
    failure = owner(failures, Outcome(OutcomeKind.RAISED, chain=(raised,)))
    return replace(answer, failure=failure.id) if failure else answer


def training_job(
    stack: Stack, job: UserJob, site: JobSite | None, assumed: Assumed, arguments: Mapping[str, Any]
) -> TrainingJob:
    """Return the job as it would be started. An image's torch has its mpi backend, as the ones of NGC have."""
    own = site is not None and site.python.packages.get(TORCH) == stack.version(TORCH)
    python = site.python if site and own else PythonEnvironment()
    environ = {**(site.environ if site else {}), **job.environ}
    return TrainingJob(
        te=stack.version(TE) or "",
        mcore=stack.version(MCORE) or "",
        torch_mpi=python.torch_mpi or str(stack[BASE]).startswith("ngc-") or None,
        te_mpi=python.te_mpi,
        world=_world(job, site, assumed),
        environ={name: value for name, value in environ.items() if name not in VARIABLES},
        arguments=arguments,
        command=job.arguments.stated if job.arguments else {},
        per_host=job.per_host,
    )


def _world(job: UserJob, site: JobSite | None, assumed: Assumed) -> World:
    """Return the world of the job: of the options, else of its command, else of this process."""
    launcher, size = assumed.general.get("launcher"), assumed.general.get("world-size")
    current = job.world if job.world.size is not None else world_of(site.environ) if site else job.world
    if not (launcher or size):
        return current
    if not launcher and current.size is None:
        return world_of({})  # a size without a launcher implies nothing about MPI
    gpus = len(site.machine.gpus or ()) if site else 0
    count_ = size or current.size or max(gpus, ANY_SIZE)
    return world_of(environment_of(Launcher(launcher) if launcher else current.launcher, count_))


def machine_of(stack: Stack, site: JobSite | None, assumed: Assumed) -> Machine:
    """Return the machine of the job; facts that depend on a stated value are unknown."""
    values: dict[str, Any] = {name: version for name in (DRIVER, SM) if (version := stack.version(name))}
    values |= {name: assumed.general[name] for name in (DRIVER, SM) if name in assumed.general}
    machine = site.machine if site else Machine()
    cuda = machine.cuda or Cuda()
    if values.get(SM, machine.sm) != machine.sm:
        cuda = replace(cuda, gpus=(Gpu(sm=values[SM]),))
    if values.get(DRIVER, machine.driver) != machine.driver:
        cuda = Cuda(gpus=tuple(replace(gpu, multicast=None) for gpu in cuda.gpus))
    return replace(machine, driver=values.get(DRIVER, machine.driver), cuda=cuda)
