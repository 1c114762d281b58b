"""The catalog is read, checked as a whole, and every mistake in it is told by file, key and remedy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from matrix.catalog import loading
from matrix.catalog.failure import Level
from matrix.catalog.loading import load
from matrix.catalog.model import Release
from matrix.catalog.versions import NONE, Range, parse
from matrix.cli.main import main
from matrix.errors import MatrixError
from matrix.planning.night import of_base
from tests.unit.catalogs import catalog, copy_of_facts, exclusion, image, real, releases, wheels

BASES, DCP, TP = "bases.toml", "failures/dcp-assertion.toml", "failures/tp-overlap.toml"
WHEELS = '[[wheels]]\nid = "torch-2.4.0"\ntorch = "2.4.0"\npythons = ["3.10"]\n'
WHOLE = ""  # what to replace when the whole file is meant

Edit = tuple[str, str, str]


@pytest.fixture
def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, str, str], str]:
    """Replace the first `old`, or WHOLE, in a file of a copy of the catalog; return what `megatrix plan` says of it."""
    facts = copy_of_facts(tmp_path)
    monkeypatch.setattr(loading, "load", partial(load, facts))

    def edit(file: str, old: str, new: str) -> str:
        text = (facts / file).read_text(encoding="utf-8")
        assert old in text
        (facts / file).write_text(text.replace(old, new, 1) if old else new, encoding="utf-8")
        status = main(["plan"])
        said = capsys.readouterr()
        assert (status, said.out) == (2, "")
        return said.err.replace(f"{facts}/", "")

    return edit


MISTAKES = {
    "wrong key": ((DCP, "[[stand_in]]", "[[standin]]"), "standin", "did you mean stand_in?"),
    "wrong key in a clause": (("constraints.toml", "mcore =", "mcor ="), "exclude[0].when.mcor", "did you mean mcore?"),
    "wrong table": ((BASES, "[[wheels]]", "[[wheel]]"), "wheel", "did you mean wheels?"),
    "missing key": ((BASES, 'torch = "2.1.2"\n', ""), "wheels[0]", "add torch = ..."),
    "bad specifier": ((DCP, 'torch = ">=2.4.0"', 'torch = "2.4.0"'), "affected[0].torch", "put an operator before"),
    "specifier with ~=": ((DCP, 'torch = ">=2.4.0"', 'torch = "~=2.4"'), "affected[0].torch", "write it with <, <="),
    "bad version": (("releases.toml", '"0.5.0"', '"zero"'), "megatron_core[0].version", "a PEP 440 version"),
    "bad pattern": ((TP, "'(?s)MPI_Group_incl.*MPI_ERR_RANK'", "'('"), "signature[1].log", "use single quotes"),
    "base used twice": ((BASES, '"torch-2.1.2"', '"torch-2.2.2"'), "bases.toml", "each id once"),
    "base is an image too": ((BASES, '"torch-2.1.2"', '"ngc-24.07"'), "containers.toml", "each id once"),
    "release used twice": (("releases.toml", '"0.5.0"', '"0.6.0"'), "megatron_core", "each id once"),
    "case used twice": ((DCP, 'name = "pp2"', 'name = "tp2"'), "case", "each id once"),
    "predicate that matches nothing": ((DCP, '">=2.4.0"', '">=9"'), "affected[0]", "check the bounds against"),
    "contradiction": ((DCP, 'mcore = ">=0.9.0.dev0"', 'mcore = ">=0.8.0"'), "both in affected and", "narrow one"),
    "unknown base": ((DCP, '["ngc-24.07"]', '["ngc-24.70"]'), "affected[1].base", "did you mean ngc-24.10"),
    "unknown mask": ((DCP, '"dcp-write-item"', '"dcp-write"'), "masked.by", "did you mean dcp-write-item?"),
    "exclusion that matches nothing": (("constraints.toml", '">=0.12"', '">=9"'), "exclude[0].when", "delete it, or"),
    "stack of no failure": (("stacks.toml", '"tp-overlap"', '"tp-overlop"'), "stack[2].failure", "tp-overlap?"),
    "stack on no base": (("stacks.toml", '"ngc-24.03"', '"ngc-24.3"'), "stack[2].cell.base", "did you mean ngc-24.03"),
    "text for a number": ((TP, "exit_code = 6", 'exit_code = "6"'), "signature[1].exit_code", "expected: int"),
    "number for text": (("stacks.toml", 'sm = "8.0"', "sm = 8.0"), "stack[2].cell.sm", "text in quotes"),
    "text for a list": ((DCP, '["ngc-24.07"]', '"ngc-24.07"'), "affected[1].base", "expected: [...]"),
    "list for a table": ((DCP, "[claim]", "[[claim]]"), "claim", "[Claim] keys"),
    "unknown level": ((DCP, '["cpu", "gpu"]', '["cpux"]'), "case[0].levels[0]", "contract or cpu or gpu"),
    "signature for all": (
        (TP, "exit_code = 6\nlog", "frame = 'a.py:b'\n#"),
        "signature invalid-rank",
        "exception, message",
    ),
    "broken TOML": ((TP, "id = ", "id "), "not TOML", "TOML 1.0 in UTF-8"),
}


@pytest.mark.parametrize(("edit", "key", "remedy"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told_by_file_key_and_remedy(told: Callable[..., str], edit: Edit, key: str, remedy: str) -> None:
    said = told(*edit)
    assert [word for word in ("megatrix: ", edit[0], key, remedy) if word not in said] == []


@pytest.mark.parametrize(
    "edit",
    [
        (BASES, "[common]\nrequires", "[common]\nrequire"),
        (BASES, WHOLE, f"common = 3\n{WHEELS}"),
        ("constraints.toml", WHOLE, "exclude = 3\n"),
        (BASES, '"2.1.2"\npythons = ["3.10", "3.11"]', '"2.1.2"\npythons = []'),
        (BASES, '"2.4.0"\npythons = ["3.10", "3.11"]', '"2.4.0"\npythons = ["three"]'),
        ("constraints.toml", 'mcore = ">=0.12", torch = "<2.2"', ""),
        (DCP, ":create_default_global_save_plan", ""),
        (TP, '"SIGSEGV"', '"SEGV"'),
        (DCP, 'levels = ["cpu", "gpu"]', "levels = []"),
        (DCP, "ranks = 2", "ranks = 0"),
    ],
)
def test_a_mistake_that_is_easily_made_is_told(told: Callable[..., str], edit: Edit) -> None:
    assert edit[0] in told(*edit)


@pytest.mark.parametrize("file", ["bases.toml", "containers.toml", "drivers.toml", "releases.toml", "stacks.toml"])
def test_a_missing_file_is_told(tmp_path: Path, file: str) -> None:
    facts = copy_of_facts(tmp_path)
    (facts / file).unlink()
    with pytest.raises(MatrixError) as caught:
        load(facts)
    assert ("the file can't be read", str(facts / file)) == (caught.value.what, caught.value.where)


def test_a_folder_without_a_catalog_is_told(tmp_path: Path) -> None:
    with pytest.raises(MatrixError) as caught:
        load(tmp_path)
    assert ("no catalog here", tmp_path) == (caught.value.what, caught.value.got)


def test_two_entries_with_one_id_are_told(tmp_path: Path) -> None:
    facts = copy_of_facts(tmp_path)
    (facts / "failures" / "another.toml").write_text((facts / TP).read_text())
    with pytest.raises(MatrixError) as caught:
        load(facts)
    assert (caught.value.what, caught.value.got) == ("a failure's file has its id as name", "tp-overlap")


def test_an_entry_is_named_as_its_file(tmp_path: Path) -> None:
    facts = copy_of_facts(tmp_path)
    (facts / "failures" / "another.toml").write_text((facts / TP).read_text().replace('"tp-overlap"', '"third"', 1))
    with pytest.raises(MatrixError):
        load(facts)


def test_a_base_and_a_failure_are_found_by_id_or_suggested() -> None:
    assert (real().base("torch-2.4.0").id, real().failure("tp-overlap").id) == ("torch-2.4.0", "tp-overlap")
    with pytest.raises(MatrixError, match=r"did you mean .*torch-2\.4\.0"):
        real().base("torch-2.4")
    with pytest.raises(MatrixError, match="did you mean tp-overlap"):
        real().failure("overlap")


IMAGES = (image("ngc-24.06", "2.4.0a0+f70bd71a48"), image("ngc-24.07", "2.4.0a0+3bcc3cddb5"), image("ngc-99", None))
TWINS = catalog(torches=("2.4.1", "2.4.0", "2.3.1"), containers=IMAGES)


def test_the_twin_of_an_image_is_the_lowest_base_with_its_torch_minor() -> None:
    assert [wheels("2.4.0"), wheels("2.4.0"), None] == [TWINS.twin(one) for one in IMAGES]


def test_a_base_knows_the_images_that_it_stands_for() -> None:
    stands_for = [TWINS.twins_of(base) for base in TWINS.wheels]
    assert [(), IMAGES[:2], ()] == stands_for


def test_a_cell_has_what_its_base_fixes() -> None:
    known = catalog(wheels=(wheels("2.4.0", pythons=("3.12", "3.10")),), containers=(image("ngc-99", None),))
    here, there = known.cell("torch-2.4.0", mcore="0.8.0"), known.cell("ngc-99", te="1.9", driver="535", sm="9.0")
    assert (here.torch, here.python, here.mcore, here.te) == ("2.4.0", "3.12", "0.8.0", NONE)
    assert (there.torch, there.python, there.mcore, there.te, there.sm) == (NONE, NONE, NONE, "1.9", "9.0")


def test_an_excluded_cell_says_why() -> None:
    known = catalog(exclusions=(exclusion("no device mesh", torch="<2.4", mcore=">=0.9"),))
    cells = [known.cell("torch-2.3.1", mcore="0.9.0"), known.cell("torch-2.4.0", mcore="0.9.0")]
    assert [known.excluded(cell) for cell in cells] == ["no device mesh", None]


def test_what_a_release_declares_excludes_cells() -> None:
    core = Release("0.9.0", requires_python=Range(">=3.12"), requires={"torch": Range(">=2.4.0a0")})  # type: ignore[arg-type]
    bases = (wheels("2.3.1", pythons=("3.12",)), wheels("2.4.0", pythons=("3.10",)), wheels("2.5.1", pythons=("3.12",)))
    known = catalog(wheels=bases, megatron_core=(core,))
    reasons = [known.excluded(known.cell(base.id, mcore="0.9.0")) for base in bases]
    assert reasons == [
        "megatron-core 0.9.0 declares torch>=2.4.0a0; the base has 2.3.1",
        "megatron-core 0.9.0 needs Python >=3.12; the base has 3.10",
        None,
    ]


def test_releases_are_in_the_order_of_their_versions() -> None:
    versions = [parse(release.version) for release in real().transformer_engine]
    assert versions == sorted(versions)


def test_a_release_that_is_not_known_is_not_excluded() -> None:
    known = catalog(megatron_core=releases(["0.8.0"]))
    assert known.excluded(known.cell("torch-2.4.0", mcore="0.8.0rc0")) is None


def test_every_base_of_the_night_has_cases() -> None:
    nights = [base.id for base in real().wheels if base.night]
    assert nights == [base for base in nights if of_base(real(), base, tuple(Level))]
