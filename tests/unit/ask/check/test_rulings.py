"""How failures stand in a stack, by their rules, what the stack leaves open, and the arguments of jobs."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from matrix.ask.check.answer import CheckResult
from matrix.ask.check.checkpoint_settings import Checkpoint, Mark
from matrix.ask.check.files.declared import Statement
from matrix.ask.check.rulings import (
    BreakingCalls,
    ChangeKind,
    FailureInStack,
    PreflightResult,
    StackChange,
    Standing,
    apply_preflights,
    clashes,
    judge_failure,
    lacking,
    needs,
    ordered,
    reaching,
    standing_of,
)
from matrix.ask.check.training_job import UserJob
from matrix.ask.check.user_stack import UserStack, build, decide
from matrix.ground.catalog.failure import Expectation, Failure, Signature
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.reach import JobArguments, Reach, Reached, ReachedBy
from matrix.ground.catalog.stack import MCORE, TORCH, UNKNOWN, Place, component_named
from matrix.ground.catalog.versions import Range
from matrix.kit.preflight import Answer, Error, Report, Status, unjudged
from tests.founding import SAVE
from tests.unit.catalogs import catalog, clause, failure, image, masked, real, values

HERE = Place("in the test")
OVERLAP = ReachedBy(arguments=("--overlap",))
OWN = Signature("own", exception="X", own=True)  # type: ignore[arg-type]


def stack(limits: str = "", **versions: str) -> UserStack:
    """Return a stack; `limits` is a specifier set of torch."""
    said = [Statement(name, value, HERE) for name, value in values(**versions).items()]
    return build(catalog(), [*said, *([Statement(TORCH, UNKNOWN, HERE, limits)] if limits else [])])


def needed(known: Catalog, found: UserStack, entry: Failure) -> str | None:
    """Return the versions that a break needs, None where no rule says that it breaks."""
    ruling = entry.ruling(found.stack, decide=partial(decide, known, found))
    breaks = ruling.expectation is Expectation.BROKEN or ruling.may_break
    return needs(known, found, ruling) if breaks else None


def job(words: str) -> UserJob:
    return UserJob(JobArguments.parse(words.split()), place=Place("job.sh", 3))


def standing(entry: Failure, found: UserStack, *jobs: UserJob, unknown: dict[str, str] | None = None) -> FailureInStack:
    return judge_failure(catalog(entry), found, entry, jobs, unknown or {})


BROKEN = failure(affected=(clause(mcore="<0.9", torch=">=2.4"),), works=(clause(mcore=">=0.9"),))


@pytest.mark.parametrize(
    ("found", "expected", "needs"),
    [
        (stack(mcore="0.8.0", torch="2.4.0"), Standing.WILL_BREAK, ""),
        (stack(mcore="0.9.0", torch="2.4.0"), Standing.WORKS, ""),
        (stack(mcore="0.9.0"), Standing.WORKS, ""),
        (stack(mcore="0.8.0", torch="2.3.1"), Standing.UNKNOWN, ""),
        (stack(torch="2.4.0"), Standing.WITH_VERSIONS, "with megatron-core 0.7.0 .. 0.8.0"),
        (stack(torch="2.3.1"), Standing.UNKNOWN, ""),
        (stack(torch="none", mcore="0.8.0"), Standing.NOT_REACHED, ""),
    ],
)
def test_rules_are_held_against_what_is_named(found: UserStack, expected: Standing, needs: str) -> None:
    """What is not named stands for all its values."""
    one = standing(BROKEN, found)
    assert (one.standing, one.needs, one.certain) == (expected, needs, expected is Standing.WILL_BREAK)


@pytest.mark.parametrize(
    ("limits", "versions"),
    [
        (">=2.4,<2.6", ""),
        (">=2.3,<2.6", "torch 2.4.0 .. 2.5.1; or the image ngc-24.07"),
        (">=2.5", ""),
        ("<2.3", None),
    ],
)
def test_range_counts_with_all_its_versions(limits: str, versions: str | None) -> None:
    entry = real().failure(SAVE)
    found = build(real(), [Statement(MCORE, "0.8.0", HERE), Statement(TORCH, UNKNOWN, HERE, limits)])
    assert needed(real(), found, entry) == versions


@pytest.mark.parametrize(
    ("limits", "versions"),
    [("<82", None), (">=82", ""), (">=60", "setuptools >=82"), ("", "setuptools >=82"), (">70,<=82", "setuptools >=82"),
     ("==81.*", None), ("~=82.0", ""), ("!=82,<82.0.1", None), (">=80rc1", "setuptools >=82")],
)  # fmt: skip
def test_range_of_a_package_counts(limits: str, versions: str | None) -> None:
    entry = failure(affected=(clause(mcore="<0.9", packages={"setuptools": ">=82"}),))
    found = build(catalog(entry), [Statement(MCORE, "0.8.0", HERE), Statement("setuptools", UNKNOWN, HERE, limits)])
    assert needed(catalog(entry), found, entry) == versions


@pytest.mark.parametrize(
    ("words", "expected", "certain", "needs"),
    [
        (None, Standing.WITH_OPTIONS, False, "with --overlap"),
        ("a.py --overlap", Standing.WILL_BREAK, True, "reached by --overlap"),
        ("a.py", Standing.WITH_OPTIONS, False, "only with --overlap"),
        ("a.py --no-overlap", Standing.NOT_REACHED, False, "the command has --no-overlap"),
        ("a.py $MORE", Standing.WITH_OPTIONS, False, "with --overlap"),
    ],
)
def test_arguments_decide_what_is_reached(words: str | None, expected: Standing, certain: bool, needs: str) -> None:
    entry = failure(affected=(clause(mcore="<0.9"),), reached_by=(OVERLAP,))
    one = standing(entry, stack(mcore="0.8.0"), *([job(words)] if words else []))
    assert (one.standing, one.certain, one.needs) == (expected, certain, needs)


def test_worst_of_several_jobs_counts() -> None:
    entry = failure(affected=(clause(mcore="<0.9"),), reached_by=(OVERLAP,))
    assert standing(entry, stack(mcore="0.8.0"), job("a.py"), job("b.py --overlap")).certain


def test_failure_without_exception_is_silent() -> None:
    entry = failure(affected=(clause(mcore="<0.9"),), signature=(OWN,))
    one = standing(entry, stack(mcore="0.8.0"))
    assert (one.standing, one.certain) == (Standing.SILENT, True)


def test_version_that_may_not_exist_proves_nothing() -> None:
    one = standing(BROKEN, stack(mcore="0.8.5", torch="2.4.0"), unknown={MCORE: "no release"})
    assert (one.standing, one.reason) == (Standing.UNKNOWN, "no release")


def test_hidden_failure_names_what_hides_it() -> None:
    entry = failure(affected=(clause(mcore="<0.9"),), masked=(masked("first"),))
    first = failure("first", affected=(clause(mcore="<0.9"),))
    one = judge_failure(catalog(entry, first), stack(mcore="0.8.0"), entry, (), {})
    assert one.hidden_by == "first: it fails before"


def report(*errors: str, clears: bool = False, open: str = "") -> Report:
    answers = [Answer("q", Status.NO, "because", Error("TypeError", "broke"), failure=name) for name in errors]
    return Report(tuple(answers) or (Answer("q", Status.YES, "it fits"),), (("change it",),), clears=clears, open=open)


def judge(entry: Failure, made: Report, words: str) -> list[FailureInStack]:
    found, the_job = stack(mcore="0.8.0"), job(words)
    known = catalog(entry, failure("other"))
    ways = {str(entry.id): PreflightResult(made, entry.reach(found.stack, the_job.arguments), the_job)}
    return apply_preflights([judge_failure(known, found, one, [the_job], {}) for one in known.failures], ways)


def test_error_of_a_preflight_breaks_its_failure() -> None:
    entry = failure(affected=(clause(mcore="<0.8"),), reached_by=(OVERLAP,))
    one, other = judge(entry, report("other"), "a.py --overlap")
    assert (one.standing, other.standing, other.certain) == (Standing.UNKNOWN, Standing.WILL_BREAK, True)
    assert ([each.text for each in other.workarounds], str(other.place)) == (["change it"], "job.sh:3")


def test_preflight_that_clears_overrules_the_versions() -> None:
    entry = failure(affected=(clause(mcore="<0.9"),), reached_by=(OVERLAP,))
    one, _ = judge(entry, report(clears=True), "a.py --overlap")
    assert (one.standing, one.certain, one.reason) == (Standing.NOT_REACHED, False, "it fits")
    one, _ = judge(entry, report(), "a.py --overlap")
    assert one.standing is Standing.WILL_BREAK


def test_undecided_preflight_makes_no_break_certain() -> None:
    entry = failure(affected=(clause(mcore="<0.9"),), reached_by=(OVERLAP,))
    one, _ = judge(entry, report(open="the launcher is unknown"), "a.py --overlap")
    assert (one.standing, one.certain) == (Standing.WITH_OPTIONS, False)
    assert one.needs == "reached by --overlap; the launcher is unknown"


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        ({"mcore": "0.17.1", "python": "3.10.1"}, "megatron-core 0.17.1 needs Python"),
        ({"mcore": "0.17.1", "torch": "2.4.1"}, "megatron-core 0.17.1 declares torch>=2.6.0"),
        ({"mcore": "0.13.1", "numpy": "2.1.0"}, "megatron-core 0.13.1 declares numpy<2.0.0; the base has 2.1.0"),
        (
            {"mcore-bridge": "1.6.5", "mcore": "0.15.0"},
            "mcore-bridge 1.6.5 declares megatron-core<0.20,>=0.16; the stack",
        ),
        ({"megatron-bridge": "0.3.1", "mcore": "0.17.1"}, "Megatron-Bridge 0.3.1 declares megatron-core<0.17.0"),
        ({"base": "ngc-24.10", "driver": "450"}, "driver 450 is too old: ngc-24.10 requires driver 470 or later"),
        ({"base": "ngc-24.03", "driver": "470.42.01"}, "driver 470.42.01 is too old: ngc-24.03 has CUDA"),
        ({"base": "nemo-26.04", "driver": "470"}, "driver 470 is too old: nemo-26.04 has CUDA 13.1.1"),
        ({"base": "ngc-26.02", "driver": "560"}, "driver 560 is too old: ngc-26.02 has CUDA 13.1.1.006"),
        ({"base": "ngc-25.10", "driver": "510"}, "driver 510 is too old: ngc-25.10 has CUDA 13.0.2.006"),
    ],
)
def test_parts_that_exclude_each_other_break(versions: dict[str, str], text: str) -> None:
    said = [Statement(name, value, Place("x", 1)) for name, value in values(**versions).items()]
    (clash,) = clashes(real(), build(real(), said))
    assert (clash.text.startswith(text), str(clash.place)) == (True, "x:1")


@pytest.mark.parametrize(
    "versions",
    [
        {"mcore-bridge": "1.6.5", "mcore": "0.19.0rc0"},
        {"mcore-bridge": "9.9", "mcore": "0.15.0"},
        {"mcore-bridge": "1.6.5"},
        {"mbridge": "0.15.1", "mcore": "0.11.0"},
    ],
)
def test_frameworks_inside_their_ranges_do_not_clash(versions: dict[str, str]) -> None:
    """Pre-releases count; of a release that is not recorded nothing is stated; nor do ranges of an extra count."""
    said = [Statement(name, value, Place("x", 1)) for name, value in values(**versions).items()]
    assert clashes(real(), build(real(), said)) == []


@pytest.mark.parametrize(("version", "unread"), [("1.6.5", 0), (None, 0), ("9.9", 1)])
def test_recorded_framework_is_known(version: str | None, unread: int) -> None:
    said = [Statement("mcore-bridge", version or UNKNOWN, Place("x", 1))]
    assert len(build(real(), said).unread) == unread


def test_groups_are_in_order_of_certainty() -> None:
    made: list[Any] = [FailureInStack(failure(one.name.lower()), one) for one in reversed(Standing)]
    assert [one.standing for one in ordered(made)] == list(Standing)


def test_own_options_go_before_reports() -> None:
    """Then reports count, weighed with how few releases break; of certain breaks reports alone."""
    entry, often = failure(), failure(references=("x/y#1", "x/y#2"))
    given = FailureInStack(entry, Standing.WITH_OPTIONS, given=1, share=0.9)
    narrow, wide = (FailureInStack(entry, Standing.WITH_OPTIONS, share=share) for share in (0.1, 0.9))
    reported = FailureInStack(often, Standing.WITH_OPTIONS, share=0.9)
    assert ordered([wide, reported, narrow, given]) == (given, narrow, reported, wide)
    first = replace(reported, standing=Standing.WILL_BREAK, certain=True)
    second = replace(narrow, standing=Standing.WILL_BREAK, certain=True)
    assert ordered([second, first]) == (first, second)


def test_judgement_has_given_options_and_share() -> None:
    known = catalog(failures=[failure(affected=(clause(mcore="<0.9"),), reached_by=(OVERLAP,))])
    found = judge_failure(known, stack(mcore="0.8.0"), known.failures[0], [job("a.py --overlap")], {})
    assert found.given == 1
    assert found.share == pytest.approx(2 / 3)


REACHED, AVOIDED = Reached(Reach.REACHED), Reached(Reach.AVOIDED, ("--no-x",))
USUAL, OPTIONAL, MISSING = Reached(Reach.OPEN, usual=True), Reached(Reach.OPEN), Reached(Reach.MISSING, ("--x",))


@pytest.mark.parametrize(
    ("way", "silent", "needs", "expected"),
    [
        (REACHED, False, "", Standing.WILL_BREAK),
        (USUAL, False, "", Standing.WILL_BREAK),
        (OPTIONAL, False, "", Standing.WITH_OPTIONS),
        (MISSING, False, "", Standing.WITH_OPTIONS),
        (AVOIDED, False, "", Standing.NOT_REACHED),
        (REACHED, True, "", Standing.SILENT),
        (OPTIONAL, True, "", Standing.SILENT),
        (AVOIDED, True, "torch 2.4", Standing.NOT_REACHED),
        (REACHED, False, "torch 2.4", Standing.WITH_VERSIONS),
        (MISSING, True, "torch 2.4", Standing.WITH_VERSIONS),
    ],
)
def test_standing_of_a_break(way: Reached, silent: bool, needs: str, expected: Standing) -> None:
    assert standing_of(way, silent=silent, needs=needs) is expected


SWITCHED = ReachedBy(arguments=("--overlap", "not --no-mask"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "a.py --overlap",
            {
                "standing": Standing.WILL_BREAK,
                "certain": True,
                "needs": "reached by --overlap",
                "flag": "add --no-mask",
            },
        ),
        ("a.py", {"standing": Standing.WITH_OPTIONS, "missing": True, "needs": "only with --overlap"}),
        (
            "a.py --overlap --no-mask",
            {"standing": Standing.NOT_REACHED, "needs": "the command has --no-mask"},
        ),
        (
            "a.py $MORE",
            {"standing": Standing.WITH_OPTIONS, "needs": "with --overlap and not --no-mask", "flag": "add --no-mask"},
        ),
    ],
)
def test_failure_stands_with_all_its_evidence(words: str, expected: dict[str, Any]) -> None:
    entry = failure(affected=(clause(mcore="<0.9", reason="ran it"),), reached_by=(SWITCHED,))
    fields = {key: value for key, value in expected.items() if key != "flag"}
    workarounds = (StackChange(ChangeKind.FLAG, expected["flag"]),) if "flag" in expected else ()
    assert standing(entry, stack(mcore="0.8.0"), job(words)) == FailureInStack(
        entry, reason="ran it", place=Place("job.sh", 3), workarounds=workarounds, **fields
    )


def test_break_with_unknown_versions_is_not_hidden() -> None:
    """What hides it may not be in the stack at all; neither is it certain."""
    entry = failure(affected=(clause(mcore="<0.9", torch=">=2.4"),), masked=(masked("first"),), reached_by=(OVERLAP,))
    first = failure("first", affected=(clause(mcore="<0.9"),))
    one = judge_failure(catalog(entry, first), stack(mcore="0.8.0"), entry, [job("a.py --overlap")], {})
    assert (one.standing, one.certain, one.hidden_by) == (Standing.WITH_VERSIONS, False, "")
    assert one.needs == "with torch >=2.4; reached by --overlap"


@pytest.mark.parametrize(
    ("unknown", "expected"),
    [
        ({"mcore": "no release", "torch": "too new"}, (Standing.UNKNOWN, "no release; too new")),
        ({"te": "no release"}, (Standing.WILL_BREAK, "by hand")),  # no rule bounds it
    ],
)
def test_doubtful_version_counts_where_a_rule_bounds_it(
    unknown: dict[str, str], expected: tuple[Standing, str]
) -> None:
    named = {component_named(name): why for name, why in unknown.items()}
    one = standing(BROKEN, stack(mcore="0.8.0", torch="2.4.0"), unknown=named)
    assert (one.standing, one.reason) == expected


def test_most_certain_job_names_its_source() -> None:
    jobs = [
        UserJob(JobArguments.parse(words.split()), place=Place(words))
        for words in ("a.py", "b.py $X", "c.py --overlap", "d.py")
    ]
    found, reached_by = reaching(jobs, OVERLAP.reached)
    assert (str(found.place), reached_by.reach) == ("c.py --overlap", Reach.REACHED)
    assert reaching(jobs[:2], OVERLAP.reached)[0].place == Place("b.py $X")
    assert reaching([], OVERLAP.reached)[0].arguments is None


@pytest.mark.parametrize(
    ("rules", "versions", "package"),
    [
        ([{"te": ">=1"}], {"te": "none"}, "Transformer Engine"),
        ([{"te": ">=1"}], {"te": "1.9"}, ""),
        ([{"te": ">=1"}], {}, ""),  # unknown is not absent
        ([{"te": ">=1"}, {"mcore": "<1"}], {"te": "none"}, ""),  # the other rule needs none
        ([{"mcore": "<1", "torch": "<3"}], {"mcore": "none", "torch": "none"}, "megatron-core"),
        ([{"torch": "<3"}], {"torch": "none"}, "torch"),
        ([{"te": ">=1", "cases": ["tp2"]}], {"te": "none"}, ""),  # of one case alone
        ([{"te": ">=1"}, {"mcore": "<1", "cases": ["tp2"]}], {"te": "none"}, "Transformer Engine"),
        ([], {"te": "none"}, ""),
    ],
)
def test_package_that_every_rule_needs_may_be_absent(
    rules: list[dict[str, Any]], versions: dict[str, str], package: str
) -> None:
    entry = failure(affected=tuple(clause(**rule) for rule in rules))
    assert lacking(stack(**versions).stack, entry) == package


def preflight(own: Report, reach: Reached = REACHED, source: str = "job.sh:3") -> PreflightResult:
    return PreflightResult(own, reach, UserJob(place=Place(source)))


def test_first_error_of_preflights_counts() -> None:
    """Of two preflights that find the same failure; its own report is shown with it, another's is not."""
    before = FailureInStack(
        failure("a"), Standing.WITH_OPTIONS, missing=True, workarounds=(StackChange(ChangeKind.TEXT, "x"),)
    )
    results = {"b": preflight(report("a"), OPTIONAL, "first"), "a": preflight(report("a"), REACHED, "second")}
    (one,) = apply_preflights([before], results)
    assert (one.standing, one.certain, one.missing, str(one.place)) == (Standing.WITH_OPTIONS, False, False, "first")
    assert (one.reason, one.report) == ("TypeError: broke: because", None)
    assert one.workarounds == (StackChange(ChangeKind.TEXT, "x"), StackChange(ChangeKind.JOB, "change it"))
    (one,) = apply_preflights([before], {"a": preflight(report(""), replace(REACHED, by=("--x",)))})
    assert (one.standing, one.certain, one.needs, one.report) == (
        Standing.WILL_BREAK, True, "reached by --x", report(""),
    )  # fmt: skip


