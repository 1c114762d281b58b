"""Findings of commands, for CI services: `FORMATS` are the formats by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from matrix.show.findings.findings import Findings
from matrix.show.findings.github import github
from matrix.show.findings.junit import junit
from matrix.show.findings.markdown import markdown
from matrix.show.findings.sarif import sarif

FORMATS: Final[Mapping[str, Callable[[Findings], str]]] = {
    "sarif": sarif,
    "github": github,
    "markdown": markdown,
    "junit": junit,
}
