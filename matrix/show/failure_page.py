"""The pages of one failure and of one cell: the results of the run, with the source of each expectation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from matrix.ground.cases.cells import masked_by
from matrix.ground.catalog.codec import MalformedError
from matrix.ground.catalog.failure import Expectation, Failure, Level, Rule, Signature
from matrix.ground.catalog.folders import load_module
from matrix.ground.catalog.loading import evidence_of, night_of
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import GPUS, MCORE, SM, TE, TORCH, Cell
from matrix.ground.verdicts.planned import ReasonKind
from matrix.ground.verdicts.record import MACHINE, Record, Verdict
from matrix.ground.verdicts.text import one_line, tail
from matrix.ground.verdicts.trend import Flakes, PastResult, Pasts, flakes, turns
from matrix.prove.authoring.examples import SHOWS, read, scrubbed
from matrix.prove.authoring.overview import summary
from matrix.prove.planning.cell_explanation import reported_cells
from matrix.prove.store.stored_run import Night
from matrix.show import known
from matrix.show.document import document
from matrix.show.page import anchors_of, grids
from matrix.show.stack_map import OCCURRED, StackMap
from matrix.show.words import WORST_FIRST, beside_mcore, render_chain

NO_RULE = "no rule"
PLANNED = "as planned"


@dataclass(frozen=True)
class Grounds:
    """An expectation, its rule, and the reason."""

    expectation: Expectation
    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}" if self.reason else self.rule


def of_rule(expectation: Expectation, rule: Rule | None) -> Grounds:
    """Return the basis of a catalog rule; `rule` is None if no rule applies."""
    return Grounds(expectation, str(rule) if rule else NO_RULE, rule.reason if rule else "")


def of_cell(catalog: Catalog, failure: Failure, cell: Cell, case: str = "") -> Grounds:
    """Return the catalog's expectation for a case in a cell; without a case, for the failure as a whole."""
    ruled = failure.ruling(cell.stack, case)
    basis = of_rule(ruled.expectation, ruled.rule)
    masked = masked_by(catalog, failure, cell.stack, case)
    if masked is None:
        return basis
    expectation = Expectation.UNKNOWN if case else basis.expectation  # as it is planned
    return Grounds(expectation, basis.rule, f"{basis.reason}; masked: {masked}".removeprefix("; "))


def of_record(catalog: Catalog, failure: Failure, record: Record) -> Grounds:
    """Return the expectation that the record's verdict is based on, also if the catalog now differs.

    They differ if a source was given with its own expectation, or if the catalog has changed since the run.
    """
    ruling = of_cell(catalog, failure, record.cell, record.case)
    if ruling.expectation is record.expectation:
        return ruling
    source = next((str(reason) for reason in record.why if reason.kind is ReasonKind.SOURCE), PLANNED)
    return Grounds(record.expectation, source, f"catalog: {ruling.expectation.value}, {ruling}")


LINES = 40  # of an example's log: a crash with its native stack


@dataclass(frozen=True)
class FailureHistory:
    """The nights of a failure: the first and last in which it occurred ("" for none), and the cases that changed."""

    nights: int
    first: str
    last: str
    flakes: Flakes
    cases: int
    changed: Sequence[tuple[Record, Sequence[PastResult]]]


def failure_page(
    failure: Failure,
    map: StackMap,
    night: Night,
    levels: Mapping[str, frozenset[Level]],
    pasts: Pasts | None = None,
    *,
    site: bool = False,
) -> str:
    """Return the page.

    `map` has the catalog, `night` is the whole run. `levels`: the levels at which each failure has ever run on this
    machine; `pasts`: the results of each case in earlier nights. With `site` the page is one of a site, without history
    and links to single cases.
    """
    records = [record for record in night.records if record.failure == failure.id]
    about = summary(failure)
    anchors = anchors_of(night.records)
    links = {key: "" if site else f"../index.html#{anchor}" for key, anchor in anchors.items()}
    return document(
        "failure.html.j2",
        failure=failure,
        run=night.run,
        summary=about,
        fixed_in=known.fixes(about),
        topic=next((topic.title for topic in map.catalog.topics if topic.id == failure.topic), ""),
        commits=known.commits_of(failure),
        references={text: _thread(text) for text in failure.references},
        stand_ins=[f"{', '.join(stand_in.packages)}: {stand_in.reason}" for stand_in in failure.stand_in],
        masked=[f"{mask.by}: {mask.reason}" for mask in failure.masked],
        counts=_counts(records),
        affected=map.affected.get(failure.id, ()),
        rules={ruling: _counts(members) for ruling, members in _by_rule(failure, map.catalog, records).items()},
        grids=grids(records, links, levels),
        chart=chart(failure, records),
        example=_example(failure),
        site=site,
        versions=[known.affected_versions(map.catalog, rule) for rule in failure.affected if not rule.cases],
        evidence=evidence_of(night_of(failure)),
        history=_history(records, pasts or {}),
        signatures={signature.name: _conditions(signature) for signature in failure.signature},
    )


def _conditions(signature: Signature) -> dict[str, Any]:
    return {name: value for name, value in vars(signature).items() if name != "name" and value is not None}


def _thread(text: str) -> str:
    """Return the URL of the thread OWNER/NAME#NUMBER, "" for anything else."""
    thread = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", text)
    return f"https://github.com/{thread[1]}/issues/{thread[2]}" if thread else ""


