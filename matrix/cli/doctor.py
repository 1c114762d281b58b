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
from matrix.check.answer import Answer
from matrix.check.examine import LAUNCHERS, Diagnosis, Wishes, examine
from matrix.check.overlap import BACKENDS, Setting

OPTIONS = {
    "mcore": ("SOURCE", "megatron-core: a recorded version, a folder, PATH@REV; none: Transformer Engine by itself"),
    "te": ("SOURCE", "Transformer Engine, named likewise"),
    "torch": ("VERSION", "another PyTorch than the one found"),
    "driver": ("VERSION", "another kernel driver than this machine's"),
    "sm": ("CAPABILITY", "another GPU than this machine's, by compute capability: 9.0"),
    "launcher": ("NAME", f"what starts the job: {', '.join(LAUNCHERS)}"),
    "bootstrap": ("BACKEND", f"--tp-comm-bootstrap-backend: {', '.join(BACKENDS)}"),
    "world-size": ("N", "processes of the job"),
}


def add_parser(commands: Any) -> None:
    """Add the command to what argparse's add_subparsers returned; it sets `command` to its function."""
    text = "Say what this machine has, whether --tp-comm-overlap would start on it, and what to change."
    doctor = commands.add_parser("doctor", help=text, description=text)
    for name, (value, about) in OPTIONS.items():
        doctor.add_argument(f"--{name}", metavar=value, help=about)
    doctor.add_argument(
        "--python", metavar="PATH", default=sys.executable, help="the interpreter of the job (this one)"
    )
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.set_defaults(command=doctor_command)


def doctor_command(parsed: argparse.Namespace) -> int:
    """Print the diagnosis; return 1 where something will fail, else 0."""
    wishes = Wishes(**{name.replace("-", "_"): getattr(parsed, name.replace("-", "_")) for name in OPTIONS})
    diagnosis = examine(probe.look(parsed.python, os.environ), wishes, loading.load().failures)
    print(json.dumps(diagnosis.to_json()) if parsed.json else in_words(diagnosis))
    return int(diagnosis.fails)


def in_words(diagnosis: Diagnosis) -> str:
    """Return the diagnosis for a terminal."""
    lines = ["this machine", *_told(diagnosis.host), "", _job(diagnosis.setting), *_told(diagnosis.job), ""]
    lines += [f"note: {answer.warns}" for answer in (*diagnosis.host, *diagnosis.job) if answer.warns]
    if not diagnosis.judged:
        return "\n".join([*lines, "no job was judged"])
    if not diagnosis.fails:
        return "\n".join([*lines, "nothing here is known to fail"])
    lines += [
        f"WILL FAIL: {answer.breaks}{f' ({answer.failure})' if answer.failure else ''}"
        for answer in diagnosis.job
        if answer.breaks
    ]
    lines.append("change one of these:" if diagnosis.changes else "no change that is known of makes it start")
    return "\n".join([*lines, *(f"  {', and '.join(one)}" for one in diagnosis.changes)])


def _told(answers: Sequence[Answer]) -> list[str]:
    """Return a line for each answer, the questions in a column."""
    width = max(len(answer.question) for answer in answers)
    return [f"  {answer.word.value:<9}{answer.question:<{width}}  {answer.reason}" for answer in answers]


def _job(setting: Setting | None) -> str:
    if setting is None:
        return "a job with --tp-comm-overlap"
    caller = f"megatron-core {setting.mcore}" if setting.mcore else "no Megatron-LM"
    return f"a job with --tp-comm-overlap: {caller}, Transformer Engine {setting.te}"
