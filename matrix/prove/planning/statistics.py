"""How many cases of a plan run on a machine, for how long: from earlier runs or by default.

And a night as jobs of a CI service, one per base and kind of machine: `megatrix plan --format github` prints a matrix
for `fromJson`; `--format gitlab` a child pipeline (JSON is YAML). Pure functions of the catalog and a planned night.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from statistics import median
from typing import Any, Final

from matrix.ground.cases.machine_requirements import BaseOffer, Placement, builds_te, place, unmet
from matrix.ground.catalog import distributions
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import Machine
from matrix.ground.catalog.model import Catalog, Container, Image
from matrix.ground.catalog.stack import ABSENT, DRIVER, MCORE, TE
from matrix.ground.errors import MatrixError, counted
from matrix.ground.verdicts.planned import Kind, Planned
from matrix.prove.planning.packing import Demand

# s of a case that never ran. Levels contract and cpu: the mean of a night's 1,107 cases on two busy cores (2026-11-28).
# Level gpu: 42 cases in 8 minutes, one after another, on an H100 with 16 cores (2026-11-27); most of it is imports.
DEFAULT_S: Final = {Level.CONTRACT: 0.1, Level.CPU: 2.4, Level.GPU: 11.4}
DEFAULT_TEXT: Final = "0.1 s at level contract, 2.4 s at level cpu, 11.4 s at level gpu (an H100), measured"
# On disk, of the environment of a base and of an overlay; seconds to make an environment from a near mirror. Measured
# on two cores on 2026-11-27: 4.3 - 5.1 GB with torch 2.3.1 - 2.15.0 (a CPU build: 1.1), and 1.2 GB for 70 overlays.
ENVIRONMENT_GB: Final = 5.1
ENVIRONMENT_S: Final = 60.0
OVERLAY_GB: Final = 0.02
START_S: Final = 15.0  # s of a run besides its cases: a night from the verdict cache, on two cores
OF_DEADLINE: Final = 0.5  # the part of its own deadline that a case is expected to take, which is longer than the usual


class Basis(str, Enum):
    """What an estimate rests on."""

    CASE = "earlier runs of the case"
    OTHER_CELLS = "earlier runs of the case in other cells"
    DEADLINE = "half of the case's own deadline"
    DEFAULT = "a default"


@dataclass(frozen=True)
class Estimate:
    """The expected wall-clock seconds of a case."""

    seconds: float
    basis: Basis


class Durations:
    """The seconds that cases took: `past` has the median of the earlier runs, by case key."""

    def __init__(self, catalog: Catalog, past: Mapping[str, float]) -> None:
        self._catalog, self._past = catalog, past
        elsewhere: dict[str, list[float]] = {}
        for key, seconds in past.items():
            elsewhere.setdefault(without_cell(key), []).append(seconds)
        self._elsewhere = {name: median(seconds) for name, seconds in elsewhere.items()}

    def estimate(self, item: Planned) -> Estimate:
        """Return the estimate of a case."""
        if item.key in self._past:
            return Estimate(self._past[item.key], Basis.CASE)
        if (name := without_cell(item.key)) in self._elsewhere:
            return Estimate(self._elsewhere[name], Basis.OTHER_CELLS)
        case = self._catalog.failure(item.failure).case_named(item.case) if item.reproducible else None
        if case and case.deadline and item.level is not Level.CONTRACT:
            return Estimate(OF_DEADLINE * case.deadline, Basis.DEADLINE)
        return Estimate(DEFAULT_S[item.level], Basis.DEFAULT)

    def timed(self, items: Iterable[Planned]) -> list[Planned]:
        """Return the cases with their expected seconds."""
        return [replace(item, seconds=self.estimate(item).seconds) for item in items]


def without_cell(key: str) -> str:
    """Return failure, case and level of a case key."""
    return key.partition(" ")[2]


def statement(
    waiting: Sequence[Planned], cached: int, absent: Collection[str], parallel: tuple[int, int] = (1, 1)
) -> str:
    """Return what a run is about to do: cases, minutes, and the disk that it takes at most.

    `absent` are the bases whose environments it makes, `parallel` how many bases, and cases on each, run at a time.
    """
    if not waiting:
        return f"nothing to run: {cached} cases from the cache"
    of_bases = dict.fromkeys([item.cell.base for item in waiting], 0.0)
    packages = set[object]()
    for item in waiting:
        of_bases[item.cell.base] += item.seconds
        for side in (item, item.writer):
            packages |= {(name, side.cell.stack[name]) for name in (MCORE, TE)} | {*side.packages} if side else set()
    on_lane = sum(of_bases.values()) / min(parallel[0], len(of_bases))
    seconds = max(*of_bases.values(), on_lane) / parallel[1] + len(absent) * ENVIRONMENT_S + START_S
    size = len(absent) * ENVIRONMENT_GB + len(packages) * OVERLAY_GB
    count = f"{counted(len(waiting), 'case')} to run, {cached} from the cache"
    disk = f"at most {size:.1f} GB of disk{', made: ' * bool(absent)}{', '.join(sorted(absent))}"
    return f"{count}; expected: {seconds / 60 + 0.5:.0f} min, {disk}"


@dataclass(frozen=True)
class Availability:
    """The cases of a plan on a machine: how many run, and how many are unavailable, by kind of requirement.

    `shared` is the number of cases whose ranks share GPUs, `gloo` of those that do so on gloo in place of NCCL.
    `seconds` is the expected wall-clock time if no worker and no GPU is ever idle, `gpu_seconds` the sum over all GPUs
    that are used, `basis` the number of cases by what their expected seconds rest on. `builds` are the releases of
    Transformer Engine that are built for them, once, beside other cases. `reasons` are those of the first case that
    lacks a kind.
    """

    planned: int
    runs: int
    missing: Mapping[Kind, int]
    shared: int
    gloo: int
    seconds: float
    gpu_seconds: float
    basis: Mapping[Basis, int]
    builds: tuple[TeBuild, ...] = ()
    reasons: Mapping[Kind, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TeBuild:
    """A release of Transformer Engine that a base builds; its expected minutes."""

    base: str
    te: str
    minutes: float


@dataclass(frozen=True)
class Parallel:
    """What runs at a time: `bases` that are no images, and `workers` cases on each base. Images run one at a time.

    `cores` are those of the machine.
    """

    bases: int = 1
    workers: int = 1
    cores: int = 1


def availability(
    catalog: Catalog,
    items: Collection[Planned],
    offer: Callable[[str], BaseOffer],
    machines: Mapping[Level, Machine],
    durations: Durations,
    parallel: Parallel,
) -> Availability:
    """Return the availability of cases. `machines` is what the machine offers at each level."""
    missing: dict[Kind, list[str]] = {}
    basis: Counter[Basis] = Counter()
    placements: list[Placement] = []
    demands: dict[str, list[Demand]] = {}
    builds: dict[tuple[str, str], TeBuild] = {}
    for item in items:
        base, machine = item.cell.base, machines[item.level]
        if lack := unmet(catalog, item, offer(base), machine):
            missing.setdefault(lack.kind, []).append(lack.text)
            continue
        for te in _built(item, offer(base), machine):
            expected = distributions.minutes(te, distributions.jobs(parallel.cores, machine.memory))
            builds[base, te] = TeBuild(base, te, expected)
        case = catalog.failure(item.failure).case_named(item.case)
        placement = place(case, item, machine, offer(base))
        if isinstance(placement, Placement):
            estimate = durations.estimate(item)
            basis[estimate.basis] += 1
            placements.append(placement)
            demand = Demand(placement.gpus, estimate.seconds, case.limits.memory or 0, case.part(placement.gpus))
            demands.setdefault(base, []).append(demand)
    return Availability(
        len(items),
        len(placements),
        {kind: len(missing[kind]) for kind in Kind if kind in missing},
        sum(bool(placement.note) for placement in placements),
        sum(bool(placement.note and not placement.nccl) for placement in placements),
        _seconds(catalog, demands, list(machines.values()), parallel),
        sum(demand.gpus * demand.seconds for of_base in demands.values() for demand in of_base),
        {kind: basis[kind] for kind in Basis if basis[kind]},
        tuple(builds.values()),
        {kind: texts[0] for kind, texts in missing.items()},
    )


def _built(item: Planned, offer: BaseOffer, machine: Machine) -> Iterator[str]:
    """Yield the releases of Transformer Engine that are built for a case: those that no bundle has compiled."""
    for side in filter(None, (item, item.writer)):
        te = str(side.cell.stack[TE])
        if builds_te(side, offer) and not distributions.is_compiled(te, offer.toolkit, machine.compiled):
            yield te


def _seconds(
    catalog: Catalog, demands: Mapping[str, list[Demand]], machines: Sequence[Machine], parallel: Parallel
) -> float:
    """Return the seconds of the cases of all bases, if neither a worker nor a GPU is ever idle."""
    lanes: dict[tuple[str, int], list[Demand]] = {}  # what runs at a time; in an image each memory limit has its own
    made_bases = 0
    for base, of_base in demands.items():
        image = isinstance(catalog.bases.get(base), (Container, Image))
        made_bases += not image
        for demand in of_base:
            lanes.setdefault((base, demand.memory) if image else ("", 0), []).append(demand)
    gpus = min((len(machine.gpus) for machine in machines if machine.gpus), default=1)
    card = min((gpu.memory or 0 for machine in machines for gpu in machine.gpus or () if not gpu.exclusive), default=0)
    seconds = 0.0
    for (base, limit), lane in lanes.items():
        workers = 1 if limit else parallel.workers if base else min(parallel.bases, made_bases) * parallel.workers
        of_gpus = sum(
            demand.seconds * (min(1, demand.card / card) if card and demand.card else demand.gpus) for demand in lane
        )
        of_cases = [demand.seconds for demand in lane]
        seconds += max(*of_cases, sum(of_cases) / workers, of_gpus / gpus)
    return seconds


def to_json(found: Availability) -> dict[str, Any]:
    """Return plain JSON values; the times are in minutes."""
    minutes = {"minutes": round(found.seconds / 60, 1), "gpu_minutes": round(found.gpu_seconds / 60, 1)}
    return {
        **{name: getattr(found, name) for name in ("planned", "runs", "shared", "gloo")},
        **minutes,
        "missing": {kind.value: count for kind, count in found.missing.items()},
        "estimates": {basis.value: count for basis, count in found.basis.items()},
        "builds": [vars(build) for build in found.builds],
    }


# Most jobs that a service creates from one file: a matrix of GitHub Actions has at most 256; GitLab.com allows a free
# namespace 500 in active pipelines. A night stays below both by fewer, longer jobs.
MOST: Final = {"github": 256, "gitlab": 500}
HOSTED: Final = "ubuntu-latest"  # a GitHub-hosted runner, for jobs that need no GPU
PYTHON: Final = "python:3.11"  # the image of such jobs on GitLab
OUT: Final = "reports/out"
JUNIT: Final = f"{OUT}/desk/junit.xml"  # a job runs a part of the night (docs/runs.md)


@dataclass(frozen=True)
class CiJob:
    """The cases of one base at the levels that one kind of machine runs.

    `gpus` is the largest number of GPUs that one of them needs, 0 where any machine will do.
    """

    base: str
    driver: str
    gpus: int
    levels: tuple[Level, ...]
    cases: int

    @property
    def name(self) -> str:
        """Return the job's name, unique within the night."""
        return " ".join(
            [self.base, *([f"driver {self.driver}"] if self.driver != str(ABSENT) else []), *self.labels[:1]]
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels that a runner needs: gpu-8 and its driver's branch, driver-535; () for any runner."""
        if not self.gpus:
            return ()
        return (f"gpu-{self.gpus}", *((f"driver-{self.driver.split('.')[0]}",) if self.driver != str(ABSENT) else ()))

    @property
    def command(self) -> str:
        """Return the command line that runs the job's part of the night."""
        levels = [word for level in self.levels for word in ("--level", level.value)]
        return shlex.join(["megatrix", "run", *levels, "--within", f"base=={self.base} and driver=={self.driver}"])


def jobs(planned: Iterable[Planned], levels: Collection[Level]) -> list[CiJob]:
    """Return the jobs of a night at `levels`, in the order of its cases.

    A night has the reports' stacks at level gpu whatever its levels are. Without that level any machine runs them and
    reports why they are unavailable: a service would wait a day for a runner with labels that no runner has.
    """
    with_gpus = Level.GPU in levels
    groups: dict[tuple[str, str, bool], list[Planned]] = {}
    for item in planned:
        on_gpu = with_gpus and item.level is Level.GPU
        groups.setdefault((item.cell.base, str(item.cell.stack[DRIVER]), on_gpu), []).append(item)
    ci_jobs = []
    for (base, driver, on_gpu), items in groups.items():
        planned_levels = {item.level for item in items}
        # --level gpu would also run the other cases of an image.
        names = planned_levels if with_gpus or Level.GPU not in planned_levels else levels
        most = max(1, *(item.gpus for item in items)) if on_gpu else 0
        ci_jobs.append(CiJob(base, driver, most, tuple(level for level in Level if level in names), len(items)))
    return ci_jobs


def github(made: Sequence[CiJob]) -> dict[str, Any]:
    """Return a matrix for a workflow's `strategy.matrix`: name, runner, command and cases of each job."""
    require_job_count("github", made)
    return {
        "include": [
            {
                "name": job.name,
                "runner": ["self-hosted", *job.labels] if job.labels else [HOSTED],
                "command": job.command,
                "cases": job.cases,
            }
            for job in made
        ]
    }


def gitlab(made: Sequence[CiJob]) -> dict[str, Any]:
    """Return a child pipeline with a job for each; tags choose its runner."""
    require_job_count("gitlab", made)
    return {job.name: _gitlab_job(job) for job in made}


def _gitlab_job(job: CiJob) -> Mapping[str, Any]:
    artifacts = {"when": "always", "paths": [OUT], "reports": {"junit": JUNIT}}
    return {
        **({"tags": list(job.labels)} if job.labels else {"image": PYTHON}),
        "script": ["python3 -m venv .venv", ". .venv/bin/activate", "pip install -e '.[desk]'", job.command],
        "artifacts": artifacts,
    }


FORMATS: Final = {"github": github, "gitlab": gitlab}


def require_job_count(service: str, made: Sequence[CiJob]) -> None:
    """Raise MatrixError when these are more jobs than a service allows."""
    if len(made) > MOST[service]:
        raise MatrixError(
            f"too many jobs for {service}",
            got=f"{len(made)} jobs",
            expected=f"at most {MOST[service]}",
            fix="plan a part of the night: --within 'driver==none', or one --level at a time",
        )
