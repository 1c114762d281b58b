"""The options that select cases and levels, and the cases that they select."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from operator import ne
from typing import NoReturn

from matrix.catalog.failure import Expectation, Level
from matrix.catalog.model import HOST, Catalog
from matrix.errors import MatrixError, closest
from matrix.planning import covering
from matrix.planning import night as plan
from matrix.planning.host_cases import LABEL, cases_here, with_host
from matrix.planning.planned import Planned
from matrix.planning.selection import select
from matrix.provision import host, installed, sources


def add_cases(parser: argparse.ArgumentParser) -> None:
    """Add the options that select cases."""
    parser.add_argument(
        "--here", action="store_true", help="select the cases for the environment that megatrix itself is installed in"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--select", metavar="EXPR", help='select from all cells: "mcore==0.8.* and torch>=2.4 and case==pp2"'
    )
    group.add_argument("--within", metavar="EXPR", help='select from the night: "base==torch-2.4.0"')
    group.add_argument(
        "--case", action="append", metavar="KEY", help='select one case, "CELL FAILURE CASE LEVEL"; may be repeated'
    )
    parser.add_argument("--mcore", metavar="SOURCE", help=f"megatron-core under test: {sources.FORMS}")
    parser.add_argument("--te", metavar="SOURCE", help="Transformer Engine under test, with --case")
    parser.add_argument("--writer", metavar="SOURCE", help="megatron-core that writes the checkpoint, with --case")
    parser.add_argument(
        "--compile", action="store_true", help="build the Transformer Engine of --te with its extension; needs nvcc"
    )
    parser.add_argument(
        "--expect",
        choices=[one.value for one in Expectation],
        help="expected result for --mcore (default: works; for a release, as in the catalog)",
    )
    parser.add_argument(
        "--level",
        action="append",
        choices=[level.value for level in Level],
        help="select this level only; may be repeated (default: every level that can run)",
    )


def levels_of(parsed: argparse.Namespace) -> tuple[Level, ...]:
    """Return the levels of --level, or those that this machine can run; on a cluster the scheduler decides by case."""
    if parsed.level:
        return tuple(map(Level, parsed.level))
    if getattr(parsed, "engine", "") == "slurm":
        return tuple(Level)
    return (Level.CONTRACT, Level.CPU, *((Level.GPU,) if host.look().listed else ()))


def chosen(known: Catalog, parsed: argparse.Namespace) -> tuple[list[Planned], str]:
    """Return the cases that the options select, and a label for the run."""
    levels = levels_of(parsed)
    if parsed.here:
        cases, label = installed_cases(known, parsed, levels), "here"
    elif parsed.case and (parsed.mcore or parsed.te or parsed.writer):
        cases, label = [with_sources(known, key, parsed) for key in parsed.case], "source"
    elif parsed.te or parsed.writer or parsed.compile:
        raise MatrixError("--te, --writer and --compile are for one case", expected="--case KEY with --te or --writer")
    elif parsed.mcore:
        contents = sources.inspect(sources.parse(parsed.mcore, "megatron-core"))
        released = contents.source.kind is sources.SourceKind.PYPI
        expected = Expectation(parsed.expect) if parsed.expect else None if released else Expectation.WORKS
        text = contents.source.revision if released else str(contents.source)
        cases, label = plan.of_source(known, text, contents.version, expected, levels), "source"
    elif parsed.expect:
        raise MatrixError(
            "--expect requires --mcore", got=f"--expect {parsed.expect}", expected="--mcore SOURCE with it"
        )
    elif parsed.select or parsed.case:
        within = tuple(Level) if parsed.case else levels  # a pasted command may come from another machine
        cases, label = plan.everything(known, within), "select"
        cases += [item for item, _ in plan.stack_cases(known, within) if item.key not in {one.key for one in cases}]
    else:
        cases = plan.night(known, covering.pairwise, levels)
        return (select(cases, parsed.within) if parsed.within else cases), "night"
    if parsed.case:
        by_key = {item.key: item for item in cases}
        for key in parsed.case:
            if key not in by_key:
                refuse(known, key, by_key)
        if twice := [key for key in parsed.case if parsed.case.count(key) > 1]:
            raise MatrixError("a case is named twice", got=twice[0], fix="a run has each case once; leave one out")
        return [by_key[key] for key in parsed.case], "case"
    return (select(cases, parsed.select) if parsed.select else cases), label


def with_sources(known: Catalog, key: str, parsed: argparse.Namespace) -> Planned:
    """Return the case of a key with the sources that the options name. Raises MatrixError for another version."""
    given = {
        field: sources.inspect(sources.parse(text, package))
        for field, text, package in (
            ("source", parsed.mcore, "megatron-core"),
            ("te_source", parsed.te, "transformer-engine"),
            ("writer_source", parsed.writer, "megatron-core"),
        )
        if text
    }
    released = all(one.source.kind is sources.SourceKind.PYPI for one in given.values())
    expected = Expectation(parsed.expect) if parsed.expect else None if released else Expectation.WORKS
    fields = {field: str(one.source) for field, one in given.items()}
    item = plan.of_key(known, key, fields, expected, compiled=parsed.compile)
    named = {"source": item.cell.mcore, "te_source": item.cell.te, "writer_source": item.cell.writer_mcore}
    for field, contents in given.items():
        if named[field] != contents.version:
            raise MatrixError(
                "the case names another version than the source", where=str(contents.source), got=named[field],
                expected=contents.version,
            )  # fmt: skip
    return item


def installed_cases(known: Catalog, parsed: argparse.Namespace, levels: Sequence[Level]) -> list[Planned]:
    """Return the cases of the environment of this process. Raises MatrixError with an option that selects others."""
    others = {
        "--within": parsed.within,
        "--mcore": parsed.mcore,
        "--te": parsed.te,
        "--writer": parsed.writer,
        "--expect": parsed.expect,
        "--engine slurm": getattr(parsed, "engine", "") == "slurm",
    }
    if given := [name for name, value in others.items() if value]:
        raise MatrixError(
            "--here runs the installed packages only", got=f"--here with {given[0]}",
            expected="--here alone, or with --select, --case or --level", fix="leave one out",
        )  # fmt: skip
    environment = installed.current()
    known = with_host(known, environment.packages, environment.minor, os.environ.get(LABEL, ""))
    return cases_here(known, HOST, environment.packages, levels, os.environ.get("MEGATRIX_TE", ""))


def refuse(known: Catalog, key: str, cases: Iterable[str]) -> NoReturn:
    """Raise MatrixError for an unknown case; the fix suggests cases that differ from it in one word."""
    words = re.split("[ /]", key)
    if len(words) > 1:
        known.base(words[0])
    # Fuzzy matching against all 100,000 cases of a catalog would take half a minute.
    split = ((one, re.split("[ /]", one)) for one in cases)
    near = [one for one, its in split if len(its) == len(words) and sum(map(ne, words, its)) == 1]
    fix = closest(key, near) if near else "megatrix plan --select EXPR lists cases"
    raise MatrixError("no such case", got=key, expected="CELL FAILURE CASE LEVEL", fix=fix)
