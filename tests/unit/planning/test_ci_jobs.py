"""The night as jobs of CI services: every case in one job, by commands that the command line takes."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml

from matrix.catalog import loading
from matrix.catalog.failure import Level
from matrix.cli import choice
from matrix.cli import main as cli
from matrix.errors import MatrixError
from matrix.planning import night as plan
from matrix.planning.ci_jobs import MOST, CiJob, github, gitlab, jobs
from matrix.planning.covering import pairwise
from matrix.planning.planned import Planned
from matrix.provision.project import ROOT
from tests.unit.catalogs import real

ALL = tuple(Level)
CI = ROOT / "docs" / "ci"


REAL_NIGHT = plan.night


@cache
def planned_at(levels: tuple[Level, ...]) -> tuple[Planned, ...]:
    """The real night, planned once for each choice of levels."""
    return tuple(REAL_NIGHT(real(), pairwise, levels))


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real catalog, read and planned once."""
    monkeypatch.setattr(loading, "load", real)
    monkeypatch.setattr(plan, "night", lambda known, pairwise, levels: planned_at(tuple(levels)))


def cases(command: str) -> list[str]:
    """The keys of what a job's command runs."""
    program, *arguments = shlex.split(command)
    assert program == "megatrix"
    planned, label = choice.chosen(real(), cli.parser(arguments).parse_args(arguments))
    assert label == "night"
    return [item.key for item in planned]


@pytest.mark.parametrize("levels", [(Level.CONTRACT, Level.CPU), ALL])
def test_every_case_of_the_night_is_in_one_job(levels: tuple[Level, ...]) -> None:
    """The jobs' commands, parsed by the command line, make the night again."""
    planned = planned_at(levels)
    made = jobs(planned, levels)
    assert Counter(key for job in made for key in cases(job.command)) == Counter(item.key for item in planned)
    assert [job.cases for job in made] == [len(cases(job.command)) for job in made]


def test_jobs_have_names_of_their_own() -> None:
    names = [job.name for job in jobs(planned_at(ALL), ALL)]
    assert len(set(names)) == len(names) < 60


def test_a_night_without_level_gpu_waits_for_no_runner_of_ones_own() -> None:
    """The reports' stacks are in it nevertheless, and come out unavailable."""
    levels = (Level.CONTRACT, Level.CPU)
    made = jobs(planned_at(levels), levels)
    assert {job.labels for job in made} == {()}
    assert Level.GPU in {level for job in made for level in job.levels}


def test_a_gpu_job_asks_for_its_gpus_and_its_driver() -> None:
    job = CiJob("ngc-24.03", "470.161.03", 8, (Level.GPU,), 1)
    assert job.labels == ("gpu-8", "driver-470")
    assert github([job])["include"][0]["runner"] == ["self-hosted", "gpu-8", "driver-470"]
    assert gitlab([job])["ngc-24.03 driver 470.161.03 gpu-8"]["tags"] == ["gpu-8", "driver-470"]


def test_what_needs_no_gpu_runs_on_the_services_own_machines() -> None:
    job = CiJob("torch-2.4.0", "none", 0, (Level.CONTRACT, Level.CPU), 9)
    assert job.command == "megatrix run --level contract --level cpu --within 'base==torch-2.4.0 and driver==none'"
    assert github([job])["include"][0]["runner"] == ["ubuntu-latest"]
    assert "tags" not in gitlab([job])["torch-2.4.0"]


@pytest.mark.parametrize(("service", "form"), [("github", github), ("gitlab", gitlab)])
def test_more_jobs_than_a_service_takes_are_refused(service: str, form: Any) -> None:
    made = [replace(CiJob("torch-2.4.0", "none", 0, ALL, 1), driver=str(place)) for place in range(MOST[service] + 1)]
    form(made[:-1])
    with pytest.raises(MatrixError, match=f"too many jobs for {service}"):
        form(made)


@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_what_plan_prints_is_one_line_of_json(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    """GitHub takes an output as one line; JSON is YAML, so GitLab takes it as it is."""
    assert cli.main(["plan", "--level", "contract", "--format", service]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert yaml.safe_load(out) == json.loads(out) != {}


@pytest.mark.parametrize("choice", [["--select", "mcore==0.8.0"], ["--stats"]])
def test_jobs_are_the_nights(choice: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A selection's cases are found by --select alone, not by --within the night."""
    assert cli.main(["plan", "--format", "github", *choice]) == 2
    assert "leave one out" in (said := capsys.readouterr().err) or "use --within" in said


def lines(workflow: object) -> list[str]:
    """Every line of every script in a workflow."""
    if isinstance(workflow, dict):
        scripts = [workflow[name] for name in ("run", "script") if name in workflow]
        rest = [value for name, value in workflow.items() if name not in ("run", "script")]
        found = [line for script in scripts for line in (script if isinstance(script, list) else script.splitlines())]
        return found + [line for value in rest for line in lines(value)]
    return [line for value in workflow for line in lines(value)] if isinstance(workflow, list) else []


@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_the_commands_of_the_ready_workflows_are_taken(service: str) -> None:
    """They plan for their own service; the rest of their lines installs the project or runs what the plan says."""
    workflow = yaml.safe_load((CI / f"{service}-nightly.yml").read_text())
    said = lines(workflow)
    (planning,) = [line for line in said if line.startswith("megatrix")]
    words = shlex.split(re.sub(r" > \S+$", "", planning))
    parsed = cli.parser(words[1:]).parse_args(words[1:])
    assert parsed.format == service
    assert [line for line in said if not line.startswith(("megatrix", "pip install -e '.[desk]'", "echo "))] == (
        ["${{ matrix.command }}"] if service == "github" else []
    )


def test_the_github_workflow_uses_what_the_matrix_has() -> None:
    text = (CI / "github-nightly.yml").read_text()
    (job,) = github([CiJob("torch-2.4.0", "none", 0, ALL, 9)])["include"]
    assert set(re.findall(r"matrix\.(\w+) ", text)) == {"name", "runner", "command"} <= set(job)