CLEARS, UNDECIDED = report(clears=True), report(open="the launcher is unknown")


@pytest.mark.parametrize(
    ("own", "before", "after", "certain", "needs"),
    [
        (CLEARS, Standing.WILL_BREAK, Standing.NOT_REACHED, False, ""),
        (CLEARS, Standing.WITH_OPTIONS, Standing.NOT_REACHED, False, ""),
        (CLEARS, Standing.SILENT, Standing.SILENT, True, "with x"),
        (CLEARS, Standing.WITH_VERSIONS, Standing.WITH_VERSIONS, True, "with x"),
        (CLEARS, Standing.WORKS, Standing.WORKS, True, "with x"),
        (UNDECIDED, Standing.WILL_BREAK, Standing.WITH_OPTIONS, False, "with x; the launcher is unknown"),
        (UNDECIDED, Standing.WITH_OPTIONS, Standing.WITH_OPTIONS, True, "with x"),
        (UNDECIDED, Standing.UNKNOWN, Standing.UNKNOWN, True, "with x"),
        (report(), Standing.WILL_BREAK, Standing.WILL_BREAK, True, "with x"),
    ],
)
def test_preflight_overrules_a_break_alone(
    own: Report, before: Standing, after: Standing, certain: bool, needs: str
) -> None:
    known = FailureInStack(failure("a"), before, certain=True, needs="with x")
    other = FailureInStack(failure("b"), before, certain=True, needs="with x")
    one, untouched = apply_preflights([known, other], {"a": preflight(own)})
    assert (one.standing, one.certain, one.needs, one.report) == (after, certain, needs, own)
    assert untouched == other


