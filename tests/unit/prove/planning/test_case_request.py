"""What a command requests becomes cases: by levels, keys, sources, and the environment of this process."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from matrix.ground.catalog.distributions import OF_HOST, nccl_sharing
from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning import night
from matrix.prove.planning.case_request import (
    CaseRequest,
    InstalledBase,
    PackageSource,
    bundled_cases,
    checked_base,
    requested_cases,
    requested_levels,
    supplies,
)
from matrix.prove.planning.selection import select
from tests.founding import FUSED, METADATA, SAVE
from tests.unit.catalogs import case, catalog, clause, failure, few, real, wheels

BREAK = failure(
    "break",
    affected=(clause(mcore="<0.9", torch=">=2.4"),),
    works=(clause(mcore=">=0.9"), clause(torch="<2.4")),
    case=(case("tp2", (Level.CPU, Level.GPU)), case("pp2")),
)
KNOWN = catalog(BREAK)
KEY = "torch-2.4.0/mcore-0.8.0/te-none/driver-none break tp2 cpu"
SOURCES = {
    "0.8.0": PackageSource("megatron-core==0.8.0", "0.8.0", "0.8.0"),
    "./tree": PackageSource("/tree", "0.8.0"),
    "./new": PackageSource("/new", "0.9.0rc0"),
}


def requested(**given: Any) -> tuple[list[tuple[str, Expectation]], str]:
    """Return key and expectation of the requested cases, and the label."""
    host = InstalledBase({"torch": "2.4.0", "megatron-core": "0.8.0"}, "3.10")
    request = CaseRequest(**{"levels": (Level.CPU,), **given})
    cases, label = requested_cases(KNOWN, request, lambda field, text: SOURCES[text], lambda: host)
    return [(item.key, item.expectation) for item in cases], label


@pytest.mark.parametrize(
    ("named", "on_cluster", "has_gpu", "levels"),
    [
        ((), False, False, (Level.CONTRACT, Level.CPU)),
        ((), False, True, tuple(Level)),
        ((), True, False, tuple(Level)),
        (("gpu",), False, False, (Level.GPU,)),
        (("cpu", "contract"), True, True, (Level.CPU, Level.CONTRACT)),
    ],
)
def test_levels_are_named_or_possible(
    named: tuple[str, ...], on_cluster: bool, has_gpu: bool, levels: tuple[Level, ...]
) -> None:
    assert requested_levels(named, on_cluster=on_cluster, has_gpu=has_gpu) == levels


@pytest.mark.parametrize(
    ("given", "label", "count"),
    [
        ({}, "night", 16),
        ({"within": "mcore==0.8.0"}, "night", 6),
        ({"smoke": 9}, "night", 0),  # no base has a size
        ({"select": "mcore==0.8.0"}, "select", 6),
        ({"keys": (KEY,)}, "case", 1),
        ({"keys": (KEY.replace("cpu", "gpu"),)}, "case", 1),  # --level doesn't bound a named case
        ({"sources": {"source": "./new"}}, "source", 6),
        ({"sources": {"source": "./new"}, "select": "case==tp2"}, "source", 3),
        ({"here": True}, "here", 2),
        ({"here": True, "select": "case==tp2"}, "here", 1),
        ({"line": "torch2.4.0"}, "torch2.4.0", 6),
        ({"line": "torch2.4.0", "whole_line": True}, "torch2.4.0", 6),
        ({"line": "torch2.4.0", "keywords": "0.8 and tp2"}, "torch2.4.0", 1),
        ({"keywords": "0.8.0 and tp2"}, "night", 3),
        ({"here": True, "keys": (KEY.replace("torch-2.4.0", "host"),)}, "case", 1),
    ],
)
def test_request_selects_cases_and_label(given: dict[str, Any], label: str, count: int) -> None:
    cases, labelled = requested(**given)
    assert (labelled, len(cases), len({*cases})) == (label, count, count)


@pytest.mark.parametrize(
    ("source", "expect", "expectation"),
    [
        ("./tree", None, Expectation.WORKS),
        ("0.8.0", None, Expectation.BROKEN),
        ("./tree", Expectation.BROKEN, Expectation.BROKEN),
        ("0.8.0", Expectation.WORKS, Expectation.WORKS),
    ],
)
def test_source_under_test_should_work(source: str, expect: Expectation | None, expectation: Expectation) -> None:
    """A release has the catalog's expectation; --expect replaces both; also for one case."""
    given = {"sources": {"source": source}, "expect": expect}
    assert dict(requested(**given)[0])[KEY] is expectation
    assert requested(**given, keys=(KEY,))[0] == [(KEY, expectation)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"expect": Expectation.WORKS}, ["--expect requires --mcore", "--expect works"]),
        ({"sources": {"te_source": "0.8.0"}}, ["--te, --writer and --compile are for one case"]),
        ({"compiled": True}, ["--te, --writer and --compile are for one case"]),
        ({"keys": (KEY, KEY)}, ["a case is named twice"]),
        ({"keys": (KEY.replace("tp2", "tp3"),)}, ["no such case", f"did you mean {KEY}"]),
        ({"keys": (KEY.replace("0.8.0", "0.8.1"),)}, ["no such case", f"did you mean {KEY}"]),
        ({"keys": (KEY.replace("torch-2.4.0", "torch-2.4"),)}, ["no such base"]),
        ({"keys": ("x",)}, ["no such case", "lists cases"]),
        ({"keys": (KEY,), "sources": {"source": "./new"}}, ["names another version", "0.9.0rc0"]),
        ({"here": True, "within": "x"}, ["--here runs the installed packages only", "--here with --within"]),
        ({"here": True, "sources": {"te_source": "x"}}, ["--here with --te"]),
        ({"here": True, "on_cluster": True}, ["--here with --engine slurm"]),
        ({"here": True, "smoke": 9}, ["--here with --smoke"]),
        ({"within": "x", "sources": {"source": "./new"}}, ["--within is a part of the night", "--select in place"]),
        ({"smoke": 9, "sources": {"source": "./new"}}, ["--smoke is a part of the night", "--smoke with --mcore"]),
    ],
)
def test_requests_that_conflict_are_refused(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(MatrixError) as caught:
        requested(**given)
    assert [word for word in words if word not in str(caught.value)] == []


def test_key_of_one_word_plans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case of the catalog differs from it in one word: they took 20 s of a core."""

    def refused(*arguments: Any, **options: Any) -> list[Any]:
        raise AssertionError("a cell is made")

    monkeypatch.setattr(night, "plan_case", refused)
    with pytest.raises(MatrixError, match="lists cases"):
        requested(keys=("x",))


def test_installed_release_bounds_cases_here() -> None:
    """A release that no failure has runs only the cases without an axis for it."""
    newer = InstalledBase({"torch": "2.4.0", "megatron-core": "9.9"}, "3.10")
    request = replace(CaseRequest((Level.CPU,)), here=True)
    cases, _ = requested_cases(KNOWN, request, lambda field, text: SOURCES[text], lambda: newer)
    assert {item.cell.stack[MCORE] for item in cases} == {"9.9"}


@pytest.mark.parametrize(
    ("key", "refused"),
    [
        ("torch-2.4.0/mcore-none/te-none/driver-none break pp2 cpu", True),
        ("torch-2.4.0/mcore-0.8.0/te-none/driver-none/numpy-2.0.0 break tp2 cpu", False),
        ("torch-2.4.0-cp312/mcore-0.8.0/te-none/driver-none break tp2 cpu", False),
        ("torch-2.4.0-cp313/mcore-0.8.0/te-none/driver-none break tp2 cpu", True),
        ("torch-2.4.0/mcore-none/te-none/driver-none own command cpu", False),
    ],
)
def test_key_names_a_case_of_a_bisection(key: str, refused: bool) -> None:
    """A picked case runs in any cell; another Python and another package are in no night, and can be named."""
    own = failure("own", case=(replace(case("command"), picked=True),))
    known = catalog(BREAK, own, wheels=(wheels("2.4.0", pythons=("3.10", "3.12")),))
    request = CaseRequest((Level.CPU,), keys=(key,))
    if refused:
        with pytest.raises(MatrixError, match=r"no such (case|base)"):
            requested_cases(known, request, lambda field, text: SOURCES[text], lambda: InstalledBase({}, "3.10"))
        return
    cases, _ = requested_cases(known, request, lambda field, text: SOURCES[text], lambda: InstalledBase({}, "3.10"))
    assert [item.key for item in cases] == [key]


def test_line_without_cases_names_the_rest() -> None:
    """On torch 2.5.1, the newest of its day: nothing depends on Transformer Engine."""
    with pytest.raises(MatrixError, match=r"depends on the releases of line te19(.|\n)*--line te19 --all"):
        requested(line="te19")
    assert len(requested(line="te19", whole_line=True)[0]) == 6


@pytest.mark.parametrize("other", [{"here": True}, {"expect": Expectation.WORKS}, {"compiled": True}])
def test_line_with_another_selection_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(MatrixError, match="--line runs the released packages"):
        requested(line="torch2.4.0", **other)
    with pytest.raises(MatrixError, match="--all is for a line"):
        requested(whole_line=True)


@pytest.mark.parametrize(
    ("base", "python", "what", "fix"),
    [
        ("torch-2.13.00", "3.11", "no such --base", "torch-2.13.0"),
        ("hosts", "3.11", "no such --base", "host"),
        ("debian-13", "3.11", "no such --base", ""),
        ("torch-2.13.0", "3.9", "no wheels for this --python on torch-2.13.0", "--python 3.11"),
        ("torch-2.4.0", "3.13", "no wheels for this --python on torch-2.4.0", "--python 3.10"),
        ("host", "3.8", "no wheels for this --python on host", "--python 3.10"),
    ],
)
def test_wrong_base_or_python_is_refused(base: str, python: str, what: str, fix: str) -> None:
    with pytest.raises(MatrixError) as raised:
        checked_base(real(), base, python)
    assert raised.value.what == what
    assert fix in str(raised.value.fix)


def test_base_of_wheels_is_returned() -> None:
    entry = checked_base(real(), "torch-2.4.0", "3.12")
    assert entry is not None
    assert entry.torch == "2.4.0"
    assert checked_base(real(), "host", "3.12") is None


def cpu(expression: str) -> list[Planned]:
    return bundled_cases(real(), "torch-2.13.0", "3.11", Level.CPU, expression)


def test_selected_cases_are_on_the_base_alone() -> None:
    cases = cpu(f"failure=={SAVE} and (mcore==0.8.0 or mcore==0.9.0)")
    assert {str(item.cell.base) for item in cases} == {"torch-2.13.0"}
    assert supplies(real(), cases).releases == (("megatron-core", "0.8.0"), ("megatron-core", "0.9.0"))


def test_base_outside_of_the_night_needs_a_selection() -> None:
    with pytest.raises(MatrixError, match="the night has no case of level cpu on this base") as raised:
        bundled_cases(few(SAVE, METADATA), "torch-2.11.0", "3.11", Level.CPU, "")
    assert "torch-2.13.0" in str(raised.value.expected)
    assert "debian" not in str(raised.value.expected)


@cache
def cases_of_host() -> list[Planned]:
    """Return those of a host with Python 3.12 and the oldest or the newest torch: of all it takes 12 s of processor."""
    fitting = [wheel for wheel in real().standard if "3.12" in (*wheel.pythons, *wheel.fallbacks)]
    known = replace(real(), wheels=(fitting[0], fitting[-1]))
    return bundled_cases(known, "host", "3.12", Level.GPU, "")


def test_host_has_releases_of_every_numpy() -> None:
    releases = supplies(real(), cases_of_host()).releases
    cores = {version for name, version in releases if name == "megatron-core"}
    assert {"0.8.0", "0.19.2"} <= cores
    assert {*OF_HOST} < {*releases}


def test_writers_packages_and_clones_are_supplied() -> None:
    writing = next(item for item in cpu(f"failure=={METADATA}") if item.writer)
    assert writing.writer
    versions = {str(part.cell.stack["megatron-core"]) for part in (writing, writing.writer)}
    assert {version for _, version in supplies(real(), [writing]).releases} == versions
    cloned = replace(writing, source="megatron-lm@main", writer_source="", packages=("triton==3.4.0",))
    needed = supplies(real(), [cloned])
    assert needed.clones == {"megatron-lm": ("main",)}
    assert ("triton", "3.4.0") in needed.releases


def test_extension_is_built_at_level_gpu_alone() -> None:
    (case, *_) = cpu(f"failure=={FUSED} and mcore==0.16.1 and te==2.18.0")
    assert supplies(real(), [case]).builds == ()
    needed = supplies(real(), [replace(case, level=Level.GPU)])
    assert needed.builds == ("2.18.0",)
    assert needed.releases == (("megatron-core", "0.16.1"),)


def test_host_has_the_engine_of_its_cases() -> None:
    """Its night has the cases of the Transformer Engine that it has, which is unknown here."""
    cases = select(cases_of_host(), "te==2.18.0 and writer-te==none")
    assert len({item.failure for item in cases}) > 10
    needed = supplies(real(), cases)
    assert needed.builds == ()
    assert {name for name, _ in needed.releases} == {
        "megatron-core",
        *dict(OF_HOST),
        *(wheel.package for wheel in nccl_sharing().wheel),
    }
    assert {"core_v0.16.1", "core_v0.19.2"} <= {*needed.clones["megatron-lm"]}
    assert supplies(real(), cases, compiled=True).builds == ("2.18.0",)  # the bundle brings it


def test_engine_of_another_writer_is_built() -> None:
    cases = select(cases_of_host(), "te==2.18.0 and writer-te>=2.16")
    assert supplies(real(), cases).builds == ("2.16.0", "2.16.1", "2.17.0", "2.17.1", "2.19.0", "2.20.2")
    (case, *_) = [item for item in cases if item.writer]
    assert supplies(real(), [replace(case, level=Level.CPU)]).builds == ()
