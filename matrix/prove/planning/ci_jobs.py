"""A night as jobs of a CI service: one job per base and kind of machine, with its command. Pure functions.

`megatrix plan --format github` prints a matrix for `fromJson`; `--format gitlab` a child pipeline (JSON is YAML).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import ABSENT, DRIVER
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned

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
    enough("github", made)
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
    enough("gitlab", made)
    return {job.name: _gitlab_job(job) for job in made}


def _gitlab_job(job: CiJob) -> Mapping[str, Any]:
    artifacts = {"when": "always", "paths": [OUT], "reports": {"junit": JUNIT}}
    return {
        **({"tags": list(job.labels)} if job.labels else {"image": PYTHON}),
        "script": ["python3 -m venv .venv", ". .venv/bin/activate", "pip install -e '.[desk]'", job.command],
        "artifacts": artifacts,
    }


FORMATS: Final = {"github": github, "gitlab": gitlab}


def enough(service: str, made: Sequence[CiJob]) -> None:
    """Raise MatrixError when these are more jobs than a service allows."""
    if len(made) > MOST[service]:
        raise MatrixError(
            f"too many jobs for {service}",
            got=f"{len(made)} jobs",
            expected=f"at most {MOST[service]}",
            fix="plan a part of the night: --within 'driver==none', or one --level at a time",
        )
