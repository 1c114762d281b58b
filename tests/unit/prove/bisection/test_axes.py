"""The points of an axis, and the case at each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.failure import Expectation, Level, OpenPackage
from matrix.ground.catalog.stack import BASE, DRIVER, MCORE, TORCH, WRITER_MCORE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.bisection import axes
from matrix.prove.bisection.axes import Clone, Subject, axis_named, axis_word, choose_case, releases
from tests.unit import catalogs
from tests.unit.catalogs import case, clause, exclusion, failure
from tests.unit.prove.bisection.repositories import chain, clone, ids, on

ENTRY = failure(
    "break",
    affected=(clause(mcore="<0.9", torch=">=2.4"),),
    works=(clause(torch="<2.4"),),
    case=(case("tp2"), case("pp2", (Level.GPU,)), case("read", (Level.CONTRACT,))),
)
KNOWN = catalogs.catalog(
    ENTRY,
    exclusions=(exclusion("never built", torch="==2.4.0", mcore="==0.9.0"),),
    containers=(catalogs.image("ngc-24.07", "2.4.0a0+3"), catalogs.image("ngc-24.03", "2.3.0a0+4")),
)
SUBJECT = Subject(KNOWN, ENTRY, ENTRY.case[0], Level.CPU, on("torch-2.4.0", "0.8.0"))


def test_axis_runs_from_older_to_newer_end() -> None:
    """In either order of the two names."""
    forward, swapped = releases(SUBJECT, MCORE, "0.7.0", "0.8.0")
    backward, turned = releases(SUBJECT, MCORE, "0.8.0", "0.7.0")

    assert [point.id for point in forward.points] == ["0.7.0", "0.8.0"] == [point.id for point in backward.points]
    assert (swapped, turned) == (False, True)


def test_point_changes_one_side_of_the_case() -> None:
    """Its expectation is the catalog's, so that cached verdicts of a night apply."""
    made, _ = releases(SUBJECT, TORCH, "2.3.1", "2.5.1")
    planned = [made.case_at(place) for place in range(3)]

    assert [item.cell.id for item in planned] == [
        f"torch-{torch}/mcore-0.8.0/te-none/driver-none" for torch in ("2.3.1", "2.4.0", "2.5.1")
    ]
    assert [item.expectation for item in planned] == [Expectation.WORKS, Expectation.BROKEN, Expectation.BROKEN]


def test_points_have_the_package_that_breaks() -> None:
    """With what it requires, although a set that works is the first of the failure's."""
    versions = (OpenPackage("spam", "4.0"), OpenPackage("spam", "5.0", ("eggs==1.0",)))  # type: ignore[arg-type]
    entry = replace(ENTRY, package=versions, affected=(clause(mcore="<0.9", packages={"spam": ">=5"}),))
    made, _ = releases(replace(SUBJECT, failure=entry), MCORE, "0.7.0", "0.8.0")

    assert [made.case_at(place).packages for place in range(2)] == [("spam==5.0", "eggs==1.0")] * 2
    assert made.case_at(1).expectation is Expectation.BROKEN


def test_excluded_point_is_left_out_with_a_note() -> None:
    subject = SUBJECT.with_(MCORE, "0.9.0")
    made, _ = releases(subject, TORCH, "", "")

    assert [point.id for point in made.points] == ["2.3.1", "2.5.1"]
    assert made.notes == ("left out 2.4.0: never built",)


def test_excluded_end_is_an_error() -> None:
    with pytest.raises(MatrixError, match="the catalog excludes an end of the axis"):
        releases(SUBJECT, MCORE, "0.7.0", "0.9.0")


def test_excluded_oldest_or_newest_is_left_out() -> None:
    """Without named ends the axis has the releases that are not excluded."""
    made, _ = releases(SUBJECT, MCORE, "", "")

    assert [point.id for point in made.points] == ["0.7.0", "0.8.0"]
    assert made.notes == ("left out 0.9.0: never built",)


