"""`megatrix doctor`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from matrix.catalog import loading
from matrix.check import probe
from matrix.check.examine import Diagnosis, assume, examine, judges, options_of
from matrix.cli.options import add_options, given
from matrix.cli.usage import add_command
from matrix.kit.preflight import Answer, TrainingJob


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    known = judges()
    doctor = add_command(commands, "doctor")
    add_options(doctor, options_of(known))
    doctor.add_argument(
        "--python", metavar="PATH", default=sys.executable, help="Python interpreter of the job (default: this one)"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.set_defaults(command=doctor_command, preflights=known)


def doctor_command(parsed: argparse.Namespace) -> int:
    """Print the diagnosis; return 1 where something will fail, else 0."""
    known = parsed.preflights
    assumed = assume(given(parsed, options_of(known)), known)
    diagnosis = examine(probe.look(parsed.python, os.environ), assumed, loading.load().failures, known)
    print(json.dumps(diagnosis.to_json()) if parsed.json else render(diagnosis))
    return int(diagnosis.fails)


def render(diagnosis: Diagnosis) -> str:
    """Return the diagnosis for a terminal."""
    lines = ["this machine", *_rows(diagnosis.host), ""]
    for report in diagnosis.reports:
        lines += [f"a job with {report.subject}{_stack(diagnosis.job)}", *_rows(report.answers), ""]
    answers = [answer for report in diagnosis.reports for answer in report.answers]
    lines += [f"note: {answer.warns}" for answer in (*diagnosis.host, *answers) if answer.warns]
    if not diagnosis.judged:
        return "\n".join([*lines, "no job was judged"])
    if not diagnosis.fails:
        return "\n".join([*lines, "no known failure applies"])
    for report in diagnosis.reports:
        if report.fails:
            lines += [
                f"WILL FAIL: {answer.error}{f' ({answer.failure})' if answer.failure else ''}"
                for answer in report.answers
                if answer.error
            ]
            lines.append("change one of these:" if report.changes else "no known change makes it start")
            lines += [f"  {', and '.join(one)}" for one in report.changes]
    return "\n".join(lines)


def _rows(answers: Sequence[Answer]) -> list[str]:
    """Return one line per answer, aligned in columns."""
    width = max(len(answer.question) for answer in answers)
    return [f"  {answer.status.value:<9}{answer.question:<{width}}  {answer.reason}" for answer in answers]


def _stack(job: TrainingJob) -> str:
    if not job.te:
        return ""
    caller = f"megatron-core {job.mcore}" if job.mcore else "no Megatron-LM"
    return f": {caller}, Transformer Engine {job.te}"
