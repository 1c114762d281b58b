"""What a job would meet: the facts of a machine, and what a person wishes otherwise. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from matrix.catalog.failure import Failure
from matrix.catalog.versions import NONE, is_version, parse
from matrix.check.answer import Answer, Word
from matrix.check.facts import HostFacts, capabilities
from matrix.check.launch import Launcher, environment_of, world_of
from matrix.check.multicast import Device
from matrix.check.overlap import BACKENDS, Setting, contract
from matrix.check.remedy import ANY_SIZE, remedies
from matrix.contract import recording
from matrix.contract.recording import MCORE, TE
from matrix.errors import MatrixError, closest
from matrix.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.verdicts.signature import owner

LAUNCHERS: Final = tuple(launcher.value for launcher in Launcher if launcher is not Launcher.NONE)


@dataclass(frozen=True)
class Wishes:
    """What is to be supposed in place of what is found. `mcore` "none": initialize_ub is called directly."""

    mcore: str | None = None
    te: str | None = None
    torch: str | None = None
    driver: str | None = None
    sm: str | None = None
    launcher: str | None = None
    bootstrap: str | None = None
    world_size: str | None = None

    def __post_init__(self) -> None:
        """Raise MatrixError for what can't be meant."""
        for name, options in (("launcher", LAUNCHERS), ("bootstrap", BACKENDS)):
            value = getattr(self, name)
            if value is not None and value not in options:
                raise MatrixError(
                    f"no such {name}", got=value, expected=", ".join(options), fix=closest(value, options)
                )
        for name in ("torch", "driver"):
            value = getattr(self, name)
            if value is not None and not is_version(value):
                raise MatrixError(
                    "not a version", got=f"--{name} {value}", expected=f"such as --{name} {EXAMPLE[name]}"
                )
        if self.sm is not None and not re.fullmatch(r"\d{1,2}\.\d", self.sm):
            raise MatrixError("not a compute capability", got=f"--sm {self.sm}", expected="such as --sm 9.0")
        if self.world_size is not None and not re.fullmatch(r"[1-9]\d*", self.world_size):
            raise MatrixError("not a world size", got=f"--world-size {self.world_size}", expected="a number from 1 on")


EXAMPLE: Final = {"torch": "2.4.1", "driver": "535.129.03"}


@dataclass(frozen=True)
class Diagnosis:
    """What the machine has, what the job would meet, and the sets of changes that would make it start.

    `setting` is None where too little is known to judge.
    """

    facts: HostFacts
    host: tuple[Answer, ...]
    job: tuple[Answer, ...]
    setting: Setting | None
    changes: tuple[tuple[str, ...], ...]

    @property
    def judged(self) -> bool:
        """Say whether enough is known of a job to judge it."""
        return all(answer.question != JUDGED for answer in self.job)

    @property
    def fails(self) -> bool:
        """Say whether the job will fail."""
        return any(answer.breaks for answer in self.job)

    def to_json(self) -> dict[str, Any]:
        """Return one object of plain JSON values."""
        return {
            "facts": self.facts.to_json(),
            "host": [answer.to_json() for answer in self.host],
            "setting": setting_to_json(self.setting) if self.setting else None,
            "job": [answer.to_json() for answer in self.job],
            "fails": self.fails,
            "changes": [list(one) for one in self.changes],
        }


def setting_to_json(setting: Setting) -> dict[str, Any]:
    """Return a setting as plain JSON values."""
    values = {field.name: getattr(setting, field.name) for field in fields(setting)}
    return {**values, "environ": dict(setting.environ), "device": dict(vars(setting.device))}


def examine(host: HostFacts, wishes: Wishes, failures: Iterable[Failure] = ()) -> Diagnosis:
    """Return the diagnosis; what breaks is looked up in `failures`. Raises MatrixError for a wish that is not known."""
    here = capabilities(host)
    setting = setting_of(host, wishes)
    if setting is None:
        missing = Answer(JUDGED, Word.UNKNOWN, "there is no Transformer Engine here; name one with --te")
        return Diagnosis(host, here, (missing,), None, ())
    try:
        job = contract(setting)
    except MatrixError as error:
        if wishes.te or wishes.mcore:
            raise
        return Diagnosis(host, here, (Answer(JUDGED, Word.UNKNOWN, error.brief),), setting, ())
    broken = any(answer.breaks for answer in job)
    releases = {"mcore": recording.released(MCORE), "te": recording.released(TE)}
    named = tuple(_named(answer, failures) for answer in job)
    return Diagnosis(host, here, named, setting, remedies(setting, _starts, releases) if broken else ())


JUDGED: Final = "--tp-comm-overlap can be judged"


def _named(answer: Answer, failures: Iterable[Failure]) -> Answer:
    """Return the answer with the catalog entry that it is, where its exception is one's signature."""
    if answer.failure or not answer.breaks:
        return answer
    kind, _, message = answer.breaks.partition(": ")
    found = owner(failures, Outcome(OutcomeKind.RAISED, chain=(Raised(kind, message),)))
    return replace(answer, failure=found.id) if found else answer


def _starts(setting: Setting) -> bool:
    return not any(answer.breaks for answer in contract(setting))


def setting_of(host: HostFacts, wishes: Wishes) -> Setting | None:
    """Return the job as it would be started; None without a Transformer Engine."""
    packages = host.interpreter.packages
    te = wishes.te or packages.get("transformer-engine")
    if te is None:
        return None
    mcore = wishes.mcore or packages.get("megatron-core")
    return Setting(
        te=te,
        mcore=None if mcore == NONE else mcore,
        bootstrap=wishes.bootstrap,
        torch_mpi=None if wishes.torch else host.interpreter.torch_mpi,
        built_with_mpi=None if wishes.te else host.interpreter.built_with_mpi,
        environ=_environ(host, wishes),
        skipmc=host.skipmc,
        device=_device(host, wishes),
    )


def _environ(host: HostFacts, wishes: Wishes) -> Mapping[str, str]:
    """Return the environment of the job's processes: this one, unless a launcher or a size is wished for."""
    here = world_of(host.environ)
    if not (wishes.launcher or wishes.world_size):
        return host.environ
    if not wishes.launcher and here.size is None:
        return {}  # a size without a launcher says nothing of MPI
    size = int(wishes.world_size or 0) or here.size or max(len(host.cuda.gpus), ANY_SIZE)
    return environment_of(Launcher(wishes.launcher) if wishes.launcher else here.launcher, size)


def _device(host: HostFacts, wishes: Wishes) -> Device:
    """Return the weakest GPU here; of another driver or SM nothing more is known than that."""
    gpus = host.cuda.gpus
    lowest = min((gpu.sm for gpu in gpus), key=parse, default=None)
    if wishes.driver or wishes.sm:
        return Device(wishes.driver or host.driver, None if wishes.driver else host.cuda.version, wishes.sm or lowest)
    return Device(host.driver, host.cuda.version, lowest, all(gpu.multicast for gpu in gpus) if gpus else None)