def test_excluded_neighbours_share_a_note() -> None:
    known = catalogs.catalog(ENTRY, exclusions=(exclusion("too old", mcore="<0.9"),))
    made, _ = releases(replace(SUBJECT, catalog=known), MCORE, "", "")

    assert made.notes == ("left out 0.7.0 to 0.8.0: too old",)


def test_unknown_point_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(MatrixError, match=r"did you mean 0\.8\.0"):
        releases(SUBJECT, MCORE, "0.7.0", "0.8.1")


def test_containers_order_by_month_and_drivers_by_branch() -> None:
    images, _ = releases(SUBJECT, BASE, "", "")
    drivers = axes.released(SUBJECT, DRIVER)

    assert [(point.id, images.case_at(place).cell.base) for place, point in enumerate(images.points)] == [
        ("ngc-24.03", "ngc-24.03"),
        ("ngc-24.07", "ngc-24.07"),
    ]
    assert list(drivers) == ["535"]


def test_label_of_an_image_names_its_twin() -> None:
    twins = {"ngc-24.03": "torch-2.3.1", "ngc-24.07": "torch-2.4.0"}
    made, _ = releases(SUBJECT, BASE, "ngc-24.03", "", twins.__getitem__)

    assert [point.label for point in made.points] == ["ngc-24.03 (torch-2.3.1)", "ngc-24.07 (torch-2.4.0)"]
    assert made.case_at(1).cell.base == "torch-2.4.0"
    assert "twins (in parentheses) replace images" in made.notes[0]


def test_axis_excludes_images_of_another_series() -> None:
    """Two series have no common order: both have an image of the same month."""
    containers = (*KNOWN.containers, catalogs.image("nemo-24.05", "2.3.0"))
    subject = replace(SUBJECT, catalog=catalogs.catalog(ENTRY, containers=containers))

    assert [point.id for point in releases(subject, BASE, "", "")[0].points] == ["ngc-24.03", "ngc-24.07"]
    assert [point.id for point in releases(subject, BASE, "nemo-24.05", "")[0].points] == ["nemo-24.05"]


def test_commit_has_no_expectation() -> None:
    planned = SUBJECT.with_(MCORE, "0.9.0rc0+abcdef1", "/clone@abcdef1").planned()

    assert (planned.source, planned.expectation) == ("/clone@abcdef1", Expectation.UNKNOWN)


def test_commit_may_write_the_checkpoint() -> None:
    """The plan that the cell's process reads has it, too; the reader keeps its own release."""
    commit = SUBJECT.with_(WRITER_MCORE, "0.9.0rc0+abcdef1", "/clone@abcdef1").planned()
    planned = decode(Planned, encode(commit))

    assert planned.writer
    assert (planned.writer.source, planned.writer.cell.stack[MCORE]) == ("/clone@abcdef1", "0.9.0rc0+abcdef1")
    assert (planned.source, planned.cell.stack[MCORE], planned.expectation) == ("", "0.8.0", Expectation.UNKNOWN)


@pytest.mark.parametrize(
    ("level", "name", "chosen"),
    [
        (None, "", ("read", Level.CONTRACT)),
        (Level.CPU, "", ("tp2", Level.CPU)),
        (None, "pp2", ("pp2", Level.GPU)),
    ],
)
def test_case_defaults_to_first_at_least_real_level(level: Level | None, name: str, chosen: tuple[str, Level]) -> None:
    found, at = choose_case(ENTRY, level, name)

    assert (found.name, at) == chosen


@pytest.mark.parametrize(("level", "name"), [(Level.CPU, "pp2"), (None, "tp3")])
def test_missing_case_is_an_error(level: Level | None, name: str) -> None:
    with pytest.raises(MatrixError, match="no such case"):
        choose_case(ENTRY, level, name)


@pytest.mark.parametrize(
    ("base", "torch", "axis", "expected"),
    [
        ("torch-2.3.1", "", MCORE, "torch-2.3.1"),
        ("", "2.4.0", MCORE, "torch-2.4.0"),
        ("", "", TORCH, ""),
    ],
)
def test_base_is_selected_by_id_or_torch(base: str, torch: str, axis: str, expected: str) -> None:
    assert axes.base_for(SUBJECT, base, torch, axis) == expected


