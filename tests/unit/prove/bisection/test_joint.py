"""Two stacks that differ in several packages: the guilty packages and their versions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import BASE, MCORE, PYTHON, TE, TORCH, Stack
from matrix.ground.catalog.versions import parse
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.prove.bisection.axes import Subject, axis_named
from matrix.prove.bisection.joint import bisect_stacks, read_pair
from matrix.prove.bisection.noise import Noise
from matrix.prove.bisection.probe_session import BisectionSession, ProbeStore
from matrix.prove.bisection.result_summary import AttributionSummary, BisectionSummary, summarize
from matrix.prove.bisection.search import Plan, ResultKind
from tests.profiles import tries
from tests.unit import catalogs
from tests.unit.catalogs import failure
from tests.unit.prove.bisection.repositories import FakeProbe

ENTRY = failure("break", axes=(BASE, MCORE, TE))
KNOWN = catalogs.catalog(ENTRY, containers=(catalogs.image("ngc-24.07", "2.4.0a0+3bcc3cd", "1.8"),))
SUBJECT = Subject(KNOWN, ENTRY, ENTRY.case[0], Level.CPU)
GOOD, BAD = "torch-2.3.1/mcore-0.7.0/te-1.8/driver-none", "torch-2.5.1/mcore-0.9.0/te-1.10/driver-none"


def found(tmp_path: Path, breaks: Callable[[Planned], bool | None], plan: Plan | None = None) -> BisectionSummary:
    """Return the attribution between GOOD and BAD; `breaks` returns None for an unavailable mixture."""

    def ends(item: Planned) -> Outcome:
        broken = breaks(item)
        if broken is None:
            return Outcome(OutcomeKind.UNAVAILABLE, "no such mixture")
        return catalogs.shown(ENTRY) if broken else Outcome(OutcomeKind.PASSED)

    session = BisectionSession(FakeProbe(ends), ProbeStore(tmp_path), lambda report: None)
    stacks = read_pair(SUBJECT, GOOD, BAD, lambda base: "")
    answer = bisect_stacks(stacks, plan or Plan(), session)
    return summarize(answer, session)


def since(version: str, first: str) -> bool:
    return parse(version) >= parse(first)


def attribution_of(summary: BisectionSummary) -> AttributionSummary:
    assert summary.attribution
    return summary.attribution


@pytest.mark.parametrize(
    ("breaks", "guilty", "inside"),
    [
        (lambda item: since(str(item.cell.stack[TORCH]), "2.4.0"), ["torch"], {"torch": "2.4.0"}),
        (lambda item: since(str(item.cell.stack[MCORE]), "0.8.0"), ["mcore"], {"mcore": "0.8.0"}),
        (lambda item: since(str(item.cell.stack[TE]), "1.10"), ["te"], {"te": "1.10"}),
        (
            lambda item: since(str(item.cell.stack[TORCH]), "2.4.0") and since(str(item.cell.stack[MCORE]), "0.9.0"),
            ["mcore", "torch"],
            {"torch": "2.4.0", "mcore": "0.9.0"},
        ),
    ],
)
def test_guilty_packages_and_their_versions_are_found(
    tmp_path: Path, breaks: Callable[[Planned], bool], guilty: list[str], inside: dict[str, str]
) -> None:
    """torch, TE and megatron-core all differ."""
    summary = found(tmp_path, breaks)
    attribution = attribution_of(summary)

    assert (attribution.guilty, summary.to_json()["kind"]) == (guilty, "packages")
    assert {axis: change.answer for axis, change in summary.changes.items()} == inside
    assert set(attribution.differ) == {"torch", "mcore", "te"}


def test_inseparable_packages_make_the_result_ambiguous(tmp_path: Path) -> None:
    """Mixtures of the old torch and the new megatron-core, or the reverse, are unavailable."""

    def breaks(item: Planned) -> bool | None:
        new_torch, new_core = since(str(item.cell.stack[TORCH]), "2.4.0"), since(str(item.cell.stack[MCORE]), "0.8.0")
        return new_torch if new_torch == new_core else None

    summary = found(tmp_path, breaks)
    attribution = attribution_of(summary)

    assert (attribution.guilty, summary.to_json()["kind"]) == (None, ResultKind.AMBIGUOUS.value)
    assert attribution.carriers[0].doubtful == {"mcore", "torch"}
    assert summary.ambiguous
    assert summary.headlines[0] == "one or more of: mcore 0.9.0, torch 2.5.1, not separable here: no such mixture"


def test_two_causes_are_both_found(tmp_path: Path) -> None:
    summary = found(
        tmp_path, lambda item: since(str(item.cell.stack[TORCH]), "2.4.0") or since(str(item.cell.stack[TE]), "1.9")
    )
    attribution = attribution_of(summary)

    assert attribution.guilty == ["te", "torch"]
    assert [carrier.packages for carrier in attribution.carriers] == [{"te"}, {"torch"}]
    assert "on its own" in summary.headlines[0]


def test_noisy_mixtures_are_repeated_until_settled(tmp_path: Path) -> None:
    """A failure that shows in every second run: one pass does not settle a mixture as good."""
    runs: dict[str, int] = {}

    def at_times(item: Planned) -> bool:
        runs[item.key] = runs.get(item.key, 0) + 1
        return since(str(item.cell.stack[TORCH]), "2.4.0") and runs[item.key] % 2 == 0

    summary = found(tmp_path, at_times, Plan(noise=Noise(0.5)))

    assert attribution_of(summary).guilty == ["torch"]
    assert min(count for key, count in runs.items() if "torch-2.3.1" in key) >= 5


def test_mislabeled_stack_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="the bad stack is not bad"):
        found(tmp_path, lambda item: False)


def test_twin_replaces_an_image_that_cannot_run() -> None:
    """The stack keeps the image's Transformer Engine."""
    subject = SUBJECT.with_(MCORE, "0.8.0")
    twin = read_pair(subject, "ngc-24.07", "torch-2.5.1", lambda base: "no container tool")
    real = read_pair(subject, "ngc-24.07", "torch-2.5.1", lambda base: "")

    assert [twin.good.text(name) for name in (BASE, TE, MCORE)] == ["torch-2.4.0", "1.8", "0.8.0"]
    assert "the twin torch-2.4.0 replaces ngc-24.07: no container tool" in twin.notes[0]
    assert (real.good.base, real.notes) == ("ngc-24.07", ())


