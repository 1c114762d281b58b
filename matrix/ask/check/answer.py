"""The answer of `megatrix check`: what breaks, what is not known, whether anything was checked. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from matrix.ask.check.files.declared import Unread, UnreadKind
from matrix.ask.check.remedies import Upgrade
from matrix.ask.check.rulings import BreakingCalls, Clash, FailureInStack, Rulings, Standing, undecided_driver
from matrix.ask.check.training_job import UserJob
from matrix.ask.check.user_stack import COMMAND_LINE, RECORDED, UserStack
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import ABSENT, BASE, MCORE, TE, TORCH, UNKNOWN, Place, component_title, short
from matrix.ground.errors import ExitStatus

if TYPE_CHECKING:  # not needed for every answer: 0.1 s
    from matrix.ask.check.checkpoint_settings import Checkpoint
    from matrix.ask.check.job_site import JobSite
    from matrix.read.elf.load_check import LoadReport

MEGATRON: Final = (TORCH, MCORE, TE)  # a stack without any of them is not one that the catalog judges


class CheckAnswer(str, Enum):
    """What `megatrix check` answers."""

    BREAKS = "breaks"
    UNKNOWN = "unknown"
    NONE_KNOWN = "nothing known to break"
    NOTHING_CHECKED = "nothing-checked"

    def status(self, *, allow_unknown: bool = False) -> ExitStatus:
        """Return the exit status."""
        if self is CheckAnswer.BREAKS:
            return ExitStatus.BAD
        return ExitStatus.GOOD if self is CheckAnswer.NONE_KNOWN or allow_unknown else ExitStatus.NOTHING


def answer_of(results: Collection[CheckResult]) -> CheckAnswer:
    """Decide the answer for one stack, or for several: what breaks in one of them, then what is not known of one.

    A stack of which nothing was checked fails no other, and is no all-clear alone.
    """
    if any(result.breaks for result in results):
        return CheckAnswer.BREAKS
    if any(result.unknown for result in results):
        return CheckAnswer.UNKNOWN
    return CheckAnswer.NONE_KNOWN if any(result.checked for result in results) else CheckAnswer.NOTHING_CHECKED


@dataclass(frozen=True)
class CheckResult:
    """What is known of one stack.

    `unknown` is all that is not known of it. `problems` are the reasons why calls can't be judged, by the package that
    is called, `upgrades` are the newer versions of each requested component. `files` are those that declare the stack.
    `loading` is what of its compiled packages does not load.
    """

    stack: UserStack
    jobs: tuple[UserJob, ...]
    failures: tuple[FailureInStack, ...]
    clashes: tuple[Clash, ...] = ()
    calls: tuple[BreakingCalls, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[Unread, ...] = ()
    upgrades: tuple[Upgrade, ...] = ()
    host: JobSite | None = None
    checkpoint: Checkpoint | None = None
    files: tuple[str, ...] = ()
    loading: LoadReport | None = None

    def of(self, standing: Standing) -> list[FailureInStack]:
        """Return the failures of one group."""
        return [one for one in self.failures if one.standing is standing]

    @property
    def breaks(self) -> bool:
        """Return whether something is known to break, without any further option or version."""
        certain = (*(one.certain for one in self.failures), *(one.certain for one in self.calls))
        return bool(self.clashes) or any(certain) or bool(self.loading and self.loading.breaks)

    @property
    def checked(self) -> bool:
        """Return whether there was anything to check: a component of Megatron's stack, or a job that may have one."""
        stack = self.stack.stack
        named = any(stack.version(name) or name in self.stack.limits for name in MEGATRON)
        return named or (any(job.place for job in self.jobs) and any(stack[name] is not ABSENT for name in MEGATRON))

    @property
    def calls_problem(self) -> str:
        """Return why calls can't be judged, "" where they can."""
        return "; ".join(self.problems.values())

    @property
    def answer(self) -> CheckAnswer:
        """The answer for the stack."""
        return answer_of([self])

    def to_json(self) -> dict[str, Any]:
        """Return one object of plain JSON values; docs/schema/check.json describes it."""
        return {
            "answer": self.answer.value,
            "breaks": self.breaks,
            "files": list(self.files),
            "stack": {**self.stack.to_json(), "unread": [item.to_json() for item in self.unknown]},
            "jobs": [job.to_json() for job in self.jobs],
            "failures": [one.to_json() for one in self.failures],
            "clashes": [one.to_json() for one in self.clashes],
            "calls": [one for each in self.calls for one in each.to_json()],
            "calls_problem": self.calls_problem,
            "upgrades": [upgrade.to_json() for upgrade in self.upgrades],
            "loading": self.loading.to_json() if self.loading else None,
            "checkpoint": self.checkpoint.to_json() if self.checkpoint else None,
            "machine": self.host.to_json() if self.host else None,
        }


