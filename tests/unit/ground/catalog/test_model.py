"""Bases, releases and what the catalog answers about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ground.catalog.model import Release
from matrix.ground.catalog.stack import ABSENT, BASE, DRIVER, MCORE, PYTHON, SM, TE, TORCH, UNKNOWN, Stack
from matrix.ground.catalog.versions import Range
from matrix.ground.errors import MatrixError
from tests.unit.catalogs import catalog, clause, exclusion, failure, image, real, releases, wheels


def test_unknown_ids_raise_with_a_suggestion() -> None:
    known = catalog(failure("start-crashes"))
    assert (real().base("torch-2.4.0").id, known.failure("start-crashes").id) == ("torch-2.4.0", "start-crashes")
    with pytest.raises(MatrixError, match=r"did you mean .*torch-2\.4\.0"):
        real().base("torch-2.4")
    with pytest.raises(MatrixError, match="did you mean start-crashes"):
        known.failure("start-crash")


IMAGES = (image("ngc-24.06", "2.4.0a0+f70bd71a48"), image("ngc-24.07", "2.4.0a0+3bcc3cddb5"), image("ngc-99", None))


TWINS = catalog(torches=("2.4.1", "2.4.0", "2.3.1"), containers=IMAGES)


def test_twin_is_lowest_base_of_its_minor() -> None:
    assert [wheels("2.4.0"), wheels("2.4.0"), None] == [TWINS.twin(one) for one in IMAGES]


def test_twins_of_returns_the_images_of_a_base() -> None:
    stands_for = [TWINS.twins_of(base) for base in TWINS.wheels]
    assert [(), IMAGES[:2], ()] == stands_for


def test_cell_has_torch_and_python_of_base() -> None:
    known = catalog(wheels=(wheels("2.4.0", pythons=("3.12", "3.10")),), containers=(image("ngc-99", None),))
    here, there = (
        known.cell("torch-2.4.0", {MCORE: "0.8.0"}),
        known.cell("ngc-99", {TE: "1.9", DRIVER: "535", SM: "9.0"}),
    )
    names = (TORCH, PYTHON, MCORE, TE, SM, BASE)
    assert [here.stack[name] for name in names] == ["2.4.0", "3.12", "0.8.0", ABSENT, ABSENT, "torch-2.4.0"]
    assert [there.stack[name] for name in names] == [UNKNOWN, UNKNOWN, ABSENT, "1.9", "9.0", "ngc-99"]


def test_excluded_returns_the_reason() -> None:
    known = catalog(exclusions=(exclusion("no device mesh", torch="<2.4", mcore=">=0.9"),))
    cells = [known.cell("torch-2.3.1", {MCORE: "0.9.0"}), known.cell("torch-2.4.0", {MCORE: "0.9.0"})]
    assert [known.excluded(cell.stack) for cell in cells] == ["no device mesh", None]


def test_a_release_s_requirements_exclude_cells() -> None:
    core = Release("0.9.0", requires_python=Range(">=3.12"), requires={"torch": Range(">=2.4.0a0")})  # type: ignore[arg-type]
    bases = (wheels("2.3.1", pythons=("3.12",)), wheels("2.4.0", pythons=("3.10",)), wheels("2.5.1", pythons=("3.12",)))
    known = catalog(wheels=bases, megatron_core=(core,))
    reasons = [known.excluded(known.cell(base.id, {MCORE: "0.9.0"}).stack) for base in bases]
    assert reasons == [
        "megatron-core 0.9.0 declares torch>=2.4.0a0; the base has 2.3.1",
        "megatron-core 0.9.0 needs Python >=3.12; the base has 3.10",
        None,
    ]


def test_an_unknown_release_is_not_excluded() -> None:
    known = catalog(megatron_core=releases(["0.8.0"]))
    assert known.excluded(known.cell("torch-2.4.0", {MCORE: "0.8.0rc0"}).stack) is None


def test_provided_packages_follow_the_python() -> None:
    base = wheels(
        "2.4.0", requires=("numpy==1; python_version < '3.13'", "numpy==2; python_version >= '3.13'", "zarr<3")
    )
    assert [base.contents(python)["numpy"] for python in ("3.10", "3.13")] == ["1", "2"]


COMMIT = "2.4.0a0+3bcc3cddb5.nv24.07"  # torch of an image: the commit, and the image's release


@pytest.mark.parametrize(
    ("torch", "label", "id"),
    [
        ("2.4.0a0+3bcc3cddb5", "", "ngc-24.07"),
        ("2.4.0a0+3bcc3cd", "", "ngc-24.07"),  # an abbreviated commit
        ("2.4.0a0+3bcc3cddb5ff", "", "ngc-24.07"),
        (COMMIT, "", "ngc-24.07"),
        (COMMIT, "24.06", "ngc-24.07"),  # the label names an image with another torch
        ("2.4.0a0+abcdef0123", "99", "ngc-99"),  # its torch is not in the catalog
        ("2.4.0a0+abcdef0123", "24.06", None),
        ("2.5.0a0+3bcc3cddb5", "", None),
        ("2.4.0", "24.07", None),
        ("2.4.0+cu124", "24.07", None),
    ],
)
def test_container_has_the_commit_of_its_torch(torch: str, label: str, id: str | None) -> None:
    container = TWINS.container_of(torch, label)
    assert (container and container.id) == id


def test_label_selects_among_containers_of_one_torch() -> None:
    images = (image("ngc-24.07", "2.4.0a0+3bcc3cddb5"), image("ngc-24.08", "2.4.0a0+3bcc3cddb5"))
    known = catalog(containers=images)
    assert known.container_of("2.4.0a0+3bcc3cddb5") is None
    assert known.container_of("no version") is None
    assert known.container_of("2.4.0a0+3bcc3cddb5", "24.08") is images[1]


@pytest.mark.parametrize(
    ("requirement", "branch"),
    [
        ("driver 555 or later; 470.57+ on data center GPUs", 470),
        ("545.23+ (R545)", 545),
        ("see the release notes", None),
        (None, None),
    ],
)
def test_lowest_branch_of_a_driver_requirement(requirement: str | None, branch: int | None) -> None:
    assert replace(image("ngc-99", None), driver_requirement=requirement).least_branch == branch


@pytest.mark.parametrize(
    ("pypi", "tag_date", "day"),
    [
        ("2024-08-15", "2024-08-01", "2024-08-15"),
        (("1.9.0 2024-08-15", "1.9.0.post1 2024-09-01"), "", "2024-08-15"),
        (None, "2024-08-01", "2024-08-01"),
        (None, "", ""),
    ],
)
def test_day_is_of_the_first_upload(pypi: tuple[str, ...] | str | None, tag_date: str, day: str) -> None:
    assert Release("1.9.0", pypi, tag_date=tag_date).day == day  # type: ignore[arg-type]


def test_revision_is_the_tag_that_upstream_set() -> None:
    tags = [Release("1.9.0", tag=tag).revision for tag in ("v1.9", "none: a wheel alone", "")]  # type: ignore[arg-type]
    assert tags == ["v1.9", "", ""]


def test_contents_leave_out_what_is_no_version() -> None:
    container = replace(image("ngc-99", "2.4.0", "1.9.0"), cuda="12.5.1", cudnn="9.2 or later", nccl=None)
    assert container.contents() == Stack({TORCH: "2.4.0", TE: "1.9.0", "cuda": "12.5.1", BASE: "ngc-99"})


def test_packages_of_rules_bases_and_releases() -> None:
    """Those of components.toml are components anyway."""
    entry = failure(affected=(clause(packages={"of-a-rule": "<2"}),))
    core = Release("0.9.0", requires={"of-a-release": Range(">=1"), "numpy": Range("<2")})  # type: ignore[arg-type]
    known = catalog(entry, wheels=(wheels("2.4.0", requires=("of-a-base==1", "not-pinned>=1")),), megatron_core=(core,))
    assert known.packages == ("of-a-base", "of-a-release", "of-a-rule")


def test_overridden_ranges_exclude_nothing() -> None:
    core = Release("0.9.0", requires={"numpy": Range("<2")})  # type: ignore[arg-type]
    known = catalog(megatron_core=(core,), exclusions=(exclusion("too new", packages={"zarr": ">=3"}),))
    reasons = {}
    for name, version in (("numpy", "2.5.5"), ("zarr", "3.0")):
        stack = known.cell("torch-2.4.0", {MCORE: "0.9.0", name: version}, (name,)).stack
        reasons[name] = (known.excluded(stack), known.excluded(stack, {name}))
    assert reasons == {
        "numpy": ("megatron-core 0.9.0 declares numpy<2; the base has 2.5.5", None),
        "zarr": ("too new", None),
    }


def test_a_variant_base_is_no_twin() -> None:
    known = catalog(wheels=(wheels("2.4.0", variant="numpy 2"), wheels("2.4.1")), containers=IMAGES)
    assert known.twin(IMAGES[0]) == wheels("2.4.1")
    assert known.standard == (wheels("2.4.1"),)


def test_releases_of_a_package_without_records() -> None:
    assert TWINS.releases("numpy") == ()
    assert [release.version for release in TWINS.releases(MCORE)] == ["0.7.0", "0.8.0", "0.9.0"]


def test_standard_base_exists_on_each_python() -> None:
    """They are no bases of a night, and none is made of a variant."""
    known = catalog(
        wheels=(wheels("2.4.0", pythons=("3.10", "3.11"), fallbacks=("3.12",)), wheels("2.5.1", pythons=("3.10",)))
    )
    assert [*known.by_python] == ["torch-2.4.0-cp311", "torch-2.4.0-cp312"]
    assert known.base("torch-2.4.0-cp312").pythons == ("3.12",)  # type: ignore[union-attr]
    assert "torch-2.4.0-cp312" not in known.bases
    assert [known.base_on(id, python) for id, python in PYTHONS] == ["torch-2.4.0-cp312", "torch-2.4.0", None, None]


PYTHONS = [("torch-2.4.0", "3.12"), ("torch-2.4.0-cp312", "3.10"), ("torch-2.5.1", "3.12"), ("ngc-24.07", "3.10")]
