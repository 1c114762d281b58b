"""The pages show the expectation that the run had for each case."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache, partial

from matrix.ground.catalog.failure import Expectation, Failure, Level
from matrix.ground.catalog.model import Catalog
from matrix.ground.verdicts.judge import judge
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.prove.execution.reproduction import CaseContext, make_record
from matrix.prove.planning.cell_explanation import explain
from matrix.prove.planning.night import everything, night, of_source, pairwise
from matrix.prove.store.stored_run import Night
from matrix.show.failure_page import PLANNED, cell_page, failure_page
from matrix.show.stack_map import StackMap
from matrix.show.words import group_by
from tests.founding import HARDWARE
from tests.unit.catalogs import case, catalog, clause, failure, masked, real, real_night, stack
from tests.unit.show.samples import stack_map

PASSED = Outcome(OutcomeKind.PASSED)
# The verdict of a pass for each expectation.
VERDICTS = {"broken": "vanished", "works": "holds", "unknown": "learned"}


def passed(known: Catalog, planned: Iterable[Planned]) -> list[Record]:
    """Return the records of a night in which everything passes."""
    return [
        make_record(item, PASSED, judge(known.failure(item.failure), item.expectation, PASSED), CaseContext(), "")
        for item in planned
    ]


def text_of(cell: str) -> str:
    """Return the text of a table's cell."""
    return html.unescape(re.sub(r"<[^>]+>", "", cell)).strip()


