"""The report of what does not load in an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matrix.read.elf.load_check import LoadCheck, LoadFinding
from matrix.read.elf.python_site import PythonSite


@dataclass(frozen=True)
class LoadReport:
    """What does not load, of how many extensions of how many packages."""

    findings: tuple[LoadFinding, ...]
    extensions: int
    packages: int

    @property
    def breaks(self) -> tuple[LoadFinding, ...]:
        """Those of Megatron's stack."""
        return tuple(finding for finding in self.findings if finding.certain)

    def __str__(self) -> str:
        count = len(self.findings)
        counted = f"{self.extensions} compiled modules of {self.packages} packages read"
        return f"{counted}: {f'{count} problem' + 's' * (count != 1) if count else 'each loads'}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        findings = [finding.to_json() for finding in self.findings]
        return {"extensions": self.extensions, "packages": self.packages, "findings": findings}


def load_report(python: PythonSite, sm: str = "") -> LoadReport:
    """Return what does not load in an environment; `sm` is the compute capability of its GPUs, "" where unknown."""
    check = LoadCheck(python, sm)
    findings = check.findings()
    return LoadReport(findings, check.counted, len(python.versions))
