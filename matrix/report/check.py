"""The answer of `megatrix check`, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matrix.catalog.versions import NONE
from matrix.check.answer import BreakingCalls, CheckResult, FailureInStack, Standing
from matrix.check.stack import AXES, NAMES
from matrix.kit.preflight import Answer
from matrix.report.known import advice, title
from matrix.report.terminal import RED, Alternative, Part, Prose, table, text

# The groups that are explained; of the others the ids are listed.
EXPLAINED = (Standing.WILL_BREAK, Standing.WITH_OPTIONS, Standing.SILENT)
STYLES = {Standing.WILL_BREAK: RED, Standing.WITH_OPTIONS: "bold yellow", Standing.SILENT: "bold magenta"}


def render(result: CheckResult, *, machine: bool = False) -> Iterator[Part]:
    """Yield the stack, what breaks, the other failures, and the sum; `machine`: also the facts of the machine."""
    yield from _stack(result)
    for clash in result.clashes:
        label = text(("WILL BREAK:", RED)) if clash.breaks else text(("NOTE:", "bold"))
        yield table([(label, f"{clash.text}{_at(clash.source)}")])
    if result.clashes:
        yield ""
    for standing in EXPLAINED:
        for one in result.of(standing):
            if not one.missing:
                yield from _explained(one)
    yield from _listed_with("BREAKS WITH OPTIONS that the command does not give:", result, missing=True)
    yield from _listed_with("BREAKS WITH SOME VERSIONS of what this stack does not name:", result, missing=False)
    yield from _listed(result)
    yield from calls(result.calls, result.calls_problem)
    if machine and result.host:
        from matrix.check.facts import capabilities

        yield from ("", "this machine", answers(capabilities(result.host)))
        yield from (table([("note:", one.warns)]) for one in capabilities(result.host) if one.warns)
    for sentence in result.upgrades:
        yield table([("upgrade:", sentence)])
    if not result.calls or result.upgrades:
        yield ""
    yield Prose(summary(result))


def summary(result: CheckResult) -> str:
    """Return the sum in one sentence, with what the stack leaves open."""
    axes = ("torch", "mcore", "te")
    if all(getattr(result.stack.cell, axis) == NONE and axis not in result.stack.open for axis in axes):
        return "the stack has none of torch, megatron-core and Transformer Engine: nothing was checked"
    every: list[FailureInStack | BreakingCalls] = [*result.failures, *result.calls]
    certain = [one for one in every if one.certain]
    clash = [one for one in result.clashes if one.breaks]
    groups = (Standing.WITH_OPTIONS, Standing.SILENT)
    optional = [one for one in every if one.standing in groups and not one.certain]
    parts = []
    if certain or clash:
        count = len(certain) + len(clash)
        parts.append(f"{count} known break{'s' * (count != 1)} in this stack")
    else:
        parts.append("nothing is known to break in this stack")
    if optional:
        parts.append(f"{len(optional)} more with certain options")
    missing = [AXES[axis] for axis in axes if axis in result.stack.open]
    if possible := result.of(Standing.WITH_VERSIONS):
        parts.append(f"{len(possible)} more with some versions of what is not named")
    if missing:
        parts.append(f"not named: {', '.join(missing)}")
    return "; ".join(parts)


def answers(found: Sequence[Answer]) -> Part:
    """Return answers as a table; on a narrow terminal question and reason share a column."""
    rows = [(one.status.value, one.question, one.reason) for one in found]
    narrow = [(status, f"{question}: {reason}") for status, question, reason in rows]
    return Alternative(table(rows, indent=2, gap=2), (table(narrow, indent=2, gap=2),))


def _stack(result: CheckResult) -> Iterator[Part]:
    named = result.stack.named
    if named:
        yield table([(NAMES.get(name, name), version, source) for name, version, source in named], gap=2)
    for job in result.jobs:
        if job.source:
            size = f", {job.world.size} processes" if job.world.size else ""
            given = job.arguments.given if job.arguments else {}
            yield Prose(f"command: {job.world.launcher.value}{size}, {len(given)} options{_at(job.source)}")
    if result.checkpoint:
        yield table([("checkpoint:", str(result.checkpoint))])
    yield from (Prose(f"note: {one}") for one in result.stack.notes)
    yield ""


def _explained(one: FailureInStack) -> Iterator[Part]:
    word = one.standing.value.upper()
    yield table([(text((f"{word}:", STYLES[one.standing])), title(one.failure))])
    rows = [("why:", f"{one.reason}{_at(one.source)}")]
    if one.needs:
        rows.append(("when:", one.needs))
    if one.hidden_by:
        rows.append(("masked:", one.hidden_by))
    rows.append(("evidence:", evidence(one)))
    rows += advice(one.failure, (change.text for change in one.workarounds if change.kind != "text"))
    yield table(rows, indent=2)
    if one.report and one.report.judged:
        yield Prose(f"preflight of {one.report.subject}:", 2)
        yield from (f"    {line}".rstrip() for line in one.report.text.splitlines())
        if not one.report.text:
            yield table([(each.status.value, f"{each.question}: {each.reason}") for each in one.report.answers],
                        indent=4, gap=2)  # fmt: skip
        yield from (table([("note:", each.warns)], indent=4) for each in one.report.answers if each.warns)
    if one.prove:
        yield f"  prove it: {one.prove}"
    if one.failure.references:
        yield Prose(", ".join(one.failure.references), 2)
    yield ""


def evidence(one: FailureInStack) -> str:
    """Return when and where the failure was last run, by level."""
    if not one.runs:
        return "never run on this machine"
    return "; ".join(
        f"level {run.level.value}: {run.verdict.value} {run.started[:10]} in {run.cell}" for run in one.runs
    )


def _listed_with(head: str, result: CheckResult, *, missing: bool) -> Iterator[Part]:
    groups = EXPLAINED if missing else (Standing.WITH_VERSIONS,)
    found = [one for standing in groups for one in result.of(standing) if one.missing or not missing]
    if found:
        yield Prose(head)
        yield table([(f"{one.failure.id}:", one.needs) for one in found], indent=2)


def _listed(result: CheckResult) -> Iterator[Part]:
    reasons: dict[str, list[str]] = {}
    for one in (*result.of(Standing.NOT_REACHED), *result.of(Standing.UNKNOWN)):
        word = one.standing.value
        reasons.setdefault(f"{word}, {why}:" if (why := one.needs or one.reason) else f"{word}:", []).append(
            one.failure.id
        )
    yield from (Prose(f"{reason} {', '.join(ids)}") for reason, ids in reasons.items())
    if works := result.of(Standing.WORKS):
        yield table([("known to work:", ", ".join(one.failure.id for one in works))])


def calls(found: Sequence[BreakingCalls], problem: str) -> Iterator[Part]:
    """Yield the calls that break, by what reaches them, and why they could not be judged."""
    if problem:
        yield Prose(problem)
    if found:
        yield ""
        yield Prose("calls into Transformer Engine that break and that the catalog lacks (read by level contract):")
    for one in found:
        yield table([(text((f"{one.standing.value.upper()}:", STYLES[one.standing])), f"{one.needs}{_at(one.source)}")])
        raised = ((f"{each.raised.type}:", f"{each.message}; at {each.call_site}") for each in one.findings)
        yield table([*raised, *(("workaround:", flag) for flag in one.flags)], indent=2)
        yield ""


def _at(source: str) -> str:
    return f" ({source})" if source else ""
