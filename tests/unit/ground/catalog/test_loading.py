"""The catalog is read and checked as a whole; the error of every mistake has file, key and fix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from matrix.cli.main import main
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import GIB, Level, Limits
from matrix.ground.catalog.loading import failure_of, load, read_shared
from matrix.ground.catalog.schema import Size, toml_table
from matrix.ground.catalog.versions import parse
from matrix.ground.errors import MatrixError
from matrix.prove.planning.night import of_base
from tests.unit.catalogs import copy_of_facts, real

BASES, SAVES, STARTS = "bases.toml", "save_breaks/failure.toml", "start_crashes/failure.toml"
WHEELS = '[[wheels]]\nid = "torch-2.4.0"\ntorch = "2.4.0"\npythons = ["3.10"]\n'
WHOLE = ""  # as `old` of an Edit: replace the whole file

Edit = tuple[str, str, str]

ENTRIES = {
    SAVES: """
id = "save-breaks"
title = "A save breaks"
references = []
stand_ins = ["mcore-0.7"]
symptom = ""
cause = ""
fix = ""

[[signature]]
name = "assertion"
exception = "AssertionError"
frame = "planner.py:create_plan"

[[affected]]
mcore = ">=0.7.0.dev0,<0.9.0.dev0"
torch = ">=2.4.0"
reason = "measured"

[[affected]]
mcore = ">=0.7.0.dev0,<0.9.0.dev0"
base = ["ngc-24.07"]
reason = "read"

[[works]]
mcore = ">=0.9.0.dev0"
reason = "fixed"

[[masked]]
by = "start-crashes"
reason = "it never starts"

[[case]]
run = "save"
levels = ["cpu", "gpu"]
limits = "sample"
ranks = 2
gpus = 2
each = [
  { name = "tp2", arguments = { tensor_parallel = 2 } },
  { name = "pp2", arguments = { pipeline_parallel = 2 }, limits = { memory = "1 GiB" } },
]

[claim]
source = "a write-up"
text = "it is so"
measured = "it is not"
""",
    STARTS: """
id = "start-crashes"
title = "It crashes at the start"
references = []
axes = ["base", "mcore", "te", "driver"]
symptom = ""
cause = ""
fix = ""

[[signature]]
name = "crash"
signal = "SIGSEGV"

[[signature]]
name = "exit"
exit_code = 6
log = '(?s)Incl.*ERR_RANK'

[[affected]]
mcore = ">=0.4.0,<0.7.0.dev0"
reason = "run"

[contract]
callee = '\\.start$'

[[stack]]
name = "Some#1"
text = "as reported"
cell = { base = "ngc-24.03", mcore = "0.7.0", te = "1.9.0", driver = "470.161.03", sm = "8.0", gpus = "8" }
gpus = 8
""",
}


@pytest.fixture
def copy(tmp_path: Path) -> tuple[Path, Path]:
    """Return folders with a copy of the catalog's facts and with two failures, for a test to edit."""
    facts, failures = copy_of_facts(tmp_path), tmp_path / "failures"
    for path, text in ENTRIES.items():
        (failures / path).parent.mkdir(parents=True)
        (failures / path).write_text(text)
    return facts, failures


@pytest.fixture
def error_of(
    copy: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, str, str], str]:
    """Return a function that replaces the first `old`, or WHOLE, in a file and returns the error of `megatrix plan`."""
    facts, failures = copy
    monkeypatch.setattr(loading, "load", partial(load, facts, failures))

    def edit(file: str, old: str, new: str) -> str:
        path = (failures if file in ENTRIES else facts) / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1) if old else new, encoding="utf-8")
        status = main(["plan"])
        printed = capsys.readouterr()
        assert (status, printed.out) == (2, "")
        return printed.err.replace(f"{facts}/", "").replace(f"{failures}/", "")

    return edit


def test_the_copy_loads(copy: tuple[Path, Path]) -> None:
    known = load(*copy)
    assert [failure.id for failure in known.failures] == ["save-breaks", "start-crashes"]
    assert [stack.name for stack in known.reports] == ["Some#1"]


def test_a_group_of_cases_shares_arguments_and_limits(copy: tuple[Path, Path]) -> None:
    one, other = load(*copy).failure("save-breaks").case
    assert (dict(one.arguments), dict(other.arguments)) == ({"tensor_parallel": 2}, {"pipeline_parallel": 2})
    assert [one.limits, other.limits] == [Limits(Size(9 * GIB)), Limits(Size(9 * GIB), Size(GIB))]


def test_entry_with_call_is_read_at_contract(copy: tuple[Path, Path]) -> None:
    (case,) = load(*copy).failure("start-crashes").case
    assert (case.name, case.levels, case.run) == ("contract", (Level.CONTRACT,), "")