def test_report_without_a_verdict_is_not_shown() -> None:
    known = FailureInStack(failure("a"), Standing.WILL_BREAK)
    assert apply_preflights([known], {"a": preflight(unjudged("no arguments"))}) == [known]


@pytest.mark.parametrize(
    ("core", "reads", "text"),
    [
        ("0.9.0", ">=0.8", ""),
        ("0.7.0", ">=0.8", "megatron-core 0.7.0 can't read /c: format torch_dist"),
        ("", ">=0.8", ""),
    ],
)
def test_checkpoint_excludes_releases_that_can_not_read_it(core: str, reads: str, text: str) -> None:
    mark = Mark(Range("<0.9"), Range(reads), "its format")
    found = clashes(catalog(), stack(**({"mcore": core} if core else {})), Checkpoint("/c", "torch_dist", mark))
    assert [(one.text.startswith(text), str(one.place)) for one in found] == ([(True, "in the test")] if text else [])
    assert clashes(catalog(), stack(mcore="0.7.0"), Checkpoint("/c", "torch", None)) == []


def test_driver_that_would_do_is_named() -> None:
    said = [Statement(name, value, HERE) for name, value in values(base="ngc-24.10", driver="450").items()]
    (clash,) = clashes(real(), build(real(), said))
    assert re.search(r"^driver 450 is too old: .*; driver \d+ would do$", clash.text)
    said = [Statement(name, value, HERE) for name, value in values(base="ngc-24.10", driver="560").items()]
    assert clashes(real(), build(real(), said)) == []