TWO_PYTHONS = catalogs.catalog(
    ENTRY,
    wheels=(
        catalogs.wheels("2.4.0", pythons=("3.10",), requires=("numpy==1.26.4", "psutil")),
        catalogs.wheels("2.5.1", pythons=("3.12",), requires=("numpy==2.5.5", "psutil"), fallbacks=("3.10",)),
    ),
)


def separated(
    tmp_path: Path, cause: Callable[[Stack], bool], *, impossible: Callable[[Stack], bool] = lambda stack: False
) -> BisectionSummary:
    """Return the attribution between two bases that differ in torch, Python, numpy and megatron-core."""

    def ends(item: Planned) -> Outcome:
        if impossible(item.cell.stack):
            return Outcome(OutcomeKind.UNAVAILABLE, "no wheel of it: got an error")
        return catalogs.shown(ENTRY) if cause(item.cell.stack) else Outcome(OutcomeKind.PASSED)

    session = BisectionSession(FakeProbe(ends), ProbeStore(tmp_path), lambda report: None)
    subject = Subject(TWO_PYTHONS, ENTRY, ENTRY.case[0], Level.CPU)
    good, bad = (
        f"torch-{torch}/mcore-{core}/te-none/driver-none" for torch, core in (("2.4.0", "0.7.0"), ("2.5.1", "0.9.0"))
    )
    stacks = read_pair(subject, good, bad, lambda base: "")
    return summarize(bisect_stacks(stacks, Plan(), session), session)


def numpy_two(stack: Stack) -> bool:
    return since(str(stack["numpy"]), "2")


def test_a_package_is_separated_from_its_torch(tmp_path: Path) -> None:
    summary = separated(tmp_path, numpy_two)

    assert attribution_of(summary).guilty == ["numpy"]
    assert set(attribution_of(summary).differ) == {"torch", "python", "numpy", "mcore"}
    assert summary.changes["numpy"].answer == "2.5.5"


def test_a_python_is_separated_from_its_torch(tmp_path: Path) -> None:
    """torch 2.5.1 runs on Python 3.10 too; torch 2.4.0 does not on 3.12."""
    guilty = separated(tmp_path, lambda stack: stack[PYTHON] == "3.12")
    assert guilty.headlines[0].startswith(
        "guilty: python 3.12, perhaps only with torch 2.5.1, not separable here: the catalog"
    )
    assert attribution_of(separated(tmp_path / "torch", lambda stack: stack[TORCH] == "2.5.1")).guilty == ["torch"]


def test_inseparable_packages_have_the_reason(tmp_path: Path) -> None:
    """numpy 2.5.5 has no wheel for Python 3.10."""
    summary = separated(tmp_path, numpy_two, impossible=lambda stack: numpy_two(stack) and stack[PYTHON] == "3.10")
    assert attribution_of(summary).guilty is None
    assert "numpy 2.5.5" in summary.headlines[0]
    assert "not separable here: no wheel of it" in summary.headlines[0]


@tries(100)
@given(st.data())
def test_a_guilty_set_always_flips_the_result(data: st.DataObject) -> None:
    """Random causes, some mixtures impossible: a set named as guilty carries the failure, and needs all of it."""
    names = {"numpy": "2.5.5", TORCH: "2.5.1", PYTHON: "3.12", MCORE: "0.9.0"}
    causes = data.draw(
        st.lists(st.sets(st.sampled_from(sorted(names)), min_size=1, max_size=3), min_size=1, max_size=2)
    )
    barred = data.draw(st.lists(st.tuples(st.sampled_from(sorted(names)), st.sampled_from(sorted(names))), max_size=2))

    def new(stack: Stack) -> set[str]:
        return {name for name, version in names.items() if stack[name] == version}

    def cause(stack: Stack) -> bool:
        return any(one <= new(stack) for one in causes)

    def impossible(stack: Stack) -> bool:
        return any((first in new(stack)) and second not in new(stack) for first, second in barred)

    with tempfile.TemporaryDirectory() as folder:
        attribution = attribution_of(separated(Path(folder), cause, impossible=impossible))
    for carrier in attribution.carriers:
        certain = {axis_named(name) for name in carrier.packages - carrier.doubtful}
        whole = {axis_named(name) for name in carrier.packages}
        assert any(one <= whole for one in causes)
        assert not carrier.doubtful or attribution.guilty is None
        # What is named as certain is in each cause within the set.
        assert all(certain <= one for one in causes if one <= whole)
        if not carrier.doubtful:
            assert whole in causes