def test_a_shared_stand_in_is_the_entrys(copy: tuple[Path, Path]) -> None:
    (stand_in,) = load(*copy).failure("save-breaks").stand_in
    assert stand_in.packages == ("transformer_engine", "apex")


MISTAKES = {
    "wrong key": ((SAVES, "symptom =", "symptoms ="), "symptoms", "did you mean symptom?"),
    "wrong key in a clause": (("constraints.toml", "mcore =", "mcor ="), "exclude[0].when.mcor", "did you mean mcore?"),
    "wrong table": ((BASES, "[[wheels]]", "[[wheel]]"), "wheel", "did you mean wheels?"),
    "missing key": ((BASES, 'torch = "2.1.2"\n', ""), "wheels[0]", "add torch = ..."),
    "bad specifier": ((SAVES, 'torch = ">=2.4.0"', 'torch = "2.4.0"'), "affected[0].torch", "put an operator before"),
    "specifier with ~=": ((SAVES, 'torch = ">=2.4.0"', 'torch = "~=2.4"'), "affected[0].torch", "write it with <, <="),
    "bad version": (("releases.toml", '"0.5.0"', '"zero"'), "megatron_core[0].version", "a PEP 440 version"),
    "bad pattern": ((STARTS, "'(?s)Incl.*ERR_RANK'", "'('"), "signature[1].log", "use single quotes"),
    "base used twice": ((BASES, '"torch-2.1.2"', '"torch-2.2.2"'), "bases.toml", "each id once"),
    "base is an image too": ((BASES, '"torch-2.1.2"', '"ngc-24.07"'), "containers.toml", "each id once"),
    "release used twice": (("releases.toml", '"0.5.0"', '"0.6.0"'), "megatron_core", "each id once"),
    "case used twice": ((SAVES, 'name = "pp2"', 'name = "tp2"'), "case", "each id once"),
    "predicate that matches nothing": ((SAVES, '">=2.4.0"', '">=9"'), "affected[0]", "check the bounds against"),
    "contradiction": ((SAVES, 'mcore = ">=0.9.0.dev0"', 'mcore = ">=0.8.0"'), "both in affected and", "narrow one"),
    "unknown base": ((SAVES, '["ngc-24.07"]', '["ngc-24.70"]'), "affected[1].base", "did you mean ngc-24.10"),
    "unknown mask": ((SAVES, '"start-crashes"', '"start-crash"'), "masked.by", "start-crashes"),
    "exclusion that matches nothing": (("constraints.toml", '">=0.12"', '">=9"'), "exclude[0].when", "delete it, or"),
    "stack on no base": ((STARTS, '"ngc-24.03"', '"ngc-24.3"'), "stack[0].cell.base", "did you mean ngc-24.03"),
    "text for a number": ((STARTS, "exit_code = 6", 'exit_code = "6"'), "signature[1].exit_code", "expected: int"),
    "number for text": ((STARTS, 'sm = "8.0"', "sm = 8.0"), "stack[0].cell.sm", "text in quotes"),
    "text for a list": ((SAVES, '["ngc-24.07"]', '"ngc-24.07"'), "affected[1].base", "expected: [...]"),
    "list for a table": ((SAVES, "[claim]", "[[claim]]"), "claim", "[Claim] keys"),
    "unknown level": ((SAVES, '["cpu", "gpu"]', '["cpux"]'), "case[0].levels[0]", "contract or cpu or gpu"),
    "signature for all": (
        (STARTS, "exit_code = 6\nlog", "frame = 'a.py:b'\n#"),
        "signature exit",
        "exception, message",
    ),
    "broken TOML": ((STARTS, "id = ", "id "), "not TOML", "TOML 1.0 in UTF-8"),
}


@pytest.mark.parametrize(("edit", "key", "remedy"), MISTAKES.values(), ids=MISTAKES.keys())
def test_error_has_file_key_and_fix(error_of: Callable[..., str], edit: Edit, key: str, remedy: str) -> None:
    message = error_of(*edit)
    assert [word for word in ("megatrix: ", edit[0], key, remedy) if word not in message] == []


@pytest.mark.parametrize(
    "edit",
    [
        (BASES, "[common]\nrequires", "[common]\nrequire"),
        (BASES, WHOLE, f"common = 3\n{WHEELS}"),
        ("constraints.toml", WHOLE, "exclude = 3\n"),
        (BASES, '"2.1.2"\npythons = ["3.10", "3.11"]', '"2.1.2"\npythons = []'),
        (BASES, '"2.4.0"\npythons = ["3.10", "3.11"]', '"2.4.0"\npythons = ["three"]'),
        ("constraints.toml", 'mcore = ">=0.12", torch = "<2.2"', ""),
        (SAVES, ":create_plan", ""),
        (STARTS, '"SIGSEGV"', '"SEGV"'),
        (SAVES, 'levels = ["cpu", "gpu"]', "levels = []"),
        (SAVES, "ranks = 2", "ranks = 0"),
    ],
)
def test_error_of_common_mistake_names_the_file(error_of: Callable[..., str], edit: Edit) -> None:
    assert edit[0] in error_of(*edit)


