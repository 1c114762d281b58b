"""One bisection as a page: the answer, what it rests on, what it cost, and the text for an issue upstream."""

from __future__ import annotations

from matrix.bisection.joint import JointSummary
from matrix.bisection.noise import Seen
from matrix.bisection.report import BisectionSummary, ProbeSummary
from matrix.report.document import document
from matrix.report.markup import escape, paste

WORDS = {Seen.GOOD: "passes", Seen.BAD: "shows the failure", Seen.SKIP: "says nothing"}


def bisection_page(found: BisectionSummary, headline: str, title: str, issue: str) -> str:
    """Return the page. `title` is the failure's, `issue` the text for one upstream."""
    facts = {
        "before it": found.before,
        "may be": "; ".join(found.candidates),
        "goes back and forth": "; ".join(f"{one}, and otherwise again at {other}" for one, other in found.flips),
        "confidence": f"{found.confidence:.2%}, given a history that changes once and the noise that was stated",
        "held fixed": ", ".join(f"{axis} {value}" for axis, value in found.fixed.items()),
        "cost": f"{found.cost.asked} probes of {found.cost.points} points, {found.cost.ran} run now, "
        f"{found.cost.seconds:.1f} s",
        "notes": "; ".join(found.notes),
    }
    listed = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text)
    rows = "".join(_row(probe, probe.label == found.label) for probe in found.probes)
    lines = "".join(
        f"<h3>{escape(probe.label)}: {WORDS[probe.seen]}</h3>{paste(probe.reproduce)}" for probe in found.ends
    )
    body = f"""<header><p class="eyebrow">Bisection, failure <span class="id">{escape(found.failure)}</span>, case \
<span class="id">{escape(found.case)}</span> <span class="level">{escape(found.level.value)}</span></p>
<h1>{escape(headline)}</h1><p class="soft">{escape(title)}</p></header>
<section class="card"><dl class="told">{listed}</dl></section>
<h2>What was asked</h2>
<section class="card"><table><thead><tr><th>point</th><th>answer</th><th>what was seen</th><th>runs</th><th>s</th></tr>
</thead><tbody>{rows}</tbody></table></section>
<h2>Both sides again</h2><section class="card">{lines or "<p>No two neighbours were told apart.</p>"}</section>
<h2>For an issue upstream</h2><section class="card"><pre>{escape(issue)}</pre></section>"""
    return document(f"{headline} - {found.failure} - Megatrix", body)


def joint_page(found: JointSummary, headline: str, title: str) -> str:
    """Return the page of an attribution: the mixtures, and what lies in each package."""
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
        f"<tr><td>{escape(one.mixture)}</td><td>{WORDS[one.seen]}</td><td>{escape(one.why)}</td>"
        f"<td>{paste(one.reproduce)}</td></tr>"
        for one in found.probes
    )
    body = f"""<header><p class="eyebrow">Attribution, failure <span class="id">{escape(found.failure)}</span>, case \
<span class="id">{escape(found.case)}</span> <span class="level">{escape(found.level.value)}</span></p>
<h1>{escape(headline)}</h1><p class="soft">{escape(title)}</p></header>
<section class="card"><dl class="told">{differ}{inside}{notes}</dl></section>
<h2>What was asked</h2>
<section class="card"><table><thead><tr><th>stack</th><th>answer</th><th>what was seen</th><th></th></tr></thead>
<tbody>{rows}</tbody></table></section>"""
    return document(f"{headline} - {found.failure} - Megatrix", body)


def _row(probe: ProbeSummary, is_answer: bool) -> str:
    label = f"<strong>{escape(probe.label)}</strong>" if is_answer else escape(probe.label)
    runs = ", ".join(f"{count} {seen.value}" for seen, count in probe.runs.items())
    return (
        f"<tr><td>{label}</td><td>{WORDS[probe.seen]}</td><td>{escape(probe.why)}</td><td>{escape(runs)}</td>"
        f"<td>{probe.seconds:.1f}</td></tr>"
    )