def test_certain_failures_are_first_in_their_group() -> None:
    one, two, three = (FailureInStack(failure(id), Standing.SILENT, certain=id == "c") for id in "abc")
    result = CheckResult(stack(), (), ordered([two, one, three]))
    assert [each.failure.id for each in result.of(Standing.SILENT)] == ["c", "a", "b"]
    assert result.of(Standing.WORKS) == []


def test_limits_without_releases_name_the_rules_bound() -> None:
    """No version of Python is recorded; samples of the limits are no versions that a user knows."""
    entry = failure(affected=(clause(mcore="<0.9", python="<3.12"),))
    user = build(catalog(entry), [Statement(MCORE, "0.8.0", HERE), Statement("python", UNKNOWN, HERE, ">=3.9")])
    assert needed(catalog(entry), user, entry) == "Python <3.12"


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ([{"mcore": "<0.9", "te": ">=1.9"}], "megatron-core 0.7.0 .. 0.8.0 and Transformer Engine 1.9 .. 1.10"),
        ([{"mcore": "<0.8"}, {"mcore": "<0.8"}, {"te": "<1.9"}], "megatron-core 0.7.0; or Transformer Engine 1.8"),
        ([{"base": ["ngc-24.07", "ngc-24.09", "ngc-26.08"]}], "the image ngc-24.07 or ngc-26.08"),
    ],
)
def test_unknown_versions_that_break_are_listed(rules: list[dict[str, Any]], text: str) -> None:
    """Of images, those whose torch the limits allow."""
    entry = failure(affected=tuple(clause(**rule) for rule in rules))
    images = (image("ngc-24.07", "2.4.0a0"), image("ngc-24.09", "2.5.0a0"), image("ngc-26.08", None))
    known = catalog(entry, containers=images)
    user = build(known, [Statement(TORCH, UNKNOWN, HERE, "<2.4.1")])
    assert needed(known, user, entry) == text


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (stack(mcore="0.9.0"), FailureInStack(BROKEN, Standing.WORKS, reason="it ran")),
        (stack(mcore="0.8.0", torch="2.3.1"), FailureInStack(BROKEN, Standing.UNKNOWN)),
        (stack(limits="<2.4", mcore="0.8.0"), FailureInStack(BROKEN, Standing.UNKNOWN)),
        (stack(torch="none"), FailureInStack(BROKEN, Standing.NOT_REACHED, reason="there is no torch")),
    ],
)
def test_failure_that_does_not_occur_has_a_reason(user: UserStack, expected: FailureInStack) -> None:
    entry = replace(BROKEN, works=(clause(mcore=">=0.9", reason="it ran"),))
    assert standing(entry, user) == replace(expected, failure=entry)