def unknown_parts(
    catalog: Catalog, user: UserStack, rulings: Rulings, required: Sequence[str] = (), jobs: Sequence[UserJob] = ()
) -> tuple[Unread, ...]:
    """Return all that is not known of a stack and its jobs, each part with its place and what to do about it.

    `required` are the components that the stack must name. Why calls can't be judged counts where all else is known.
    """
    return (
        *user.unread,
        *_undecided(user, rulings.failures),
        *undecided_driver(catalog, user),
        *_unnamed(user, required),
    ) or (*_unversioned(user, rulings.failures, jobs), *_unjudged(user, rulings.problems))


def _undecided(user: UserStack, failures: Sequence[FailureInStack]) -> Iterator[Unread]:
    """Yield components named without a version, and options of branches, that alone decide whether a failure occurs."""
    by_options: dict[tuple[tuple[str, ...], Place], list[str]] = {}
    for failure in failures:
        if failure.undecided and failure.place:
            by_options.setdefault((failure.undecided, failure.place), []).append(failure.failure.id)
    for (options, source), ids in by_options.items():
        text = f"no value in the file decides whether the command has {' and '.join(options)}, which decides"
        fix = "check the command as it is started: megatrix check FILE -- COMMAND"
        yield Unread(UnreadKind.FILE, f"{text} {', '.join(ids)}", source, fix)
    for name in user.limits:
        decided = [
            str(failure.failure.id)
            for failure in failures
            if failure.standing is Standing.WITH_VERSIONS
            and name in failure.depends
            and user.limits.keys() >= set(failure.depends)
        ]
        if decided and name not in RECORDED:
            text = f"no exact version of {component_title(name)} is stated, which decides {', '.join(decided)}"
            yield Unread(UnreadKind.VERSION, text, user.places[name], f"name it, such as {short(name)}=VERSION")


def _unnamed(user: UserStack, required: Sequence[str]) -> Iterator[Unread]:
    """Yield the required components that the input does not name."""
    for name in required:
        if user.stack[name] is UNKNOWN and name not in user.limits:
            text, fix = f"{component_title(name)} is required and not named", f"name it, such as {short(name)}=VERSION"
            yield Unread(UnreadKind.PACKAGE, text, COMMAND_LINE, fix)


def _unversioned(user: UserStack, failures: Sequence[FailureInStack], jobs: Sequence[UserJob]) -> Iterator[Unread]:
    """Yield that a job is stated without any version of Megatron's stack, where failures depend on them."""
    open_ones = sum(failure.standing is Standing.WITH_VERSIONS for failure in failures)
    place = next((job.place for job in jobs if job.place), None)
    if place and open_ones and all(user.stack[name] is UNKNOWN and name not in user.limits for name in MEGATRON):
        text = f"no version is stated, which decides {open_ones} failures of this job"
        fix = "name them: torch=VERSION mcore=VERSION te=VERSION; or add the file that states them, with --as-one"
        yield Unread(UnreadKind.VERSION, text, place, fix)


def _unjudged(user: UserStack, problems: Mapping[str, str]) -> Iterator[Unread]:
    """Yield why calls into packages can't be judged."""
    for name, text in problems.items():
        yield Unread(UnreadKind.VERSION, text, user.place(name) or user.place(BASE) or COMMAND_LINE)
