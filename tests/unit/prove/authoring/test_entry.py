"""Checks of one entry: each defect is reported, and a sound entry has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.cases.cells import plan_case
from matrix.ground.catalog.failure import Case, ContractCall, Failure, Level, NightShare, Signature
from matrix.ground.catalog.reach import JobOption, PreflightOptions
from matrix.ground.catalog.schema import Identifier, Pattern
from matrix.ground.catalog.stack import MCORE
from matrix.ground.catalog.versions import Range
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.prove.authoring import entry as entry_checks
from matrix.prove.authoring.entry import claim_problems, find_function, problems
from matrix.prove.authoring.examples import LOOK_ALIKES, SHOWS, Example
from matrix.prove.planning.night import night, pairwise
from tests.unit.catalogs import case, catalog, cell, clause, failure, shown, wheels

CODE = """
from matrix.kit.gpt import save_and_load as from_kit
from .sibling import from_sibling

def save(rank, *, tensor_parallel, steps=5):
    pass

def start(rank, *, bootstrap: Literal["gloo", "mpi"] | None = None):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a sound entry."""
    (tmp_path / "reproduction.py").write_text(CODE)
    (tmp_path / "sibling.py").write_text("def from_sibling(rank): pass\n")
    for kind, outcome in ((SHOWS, shown(failure())), (LOOK_ALIKES, Outcome(OutcomeKind.PASSED))):
        example = Example(kind, "one", outcome)
        (tmp_path / example.path).parent.mkdir(parents=True)
        (tmp_path / example.path).write_text(example.text)
    return tmp_path


def sound(folder: Path, **changes: Any) -> Failure:
    given = {
        "folder": folder,
        "affected": (clause(mcore="<0.9"),),
        "works": (clause(mcore=">=0.9"),),
        "case": (a_case("save", {"tensor_parallel": 2}),),
        **changes,
    }
    return failure(**given)


def a_case(run: str, arguments: dict[str, object] | None = None) -> Case:
    return replace(case(), run=run, arguments=arguments or {})


def found(entry: Failure, *others: Failure) -> list[str]:
    known = catalog(entry, *others)
    return [f"{one.where}: {one.what}" for one in problems(known, entry, night(known, pairwise))]


def test_a_sound_entry_has_no_problem(folder: Path) -> None:
    assert found(sound(folder)) == []


def test_each_todo_is_named(folder: Path) -> None:
    (folder / "failure.toml").write_text('id = "a"\ntitle = "TODO: the symptom"\n')
    assert found(sound(folder)) == ['failure.toml:2: title = "TODO: the symptom"']


CASES: dict[str, tuple[Sequence[Case], str]] = {
    "no module": ([a_case("gone:save")], "case tp2: gone.py does not exist"),
    "no function": ([a_case("load")], "case tp2: reproduction.py has no function load"),
    "an unknown argument": (
        [a_case("save", {"tensor_parallel": 2, "pipeline": 2})],
        "case tp2: save has no argument pipeline",
    ),
    "a missing argument": ([a_case("save")], "case tp2: save needs the argument tensor_parallel"),
    "an unknown argument of the kit": (
        [a_case("from_kit", {"tensors": 2})],
        "case tp2: from_kit has no argument tensors",
    ),
    "an unknown argument of a sibling": (
        [a_case("from_sibling", {"tensors": 2})],
        "case tp2: from_sibling has no argument tensors",
    ),
    "an unknown value": (
        [a_case("start", {"bootstrap": "glooo"})],
        "case tp2: start does not take bootstrap = 'glooo'",
    ),
    "a deadline below the usual one": (
        [replace(a_case("save", {"tensor_parallel": 2}), deadline=15)],
        "case tp2: deadline = 15 has no effect: every case has 120 s",
    ),
    "nothing reads": (
        [a_case("save", {"tensor_parallel": 2}), replace(case("read", [Level.CONTRACT]), run="")],
        "case read: nothing judges it at level contract",
    ),
}


@pytest.mark.parametrize(("cases", "expected"), CASES.values(), ids=CASES.keys())
def test_a_case_that_cannot_run_is_reported(folder: Path, cases: Sequence[Case], expected: str) -> None:
    assert expected in found(sound(folder, case=tuple(cases)))


def test_an_entry_hidden_from_check_is_reported(folder: Path) -> None:
    rule = replace(clause(cases=["tp2"]), reason="in the test")
    entry = sound(folder, affected=(rule,), works=())
    assert any("`check` never shows this failure" in one for one in found(entry))


def claimed(claim: str, callee: str, te: str) -> list[str]:
    """Return what is reported of a claim about the calls of megatron-core 0.16.1 into Transformer Engine."""
    refused = Signature("refused", "TypeError", Pattern("argument 'tp_size'$"))  # type: ignore[arg-type]
    read = case("contract", [Level.CONTRACT])
    rules: dict[str, Any] = {claim: (clause(mcore=">=0.4"),)}
    entry = failure(signature=(refused,), case=(read,), contract=ContractCall(Pattern(callee)), **rules)
    known = catalog(entry)
    planned = plan_case(known, entry, read, Level.CONTRACT, cell("no-torch", mcore="0.16.1", te=te))
    return [problem.what for problem in claim_problems(known, entry, [planned])]


@pytest.mark.parametrize(("claim", "te"), [("affected", "1.8.0"), ("works", "1.9.0")])
def test_a_claim_that_holds_is_not_reported(claim: str, te: str) -> None:
    """Transformer Engine 1.8 alone does not take tp_size."""
    assert claimed(claim, r"\.initialize_ub$", te) == []


@pytest.mark.parametrize(
    ("claim", "callee", "te", "expected"),
    [
        ("works", r"\.initialize_ub$", "1.8.0", "expected works, regressed: definite at "),
        ("affected", r"\.initialize_ub$", "1.9.0", "expected broken, vanished: "),
        ("affected", r"\.no_such_callee$", "1.8.0", "expected broken, vanished: "),
        ("works", r"\.UserBufferQuantizationMode$", "2.7.0", "expected works, unexplained: definite at "),
    ],
)
def test_a_claim_against_the_code_is_reported(claim: str, callee: str, te: str, expected: str) -> None:
    assert [text[: len(expected)] for text in claimed(claim, callee, te)] == [expected]


def test_a_claim_that_nothing_judges_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    unjudged = Outcome(OutcomeKind.UNAVAILABLE, "not judged")
    monkeypatch.setattr(entry_checks, "read_case", lambda *_: unjudged)
    assert claimed("works", r"\.initialize_ub$", "1.9.0") == ["expected works, unavailable: not judged"]


def test_a_night_with_one_expectation_is_reported(folder: Path) -> None:
    assert any("expects works" in one for one in found(sound(folder, works=())))


def test_case_in_no_night_is_reported(folder: Path) -> None:
    """A rule of another entry, or of the catalog, may have taken its last one."""
    entry = sound(folder)
    nowhere = replace(entry.case[0], name=Identifier("old"), releases={MCORE: Range("<0.1")})
    assert any("no case of the night is old" in one for one in found(replace(entry, case=(*entry.case, nowhere))))


def test_gate_expects_nothing_broken(folder: Path) -> None:
    """Nothing is known to break it: the night has no case of that direction."""
    assert not any(one.startswith("night") for one in found(sound(folder, affected=())))


def test_an_entry_may_be_in_no_night(folder: Path) -> None:
    """Its only base is in none; it runs by --select."""
    share = NightShare("a base of 7 GB", ("torch-2.9.1",))  # type: ignore[arg-type]
    known = catalog(entry := sound(folder, night=share), wheels=(wheels("2.4.0"), wheels("2.9.1", night="")))
    assert problems(known, entry, night(known, pairwise)) == []


def test_a_wide_signature_is_reported(folder: Path) -> None:
    other = failure("other", signature=failure().signature)
    assert "examples/shows/one.json: shows other as well" in found(sound(folder), other)


def test_a_look_alike_that_shows_is_reported(folder: Path) -> None:
    (folder / "examples/look_alikes/one.json").write_text(Example(LOOK_ALIKES, "one", shown(failure())).text)
    assert "examples/look_alikes/one.json: shows this failure (signature broke)" in found(sound(folder))


def test_missing_examples_are_reported(folder: Path) -> None:
    for path in folder.glob("examples/*/*.json"):
        path.unlink()
    assert {"signature broke: no example shows it", "examples/look_alikes: there are none"} <= set(found(sound(folder)))


def test_a_broken_example_is_reported(folder: Path) -> None:
    (folder / "examples/shows/two.json").write_text("{}")
    assert any(one.startswith("examples/shows/two.json: not an outcome") for one in found(sound(folder)))


@pytest.mark.parametrize(("name", "text"), [("preflight.py", "import no_such_module"), ("chart.py", "x = 1")])
def test_a_broken_module_is_reported(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    assert [one for one in found(sound(folder)) if one.startswith(name)] != []


BROKEN = {
    "syntax": "def save(rank:",
    "null": "\0",
    "nested": f"x = {'-' * 100_000}1",
    "each other": "from .reproduction import save",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("name", ["reproduction.py", "chart.py"])
def test_a_module_that_is_no_python_is_reported(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text.replace("reproduction import save", f"{name[:-3]} import save, picture"))
    entry = sound(folder)
    reported = found(entry)
    assert "correct it: " not in [problem.fix for problem in problems(catalog(entry), entry, ())]
    assert any("not Python" in one or "is only imported" in one for one in reported), reported


def test_options_without_a_preflight_are_reported(folder: Path) -> None:
    entry = replace(sound(folder), preflight=PreflightOptions(option=(JobOption("mode", "MODE"),)))
    assert [one for one in found(entry) if "no preflight" in one] != []


def test_a_function_is_followed_into_the_kit(folder: Path) -> None:
    function = find_function(folder / "reproduction.py", "from_kit")
    assert function is not None
    assert function.name == "save_and_load"
