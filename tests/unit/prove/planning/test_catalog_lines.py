"""The lines of the catalog, and what of a line is run at a desk."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.failure import Expectation, Failure, Level, Rule
from matrix.ground.catalog.model import Catalog, Release
from matrix.ground.catalog.stack import BASE, MCORE, TE
from matrix.ground.catalog.versions import minor
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.catalog_lines import Line, lines, named, share, shipped_by, whole
from matrix.prove.planning.night import everything, night, pairwise
from tests.unit.catalogs import case, catalog, clause, failure, image, masked, reader, real, releases, wheels

BOTH = (Level.CONTRACT, Level.CPU)
SMALL = catalog(
    wheels=tuple(wheels(torch, requires=("numpy<2",)) for torch in ("2.3.1", "2.4.0", "2.4.1")),
    transformer_engine=releases(["1.8", "1.9", "1.10", "2.0"]),
    containers=(
        image("ngc-24.05", "2.4.0a0+07cecf4168", "1.8"),
        image("ngc-24.07", "2.4.0a0+3bcc3cddb5", "1.8.0+37280ec"),
        image("ngc-24.08", "2.9.0a0+872d972e41", "1.9"),
    ),
    readers=(reader(),),
)


@pytest.mark.parametrize(
    ("name", "base", "te"),
    [
        ("torch2.4.0", "torch-2.4.0", ""),
        ("notorch", "no-torch", ""),
        ("te19", "torch-2.5.1", "1.9"),
        ("te18", "torch-2.4.0", "1.8"),
        ("te220", "torch-2.13.0", "2.20"),
    ],
)
def test_documented_names_resolve(name: str, base: str, te: str) -> None:
    line = named(real(), name)
    assert (name, base, te) == (line.name, line.base.id, line.te)


def test_unknown_line_names_the_closest() -> None:
    with pytest.raises(MatrixError, match=r"no such line(.|\n)*did you mean te19"):
        named(SMALL, "te1.9")


def test_every_base_and_minor_has_a_line() -> None:
    assert [*lines(SMALL)] == [
        *("te18", "te19", "te110", "te20"),
        *(f"torch{torch}" for torch in ("2.3.1", "2.4.0", "2.4.1")),
        "notorch",
    ]


def test_a_line_is_the_twin_of_its_image() -> None:
    line = named(SMALL, "te18")
    assert line.base.id == "torch-2.4.0"
    assert "twin of ngc-24.07 (which shipped it: inferred)" in line.description


DAYS = {"2.3.1": "2024-06-05", "2.4.0": "2024-07-24", "2.4.1": "2024-09-04"}


def dated(te: str, day: str) -> Catalog:
    """Return SMALL with this minor of Transformer Engine released on that day."""
    torch = tuple(Release(version, pypi=out) for version, out in DAYS.items())  # type: ignore[arg-type]  # built
    engine = Release(f"{te}.0", pypi=(f"{te}.0 {day}",))  # type: ignore[arg-type]  # built
    return replace(SMALL, torch=torch, transformer_engine=(engine,))


@pytest.mark.parametrize(
    ("day", "torch"),
    [("2024-09-10", "2.4.1"), ("2024-09-04", "2.4.1"), ("2024-09-03", "2.4.0"), ("2024-01-01", "2.3.1")],
)
def test_without_image_a_line_has_contemporary_torch(day: str, torch: str) -> None:
    line = named(dated("1.10", day), "te110")
    assert line.base.id == f"torch-{torch}"
    assert "the newest of its day (no image is known to have shipped it)" in line.description


def test_without_twin_a_line_has_contemporary_torch() -> None:
    """Its image has a torch that no base stands for."""
    line = named(dated("1.9", "2024-08-15"), "te19")
    assert line.base.id == "torch-2.4.0"
    assert "ngc-24.08 is known to have shipped it" in line.description


def test_a_nemo_image_counts_without_another() -> None:
    images = tuple(image for image in real().containers if image.id != "ngc-26.06")
    shipped = shipped_by(replace(real(), containers=images))
    assert {te: image.id for te in ("2.14", "2.16") if (image := shipped[te])} == {
        "2.14": "ngc-26.04",
        "2.16": "nemo-26.06",
    }


AXES = (BASE, MCORE, TE)
FIXED_BY_TE = failure(axes=AXES, affected=(clause(te="<1.9"),), works=(clause(te=">=1.9"),))
OF_CORE = failure("other", axes=(BASE, MCORE), affected=(clause(mcore="<0.8"),), works=(clause(mcore=">=0.8"),))
OF_TORCH = failure("compiled", affected=(clause(torch="<2.4"),), works=(clause(torch=">=2.4"),))


def brief(items: list[Planned]) -> list[str]:
    """Return TE, expectation, megatron-core, failure and case of each case."""
    return [
        f"{item.cell.stack[TE]} {item.expectation.value} {item.cell.stack[MCORE]} {item.failure} {item.case}"
        for item in items
    ]


def shared(known: Catalog, name: str, planned: list[Planned] | None = None) -> list[Planned]:
    return share(known, named(known, name), planned or [], BOTH)


@pytest.mark.parametrize(
    ("entries", "name", "expected"),
    [
        # the line and its neighbour, on the newest megatron-core; what the line does not decide is left out
        ([FIXED_BY_TE, OF_CORE], "te19", ["1.9 works 0.9.0 break tp2", "1.8 broken 0.9.0 break tp2"]),
        ([FIXED_BY_TE], "te18", ["1.8 broken 0.9.0 break tp2", "1.9 works 0.9.0 break tp2"]),
        ([FIXED_BY_TE], "te110", ["1.10 works 0.9.0 break tp2"]),
        # both sides with the line's own version
        (
            [replace(FIXED_BY_TE, affected=(clause(te="==1.9", mcore="<0.8"),), works=(clause(te=">=1.9"),))],
            "te19",
            ["1.9 broken 0.7.0 break tp2", "1.10 works 0.7.0 break tp2", "1.9 works 0.9.0 break tp2"],
        ),
        # each change of a neighbour once, not for each case and megatron-core
        (
            [replace(FIXED_BY_TE, affected=(clause(te="==1.9"),), works=(clause(),), case=(case("tp2"), case("pp2")))],
            "te19",
            ["1.9 broken 0.9.0 break tp2", "1.8 works 0.9.0 break tp2", "1.10 works 0.9.0 break tp2"],
        ),
        ([OF_TORCH, FIXED_BY_TE], "torch2.4.0", ["none works 0.9.0 compiled tp2"]),
    ],
)  # fmt: skip
def test_share_shows_what_a_line_decides(entries: list[Failure], name: str, expected: list[str]) -> None:
    assert brief(shared(replace(catalog(*entries), readers=(reader(),)), name)) == expected


def test_share_prefers_and_keeps_the_night() -> None:
    known = catalog(FIXED_BY_TE, OF_CORE)
    line = Line("te19", known.wheels[0], "1.9", "")
    planned = [item for item in everything(known, BOTH) if item.cell.stack[MCORE] == "0.7.0"]
    got = share(known, line, planned, BOTH)
    assert brief(got) == ["1.9 works 0.7.0 break tp2", "1.8 broken 0.7.0 break tp2"]
    assert got[0] in planned


def test_all_of_a_line_has_the_rest() -> None:
    known = catalog(OF_CORE, FIXED_BY_TE)
    line = named(known, "te19")
    planned = night(known, pairwise, BOTH)
    cases = whole(known, line, planned, BOTH)
    assert {item.failure for item in share(known, line, planned, BOTH)} == {"break"}
    assert {item.failure for item in cases} == {"other", "break"}
    assert {item.key for item in share(known, line, planned, BOTH)} < {item.key for item in cases}
    assert len(cases) == len({item.key for item in cases})


BOUNDS = st.sampled_from(["<1.9", "==1.9", ">=1.9", "==1.10", ">=1.8"])
CORE_BOUNDS = st.sampled_from(["<0.8", ">=0.8", ">=0.7"])


@st.composite
def rules(draw: st.DrawFn) -> tuple[Rule, ...]:
    made = [clause(te=draw(BOUNDS), mcore=draw(CORE_BOUNDS)) for _ in range(draw(st.integers(0, 2)))]
    return (*made, *([clause(mcore=draw(CORE_BOUNDS))] if draw(st.booleans()) else []))


@given(st.lists(st.tuples(rules(), rules(), st.booleans()), min_size=1, max_size=3), st.sampled_from(["te18", "te19"]))
def test_share_has_every_decided_side(drawn: list[tuple[tuple[Rule, ...], tuple[Rule, ...], bool]], name: str) -> None:
    """On every side that exists on the line's base; nothing twice, nothing masked, nothing of another base."""
    entries = [
        failure(f"f{number}", axes=AXES, affected=affected, works=works, masked=(masked("f0"),) if hidden else ())
        for number, (affected, works, hidden) in enumerate(drawn)
    ]
    entries[0] = replace(entries[0], masked=())
    known = catalog(*entries)
    line = named(known, name)
    deciding = {entry.id for entry in entries if any(TE in rule.bounds for rule in (*entry.affected, *entry.works))}
    hidden_by = {
        item.cell.id
        for item in everything(known, BOTH)
        if item.failure == "f0" and item.expectation is Expectation.BROKEN
    }
    masks = {entry.id for entry in entries if entry.masked}
    sides = {
        (item.failure, item.expectation)
        for item in everything(known, BOTH)
        if item.cell.base == line.base.id
        and item.failure in deciding
        and minor(str(item.cell.stack[TE])) == line.te
        and item.expectation is not Expectation.UNKNOWN
        and not (item.failure in masks and item.cell.id in hidden_by)
    }
    got = shared(known, name)
    own = [item for item in got if line.has(item.cell)]
    assert {(item.failure, item.expectation) for item in own} == sides
    assert {item.cell.base for item in got} <= {line.base.id}
    assert [key for key, count in Counter(item.key for item in got).items() if count > 1] == []
    assert not [item for item in got if item.failure in masks and item.cell.id in hidden_by]
    others = {(item.failure, item.cell.stack[MCORE]) for item in got if not line.has(item.cell)}
    assert others <= {(item.failure, item.cell.stack[MCORE]) for item in own}
