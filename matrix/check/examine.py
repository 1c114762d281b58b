"""Judge a job on a machine with the preflights, from the facts of the machine and the user's assumptions. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from matrix.catalog.failure import Failure
from matrix.catalog.versions import NONE, is_version, parse
from matrix.check.facts import HostFacts, capabilities
from matrix.contract import calling, reading
from matrix.errors import MatrixError
from matrix.execution import preflights
from matrix.kit.launch import VARIABLES, Launcher, World, environment_of, world_of
from matrix.kit.options import Option, count, one_of, read
from matrix.kit.preflight import Answer, Machine, Preflight, Report, TrainingJob, unjudged
from matrix.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.verdicts.signature import owner

LAUNCHERS: Final = tuple(launcher.value for launcher in Launcher if launcher is not Launcher.NONE)
ANY_SIZE: Final = 2  # processes of a job on a machine with fewer GPUs: the smallest job with several processes
EXAMPLE: Final = {"--torch": "2.4.1", "--driver": "535.129.03"}


def _version(text: str, where: str) -> str:
    if not is_version(text):
        raise MatrixError("not a version", got=f"{where} {text}", expected=f"such as {where} {EXAMPLE[where]}")
    return text


def _capability(text: str, where: str) -> str:
    if not re.fullmatch(r"\d{1,2}\.\d", text):
        raise MatrixError("not a compute capability", got=f"{where} {text}", expected=f"such as {where} 9.0")
    return text


OPTIONS: Final = (
    Option(
        "mcore",
        "SOURCE",
        "megatron-core of the job: a recorded version, a folder, PATH@REV; none: Transformer Engine alone",
    ),
    Option("te", "SOURCE", "Transformer Engine of the job: a recorded version, a folder, PATH@REV"),
    Option("torch", "VERSION", "assume this PyTorch instead of the installed one", _version),
    Option("driver", "VERSION", "assume this kernel driver instead of the installed one", _version, machine="driver"),
    Option("sm", "CAPABILITY", "assume a GPU of this compute capability, such as 9.0", _capability, machine="sm"),
    Option("launcher", "NAME", f"launcher of the job: {', '.join(LAUNCHERS)}", one_of(*LAUNCHERS)),
    Option("world-size", "N", "number of processes of the job", count(1)),
)


@dataclass(frozen=True)
class Assumed:
    """Values that replace the facts found. `mcore` "none": Transformer Engine is used without Megatron-LM.

    `arguments` are the arguments of the job, `machine` the fields of Machine.
    """

    mcore: str | None = None
    te: str | None = None
    torch: str | None = None
    launcher: str | None = None
    world_size: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)


def options_of(known: Iterable[Preflight]) -> list[Option]:
    """Return the options of the command: OPTIONS, and those of these preflights."""
    return [*OPTIONS, *(option for one in known for option in one.options)]


def assume(given: Mapping[str, str | None], known: Iterable[Preflight]) -> Assumed:
    """Return the assumptions from the texts given for `options_of(known)`. Raises MatrixError for an invalid value."""
    arguments, machine = read(options_of(known), given)
    names = [option.name for option in OPTIONS if option.name in arguments]
    general = {name.replace("-", "_"): arguments.pop(name) for name in names}
    return Assumed(**general, arguments=arguments, machine=machine)


@dataclass(frozen=True)
class Diagnosis:
    """The facts of the machine, the job, and the report of each preflight."""

    facts: HostFacts
    host: tuple[Answer, ...]
    job: TrainingJob
    machine: Machine
    reports: tuple[Report, ...]

    @property
    def judged(self) -> bool:
        """Return whether enough is known of the job to judge it."""
        return any(report.judged for report in self.reports)

    @property
    def fails(self) -> bool:
        """Return whether the job will fail."""
        return any(report.fails for report in self.reports)

    def to_json(self) -> dict[str, Any]:
        """Return one object of plain JSON values."""
        return {
            "facts": self.facts.to_json(),
            "host": [answer.to_json() for answer in self.host],
            "setting": {**asdict(self.job), "machine": asdict(self.machine)},
            "job": [answer.to_json() for report in self.reports for answer in report.answers],
            "fails": self.fails,
            "changes": [list(one) for report in self.reports for one in report.changes],
        }


def judges() -> tuple[Preflight, ...]:
    """Return the preflights that judge a job on a machine: those of all failures that name no topic."""
    return tuple(one for one in preflights.installed() if not one.topic)


def examine(
    host: HostFacts, assumed: Assumed, failures: Iterable[Failure] = (), known: Iterable[Preflight] | None = None
) -> Diagnosis:
    """Return the diagnosis by the preflights `known`, by default `judges()`.

    An error gets the id of the entry of `failures` whose signature it matches. Raises MatrixError for an assumed
    release that is not recorded; an installed one that is not recorded is not judged.
    """
    job, machine = job_of(host, assumed), machine_of(host, assumed)
    if job.mcore == assumed.mcore and not job.te:  # with a Transformer Engine the preflights read both
        reading.calls_of(job.mcore)
    reports = []
    for one in judges() if known is None else known:
        try:
            report = one.examine(job, machine, calling)
        except MatrixError as error:
            if assumed.te or assumed.mcore:
                raise
            report = unjudged(one.subject, error.brief)
        except Exception as error:  # of one entry; the others are still of use
            report = unjudged(one.subject, f"its preflight failed: {type(error).__name__}: {error}")
        reports.append(replace(report, answers=tuple(_named(answer, failures) for answer in report.answers)))
    return Diagnosis(host, capabilities(host), job, machine, tuple(reports))


def _named(answer: Answer, failures: Iterable[Failure]) -> Answer:
    """Return the answer with the id of the catalog entry whose signature its error matches."""
    if answer.error is None:
        return answer
    raised = Raised(answer.error.type, answer.error.message)
    found = owner(failures, Outcome(OutcomeKind.RAISED, chain=(raised,)))
    return replace(answer, failure=found.id) if found else answer


def job_of(host: HostFacts, assumed: Assumed) -> TrainingJob:
    """Return the job as it would be started."""
    packages = host.interpreter.packages
    mcore = assumed.mcore or packages.get("megatron-core", NONE)
    return TrainingJob(
        te=assumed.te or packages.get("transformer-engine", ""),
        mcore="" if mcore == NONE else mcore,
        torch_mpi=None if assumed.torch else host.interpreter.torch_mpi,
        te_mpi=None if assumed.te else host.interpreter.built_with_mpi,
        world=_world(host, assumed),
        environ={name: value for name, value in host.environ.items() if name not in VARIABLES},
        arguments=assumed.arguments,
    )


def _world(host: HostFacts, assumed: Assumed) -> World:
    """Return the world of the job: that of this process, or the assumed launcher and size."""
    current = world_of(host.environ)
    if not (assumed.launcher or assumed.world_size):
        return current
    if not assumed.launcher and current.size is None:
        return world_of({})  # a size without a launcher implies nothing about MPI
    size = assumed.world_size or current.size or max(len(host.cuda.gpus), ANY_SIZE)
    return world_of(environment_of(Launcher(assumed.launcher) if assumed.launcher else current.launcher, size))


def machine_of(host: HostFacts, assumed: Assumed) -> Machine:
    """Return the machine with the weakest of its GPUs; facts that depend on an assumed value are unknown."""
    gpus = host.cuda.gpus
    other = assumed.machine.keys() & {"driver", "sm"}
    found = Machine(
        driver=host.driver,
        cuda=None if "driver" in other else host.cuda.version,
        sm=min((gpu.sm for gpu in gpus), key=parse, default=None),
        multicast=all(gpu.multicast for gpu in gpus) if gpus and not other else None,
        memory=host.limit or host.memory,
        shm=host.shm,
    )
    return replace(found, **assumed.machine)
