"""`megatrix check`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from matrix.ask.check import checking, declaring, examine
from matrix.ask.check.answer import CheckResult, answer_of
from matrix.ask.check.transition import Transition
from matrix.cli.usage import add_arguments, add_command, add_options, described, given, last_runs
from matrix.ground.catalog import loading
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import NOTHING, Stack, known_component
from matrix.ground.errors import ExitStatus, MatrixError
from matrix.show.check_text import brief, changed, render_all, repaired, verdicts
from matrix.show.terminal import console, json_object, rendered, show, warn

if TYPE_CHECKING:
    from matrix.ask.history import RepairsBetween


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    preflights = loading.preflight_options()
    parser = add_command(commands, "check", check_command)
    add_options(parser, examine.options_of(preflights))
    add_arguments(parser, described("check").parts["output"])
    parser.set_defaults(preflights=preflights)


def check_command(parsed: argparse.Namespace) -> int:
    """Print the answers; return the status of the worst. A command is then started in this process.

    With a command, something that is not known does not stop it.
    """
    if len(parsed.what) == 1 and "/mcore-" in parsed.what[0] and not declaring.is_file(parsed.what[0]):
        from matrix.cli.check_cell import check_cell

        return check_cell(parsed, parsed.what[0])
    catalog = loading.load()
    if parsed.own and (parsed.json or parsed.format):
        raise MatrixError("stdout belongs to the command", got="--json or --format with --", fix="leave one out")
    if parsed.own and parsed.what:
        raise MatrixError(
            "a command is checked in this environment", got=" ".join(parsed.what), fix="leave WHAT or the command out"
        )
    if parsed.to:
        return _compare(catalog, parsed)
    if parsed.history and not parsed.upgrade:
        raise MatrixError(
            "--history compares two releases", got="one", fix="name the other: --to, or --upgrade COMPONENT"
        )
    question, runs = _question(parsed), last_runs(parsed.out)
    results = [checking.check_input(catalog, checked, question, runs) for checked in _inputs(catalog, parsed)]
    answer = answer_of(results)
    whole = partial(render_all, machine=not (parsed.what or parsed.own), full=parsed.all)
    render = verdicts if parsed.quiet else brief if parsed.brief else whole
    if parsed.json:
        history = [repairs.to_json() for repairs in (_upgrades(results) if parsed.history else ())]
        print(json_object("check/1", [result.to_json() for result in results], history=history, answer=answer.value))
    elif parsed.format:
        from matrix.show.findings import FORMATS, of_check

        print(FORMATS[parsed.format](of_check(results, parsed.what)))
    elif parsed.own:  # stdout belongs to the command
        sys.stderr.write(rendered(console(sys.stderr, os.environ), *render(results)))
    else:
        show(*render(results), *repaired(_upgrades(results) if parsed.history else [], full=parsed.all))
    status = answer.status(allow_unknown=parsed.allow_unknown)
    if parsed.own and (parsed.warn or status is not ExitStatus.BAD):
        sys.stdout.flush()
        return start(parsed.own)
    return status


def _compare(catalog: Catalog, parsed: argparse.Namespace) -> int:
    """Print what changes between two stacks. Raises MatrixError for an option that asks about one stack."""
    for name in ("own", "format", "upgrade", "loadable", "root", "brief"):
        if getattr(parsed, name):
            fix = "leave --to out, or the other option"
            raise MatrixError("--to compares two stacks", got=f"--to with --{name.replace('own', '')}", fix=fix)
    sides = [
        argparse.Namespace(**{**vars(parsed), "what": words, "as_one": True}) for words in (parsed.what, parsed.to)
    ]
    inputs = [checked for side in sides for checked in _inputs(catalog, side)]
    jobs, question = tuple(job for checked in inputs for job in checked.jobs), _question(parsed)
    # the command of one side is that of both
    judged = (checking.check_input(catalog, replace(checked, jobs=jobs), question, {}) for checked in inputs)
    transition = Transition(*judged)
    repairs = list(_repairs(transition.before, transition.after.stack.stack)) if parsed.history else []
    if parsed.json:
        history = [pair.to_json() for pair in repairs]
        print(json_object("check-to/1", **transition.to_json(), history=history))
    else:
        show(*changed(transition, full=parsed.all), *repaired(repairs, full=parsed.all), quiet=parsed.quiet)
    return ExitStatus.GOOD if parsed.allow_unknown and transition.status is ExitStatus.NOTHING else transition.status


def _repairs(before: CheckResult, after: Stack) -> Iterator[RepairsBetween]:
    """Yield what upstream repaired between the versions of two stacks, where the job of the first one reaches it."""
    from matrix.ask.history import repairs_between  # for this option alone

    options = {option for job in before.jobs if job.arguments for option in job.arguments.given}
    for component, version in after.versions.items():
        older = before.stack.stack.version(component)
        if older and older != version and (repairs := repairs_between(component, (older, version), options)):
            yield repairs


def _upgrades(results: Sequence[CheckResult]) -> list[RepairsBetween]:
    """Return what upstream repaired up to the newest version of each upgrade."""
    return [
        repairs
        for result in results
        for upgrade in result.upgrades
        for step in upgrade.steps[-1:]
        for repairs in _repairs(result, NOTHING.with_({upgrade.component: step.version}))
    ]


def start(command: Sequence[str]) -> int:
    """Replace this process with a command; where it can't be started, return env(1)'s status: 127 missing, else 126."""
    try:
        os.execvp(command[0], list(command))  # noqa: S606  (the user's own command)
    except (OSError, ValueError) as error:  # ValueError: an empty word
        got = f"{command[0]}: {getattr(error, 'strerror', error)}"
        fix = "name a program on PATH, or its path; a script needs a first line such as #!/bin/sh"
        warn(str(MatrixError("the command can't be started", got=got, expected="an executable file", fix=fix)))
        return 127 if isinstance(error, (FileNotFoundError, ValueError)) else 126


def _question(parsed: argparse.Namespace) -> checking.Question:
    assumed = examine.assume(given(parsed, examine.options_of(parsed.preflights)), parsed.preflights)
    checkpoint = None
    if parsed.checkpoint:
        from matrix.ask.check.checkpoint_settings import read_checkpoint

        checkpoint = read_checkpoint(parsed.checkpoint)
    return checking.Question(
        assumed=assumed,
        upgrades=named(parsed.upgrade),
        checkpoint=checkpoint,
        here=not parsed.what,
        required=named(parsed.require.split(",")),
    )


def _inputs(catalog: Catalog, parsed: argparse.Namespace) -> list[declaring.CheckInput]:
    """Return the stacks of the files, or that of an environment, with what does not load."""
    if parsed.root and (parsed.what or parsed.own):
        raise MatrixError("--root names an environment", got="--root with WHAT or --", fix="leave one out")
    if parsed.what and not parsed.loadable:
        return declaring.inputs(catalog, parsed.what, as_one=parsed.as_one)
    from matrix.ask.check import environment  # 0.1 s: it is not needed for files

    if parsed.what:
        if words := [word for word in parsed.what if not declaring.is_file(word)]:
            raise MatrixError(
                "wheels are read of files",
                got=" ".join(words),
                expected="files",
                fix="name lock files or requirements, or leave --loadable out",
            )
        from matrix.prove.provision.overlays import lay_wheels  # 0.02 s, for locks alone

        return environment.locked_inputs(catalog, parsed.what, parsed.sm or "", lay_wheels)
    variables = [name for preflight in parsed.preflights for name in preflight.variables]
    if parsed.loadable or parsed.root:
        return [environment.static_input(catalog, parsed.python, parsed.root, parsed.own, variables)]
    return [environment.environment_input(catalog, parsed.python, parsed.own, variables)]


def named(words: Sequence[str]) -> tuple[str, ...]:
    """Return the components that words mean. Raises MatrixError for an unknown one."""
    return tuple(known_component(word.strip()) for word in words if word.strip())
