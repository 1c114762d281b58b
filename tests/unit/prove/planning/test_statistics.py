"""A night as jobs of a CI service."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from matrix.cli import case_options
from matrix.cli import main as cli
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Level
from matrix.ground.errors import MatrixError
from matrix.prove.planning import night as plan
from matrix.prove.planning.statistics import (
    JUNIT,
    MOST,
    OUT,
    CiJob,
    github,
    gitlab,
    jobs,
)
from matrix.prove.provision.project import ROOT
from matrix.prove.store.paths import Paths
from tests.unit.catalogs import real, real_night

ALL = tuple(Level)
CI = ROOT / "docs" / "ci"


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the real catalog, read and planned once."""
    monkeypatch.setattr(loading, "load", real)
    monkeypatch.setattr(plan, "night", lambda known, pairwise, levels: real_night(tuple(levels)))


def cases(command: str) -> list[str]:
    """Return the keys of the cases that a job's command runs."""
    program, *arguments = shlex.split(command)
    assert program == "megatrix"
    planned, label = case_options.selected(real(), case_options.request_of(cli.parser(arguments).parse_args(arguments)))
    assert label == "night"
    return [item.key for item in planned]


@pytest.mark.parametrize("levels", [(Level.CONTRACT, Level.CPU), ALL])
def test_every_night_case_is_in_one_job(levels: tuple[Level, ...]) -> None:
    """The cases of the jobs' commands together are the night."""
    planned = real_night(levels)
    made = jobs(planned, levels)
    run_by_job = [cases(job.command) for job in made]
    assert Counter(key for keys in run_by_job for key in keys) == Counter(item.key for item in planned)
    assert [job.cases for job in made] == [*map(len, run_by_job)]


def test_job_names_are_unique() -> None:
    names = [job.name for job in jobs(real_night(ALL), ALL)]
    assert len(set(names)) == len(names) < 60


def test_without_level_gpu_jobs_have_no_labels() -> None:
    """The jobs have the reports' stacks nevertheless; these end as unavailable."""
    levels = (Level.CONTRACT, Level.CPU)
    made = jobs(real_night(levels), levels)
    assert {job.labels for job in made} == {()}
    assert {job.levels for job in made if job.base.startswith("ngc")} == {levels}


def test_gpu_job_label_has_gpus_and_driver() -> None:
    job = CiJob("ngc-24.03", "470.161.03", 8, (Level.GPU,), 1)
    assert job.labels == ("gpu-8", "driver-470")
    assert github([job])["include"][0]["runner"] == ["self-hosted", "gpu-8", "driver-470"]
    assert gitlab([job])["ngc-24.03 driver 470.161.03 gpu-8"]["tags"] == ["gpu-8", "driver-470"]


def test_a_job_without_gpus_runs_on_hosted_runners() -> None:
    job = CiJob("torch-2.4.0", "none", 0, (Level.CONTRACT, Level.CPU), 9)
    assert job.command == "megatrix run --level contract --level cpu --within 'base==torch-2.4.0 and driver==none'"
    assert github([job])["include"][0]["runner"] == ["ubuntu-latest"]
    assert "tags" not in gitlab([job])["torch-2.4.0"]


@pytest.mark.parametrize(("service", "form"), [("github", github), ("gitlab", gitlab)])
def test_too_many_jobs_for_a_service_raise(service: str, form: Any) -> None:
    made = [replace(CiJob("torch-2.4.0", "none", 0, ALL, 1), driver=str(place)) for place in range(MOST[service] + 1)]
    form(made[:-1])
    with pytest.raises(MatrixError, match=f"too many jobs for {service}"):
        form(made)


@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_plan_prints_one_line_of_json(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    """GitHub reads an output of one line; JSON is YAML, so GitLab reads the same."""
    assert cli.main(["plan", "--level", "contract", "--format", service]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert yaml.safe_load(out) == json.loads(out) != {}


@pytest.mark.parametrize("choice", [["--select", "mcore==0.8.0"], ["--stats"]])
def test_format_refuses_select_and_stats(choice: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs are those of the night: only --select finds the cases of a selection, --within the night does not."""
    assert cli.main(["plan", "--format", "github", *choice]) == 2
    assert "leave one out" in (errors := capsys.readouterr().err) or "use --within" in errors


def lines(workflow: object) -> list[str]:
    """Return every line of every script in a workflow."""
    if isinstance(workflow, dict):
        scripts = [workflow[name] for name in ("run", "script") if name in workflow]
        rest = [value for name, value in workflow.items() if name not in ("run", "script")]
        found = [line for script in scripts for line in (script if isinstance(script, list) else script.splitlines())]
        return found + [line for value in rest for line in lines(value)]
    return [line for value in workflow for line in lines(value)] if isinstance(workflow, list) else []


@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_commands_of_the_example_workflows_parse(service: str) -> None:
    """They plan for their service; their other lines install the project or run the plan's command."""
    workflow = yaml.safe_load((CI / f"{service}-nightly.yml").read_text())
    scripts = lines(workflow)
    (planning,) = [line for line in scripts if line.startswith("megatrix")]
    words = shlex.split(re.sub(r" > \S+$", "", planning))
    parsed = cli.parser(words[1:]).parse_args(words[1:])
    assert parsed.format == service
    assert [line for line in scripts if not line.startswith(("megatrix", "pip install -e '.[desk]'", "echo "))] == (
        ["${{ matrix.command }}"] if service == "github" else []
    )


def test_the_github_workflow_uses_the_matrix_fields() -> None:
    text = (CI / "github-nightly.yml").read_text()
    (job,) = github([CiJob("torch-2.4.0", "none", 0, ALL, 9)])["include"]
    assert set(re.findall(r"matrix\.(\w+) ", text)) == {"name", "runner", "command"} <= set(job)


def test_junit_file_is_that_of_a_part() -> None:
    assert str(Paths(Path(OUT)).pages("20260131T020000000000Z-part").junit) == JUNIT
