"""A night as jobs of a CI service: one for each base and kind of machine, and the command for its part. Pure.

`megatrix plan --format github` is a matrix for `fromJson`; `--format gitlab` a child pipeline (JSON is YAML).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matrix.catalog.failure import Level
from matrix.catalog.versions import NONE
from matrix.errors import MatrixError
from matrix.planning.planned import Planned

# Jobs that a service makes of one file: a matrix of GitHub Actions holds 256; GitLab.com lets a free namespace have 500
# in active pipelines. Fewer, longer jobs are what keeps a night below them.
MOST: Final = {"github": 256, "gitlab": 500}
HOSTED: Final = "ubuntu-latest"  # a runner of GitHub's own, for what needs no GPU
PYTHON: Final = "python:3.11"  # GitLab's image for the same
OUT: Final = "reports/out"


@dataclass(frozen=True)
class CiJob:
    """The cases of one base at the levels that one kind of machine runs.

    `gpus` is the most that one of them needs, 0 where the machine is any.
    """

    base: str
    driver: str
    gpus: int
    levels: tuple[Level, ...]
    cases: int

    @property
    def name(self) -> str:
        """Return a name that no other job of the night has."""
        return " ".join([self.base, *([f"driver {self.driver}"] if self.driver != NONE else []), *self.labels[:1]])

    @property
    def labels(self) -> tuple[str, ...]:
        """Return what a runner must be labelled with, () for any: gpu-8, and the branch of its driver, driver-535."""
        if not self.gpus:
            return ()
        return (f"gpu-{self.gpus}", *((f"driver-{self.driver.split('.')[0]}",) if self.driver != NONE else ()))

    @property
    def command(self) -> str:
        """Return the command line that runs the job's part of the night."""
        levels = [word for level in self.levels for word in ("--level", level.value)]
        return shlex.join(["megatrix", "run", *levels, "--within", f"base=={self.base} and driver=={self.driver}"])


def jobs(planned: Iterable[Planned], levels: Iterable[Level]) -> list[CiJob]:
    """Return the jobs of a night of those levels, in the order of its cases.

    A night has the reports' stacks at level gpu whatever its levels are. Without that level they go to any machine,
    which says why they are unavailable: for a runner that nobody labelled a service would wait a day.
    """
    with_gpus = Level.GPU in levels
    groups: dict[tuple[str, str, bool], list[Planned]] = {}
    for item in planned:
        on_gpu = with_gpus and item.level is Level.GPU
        groups.setdefault((item.cell.base, item.cell.driver, on_gpu), []).append(item)
    return [
        CiJob(
            base,
            driver,
            max(1, *(item.gpus for item in items)) if on_gpu else 0,
            tuple(level for level in Level if level in {item.level for item in items}),
            len(items),
        )
        for (base, driver, on_gpu), items in groups.items()
    ]


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
    """Return a child pipeline: a job each, whose runner is chosen by tags."""
    enough("gitlab", made)
    return {job.name: _gitlab_job(job) for job in made}


def _gitlab_job(job: CiJob) -> Mapping[str, Any]:
    kept = {"when": "always", "paths": [OUT], "reports": {"junit": f"{OUT}/junit.xml"}}
    return {
        **({"tags": list(job.labels)} if job.labels else {"image": PYTHON}),
        "script": ["python3 -m venv .venv", ". .venv/bin/activate", "pip install -e '.[desk]'", job.command],
        "artifacts": kept,
    }


FORMATS: Final = {"github": github, "gitlab": gitlab}


def enough(service: str, made: Sequence[CiJob]) -> None:
    """Raise MatrixError when a service makes fewer jobs than these."""
    if len(made) > MOST[service]:
        raise MatrixError(
            f"too many jobs for {service}", got=f"{len(made)} jobs", expected=f"at most {MOST[service]}",
            fix="plan a part of the night: --within 'driver==none', or one --level at a time",
        )  # fmt: skip