@pytest.mark.parametrize(("base", "torch"), [("", ""), ("", "2.4.9"), ("torch-2.4.0", "2.4.0")])
def test_missing_unknown_or_duplicate_base_is_an_error(base: str, torch: str) -> None:
    with pytest.raises(MatrixError):
        axes.base_for(SUBJECT, base, torch, MCORE)


NUMPY = failure(affected=(clause(numpy=">=2"),), works=(clause(numpy="<2"),), overrides=("numpy",))


def test_any_package_is_an_axis() -> None:
    """The ends, and the versions between them that the catalog and the index name; each is laid over the base."""
    known = catalogs.catalog(NUMPY, wheels=(catalogs.wheels("2.4.0", requires=("numpy==1.26.4",)),))
    subject = Subject(known, NUMPY, NUMPY.case[0], Level.CPU, on("torch-2.4.0", "0.8.0"))
    numpy, _ = releases(subject, axis_named("numpy"), "1.25.0", "2.3.0")
    cases = [numpy.case_at(place) for place in range(3)]
    assert [point.id for point in numpy.points] == ["1.25.0", "1.26.4", "2.3.0"]
    assert [case.packages for case in cases] == [(f"numpy=={version}",) for version in ("1.25.0", "1.26.4", "2.3.0")]
    assert [case.expectation.value for case in cases] == ["works", "works", "broken"]
    assert cases[0].cell.id == "torch-2.4.0/mcore-0.8.0/te-none/driver-none/numpy-1.25.0"
    assert "the index lists no releases of numpy" in numpy.notes[0]

    listed = {("numpy", "3.10"): ("2.4.0", "2.0.0", "1.26.0", "1.24.0")}
    numpy, swapped = releases(
        replace(subject, listed=lambda *asked: listed[asked]), axis_named("numpy"), "2.3.0", "1.25.0"
    )
    assert [point.id for point in numpy.points] == ["1.25.0", "1.26.0", "1.26.4", "2.0.0", "2.3.0"]
    assert (swapped, numpy.notes) == (True, ())


@pytest.mark.parametrize(
    ("word", "axis"), [("megatron-core", "mcore"), ("image", "container"), ("pytorch", "torch"), ("numpy", "numpy")]
)
def test_axis_has_the_names_of_its_component(word: str, axis: str) -> None:
    assert axis_word(axis_named(word)) == axis


@pytest.mark.parametrize(
    ("word", "message"), [("nunpy", "did you mean numpy"), ("sm", "compute capability can't be varied alone")]
)
def test_impossible_axis_is_refused(word: str, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        axis_named(word)


@pytest.mark.parametrize("compiled", [False, True])
def test_content_separates_commits_of_each_package(tmp_path: Path, compiled: bool) -> None:
    """megatron-core has nothing that is compiled: --compile concerns Transformer Engine."""
    with Clone(str(chain(tmp_path / "clone", 3)), "megatron-core", compiled=compiled) as opened:
        assert len({opened.content(opened.commit(name).id) for name in ("c0", "c1", "c2")}) == 3


def test_missing_revision_is_an_error(tmp_path: Path) -> None:
    path = chain(tmp_path / "clone", 3)
    with (
        Clone(str(path), "megatron-core") as opened,
        pytest.raises(MatrixError, match="no such revision"),
    ):
        opened.commit("c9")


def test_files_are_read_by_blob_id(tmp_path: Path) -> None:
    """Content and ids are git's; files that `part` rejects are not read."""
    path = clone(tmp_path / "clone", [("one", [], {"megatron/core/x.py": "a = 1\n", "megatron/y.txt": "no"})])
    with Clone(str(path), "megatron-core") as opened:
        commit = opened.commit("one").id
        files = opened.files(commit, lambda name: name.endswith(".py"))

        assert opened.blobs(files)["megatron/core/x.py"] == b"a = 1\n"
        assert set(files) == {"megatron/core/x.py", "megatron/core/package_info.py"}
        assert files["megatron/core/x.py"] in ids(path, "one:megatron/core/x.py")
        assert opened.version(commit) == f"0.9.0rc0+{commit[:7]}"
