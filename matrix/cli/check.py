"""`megatrix check`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from matrix.catalog import loading
from matrix.catalog.folders import roots
from matrix.catalog.job_options import PreflightOptions
from matrix.catalog.loading import preflight_options
from matrix.catalog.model import Catalog
from matrix.catalog.stack import known_component
from matrix.check import declaring, examine
from matrix.check import user_stack as stacks
from matrix.check.answer import CheckResult
from matrix.check.checking import Question, check
from matrix.check.files.declared import COMMAND, UserCommand
from matrix.check.training_job import UserJob, is_training, job_of
from matrix.cli.command_options import add_findings, add_options, add_out, given
from matrix.cli.usage import add_command
from matrix.errors import ExitStatus, MatrixError
from matrix.report.check_text import render
from matrix.report.json_object import json_object
from matrix.report.terminal import console, rendered, show, warn
from matrix.store.paths import Paths

if TYPE_CHECKING:
    from matrix.check.job_site import JobSite
    from matrix.store.trend import PastResult

UPGRADES: Final = ("te", "mcore", "base")


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    preflights = preflight_options(roots())
    parser = add_command(commands, "check")
    parser.add_argument(
        "what",
        metavar="WHAT",
        nargs="*",
        help=f"versions as AXIS=VALUE, such as {stacks.FORM}; or files: locks, requirements, Dockerfiles, job scripts, "
        "settings in YAML. Nothing: this environment. -- COMMAND: this environment and a command, which then runs",
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="also which release wrote a checkpoint, and which can read it"
    )
    parser.add_argument(
        "--upgrade",
        choices=UPGRADES,
        action="append",
        default=[],
        help="the nearest newer version without a known break",
    )
    parser.add_argument("--warn", action="store_true", help="with --: start the command in spite of a known break")
    parser.add_argument("--python", metavar="PATH", help="the job's interpreter, which imports torch for more facts")
    add_options(parser, examine.options_of(preflights))
    add_out(parser, "output folder, whose history has what ran here (default: $MEGATRIX_OUT, or reports/out)")
    add_findings(parser, "check")
    parser.set_defaults(command=check_command, preflights=preflights)


def check_command(parsed: argparse.Namespace) -> int:
    """Print the answer; return 1 where something is known to break. A command is then started in this process."""
    catalog = loading.load()
    if parsed.own and (parsed.json or parsed.format):
        raise MatrixError("stdout belongs to the command", got="--json or --format with --", fix="leave one out")
    if parsed.own and parsed.what:
        raise MatrixError(
            "a command is checked in this environment", got=" ".join(parsed.what), fix="leave WHAT or the command out"
        )
    result, machine = answer(catalog, parsed)
    if parsed.json:
        print(json_object("check/3", [result.to_json()]))
    elif parsed.format:
        from matrix.report.findings import FORMATS
        from matrix.report.findings.from_check import of_check

        print(FORMATS[parsed.format](of_check(result, parsed.what)))
    elif parsed.own:  # stdout belongs to the command
        sys.stderr.write(rendered(console(sys.stderr, os.environ), *render(result)))
    else:
        show(*render(result, machine=machine))
    if parsed.own and not (result.breaks and not parsed.warn):
        sys.stdout.flush()
        return start(parsed.own)
    return ExitStatus.BAD if result.breaks else ExitStatus.GOOD


def start(command: Sequence[str]) -> int:
    """Replace this process with a command; where it can't be started, return env(1)'s status: 127 missing, else 126."""
    try:
        os.execvp(command[0], list(command))  # noqa: S606  (the user's own command)
    except (OSError, ValueError) as error:  # ValueError: an empty word
        got = f"{command[0]}: {getattr(error, 'strerror', error)}"
        fix = "name a program on PATH, or its path; a script needs a first line such as #!/bin/sh"
        warn(str(MatrixError("the command can't be started", got=got, expected="an executable file", fix=fix)))
        return 127 if isinstance(error, (FileNotFoundError, ValueError)) else 126


def answer(catalog: Catalog, parsed: argparse.Namespace) -> tuple[CheckResult, bool]:
    """Return the answer, and whether it is about this environment."""
    preflights: Sequence[PreflightOptions] = parsed.preflights
    assumed = examine.assume(given(parsed, examine.options_of(preflights)), preflights)
    files = [word for word in parsed.what if declaring.is_file(word)]
    words = [word for word in parsed.what if word not in files]
    said = stacks.parse_text(catalog, " ".join(words)) if words else []
    checkpoint = None
    if parsed.checkpoint:
        from matrix.check.checkpoint_settings import read_checkpoint

        checkpoint = read_checkpoint(parsed.checkpoint)
    host: JobSite | None = None
    if parsed.what:
        stack, jobs = declaring.declared_stack(catalog, declaring.read(files), said)
    else:
        from matrix.check import environment, probe  # 0.1 s: they are not needed for files

        python = probe.python_of(parsed.python) if parsed.python else environment.own_python(catalog.packages)
        host = probe.job_site(os.environ, [name for preflight in preflights for name in preflight.variables], python)
        stack, jobs = environment.here(catalog, host, os.environ), command_jobs(parsed.own, os.environ)
    question = Question(
        jobs, host, assumed, tuple(map(known_component, parsed.upgrade)), checkpoint, here=not parsed.what
    )
    return check(catalog, stack, question, last_runs(parsed.out)), not parsed.what


def command_jobs(words: Sequence[str], environ: Mapping[str, str]) -> tuple[UserJob, ...]:
    """Return the jobs of a command; of a shell script, those that it starts."""
    if not words:
        return ()
    declared = declaring.script_of(words)
    commands = declared.commands if declared else (UserCommand(tuple(words), COMMAND, environ),)
    return tuple(job_of(one) for one in commands if not declared or is_training(one))


def last_runs(folder: Path) -> Mapping[str, tuple[PastResult, ...]]:
    """Return the last runs of each failure in the history of an output folder, empty without one."""
    path = Paths(folder).history
    if not os.access(path, os.F_OK):
        return {}
    from matrix.store.history import with_history

    return with_history(path, lambda history: history.last_runs(), warn)
