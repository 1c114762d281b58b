"""Tests of matrix.prove.parity.campaigns."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.ground.catalog import loading
from matrix.ground.catalog.machine import Cuda, Machine
from matrix.ground.catalog.reach import JobArguments, Reach, ReachedBy
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.catalog.versions import Range
from matrix.ground.errors import MatrixError
from matrix.kit.parity.factors import Point
from matrix.prove.parity import campaigns
from matrix.prove.parity.campaigns import CoreCell, CoreResult, ParityRun, first_and_last, known_layouts
from matrix.prove.parity.points import DEVIATES, EQUAL, REFUSED, Cause, Certainty, PointResult
from matrix.prove.provision.bases import Bases
from tests.unit import catalogs
from tests.unit.catalogs import clause, failure
from tests.unit.prove.parity.fakes import NORM, SINKS, Planted, few_factors

BASE = next(iter(catalogs.catalog().wheels)).id
ROW = PointResult(SINKS, 1, DEVIATES, (NORM,))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    judge = Planted()

    def cell(catalog: Any, source: str, *_: Any, **__: Any) -> Any:
        process = nullcontext(SimpleNamespace(judge=judge))
        return SimpleNamespace(release=source, base=BASE, identity=source, judge=lambda *_: process, card=None)

    monkeypatch.setattr(campaigns, "core_cell", cell)
    monkeypatch.setattr(campaigns, "Space", few_factors)
    return judge


def campaign(folder: Path, **options: Any) -> ParityRun:
    return ParityRun(catalogs.catalog(), folder, 1, lambda text: None, **options)


def test_a_second_search_judges_nothing_again(tmp_path: Path, planted: Planted) -> None:
    first = campaign(tmp_path).searched("0.19.2", 1e9)
    number = len(planted.asked)
    assert first.deviates
    assert {cause.point for cause in first.causes if cause.deviates} == {SINKS}
    assert campaign(tmp_path).searched("0.19.2", 1e9).causes == first.causes
    assert len(planted.asked) == number


def test_a_search_that_was_killed_continues(tmp_path: Path, planted: Planted) -> None:
    class KilledError(BaseException):
        pass

    def say(text: str) -> None:
        if len(planted.asked) == 10:
            raise KilledError

    with pytest.raises(KilledError):
        ParityRun(catalogs.catalog(), tmp_path, 1, say).searched("0.19.2", 1e9)
    campaign(tmp_path).searched("0.19.2", 1e9)
    assert len(planted.asked) == len(set(planted.asked))


def test_a_budget_ends_a_search(tmp_path: Path, planted: Planted) -> None:
    times = iter(range(1000))
    result = campaign(tmp_path, clock=lambda: float(next(times))).searched("0.19.2", 20.0)
    assert result.judged < 30
    assert result.uncovered


def test_layout_that_a_release_lacks_is_not_judged(tmp_path: Path, planted: Planted) -> None:
    result = campaign(tmp_path).asked("0.14.0", [SINKS, Point.parse("dp=2")])
    assert [row.outcome for row in result.asked] == [REFUSED, EQUAL]
    assert len(planted.asked) == 1


def test_only_what_is_certain_is_a_break() -> None:
    for certainty in Certainty:
        result = CoreResult("0.19.2", "torch", (Cause(SINKS, certainty, ROW),), equal=1)
        assert result.deviates is (certainty in (Certainty.CONFIRMED, Certainty.KNOWN))
        assert result.decided
    assert not CoreResult("0.19.2", "torch").decided


def test_first_and_last_release_of_each_span() -> None:
    def result(core: str, outcome: str) -> CoreResult:
        return CoreResult(core, "torch", asked=(PointResult(SINKS, 1, outcome),))

    rows = [result("0.1", EQUAL), *(result(core, DEVIATES) for core in ("0.2", "0.3")), result("0.4", REFUSED)]
    assert first_and_last(SINKS, rows) == "0.2 .. 0.3"
    assert first_and_last(SINKS, [*rows, result("0.5", DEVIATES)]) == "0.2 .. 0.3, 0.5"
    assert first_and_last(Point(), rows) == ""


def test_layouts_of_failures_that_break_are_known() -> None:
    reach = ReachedBy(arguments=("--softmax-type == learnable",), layouts=(str(SINKS), "tp=2"))
    entry = failure("sinks", reached_by=(reach,), affected=(clause(mcore=">=0.15.0"),), works=(clause(mcore="<0.15"),))
    other = failure("crash", reached_by=(ReachedBy(arguments=("--fp8",)),), affected=(clause(),))
    catalog = catalogs.catalog(other, entry)
    known = [known_layouts(catalog, CoreCell(core, core, core, BASE, Path(), Path())) for core in ("0.19.2", "0.14.0")]
    assert known == [{SINKS: "sinks", Point.parse("tp=2"): "sinks"}, {}]


def test_core_that_does_not_start_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cell(*_: Any, **__: Any) -> Any:
        raise MatrixError("no base of wheels", got="0.1")

    monkeypatch.setattr(campaigns, "core_cell", cell)
    for result in (campaign(tmp_path).asked("0.1", [SINKS]), campaign(tmp_path).searched("0.1", 10)):
        assert "no base of wheels" in result.problem
        assert not result.decided


def test_way_of_another_stack_makes_nothing_known() -> None:
    """The only way needs Transformer Engine, which no cell of a search has."""
    reach = ReachedBy(layouts=("experts=4 dp=2",), bounds={TE: Range(">=2.0")})
    catalog = catalogs.catalog(failure("experts", reached_by=(reach,), affected=(clause(),)))
    cell = CoreCell("0.19.2", "0.19.2", "0.19.2", BASE, Path(), Path())
    assert known_layouts(catalog, cell) == {}


def test_layouts_of_the_catalog_reach_their_failures() -> None:
    """In a release that has the layout's options; else `check` would miss the job that a search found."""
    unreached = [
        f"{failure.id}: {layout}"
        for failure in loading.load().failures
        for way in failure.reached_by
        for layout in way.layouts
        if way.reached(JobArguments.parse(Point.parse(layout).arguments())).reach > Reach.OPEN
        or Point.parse(layout).problems()
    ]
    assert not unreached