def test_doubtful_version_is_the_only_evidence() -> None:
    one = standing(BROKEN, stack(mcore="0.8.5", torch="2.4.0"), unknown={MCORE: "no release"})
    assert one == FailureInStack(BROKEN, Standing.UNKNOWN, reason="no release")


def test_break_needs_no_versions_by_default() -> None:
    assert standing_of(REACHED, silent=False) is Standing.WILL_BREAK


def test_change_with_several_parts_is_one_workaround() -> None:
    changes = (("drop --x", "add --y"), ("pin it",))
    own = replace(report("", open="not certain"), changes=changes)
    way = replace(REACHED, by=("--x",), when="x is set")
    (one,) = apply_preflights([FailureInStack(failure("a"), Standing.SILENT)], {"a": preflight(own, way)})
    assert [change.text for change in one.workarounds] == ["drop --x and add --y", "pin it"]
    assert one.needs == way.needs


@pytest.mark.parametrize(
    ("versions", "component"),
    [
        ({"mcore": "0.17.1", "torch": "2.4.1"}, "torch"),
        ({"mcore": "0.13.1", "numpy": "2.1.0"}, "numpy"),
        ({"mcore": "0.17.1", "python": "3.10.1"}, MCORE),
    ],
)
def test_clash_is_placed_at_the_declared_package(versions: dict[str, str], component: str) -> None:
    """Or at megatron-core, whose release needs another Python."""
    said = [Statement(name, value, Place(name)) for name, value in values(**versions).items()]
    assert [str(clash.place) for clash in clashes(real(), build(real(), said))] == [component]


