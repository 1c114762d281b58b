"""What a bisection found: in words, as JSON, and as text for an issue upstream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matrix.bisection.axes import PACKAGES, AxisName
from matrix.bisection.inquiry import Bisection, why
from matrix.bisection.noise import Seen
from matrix.bisection.probing import seen_of
from matrix.bisection.search import Kind
from matrix.catalog.failure import Level
from matrix.catalog.versions import NONE
from matrix.provision.trees import LAYOUTS
from matrix.verdicts.outcome import Raised
from matrix.verdicts.record import Record
from matrix.verdicts.text import one_line, tail

PACKAGE = {
    AxisName.MCORE: "Megatron-LM",
    AxisName.TE: "Transformer Engine",
    AxisName.TORCH: "PyTorch",
    AxisName.CONTAINER: "container",
    AxisName.DRIVER: "driver",
}
SHOWN = {Kind.FIRST_BAD: "first bad", Kind.FIRST_FIXED: "first fixed", Kind.AMBIGUOUS: "ambiguous"}
AT_MOST = 12  # candidates of an ambiguous answer that are named in words


def to_json(told: Bisection) -> dict[str, Any]:
    """Return the whole bisection as plain JSON values.

    `answer` is the point where the answer changes, None where that is not known; `candidates` are then the points
    that it may be.
    """
    found, points, subject = told.found, told.axis.points, told.subject
    claimed = found.kind is not Kind.AMBIGUOUS
    before = _before(told)
    return {
        "answer": points[found.candidates[0]].id if claimed else None,
        "kind": found.kind.value,
        "confidence": round(found.confidence, 6),
        "label": points[found.candidates[0]].label if claimed else "",
        "before": points[before].label if before is not None else "",
        "failure": subject.failure.id,
        "case": subject.case.name,
        "level": subject.level.value,
        "axis": told.axis.name.value,
        "fixed": _fixed(told),
        "clone": told.axis.clone,
        "candidates": [points[place].label for place in found.candidates] if not claimed else [],
        "flips": [[points[one].label, points[other].label] for one, other in found.flips],
        "probes": [_probe(told, place) for place in told.records],
        "cost": {
            "points": len(points),
            "asked": found.probes,
            "ran": told.ran,
            "rounds": found.rounds,
            "seconds": round(told.seconds, 3),
        },
        "notes": list(told.notes),
    }


def _probe(told: Bisection, place: int) -> dict[str, Any]:
    runs, tally = told.records[place], told.found.tallies[place]
    record = _telling(runs, tally.settled)
    return {
        "point": told.axis.points[place].id,
        "label": told.axis.points[place].label,
        "seen": (tally.settled or Seen.SKIP).value,
        "runs": {seen.value: tally.runs[seen] for seen in Seen if tally.runs[seen]},
        "why": why(record),
        "signature": record.signature,
        "raised": [_raised(one) for one in record.outcome.chain],
        "seconds": round(sum(one.outcome.seconds for one in runs), 3),
        "reproduce": told.lines[place],
        "resolved": dict(record.resolved),
    }


def _raised(raised: Raised) -> str:
    """Return an exception and where it was raised, without the folders of this machine."""
    said = f"{raised.type}: {raised.message}" if raised.message else raised.type
    if not raised.frames:
        return said
    frame = raised.frames[-1]
    return f"{said}\n  {'/'.join(Path(frame.file).parts[-4:])}:{frame.line} in {frame.function}"


def _telling(runs: tuple[Record, ...], settled: Seen | None) -> Record:
    """Return the run that says why: one that came out as the point was settled."""
    return next((record for record in reversed(runs) if seen_of(record) is settled), runs[-1])


def _before(told: Bisection) -> int | None:
    """Return the asked place nearest to the answer that still answers like the old end."""
    new = told.found.tallies[len(told.axis.points) - 1].settled
    below = told.axis.order.below[told.found.candidates[-1]]
    old = [
        place
        for place, tally in told.found.tallies.items()
        if tally.settled not in (new, Seen.SKIP) and below >> place & 1
    ]
    return max(old, key=lambda place: told.axis.order.below[place].bit_count(), default=None)


def _fixed(told: Bisection) -> dict[str, str]:
    """Return what was the same at every point."""
    subject, name = told.subject, told.axis.name
    own = {AxisName.TORCH: "base", AxisName.CONTAINER: "base"}.get(name, name.value)
    base = subject.base if subject.level is not Level.CONTRACT else ""
    sides = {"base": base, "mcore": str(subject.mcore), "te": str(subject.te), "driver": subject.driver}
    return {axis: value for axis, value in sides.items() if axis != own and value not in ("", NONE)}


def in_words(told: dict[str, Any], page: str = "") -> str:
    """Return what `to_json` returned, for a person at a terminal."""
    lines = [headline(told)]
    if told["before"]:
        lines.append(f"  before it:  {told['before']}")
    lines += [f"  may be:     {label}" for label in told["candidates"][:AT_MOST]]
    if len(told["candidates"]) > AT_MOST:
        lines.append(f"              ... {len(told['candidates'])} in all")
    lines += [f"  goes back and forth: {one}, and otherwise again at {other}" for one, other in told["flips"]]
    lines.append(f"  {_sure(told)}")
    lines.append(f"  {_cost(told)}")
    lines += [f"  note:       {note}" for note in told["notes"]]
    for probe in told["probes"]:
        if probe["label"] in (told["label"], told["before"]):
            lines.append(f"  {probe['seen'] + ':':11} {probe['reproduce']}")
    return "\n".join(lines + ([f"  page:       {page}"] if page else []))


def headline(told: dict[str, Any]) -> str:
    """Return the answer in one line."""
    what = PACKAGE[AxisName(told["axis"])]
    if told["kind"] != Kind.AMBIGUOUS.value:
        return f"{SHOWN[Kind(told['kind'])]}: {what} {told['label']}"
    reason = "the history goes back and forth" if told["flips"] else "what lies between can't be told apart"
    return f"ambiguous: {len(told['candidates'])} of {what}: {reason}"


def _sure(told: dict[str, Any]) -> str:
    return f"confidence: {told['confidence']:.2%}, given a history that changes once and the noise that was stated"


def _cost(told: dict[str, Any]) -> str:
    cost = told["cost"]
    return (
        f"cost:       {cost['asked']} probes of {cost['points']} points in {cost['rounds']} rounds after the ends, "
        f"{cost['ran']} run now, {cost['seconds']:.1f} s"
    )


def issue_text(told: dict[str, Any], title: str) -> str:
    """Return the bisection as Markdown for an issue upstream: what anybody can check without this project."""
    fixed = ", ".join(f"{axis} {value}" for axis, value in told["fixed"].items())
    bad = next((probe for probe in told["probes"] if probe["seen"] == Seen.BAD.value), None)
    shown = "\n".join(dict.fromkeys(bad["raised"] or [bad["why"]])) if bad else ""
    rows = [f"| {_cell(one['label'])} | {one['seen']} | {_cell(one['why'])} |" for one in told["probes"]]
    ends = [one for one in told["probes"] if one["label"] in (told["label"], told["before"])]
    may_be = [f"- {label}" for label in told["candidates"]]
    return "\n".join(
        [
            f"**{title}**",
            "",
            f"{headline(told)[0].upper()}{headline(told)[1:]}",
            *([f"(before it: {told['before']})"] if told["before"] else []),
            *may_be,
            "",
            f"With {fixed or 'nothing else fixed'}; level {told['level']}: {LEVELS[told['level']]}.",
            "A point counts as bad only with this failure, as good only when it passes; anything else is skipped.",
            "",
            *(f"    {line}" for line in tail(shown, 40).splitlines()),
            "",
            "| point | | what was seen |",
            "|---|---|---|",
            *rows,
            "",
            *(f"{one['seen']}: `{_public(one['reproduce'], told)}`" for one in ends),
            "",
        ]
    )  # fmt: skip


LEVELS = {
    "contract": "both sides' sources are read and every call is bound to the signature it meets; nothing runs",
    "cpu": "the real packages run on CPU with gloo, no GPU",
    "gpu": "the full stack",
}


def _cell(text: str) -> str:
    return one_line(text).replace("|", r"\|")


def _public(line: str, told: dict[str, Any]) -> str:
    """Return a line to paste that names no folder of this machine."""
    name = LAYOUTS[PACKAGES[AxisName(told["axis"])].value].project if told["clone"] else ""
    return line.replace(told["clone"], f"./{name}") if name else line
