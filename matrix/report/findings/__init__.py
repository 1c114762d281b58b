"""Findings of commands, for CI services: `FORMATS` are the formats by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from matrix.report.findings.findings import Findings
from matrix.report.findings.github import github
from matrix.report.findings.junit import junit
from matrix.report.findings.markdown import markdown
from matrix.report.findings.sarif import sarif

FORMATS: Final[Mapping[str, Callable[[Findings], str]]] = {
    "sarif": sarif,
    "github": github,
    "markdown": markdown,
    "junit": junit,
}