def table(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading."""
    body = page.partition(heading)[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [list(map(text_of, re.findall(r"<td.*?>(.*?)</td>", row))) for row in body.split("<tr>")[1:]]


planned_cases = partial(real_night, (Level.CONTRACT, Level.CPU))


class CellPages:
    """The pages of every cell of a run."""

    def __init__(self, known: Catalog, records: list[Record]) -> None:
        self.rows: dict[str, dict[str, tuple[str, str]]] = {}
        for cell, members in group_by(lambda record: record.cell.id, records).items():
            page = cell_page("one", members, known, {}, lambda log: (log, ""))
            rows = table(page, "Rules for this cell")
            self.rows[cell] = {named: (expectation, because) for expectation, named, because in rows}

    def expectation(self, cell: str, failure: str, case: str = "") -> str:
        """Return the expectation of a case; without a case, of the failure as a whole."""
        return self._row(cell, failure, case)[0]

    def because(self, cell: str, failure: str, case: str = "") -> str:
        """Return the rule and reason shown for that expectation."""
        return self._row(cell, failure, case)[1]

    def _row(self, cell: str, failure: str, case: str) -> tuple[str, str]:
        rows = self.rows[cell]
        for named, row in rows.items():
            if case and named.startswith(f"{failure} in case ") and case in named.partition(" in case ")[2].split(", "):
                return row
        return rows.get(failure, ("unknown", ""))


@cache
def pages_of_night() -> CellPages:
    """Return the cell pages of the real night, made once."""
    return CellPages(real(), passed(real(), planned_cases()))


def of_page(map: StackMap, entry: Failure, records: Iterable[Record]) -> Counter[tuple[str, str]]:
    """Return how often the page of a failure shows each pair of expectation and verdict; all must have a rule."""
    page = failure_page(entry, map, Night("one", tuple(records)), {}, {})
    found: Counter[tuple[str, str]] = Counter()
    for expectation, rule, _, verdicts in table(page, "Rules and results"):
        assert rule != PLANNED
        for verdict, count in re.findall(r"(\w+) (\d+)", verdicts):
            found[expectation, verdict] += int(count)
    return found


def test_cell_pages_show_the_planned_expectation() -> None:
    """On the cell pages of a night, for every record."""
    pages = pages_of_night()
    for item in planned_cases():
        shown = pages.expectation(item.cell.id, item.failure, item.case)
        assert (item.key, shown) == (item.key, item.expectation.value)
        assert not pages.because(item.cell.id, item.failure, item.case).startswith(PLANNED)


def test_failure_pages_show_the_planned_expectation() -> None:
    """On the failure pages of a night each expectation has as many cases as were planned with it."""
    records = passed(real(), planned_cases())
    planned = Counter((item.failure, item.expectation.value) for item in planned_cases())
    found: Counter[tuple[str, str]] = Counter()
    map = stack_map(real())
    for entry in real().failures:
        for (expectation, verdict), count in of_page(map, entry, records).items():
            assert verdict == VERDICTS[expectation]
            found[entry.id, expectation] += count
    assert found == planned


def test_cell_pages_agree_with_explain() -> None:
    """For each failure as a whole, in every cell of a night."""
    pages = pages_of_night()
    for cell in pages.rows:
        explained = explain(real(), cell, [], lambda item: "").failures
        assert {one.failure.id: one.ruling.expectation.value for one in explained} == {
            entry.id: pages.expectation(cell, entry.id) for entry in real().failures
        }


def test_reports_stack_is_ruled_with_its_hardware() -> None:
    """The stack of TransformerEngine#985 has compute capability 8.0, on which userbuffers need no multicast."""
    (reported,) = (one for one in real().reports if one.name == "TransformerEngine#985")
    pages = pages_of_night()
    assert pages.expectation(real().cell_named(reported.cell).id, HARDWARE) == "works"


def test_failure_page_rules_by_hardware() -> None:
    """A rule on the compute capability matches only the report's cell."""
    entry = failure(affected=(clause(sm="<9"),), works=(clause(mcore=">=0.9"),))
    reported = stack("break", "torch-2.4.0", "0.8.0", sm="8.0")
    known = catalog(entry, stacks=(reported,))
    planned = night(known, pairwise)
    assert {item.expectation.value for item in planned} == {"broken", "works"}
    assert of_page(stack_map(known), entry, passed(known, planned)) == Counter(
        (item.expectation.value, VERDICTS[item.expectation.value]) for item in planned
    )


def test_part_of_a_night_keeps_reported_hardware() -> None:
    """A part may contain only other cases of the cell; `explain` applies the hardware of the report there too."""
    other, entry = failure("other", works=(clause(),)), failure("hardware", affected=(clause(sm="<9"),))
    reported = stack("hardware", "torch-2.4.0", "0.8.0", sm="8.0")
    known = catalog(other, entry, stacks=(reported,))
    (cell,) = (known.cell_named(report.cell) for report in known.reports)
    part = [item for item in everything(known, (Level.CPU,)) if (item.cell.id, item.failure) == (cell.id, "other")]
    assert CellPages(known, passed(known, part)).expectation(cell.id, "hardware") == "broken"


def test_control_case_has_its_own_row() -> None:
    entry = failure(
        affected=(clause(mcore=">=0.8", reason="measured"),),
        works=(clause(cases=["off"], reason="the workaround"),),
        case=(case("on"), case("off")),
    )
    known = catalog(entry, torches=("2.4.0",))
    records = passed(known, everything(known, (Level.CPU,)))
    cell = "torch-2.4.0/mcore-0.8.0/te-none/driver-none"
    pages = CellPages(known, records)
    assert [pages.expectation(cell, "break", name) for name in ("", "on", "off")] == ["broken", "broken", "works"]
    assert pages.because(cell, "break", "off") == "everything in case off: the workaround"


def test_masked_case_names_what_masks_it() -> None:
    """The night does not plan the case, so the test selects it."""
    first = failure("first", affected=(clause(mcore="==0.8.0"),))
    entry = failure("second", works=(clause(),), masked=(masked("first"),))
    known = catalog(first, entry, torches=("2.4.0",))
    records = passed(known, everything(known, (Level.CPU,)))
    pages = CellPages(known, records)
    because = [
        pages.because(f"torch-2.4.0/mcore-{core}/te-none/driver-none", "second", "tp2") for core in ("0.8.0", "0.9.0")
    ]
    assert because == ["everything: by hand; masked: first: it fails before", "everything: by hand"]
    assert of_page(stack_map(known), entry, records) == {("works", "holds"): 2, ("unknown", "learned"): 1}


def test_given_source_is_named_beside_its_expectation() -> None:
    """A candidate fix, given with the expectation `works`, where the catalog expects broken."""
    entry = failure(affected=(clause(mcore="<0.9"),))
    known = catalog(entry, torches=("2.4.0",))
    planned = of_source(known, "./Megatron-LM@fix", "0.8.0+0a1b2c3", Expectation.WORKS, (Level.CPU,))
    (record,) = passed(known, planned)
    pages = CellPages(known, [record])
    shown = [
        (pages.expectation(record.cell.id, "break", case), pages.because(record.cell.id, "break", case))
        for case in ("", "tp2")
    ]
    given, rule = "source: ./Megatron-LM@fix", "catalog: broken, mcore <0.9: by hand"
    assert shown == [("broken", "mcore <0.9: by hand"), ("works", f"{given}: {rule}")]
    page = failure_page(entry, stack_map(known), Night("one", (record,)), {}, {})
    assert ["works", given, rule, "holds 1 cpu"] in table(page, "Rules and results")


def test_changed_rule_stands_beside_the_planned_expectation() -> None:
    """The pages of an older run, rendered again after a change of the catalog."""
    entry = failure(affected=(clause(),))
    before, after = catalog(failure(), torches=("2.4.0",)), catalog(entry, torches=("2.4.0",))
    records = passed(before, everything(before, (Level.CPU,)))
    pages, cell = CellPages(after, records), "torch-2.4.0/mcore-0.8.0/te-none/driver-none"
    assert (pages.expectation(cell, "break"), pages.expectation(cell, "break", "tp2")) == (
        "broken",
        "unknown",
    )
    assert pages.because(cell, "break", "tp2") == "as planned: catalog: broken, everything: by hand"
    page = failure_page(entry, stack_map(after), Night("one", tuple(records)), {}, {})
    assert ["unknown", PLANNED, "catalog: broken, everything: by hand", "learned 3 cpu"] in table(
        page, "Rules and results"
    )
