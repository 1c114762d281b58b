"""The page of one bisection: result, evidence, cost, and the text of an upstream issue."""

from __future__ import annotations

from matrix.bisection.joint import JointSummary
from matrix.bisection.noise import ProbeResult
from matrix.bisection.report import BisectionSummary, ProbeSummary
from matrix.report.document import document
from matrix.report.markup import copyable, escape

RESULTS = {ProbeResult.GOOD: "passes", ProbeResult.BAD: "shows the failure", ProbeResult.SKIP: "no result"}


def bisection_page(found: BisectionSummary, headline: str, title: str, issue: str) -> str:
    """Return the page. `title` is the failure's, `issue` the text of an upstream issue."""
    facts = {
        "nearest other result": found.before,
        "candidates": "; ".join(found.candidates),
        "changes more than once": "; ".join(f"at {one}, and back at {other}" for one, other in found.flips),
        "confidence": f"{found.confidence:.2%}, assuming one change in the history and the stated noise",
        "fixed": ", ".join(f"{axis} {value}" for axis, value in found.fixed.items()),
        "cost": f"{found.cost.asked} probes of {found.cost.points} points, {found.cost.ran} run in this session, "
        f"{found.cost.seconds:.1f} s",
        "notes": "; ".join(found.notes),
    }
    listed = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text)
    rows = "".join(_row(probe, probe.label == found.label) for probe in found.probes)
    lines = "".join(
        f"<h3>{escape(probe.label)}: {RESULTS[probe.seen]}</h3>{copyable(probe.reproduce)}" for probe in found.ends
    )
    body = f"""<header><p class="eyebrow">Bisection, failure <span class="id">{escape(found.failure)}</span>, case \
<span class="id">{escape(found.case)}</span> <span class="level">{escape(found.level.value)}</span></p>
<h1>{escape(headline)}</h1><p class="soft">{escape(title)}</p></header>
<section class="card"><dl class="facts">{listed}</dl></section>
<h2>Probes</h2>
<section class="card"><table><thead><tr><th>point</th><th>result</th><th>reason</th><th>runs</th><th>s</th></tr>
</thead><tbody>{rows}</tbody></table></section>
<h2>Commands for both sides</h2><section class="card">{lines or "<p>No two adjacent points differ.</p>"}</section>
<h2>Text of an upstream issue</h2><section class="card"><pre>{escape(issue)}</pre></section>"""
    return document(f"{headline} - {found.failure} - Megatrix", body)


def joint_page(found: JointSummary, headline: str, title: str) -> str:
    """Return the page of an attribution: the mixtures, and the change within each package."""
    differ = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(good)} (good), {escape(bad)} (bad)</dd>"
        for name, (good, bad) in found.differ.items()
    )
    inside = "".join(
        f"<dt>in {escape(name)}</dt>"
        f"<dd>{escape(inside.kind.value)}: {escape(inside.label or ', '.join(inside.candidates))}</dd>"
        for name, inside in found.inside.items()
    )
    notes = "".join(f"<dt>note</dt><dd>{escape(note)}</dd>" for note in found.notes)
    rows = "".join(
        f"<tr><td>{escape(one.mixture)}</td><td>{RESULTS[one.seen]}</td><td>{escape(one.why)}</td>"
        f"<td>{copyable(one.reproduce)}</td></tr>"
        for one in found.probes
    )
    body = f"""<header><p class="eyebrow">Attribution, failure <span class="id">{escape(found.failure)}</span>, case \
<span class="id">{escape(found.case)}</span> <span class="level">{escape(found.level.value)}</span></p>
<h1>{escape(headline)}</h1><p class="soft">{escape(title)}</p></header>
<section class="card"><dl class="facts">{differ}{inside}{notes}</dl></section>
<h2>Probes</h2>
<section class="card"><table><thead><tr><th>stack</th><th>result</th><th>reason</th><th></th></tr></thead>
<tbody>{rows}</tbody></table></section>"""
    return document(f"{headline} - {found.failure} - Megatrix", body)


def _row(probe: ProbeSummary, is_answer: bool) -> str:
    label = f"<strong>{escape(probe.label)}</strong>" if is_answer else escape(probe.label)
    runs = ", ".join(f"{count} {seen.value}" for seen, count in probe.runs.items())
    return (
        f"<tr><td>{label}</td><td>{RESULTS[probe.seen]}</td><td>{escape(probe.why)}</td><td>{escape(runs)}</td>"
        f"<td>{probe.seconds:.1f}</td></tr>"
    )
