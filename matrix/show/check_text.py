"""The answer of `megatrix check` for the terminal: about a stack, and about one cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from matrix.ask.check.answer import MEGATRON, CheckAnswer, CheckResult
from matrix.ask.check.remedies import UpgradeStep
from matrix.ask.check.rulings import BreakingCalls, ChangeKind, FailureInStack, Standing
from matrix.ask.check.transition import Effect, Transition
from matrix.ground.catalog.model import HOST
from matrix.ground.catalog.stack import ABSENT, DRIVER, PYTHON, TORCH, UNKNOWN, Place, component_title, in_order
from matrix.ground.errors import ExitStatus, counted
from matrix.kit.preflight import Answer
from matrix.show.known import advice, title
from matrix.show.terminal import RED, Alternative, Part, Prose, table, text

if TYPE_CHECKING:
    from matrix.ask.history import RepairsBetween
    from matrix.prove.planning.cell_explanation import Explanation, FailureInCell


def explained_cell(explanation: Explanation) -> Iterator[Part]:
    """Yield the cell, then each failure with its expectation, rule, reason and cases of the night, or here."""
    cell = explanation.cell
    yield cell.id
    yield Prose(
        f"base: {explanation.base}, torch {cell.stack[TORCH]}, Python {cell.stack[PYTHON]}; {explanation.twin}", 2
    )
    if explanation.excluded:
        yield Prose(f"excluded: {explanation.excluded}", 2)
    if explanation.driver:
        yield Prose(f"driver {cell.stack[DRIVER]}: {explanation.driver.fit.value}; {explanation.driver.reason}", 2)
    for failure in explanation.failures:
        yield ""
        yield table([(f"{failure.failure.id}:", failure.failure.title)], indent=2)
        yield table(_facts(failure, "here:" if cell.base == HOST else "night:"), indent=4)


def _facts(failure: FailureInCell, cases: str) -> Iterator[tuple[str, str]]:
    yield "expected:", failure.ruling.expectation.value
    if failure.ruling.rule:
        yield "rule:", str(failure.ruling.rule)
    yield "reason:", failure.reason
    if failure.masked:
        yield "masked:", f"{failure.masked}; not planned in this cell"
    for case in failure.night:
        planned = case.planned
        expected = (
            "" if planned.expectation is failure.ruling.expectation else f", expected: {planned.expectation.value}"
        )
        yield cases, f"{planned.case} at level {planned.level.value}{expected} ({case.here})"
        yield from (("", str(why)) for why in planned.why)
    if not failure.night:
        yield cases, "no case"


WRONG = "the run goes on, its numbers are wrong"
STYLES = {Standing.WILL_BREAK: RED, Standing.WITH_OPTIONS: "bold yellow", Standing.SILENT: "bold magenta"}
VERDICTS = dict(zip(CheckAnswer, (RED, "bold yellow", "bold green", "bold yellow"), strict=True))
SHOWN = 3  # names, or rows, of a list that is not shown whole
HEADLINE = 100  # characters of the first line: a person who is tired reads one line of a terminal
REPAIRS = 12  # of one side
FULL = "--all"  # the option of `check` that shows what is folded


def render(result: CheckResult, *, machine: bool = False, full: bool = False) -> Iterator[Part]:
    """Yield the verdict, the upgrades, the stack, what breaks, then lists of the other failures.

    `machine`: also the facts of the machine. `full`: nothing is folded.
    """
    yield text((summary(result), VERDICTS[result.answer]))
    yield from () if full else _possible(result)
    for upgrade in result.upgrades:
        yield table([("upgrade:", str(upgrade))])
        rows = [(_span(steps), changes) for changes, (*steps,) in groupby(upgrade.steps, _changes)]
        yield table(rows, indent=2, gap=2)
    yield ""
    yield from _stack(result)
    for clash in result.clashes:
        yield table([(text(("WILL BREAK:", RED)), f"{clash.text}{_at(clash.place)}")])
    yield from _loading(result)
    for item in result.unknown:
        yield table([(text(("UNKNOWN:", "bold yellow")), f"{item.text}{_at(item.place)}")])
        yield table([("to do:", item.remedy)], indent=2)
    if result.clashes or result.unknown:
        yield ""
    yield from _failures(result, full)
    yield from calls(result.calls, result.calls_problem, full=full)
    if machine and result.host:
        from matrix.ask.check.job_site import capabilities

        facts = capabilities(result.host)
        yield from ("", "this machine", answers(facts))
        yield from (table([("note:", answer.warns)]) for answer in facts if answer.warns)


def _failures(result: CheckResult, full: bool) -> Iterator[Part]:
    """Yield a block for each break and for each result of a preflight, then the other failures as lists."""
    breaks = [each for standing in STYLES for each in result.of(standing)]
    explained = [
        each for each in breaks if not each.missing and (full or each.certain or (each.report and each.report.judged))
    ]
    for failure in explained:
        yield from _explained(failure)
    rest = [each for each in breaks if each not in explained]
    for head, failures in (
        *_conditional(result, "BREAKS", [each for each in rest if each.standing is not Standing.SILENT], full),
        *_conditional(result, "WRONG NUMBERS", [each for each in rest if each.standing is Standing.SILENT], full),
        ("BREAKS WITH SOME VERSIONS of what this stack does not name", result.of(Standing.WITH_VERSIONS) * full),
    ):
        if failures:
            shown = failures if full else failures[:SHOWN]
            folded = f" ({len(shown)} of {len(failures)}; {FULL} shows each)" if len(shown) < len(failures) else ""
            yield text((f"{head}{folded}:", "bold"))
            yield table([(f"{failure.failure.id}:", failure.needs) for failure in shown], indent=2)
    yield from _listed(result, full)


def _conditional(
    result: CheckResult, breaks: str, failures: Sequence[FailureInStack], full: bool
) -> Iterator[tuple[str, list[FailureInStack]]]:
    """Yield lists with their heads: of a job, what its options leave open; with `full` what needs another option."""
    if not any(job.place for job in result.jobs):
        yield f"{breaks} WITH OPTIONS", [*failures] * full
        return
    yield f"{breaks} UNDER A CONDITION that the command does not show", [one for one in failures if not one.missing]
    yield f"{breaks} WITH OPTIONS that the command does not give", [one for one in failures if one.missing] * full


def _loading(result: CheckResult) -> Iterator[Part]:
    """Yield what does not load, with the line that mends it, and how much was read."""
    if result.loading:
        for finding in result.loading.findings:
            label = ("DOES NOT LOAD:", RED) if finding.certain else ("MAY NOT LOAD:", "bold yellow")
            yield table([(text(label), f"{finding.title}: {finding.what}")])
            rows = [("file:", str(finding.path or "")), ("then:", finding.consequence)]
            yield table([row for row in rows if row[1]], indent=2)
            yield f"  $ {finding.mend}"
        yield Prose(str(result.loading))
        yield ""


def _changes(step: UpgradeStep) -> str:
    """Return what a version fixes, what it breaks, what stays, what is not known there."""
    parts = {"fixes": step.fixed, "breaks": step.blocking, "unchanged": step.unchanged, "not known": step.unknown}
    return "; ".join(f"{word} {', '.join(names)}" for word, names in parts.items() if names) or "no change"


def _span(steps: Sequence[UpgradeStep]) -> str:
    """Return the first and the last version of neighbouring steps."""
    return " - ".join(dict.fromkeys((steps[0].version, steps[-1].version)))


def verdicts(results: Sequence[CheckResult]) -> Iterator[Part]:
    """Yield the verdict of each stack."""
    yield from (text((headed(result, results), VERDICTS[result.answer])) for result in results)


def brief(results: Sequence[CheckResult]) -> Iterator[Part]:
    """Yield the verdict of each stack, then a line for each break and each part that is not known, with its place."""
    for result in results:
        yield text((headed(result, results), VERDICTS[result.answer]))
        for clash in result.clashes:
            yield f"WILL BREAK: {clash.text}{_at(clash.place)}"
        for finding in result.loading.breaks if result.loading else ():
            yield f"DOES NOT LOAD: {finding.title}: {finding.what}"
        for failure in result.failures:
            if failure.certain:
                yield f"{failure.standing.value.upper()}: {title(failure.failure)}{_at(failure.place)}"
        for group in result.calls:
            if group.certain:
                yield f"{group.standing.value.upper()}: calls into {group.into} {group.needs}{_at(group.place)}"
        yield from (f"UNKNOWN: {item.text}{_at(item.place)}" for item in result.unknown)
        yield from (f"upgrade: {upgrade}" for upgrade in result.upgrades)


def render_all(results: Sequence[CheckResult], *, machine: bool = False, full: bool = False) -> Iterator[Part]:
    """Yield each answer below the files of its stack; of a stack of which nothing was checked, one line."""
    for result in results:
        if len(results) > 1:
            if result.answer is CheckAnswer.NOTHING_CHECKED:
                yield Prose(headed(result, results))
                yield ""
                continue
            yield table([(text((f"{' '.join(result.files)}", "bold")),)])
        yield from render(result, machine=machine, full=full)
        if len(results) > 1:
            yield ""


def headed(result: CheckResult, results: Sequence[CheckResult]) -> str:
    """Return the sum of one of several results, with the files of its stack."""
    files = " and ".join(result.files)
    return f"{files}: {summary(result)}" if files and len(results) > 1 else summary(result)


def summary(result: CheckResult) -> str:
    """Return the headline: what breaks and its remedy, or that nothing does, and how much is not known."""
    stack, unread = result.stack.stack, len(result.unknown)
    if result.answer is CheckAnswer.NOTHING_CHECKED:
        subject = "the stack has" if all(stack[name] is ABSENT for name in MEGATRON) else "the input names"
        return f"{subject} none of torch, megatron-core and Transformer Engine: nothing was checked"
    certain = [failure for failure in result.failures if failure.certain]
    names = [clash.text.partition(":")[0] for clash in result.clashes]
    names += [finding.title for finding in result.loading.breaks] if result.loading else []
    names += [str(failure.failure.id) for failure in certain]
    names += [f"calls into {group.into}" for group in result.calls if group.certain]
    parts = "1 part of the input is" if unread == 1 else f"{unread} parts of the input are"
    unknown = f"UNKNOWN: {parts} not known" * bool(unread)
    if not names:
        return _fitting([unknown, f"nothing {'else ' * bool(unread)}is known to break in this stack"], _unnamed(result))
    breaks = counted(len(names), "known break")
    leading = f"{breaks}{', the first' * (len(names) > 1)}: {names[0]}"
    head = [leading if len(leading) + len(unknown) < HEADLINE else breaks, unknown]
    changes = certain[0].workarounds[:1] if certain and certain[0].failure.id == names[0] else ()
    return _fitting(head, *(f"remedy: {change.text}" for change in changes), _unnamed(result))


def _fitting(parts: Sequence[str], *more: str) -> str:
    """Return the parts in one line, with those of `more` that leave it at most HEADLINE characters."""
    line = "; ".join(filter(None, parts))
    for part in filter(None, more):
        longer = f"{line}; {part}"
        line = longer if len(longer) <= HEADLINE else line
    return line


def _unnamed(result: CheckResult) -> str:
    stack, limits = result.stack.stack, result.stack.limits
    missing = [component_title(name) for name in MEGATRON if stack[name] is UNKNOWN and name not in limits]
    return f"not named: {', '.join(missing)}" if missing else ""


def _possible(result: CheckResult) -> Iterator[Part]:
    """Yield what only certain options or versions break, as one line: how many, the most relevant of them by name."""
    optional = [failure for standing in STYLES for failure in result.of(standing) if not failure.certain]
    versions = result.of(Standing.WITH_VERSIONS)
    parts = []
    for failures, why in ((optional, "with certain options"), (versions, "depending on versions that are not named")):
        relevant = sorted(failures, key=lambda failure: failure.relevance)[:SHOWN]
        names = ", ".join([*(str(failure.failure.id) for failure in relevant), *["..."] * (len(failures) > SHOWN)])
        parts += [f"{len(failures)} {why} ({names})"] * bool(failures)
    if parts:
        yield table([("possible:", f"{', '.join(parts)}; {FULL} shows each")])


def answers(facts: Sequence[Answer]) -> Part:
    """Return answers as a table; on a narrow terminal question and reason share a column."""
    rows = [(answer.status.value, answer.question, answer.reason) for answer in facts]
    narrow = [(status, f"{question}: {reason}") for status, question, reason in rows]
    return Alternative(table(rows, indent=2, gap=2), (table(narrow, indent=2, gap=2),))


def _stack(result: CheckResult) -> Iterator[Part]:
    components = result.stack.named
    if components:
        yield table([(component_title(name), version, source) for name, version, source in components], gap=2)
    for job in result.jobs:
        if job.place:
            size = f", {job.size} processes" if job.size else ""
            options = counted(len(job.arguments.given) if job.arguments else 0, "option")
            yield Prose(f"command: {job.world.launcher.value}{size}, {options}{_at(job.place)}")
    if result.checkpoint:
        yield table([("checkpoint:", str(result.checkpoint))])
    yield from (Prose(f"note: {note}") for note in result.stack.notes)
    yield ""


def _explained(failure: FailureInStack) -> Iterator[Part]:
    entry, report = failure.failure, failure.report
    yield table([(text((f"{failure.standing.value.upper()}:", STYLES[failure.standing])), title(entry))])
    rows = [
        ("result:", WRONG if failure.standing is Standing.SILENT else ""),
        ("why:", f"{failure.reason}{_at(failure.place)}"),
        ("when:", failure.needs),
        ("masked:", failure.hidden_by),
        ("evidence:", evidence(failure)),
        *advice(entry, (change.text for change in failure.workarounds if change.kind is not ChangeKind.TEXT)),
    ]
    yield table([(label, fact) for label, fact in rows if fact or label == "why:"], indent=2)
    if report and report.judged:
        yield Prose(f"preflight of {entry.preflight.subject}:", 2)
        yield from (f"    {line}".rstrip() for line in report.text.splitlines())
        if not report.text:
            rows = [(answer.status.value, f"{answer.question}: {answer.reason}") for answer in report.answers]
            yield table(rows, indent=4, gap=2)
        yield from (table([("note:", answer.warns)], indent=4) for answer in report.answers if answer.warns)
    if failure.prove:
        yield f"  prove it: {failure.prove}"
    if entry.references:
        yield Prose(", ".join(entry.references), 2)
    yield ""


def evidence(failure: FailureInStack) -> str:
    """Return when and where the failure was run or read: by the project, and last on this machine, by level."""
    runs = (
        f"on this machine: level {run.level.value}: {run.verdict.value} {run.started[:10]} in {run.cell}"
        for run in failure.runs
    )
    return "; ".join(filter(None, (failure.evidence, *runs)))


def _listed(result: CheckResult, full: bool) -> Iterator[Part]:
    """Yield the failures that do not break here: those that a preflight excludes with its reason, the others counted.

    With `full` the ids of all, by reason.
    """
    counts: Counter[str] = Counter()
    reasons: dict[str, list[str]] = {}
    for standing in (Standing.NOT_REACHED, Standing.UNKNOWN, Standing.WORKS):
        for failure in result.of(standing):
            if full or failure.report:
                reason = "" if standing is Standing.WORKS else failure.needs or failure.reason
                reasons.setdefault(", ".join(filter(None, (standing.value, reason))), []).append(failure.failure.id)
            else:
                counts[standing.value] += not failure.failure.is_gate
    yield from (Prose(f"{reason}: {', '.join(ids)}") for reason, ids in reasons.items())
    if counts:
        others = ", ".join(f"{count} {standing}" for standing, count in counts.items())
        yield Prose(f"other failures: {others} ({FULL} lists them)")


def calls(groups: Sequence[BreakingCalls], problem: str, *, full: bool = True) -> Iterator[Part]:
    """Yield the calls that break, by what reaches them, with error and site, and why they could not be judged.

    Without `full` one call stands for those that an option reaches alike.
    """
    if problem:
        yield Prose(problem)
    if groups:
        yield ""
        yield Prose("calls that break and that the catalog lacks (read by level contract):")
    for group in groups:
        label = text((f"{group.standing.value.upper()}:", STYLES[group.standing]))
        called = counted(len(group.findings), "call") if len(group.findings) > 1 else "a call"
        yield table([(label, f"{called} into {group.into}, {group.needs}{_at(group.place)}")])
        listed = group.findings if full or group.certain else group.findings[:1]
        raised = [(f"{call.error}:", f"{call.message}; at {call.call_site}") for call in listed]
        folded = len(group.findings) - len(listed)
        rows = [
            *raised,
            *([("", f"and {folded} more")] if folded else ()),
            *(("workaround:", flag) for flag in group.flags),
        ]
        yield table(rows, indent=2)
        yield ""


def changed(transition: Transition, *, full: bool = False) -> Iterator[Part]:
    """Yield what changes between two stacks: the sum, what differs, then each change with what decides.

    What only occurs with certain options is folded to a few lines unless `full`.
    """
    yield text((_change_in_one_line(transition), VERDICTS[_COLOURS[transition.status]]))
    yield ""
    stacks = transition.before.stack, transition.after.stack
    names = in_order({name for stack in stacks for name, _, _ in stack.named})
    rows = [(component_title(name), *(str(stack.stack[name]) for stack in stacks)) for name in names]
    yield table([("", "from", "to"), *(row for row in rows if row[1] != row[2])], gap=2)
    yield ""
    for side, result in (("from", transition.before), ("to", transition.after)):
        for item in result.unknown:
            yield table([(text((f"UNKNOWN in {side}:", "bold yellow")), f"{item.text}{_at(item.place)}")])
    for effect in Effect:
        parts = transition.of(effect)
        optional = [part for part in parts if not part.certain]
        listed = optional if full else optional[: SHOWN if effect is Effect.NEW else 0]
        if parts:
            yield text((f"{effect.value.upper()}: {len(parts)}", "bold"))
        for part in (*(part for part in parts if part.certain), *listed):
            facts = [(word, fact) for word, fact in (("when:", part.needs), ("why:", part.reason)) if fact]
            yield table([(f"{part.name}:", part.title)], indent=2)
            yield table(facts, indent=4)
        if folded := dict.fromkeys(part.name for part in optional if part not in listed):
            yield Prose(f"with certain options ({FULL} shows each): {', '.join(folded)}", 2)


def repaired(between: Sequence[RepairsBetween], *, full: bool = False) -> Iterator[Part]:
    """Yield what upstream repaired between two releases, in functions that read the options of a job."""
    for pair in between:
        versions = pair.versions
        yield ""
        yield text((f"HISTORY of {component_title(pair.component)}, {' to '.join(versions)}", "bold"))
        if pair.note:
            yield Prose(pair.note, 2)
        for version, repairs in zip(versions, (pair.gained, pair.lost), strict=True):
            head = f"fixes and reverts that {version} lacks, in functions that read the job's options"
            yield Prose(f"{head}: {len(repairs)}", 2)
            yield from (Prose(str(repair), 4) for repair in (repairs if full else repairs[:REPAIRS]))
            if not full and len(repairs) > REPAIRS:
                yield Prose(f"and {len(repairs) - REPAIRS} more ({FULL} shows each)", 4)


_COLOURS: Final = {
    ExitStatus.BAD: CheckAnswer.BREAKS,
    ExitStatus.NOTHING: CheckAnswer.UNKNOWN,
    ExitStatus.GOOD: CheckAnswer.NONE_KNOWN,
}


def _change_in_one_line(transition: Transition) -> str:
    """Return the sum of at most 100 characters."""
    new = transition.of(Effect.NEW)
    certain = [part for part in new if part.certain]
    optional = len(new) - len(certain)
    fixed, stays, unknown, unclear = (
        len(transition.of(effect)) for effect in (Effect.FIXED, Effect.STAYS, Effect.UNKNOWN, Effect.OPEN)
    )
    head = f"{len(certain)} newly break{'s' * (len(certain) == 1)}" if certain else "nothing newly breaks for certain"
    doubt = f"{unknown + unclear} not known for one side" if unclear else f"{unknown} no longer known"
    return f"{head}; {optional} more with options; {fixed} fixed, {stays} stay, {doubt}"


def _at(place: Place | None) -> str:
    return f" ({place})" if place else ""
