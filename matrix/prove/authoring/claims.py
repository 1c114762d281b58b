"""The claims of an entry beside records. Pure.

A reason "run with 0.8.0" needs a record with 0.8.0. With swapped expectations every case must turn red, in both
directions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from matrix.ground.catalog.failure import Expectation, Failure, Rule
from matrix.ground.catalog.stack import MCORE, TE, TORCH, WRITER, short
from matrix.ground.catalog.versions import parse
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.judge import judge
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.authoring.entry import EntryProblem

OPEN: Final = "run with ..."  # in a reason: `catalog verify` writes the versions of the records that support the rule
# What a rule of each expectation needs: the verdict of a record.
SUPPORTED: Final = {Expectation.BROKEN: Verdict.REPRODUCED, Expectation.WORKS: Verdict.HOLDS}
KEYS: Final = {Expectation.BROKEN: "affected", Expectation.WORKS: "works"}
_RUN: Final = re.compile(r"\b(?:runs?|ran|holds|reproduced) (?:with|on|in|for)\b([^;:]*)")
_READ: Final = re.compile(r"\bread (?:in|at) ([^;:]*)")
_SOURCE: Final = re.compile(r"\d{1,9}\.\d|\b[0-9a-f]{7,40}\b|#\d+|https?://|\b(?:tag|wheel)s?\b")
_VERSION: Final = re.compile(r"(?<![\w.])\d{1,9}(?:\.\d{1,9}){1,9}(?:[\w.+]{0,99}\w)?")


def claimed(text: str) -> list[str]:
    """Return the versions with which a text states a run: after "run with", up to ";", ":" or "read"."""
    parts = (part[1].partition("read")[0] for part in _RUN.finditer(text))
    return list(dict.fromkeys(version for part in parts for version in _VERSION.findall(part)))


def supporting(failure: Failure, expectation: Expectation, rule: Rule, records: Iterable[Record]) -> list[Record]:
    """Return the records that support a rule: of its cells and cases, with the verdict of its expectation."""
    return [
        record
        for record in records
        if record.failure == failure.id
        and record.verdict is SUPPORTED[expectation]
        and failure.ruling(record.cell.stack, record.case).rule is rule
    ]


def unsupported(failure: Failure, records: Sequence[Record]) -> Iterator[EntryProblem]:
    """Yield each claim of a run that no record supports."""
    for expectation, number, rule in _rules(failure):
        evidence = supporting(failure, expectation, rule, records)
        yield from _missing(f"{KEYS[expectation]}[{number}]", rule.reason, evidence)
    for number, workaround in enumerate(failure.workaround):
        evidence = [record for record in records if record.failure == failure.id and record.verdict is Verdict.HOLDS]
        yield from _missing(f"workaround[{number}]", workaround.verified, evidence)


def unsourced(failure: Failure) -> Iterator[EntryProblem]:
    """Yield each claim of a reading that names no release, commit or thread. Tags and wheels are those of its rule."""
    reasons = [(f"reached_by[{number}]", reach.reason) for number, reach in enumerate(failure.reached_by)]
    reasons += [(f"{KEYS[expectation]}[{number}]", rule.reason) for expectation, number, rule in _rules(failure)]
    reasons += [(f"workaround[{number}]", workaround.verified) for number, workaround in enumerate(failure.workaround)]
    for where, text in reasons:
        if any(not _SOURCE.search(source) for source in _READ.findall(text)):
            fix = "name it: read in 0.16.0, in 07e958fc74, in NVIDIA/Megatron-LM#4374"
            yield EntryProblem(where, f'"{text}": read in no release, commit or thread', fix)


def _rules(failure: Failure) -> Iterator[tuple[Expectation, int, Rule]]:
    """Yield each rule with its expectation and its number in the table of that."""
    for expectation, rules in ((Expectation.BROKEN, failure.affected), (Expectation.WORKS, failure.works)):
        yield from ((expectation, number, rule) for number, rule in enumerate(rules))


def _missing(where: str, text: str, evidence: Sequence[Record]) -> Iterator[EntryProblem]:
    versions = {version for record in evidence for version in record.cell.stack.versions.values()}
    public = {version.partition("+")[0] for version in versions}
    if absent := [version for version in claimed(text) if version not in versions | public]:
        what = f'"{text}": no record of a run with {", ".join(absent)}'
        yield EntryProblem(where, what, "run it (megatrix run --select ...), or state what was run or read")


def measured(failure: Failure, records: Sequence[Record]) -> str:
    """Return the versions of records as a reason: "run with 0.8.0, 0.9.0 on torch-2.4.0"; "" without records."""
    names = [name for name in (MCORE, TE, *WRITER) if name in failure.axes]
    names = names or [TORCH]
    texts = []
    for name in names:
        versions = {version for record in records if (version := record.cell.stack.version(name))}
        word = "" if name == names[0] else f"{short(name)} "
        if versions:
            texts.append(f"{word}{', '.join(sorted(versions, key=parse))}")
    bases = sorted({record.cell.base for record in records}) if TORCH not in names else []
    where = f" on {', '.join(bases)}" if bases else ""
    return f"run with {' and '.join(texts)}{where}" if texts else ""


def with_reasons(text: str, failure: Failure, records: Sequence[Record]) -> str:
    """Return the text of a failure.toml whose reasons "run with ..." name what the records ran."""
    rules = {
        (KEYS[expectation], number): measured(failure, supporting(failure, expectation, rule, records))
        for expectation, number, rule in _rules(failure)
    }
    lines, table, counts = [], "", dict.fromkeys(KEYS.values(), -1)
    for line in text.splitlines(keepends=True):
        if header := re.match(r"\[\[?([\w.]+)\]", line):
            table = header[1]
            counts[table] = counts.get(table, -1) + 1
        reason = rules.get((table, counts.get(table, 0)), "")
        lines.append(line.replace(OPEN, reason) if reason and line.startswith("reason") else line)
    return "".join(lines)


SWAPPED: Final = {Expectation.BROKEN: Expectation.WORKS, Expectation.WORKS: Expectation.BROKEN}
# The verdict of each swapped expectation: a case that breaks regresses, a case that works vanishes.
RED: Final = {Expectation.WORKS: Verdict.REGRESSED, Expectation.BROKEN: Verdict.VANISHED}


def swapped(night: Iterable[Planned], failure: str) -> list[Planned]:
    """Return the night's cases of a failure, each with the opposite expectation.

    Raises MatrixError where they do not include both a case that breaks and one that works.
    """
    cases = [case for case in night if case.failure == failure and case.expectation in SWAPPED]
    missing = SWAPPED.keys() - {case.expectation for case in cases}
    if missing:
        raise MatrixError(
            "--break requires a case of each expectation",
            got=f"no case of {failure} in the night is expected: {', '.join(sorted(kind.value for kind in missing))}",
            expected="at least one case that breaks and one that works",
        )
    return [replace(case, expectation=SWAPPED[case.expectation]) for case in cases]


def rejudged(failure: Failure, records: Iterable[Record]) -> list[Record]:
    """Return the records of a failure, each judged with the opposite expectation: no case runs again."""
    swapped_records = []
    for record in records:
        if record.failure == failure.id and record.expectation in SWAPPED:
            planned = replace(record.planned, expectation=SWAPPED[record.expectation])
            verdict = judge(failure, planned.expectation, record.outcome).verdict
            swapped_records.append(replace(record, planned=planned, verdict=verdict))
    return swapped_records


def outcome(records: Sequence[Record]) -> tuple[bool, str]:
    """Return whether both red verdicts appeared, and no other except `unavailable`; with a line that describes it."""
    wrong = [record for record in records if record.verdict not in (RED[record.expectation], Verdict.UNAVAILABLE)]
    counts = Counter(record.verdict for record in records)
    text = ", ".join(f"{count} {verdict.value}" for verdict, count in sorted(counts.items()))
    if not wrong and counts.keys() >= {*RED.values()}:
        return True, f"expectations swapped; red in both directions: {text}"
    why = f"{len(wrong)} cases have another verdict" if wrong else "regressed and vanished did not both appear"
    return False, f"expectations swapped, but {why}: {text}"