def chart(failure: Failure, records: Iterable[Record]) -> Markup:
    """Return the HTML of a failure's chart, "" without chart.py or if the chart is empty.

    picture() receives (case, value) for each rank. Values come from journals and are untrusted: picture() has to skip
    values that it can't read and to escape those that it shows (matrix.kit.svg).
    """
    if not (failure.folder / "chart.py").is_file():
        return Markup()
    values = [
        (f"{record.case}, mcore {record.cell.stack[MCORE]} on {record.cell.base}", rank.value)
        for record in records
        for rank in record.outcome.ranks
    ]
    return Markup(load_module(failure.folder, "chart").picture(values))  # noqa: S704


def _example(failure: Failure) -> str:
    """Return the exceptions, or the end of the log, of the first example of the failure; "" where none can be read."""
    for path in sorted((failure.folder / "examples" / SHOWS).glob("*.json")):
        try:
            outcome = scrubbed(read(path))
        except (OSError, UnicodeDecodeError, MalformedError):  # `catalog check` reports it
            continue
        return render_chain(outcome.chain) if outcome.chain else tail(outcome.evidence or outcome.reason, LINES)
    return ""


def _counts(records: Sequence[Record]) -> dict[tuple[Verdict, Level], int]:
    """Return how many records have each verdict at each level, most urgent first."""
    counts = Counter((record.verdict, record.level) for record in records)
    return {pair: counts[pair] for verdict in WORST_FIRST for level in Level if (pair := (verdict, level)) in counts}


def _by_rule(failure: Failure, catalog: Catalog, records: Sequence[Record]) -> dict[Grounds, list[Record]]:
    """Return the records under each rule of the failure, and under other rulings that they are based on."""
    under: dict[Grounds, list[Record]] = {
        of_rule(kind, rule): []
        for kind, rules in ((Expectation.BROKEN, failure.affected), (Expectation.WORKS, failure.works))
        for rule in rules
    }
    for record in records:
        under.setdefault(of_record(catalog, failure, record), []).append(record)
    return under


def _history(records: Sequence[Record], pasts: Pasts) -> FailureHistory | None:
    """Return the history of the failure, None for fewer than two nights."""
    histories = [(record, pasts.get(record.key, ())) for record in records]
    results = [result for _, history in histories for result in history]
    nights = {result.number: result.run for result in results}
    if len(nights) < 2:
        return None
    occurred = [result.number for result in results if result.ran and result.verdict in OCCURRED] or [-1]
    flaked = [flakes(history) for _, history in histories]
    return FailureHistory(
        nights=len(nights),
        first=nights.get(min(occurred), ""),
        last=nights.get(max(occurred), ""),
        flakes=Flakes(sum(flake.flipped for flake in flaked), sum(flake.again for flake in flaked)),
        cases=len(histories),
        changed=[(record, history) for record, history in histories if turns(history)],
    )


def cell_page(
    run: str, records: Sequence[Record], catalog: Catalog, pasts: Pasts, log_of: Callable[[str], tuple[str, str]]
) -> str:
    """Return the page.

    `records`: all records of one cell; `pasts`: the results of each case in earlier nights; `log_of` takes the path
    of a rank's log and returns its name on the page, and the link to it, "" if the file is missing on this machine.
    """
    rules = _rules(records, catalog)
    return document(
        "cell.html.j2",
        run=run,
        cell=records[0].cell,
        named=_facts(records),
        records=sorted(records, key=lambda record: WORST_FIRST.index(record.verdict)),
        pasts=pasts,
        turns=turns,
        flakes=flakes,
        log_of=log_of,
        rules=rules,
        unruled=sorted({failure.id for failure in catalog.failures} - {failure for failure, _, _ in rules}),
    )


def _facts(records: Sequence[Record]) -> dict[str, str]:
    cell = records[0].cell
    resolved = {name: version for record in records for name, version in record.resolved.items()}
    resolved.pop(MACHINE, "")  # each record states its own
    facts = {
        "base": f"{cell.base}, torch {cell.stack[TORCH]}",
        "Megatron": str(cell.stack[MCORE]),
        "Transformer Engine": str(cell.stack[TE]),
        **{axis: version for axis, version in beside_mcore(cell).items() if axis != "te"},
        "compute capability": str(cell.stack[SM]),
        "GPUs": str(cell.stack[GPUS]),
        **{name: resolved.pop(name, "") for name in ("image", "host", "host driver", "user-mode driver")},
        "Python": resolved.pop("python", ""),
        "resolved": ", ".join(f"{name} {version}" for name, version in sorted(resolved.items())),
        "notes": "; ".join(dict.fromkeys(one_line(note) for record in records for note in record.notes)),
    }
    return {name: fact for name, fact in facts.items() if fact != "none"}


def _rules(records: Sequence[Record], catalog: Catalog) -> list[tuple[str, Grounds, tuple[str, ...]]]:
    """Return the ruling on each failure as a whole, as `megatrix check CELL` prints it, and on its cases that differ.

    A rule is a failure, its ruling, and the cases for which it differs from the ruling on the whole failure.
    """
    cell = reported_cells(catalog).get(records[0].cell.id, records[0].cell)
    rules = []
    for failure in catalog.failures:
        whole = of_cell(catalog, failure, cell)
        cases: dict[Grounds, list[str]] = {} if whole.expectation is Expectation.UNKNOWN else {whole: []}
        for record in records:
            if record.failure == failure.id:
                cases.setdefault(of_record(catalog, failure, record), []).append(record.case)
        rules += [
            (str(failure.id), ruling, () if ruling == whole else tuple(dict.fromkeys(names)))
            for ruling, names in cases.items()
        ]
    return rules
