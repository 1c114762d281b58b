"""The snippets of docs/compare.md for the pipelines of GitHub and GitLab, in their shells, with two real stacks."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from matrix.prove.provision.project import ROOT
from tests.real.conftest import COMMAND_S
from tests.unit.cli.test_check_workflows import environ

TESTS = """\
from importlib.metadata import version

def test_release():
    assert version("megatron-core") == "0.12.3"

def test_other():
    assert version("torch")
"""


@pytest.mark.parametrize("service", ["GitHub", "GitLab"])
def test_snippet_fails_for_a_new_break_alone(service: str, tmp_path: Path) -> None:
    """`megatrix` is this checkout's; the shell and its options are those of the service's runner."""
    page = (ROOT / "docs" / "compare.md").read_text()
    block = re.findall(rf"^{service}:\n\n((?:    .*\n|\n)+)", page, re.M)[0]
    content = yaml.safe_load(textwrap.dedent(block))
    script = content[0]["run"] if service == "GitHub" else "\n".join(content["compare"]["script"])
    job = tmp_path / "job"
    job.mkdir()
    for name, core in (("requirements.old.txt", "0.12.3"), ("requirements.txt", "0.16.1")):
        (job / name).write_text(f"torch==2.13.0\nmegatron-core=={core}\n")
    (job / "test_core.py").write_text(TESTS)
    variables = {**environ(tmp_path), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    variables.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script],
        cwd=job, env={**os.environ, **variables}, capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    if service == "GitHub":
        assert done.stdout.count("::error file=test_core.py,line=4,title=new%3A test_core.test_release::") == 1
        assert "| **new** | `test_core.test_release` | 0 of " in (tmp_path / "summary").read_text()
        return
    (report,) = content["compare"]["artifacts"]["reports"].values()
    suite = ElementTree.parse(job / report).getroot()
    cases = {case.attrib["name"]: [part.tag for part in case] for case in suite}
    assert cases == {"test_core.test_release": ["failure"], "test_core.test_other": [], "exit status": []}
    assert (suite.tag, suite.get("tests"), suite.get("failures")) == ("testsuite", "3", "1")
    assert "1 new" in done.stdout
