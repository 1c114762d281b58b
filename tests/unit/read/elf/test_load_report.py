from __future__ import annotations

from pathlib import Path

from matrix.read.elf.load_check import LoadFinding
from matrix.read.elf.load_report import LoadReport

FINDING = LoadFinding("flash-attn", "2.8.3", "what", Path("/x.so"), "then", "pip")


def test_findings_of_the_stack_break() -> None:
    other = LoadFinding("", "", "what", Path("/y.so"), "then", "pip", certain=False)
    report = LoadReport((FINDING, other), 7, 3)
    assert report.breaks == (FINDING,)
    assert str(report) == "7 compiled modules of 3 packages read: 2 problems"
    assert (FINDING.title, other.title) == ("flash-attn 2.8.3", "y.so")


def test_report_as_json() -> None:
    assert LoadReport((FINDING,), 7, 3).to_json() == {
        "extensions": 7,
        "packages": 3,
        "findings": [
            {
                "package": "flash-attn",
                "version": "2.8.3",
                "what": "what",
                "path": "/x.so",
                "consequence": "then",
                "mend": "pip",
                "certain": True,
            }
        ],
    }
