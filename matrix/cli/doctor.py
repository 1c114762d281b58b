"""`megatrix doctor`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from matrix.catalog import loading
from matrix.check import probe
from matrix.check.examine import Diagnosis, assume, examine, judges, options_of
from matrix.cli.options import add_options, given
from matrix.cli.usage import add_command
from matrix.kit.preflight import Answer, TrainingJob
from matrix.report.terminal import RED, Alternative, Part, Prose, show, table, text


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
    if parsed.json:
        print(json.dumps(diagnosis.to_json()))
    else:
        show(*render(diagnosis))
    return int(diagnosis.fails)


def render(diagnosis: Diagnosis) -> Iterator[Part]:
    """Yield the facts of the machine, each report, and what will fail."""
    yield from ("this machine", _answers(diagnosis.host), "")
    for report in diagnosis.reports:
        yield from (f"a job with {report.subject}{_stack(diagnosis.job)}", _answers(report.answers), "")
    answers = [answer for report in diagnosis.reports for answer in report.answers]
    yield from (table([("note:", answer.warns)]) for answer in (*diagnosis.host, *answers) if answer.warns)
    if not diagnosis.fails:
        yield "no known failure applies" if diagnosis.judged else "no job was judged"
        return
    for report in diagnosis.reports:
        if report.fails:
            for answer in report.answers:
                if answer.error:
                    failure = f" ({answer.failure})" if answer.failure else ""
                    yield table([(text(("WILL FAIL:", RED)), f"{answer.error}{failure}")])
            yield "change one of these:" if report.changes else "no known change makes it start"
            yield from (Prose(", and ".join(one), 2) for one in report.changes)


def _answers(answers: Sequence[Answer]) -> Part:
    rows = [(answer.status.value, answer.question, answer.reason) for answer in answers]
    narrow = [(status, f"{question}: {reason}") for status, question, reason in rows]
    return Alternative(table(rows, indent=2, gap=2), (table(narrow, indent=2, gap=2),))


def _stack(job: TrainingJob) -> str:
    if not job.te:
        return ""
    caller = f"megatron-core {job.mcore}" if job.mcore else "no Megatron-LM"
    return f": {caller}, Transformer Engine {job.te}"