@pytest.mark.parametrize("file", ["containers.toml", "drivers.toml", "releases.toml", "constraints.toml"])
def test_the_error_of_a_missing_file_names_it(copy: tuple[Path, Path], file: str) -> None:
    facts, failures = copy
    (facts / file).unlink()
    with pytest.raises(MatrixError) as caught:
        load(facts, failures)
    assert ("the file can't be read", str(facts / file)) == (caught.value.what, caught.value.where)


def test_a_folder_without_a_catalog_raises(tmp_path: Path) -> None:
    with pytest.raises(MatrixError) as caught:
        load(tmp_path)
    assert ("not a catalog", tmp_path) == (caught.value.what, caught.value.got)


def test_a_folder_not_named_like_its_id_raises(copy: tuple[Path, Path]) -> None:
    facts, failures = copy
    (failures / "save_breaks").rename(failures / "another")
    with pytest.raises(MatrixError) as caught:
        load(facts, failures)
    assert (caught.value.what, caught.value.got) == (
        "a failure's folder is named like its id, with _ for -",
        "save-breaks",
    )


def test_releases_are_sorted_by_version() -> None:
    versions = [parse(release.version) for release in real().transformer_engine]
    assert versions == sorted(versions)


def test_every_base_of_the_night_has_cases() -> None:
    nights = [base.id for base in real().wheels if base.night]
    assert nights == [base for base in nights if of_base(real(), base, tuple(Level))]


NEW = '\n[[wheels]]\nid = "torch-2.4.0-new"\ntorch = "2.4.0"\npythons = ["3.12"]\nrequires = ["numpy==2.5.5"]\n'


def test_a_base_has_own_or_common_packages(tmp_path: Path) -> None:
    facts = copy_of_facts(tmp_path)
    with (facts / "bases.toml").open("a", encoding="utf-8") as file:
        file.write(f'{NEW}variant = "numpy 2"\n')
    known = load(facts)
    own, common = (known.cell(base).stack["numpy"] for base in ("torch-2.4.0-new", "torch-2.4.0"))
    assert (own, common) == ("2.5.5", "1.26.4")


def test_a_second_base_of_a_torch_says_why(tmp_path: Path) -> None:
    """Otherwise a torch had two twins and two points on the axis torch."""
    facts = copy_of_facts(tmp_path)
    with (facts / "bases.toml").open("a", encoding="utf-8") as file:
        file.write(NEW)
    with pytest.raises(MatrixError) as caught:
        load(facts)
    assert (caught.value.what, caught.value.got) == ("an id is used twice", "2.4.0")


BOUNDED = """
id = "bounded"
title = ""
references = []
symptom = ""
cause = ""
fix = ""
signature = [{ name = "one", exception = "ValueError" }]
affected = [{ mcore = "broken", te = ">=2.0", reason = "run" }]
works = [{ mcore = "fixed" }, { mcore = ">=0.5.0,<0.6.0.dev0" }]
case = [{ run = "f", levels = ["cpu"], each = [{ name = "broken", mcore = "any" }] }]
workaround = [{ text = "megatron-core {mcore.fixed} or later" }]
[boundary.mcore]
works = "0.7.0"
breaks = "0.8.0"
fixed = "0.9.0"
"""


def test_boundary_is_stated_once() -> None:
    path = Path("bounded/failure.toml")
    entry = failure_of(toml_table(BOUNDED.encode(), ""), path, read_shared())
    mcore = [rule.bounds["megatron-core"].text for rule in (*entry.affected, *entry.works)]
    assert mcore == [">=0.8.0,<0.9.0.dev0", ">=0.9.0", ">=0.5.0,<0.6.0.dev0"]  # a range overrides the boundary
    assert (entry.case[0].name, entry.case[0].releases["megatron-core"].text) == ("broken", ">=0.7.0")
    assert entry.workaround[0].text == "megatron-core 0.9.0 or later"


def test_part_without_its_release_names_the_entry() -> None:
    content = toml_table(BOUNDED.replace('fixed = "0.9.0"', "").encode(), "")
    with pytest.raises(MatrixError, match=r"bounded/failure\.toml: mcore"):
        failure_of(content, Path("bounded/failure.toml"), read_shared())