@pytest.mark.parametrize("release", [release.version for release in loading.load().megatron_core])
def test_every_core_has_a_base_that_takes_it(release: str) -> None:
    catalog = loading.load()
    base = campaigns.base_of(catalog, release)
    assert catalog.excluded(catalog.cell(base.id, {MCORE: release}).stack) is None
    assert not base.variant


def test_core_without_a_base_is_an_error() -> None:
    with pytest.raises(MatrixError, match="no base of wheels"):
        campaigns.base_of(catalogs.catalog(wheels=()), "0.19.2")


def test_process_starts_with_the_overlay_and_few_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    cell = campaigns.CoreCell("0.19.2", "0.19.2", "pypi", "torch-2.15.0", tmp_path / "python", tmp_path / "overlay")
    with cell.judge(tmp_path / "log", print) as judge:
        assert judge.environment["PYTHONPATH"] == str(tmp_path / "overlay")
        assert "NCCL_DEBUG" not in judge.environment
        assert str(tmp_path / "python") in judge.command


def test_a_card_has_the_host_s_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    card: Any = SimpleNamespace(held=lambda say: nullcontext({"CUDA_VISIBLE_DEVICES": "GPU-0", "NCCL_DEBUG": "WARN"}))
    cell = CoreCell("0.19.2", "0.19.2", "pypi", "host", tmp_path / "python", card=card)
    with cell.judge(tmp_path / "log", print) as judge:
        found = {name: judge.environment.get(name) for name in ("NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "PYTHONOPTIMIZE")}
        assert found == {"NCCL_DEBUG": "WARN", "CUDA_VISIBLE_DEVICES": "GPU-0", "PYTHONOPTIMIZE": None}
        assert (judge.command[-1], judge.command[0]) == ("cuda", str(tmp_path / "python"))


def test_card_that_is_missing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is decided, and nothing deviates."""
    monkeypatch.setattr("matrix.prove.provision.host.LocalSite.offers", lambda *_: Machine(cuda=Cuda()))
    for result in (
        campaign(tmp_path, device="cuda").asked("0.19.2", [SINKS]),
        campaign(tmp_path, device="cuda").searched("0.19.2", 10),
    ):
        assert "no card for parity" in result.problem
        assert (result.decided, result.deviates, result.device) == (False, False, "cuda")


@pytest.mark.parametrize(("device", "exact"), [("cpu", "float64"), ("cuda", "float32")])
def test_rounding_is_decided_in_the_exact_dtype(tmp_path: Path, planted: Planted, device: str, exact: str) -> None:
    campaign(tmp_path, device=device, dtype="bfloat16", given=SINKS).searched("0.19.2", 1e9)
    assert planted.dtypes == {"bfloat16", exact}


@pytest.mark.parametrize(("version", "packages"), [("0.17.1", 1), ("0.18.2", 1 + len(campaigns.EMERGING))])
def test_core_with_muon_has_its_package(
    version: str, packages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = SimpleNamespace(minor="3.12", packages={}, path=tmp_path)
    contents = SimpleNamespace(version=version, identity=f"pypi megatron-core=={version}")
    specs: list[Any] = []

    def provide(self: Any, spec: Any) -> Any:
        specs.append(spec)
        return SimpleNamespace(path=tmp_path)

    monkeypatch.setattr("matrix.read.package_source.inspect", lambda source: contents)
    monkeypatch.setattr(Bases, "ready", lambda self, bases: None)
    monkeypatch.setattr(Bases, "provide", lambda self, base: environment)
    monkeypatch.setattr("matrix.prove.provision.overlays.Overlays.provide", provide)
    campaigns.core_cell(loading.load(), version, print)
    assert [len(spec.sources) for spec in specs] == [packages]


def test_commit_has_base_and_factors_of_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit before 0.15.0 calls itself 0.15.0rc3, which no range ">=0.15" contains."""
    contents = SimpleNamespace(version="0.15.0rc3+dbc4129", identity="git dbc4129", source=None)
    environment = SimpleNamespace(minor="3.12", packages={}, path=tmp_path)
    monkeypatch.setattr("matrix.read.package_source.inspect", lambda source: contents)
    monkeypatch.setattr(Bases, "ready", lambda self, bases: None)
    monkeypatch.setattr(Bases, "provide", lambda self, base: environment)
    monkeypatch.setattr(
        "matrix.prove.provision.overlays.Overlays.provide", lambda self, spec: SimpleNamespace(path=tmp_path)
    )
    cell = campaigns.core_cell(loading.load(), "0.15.0", print)
    assert (cell.release, cell.base) == ("0.15.0", campaigns.base_of(loading.load(), "0.15.0").id)
    assert cell.base != campaigns.base_of(loading.load(), "0.19.2").id