@pytest.mark.parametrize(
    "versions", [{"driver": "450"}, {"base": "torch-2.4.0", "driver": "450"}, {"base": "ngc-24.10"}]
)
def test_driver_and_image_are_both_needed_to_clash(versions: dict[str, str]) -> None:
    said = [Statement(name, value, HERE) for name, value in values(**versions).items()]
    assert clashes(real(), build(real(), said)) == []


def test_driver_without_a_known_better_one() -> None:
    known = replace(real(), drivers=())
    said = [Statement(name, value, HERE) for name, value in values(base="ngc-24.10", driver="450").items()]
    (clash,) = clashes(known, build(known, said))
    assert clash.text == "driver 450 is too old: ngc-24.10 requires driver 470 or later"


class OneFinding:
    def to_json(self) -> dict[str, str]:
        return {"call": "f()"}


def test_breaking_call_as_json_stands_as_its_group() -> None:
    calls = BreakingCalls((OneFinding(),), Standing.WITH_OPTIONS, True, True, "with --x")  # type: ignore[arg-type]
    expected = {"call": "f()", "standing": "breaks with these options", "certain": True, "missing": True}
    assert calls.to_json() == [{**expected, "needs": "with --x"}]
    assert CheckResult(stack(), (), (), calls=(calls, calls)).to_json()["calls"] == calls.to_json() * 2
