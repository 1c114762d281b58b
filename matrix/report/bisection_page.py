"""The pages of a bisection and of an attribution."""

from __future__ import annotations

from typing import Final

from matrix.bisection.joint import JointSummary
from matrix.bisection.noise import ProbeResult
from matrix.bisection.report import BisectionSummary
from matrix.report.document import document

RESULTS: Final = {ProbeResult.GOOD: "passes", ProbeResult.BAD: "shows the failure", ProbeResult.SKIP: "no result"}


def bisection_page(found: BisectionSummary, headline: str, title: str, issue: str) -> str:
    """Return the page. `title` is the failure's, `issue` the text of an upstream issue."""
    return document("bisection.html.j2", found=found, headline=headline, title=title, issue=issue, results=RESULTS)


def joint_page(found: JointSummary, headline: str, title: str) -> str:
    """Return the page of an attribution: the mixtures, and the change within each package."""
    return document("attribution.html.j2", found=found, headline=headline, title=title, results=RESULTS)
