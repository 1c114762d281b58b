"""`megatrix bisect` on the command line: its answers, errors, exit statuses and files."""

from __future__ import annotations

import argparse
import shlex
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import places
from matrix.cli.bisect import add_parser, progress
from matrix.cli.main import main
from matrix.cli.main import parser as cli_parser
from matrix.cli.usage import Parser, share
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import ContractCall, Level, Signature
from matrix.ground.catalog.stack import MCORE, TE, TORCH
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.prove.bisection.bisect_arguments import BisectArguments
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.probe_session import ProbeReport
from matrix.prove.bisection.question import BisectionQuestion
from matrix.prove.execution.inside import Images
from matrix.prove.provision import host
from matrix.read.machine import installed
from tests import compiled
from tests.schemas import items_of
from tests.unit import catalogs
from tests.unit.catalogs import case, clause, failure
from tests.unit.engines import HOST, FakeEngine, make_environment
from tests.unit.prove.bisection import repositories

ENTRY = failure(
    "break",
    affected=(clause(mcore="<0.9", torch=">=2.4"),),
    works=(clause(mcore=">=0.9"), clause(torch="<2.4")),
    case=(case("tp2"), case("pp2")),
)
KNOWN = catalogs.catalog(ENTRY)
STRANGE = Outcome(OutcomeKind.RAISED, "rank 0 raised: KeyError", 0, chain=(Raised("KeyError", "'loss'"),))


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None) -> None:
    """Set a host without GPUs and an output folder of this test."""
    monkeypatch.setattr(host, "look", lambda: HOST)
    monkeypatch.setenv("MEGATRIX_OUT", str(tmp_path / "out"))
    monkeypatch.setenv("BASES_OF_TESTS", str(tmp_path / "bases"))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """A fake engine in place of the local one, and the small catalog."""
    made = FakeEngine(KNOWN)
    monkeypatch.setattr(places, "LocalEngine", lambda *_, **__: made)
    monkeypatch.setattr(loading, "load", lambda: KNOWN)
    return made


def answer_of(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    """Return the exit status, the JSON object on standard output, and standard error."""
    status = main([*shlex.split(line), "--json"])
    printed = capsys.readouterr()
    return status, items_of(printed.out, "bisect")[0], printed.err


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return standard error of a command that exits with 2."""
    assert main(shlex.split(line)) == 2
    return capsys.readouterr().err


def test_the_first_bad_torch_is_named(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    status, answer, progress = answer_of("bisect break --axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1", capsys)

    assert (status, answer["answer"], answer["kind"], answer["confidence"]) == (0, "2.4.0", "first-bad", 1.0)
    assert answer["before"].startswith("2.3.1")
    assert [(probe["point"], probe["seen"]) for probe in answer["probes"]] == [
        ("2.3.1", "good"),
        ("2.4.0", "bad"),
        ("2.5.1", "bad"),
    ]
    assert all("megatrix run --case 'torch-" in probe["reproduce"] for probe in answer["probes"])
    assert len(progress.splitlines()) == 3


def test_quiet_bisection_prints_its_answer_alone(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("bisect break --axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 -q")) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("first bad: PyTorch 2.4.0")
    assert (len(printed.out.splitlines()), printed.err) == (1, "")


def test_the_first_fixed_mcore_is_named(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    status, answer, _ = answer_of("bisect break --axis mcore --torch 2.4.0 --bad 0.7.0 --good 0.9.0", capsys)

    assert (status, answer["answer"], answer["kind"]) == (0, "0.9.0", "first-fixed")
    assert answer["fixed"] == {"base": "torch-2.4.0"}


def test_without_ends_the_whole_axis_is_searched(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """It finds the first bad and the first fixed version."""
    first, fixed = (
        answer_of("bisect break --axis torch --mcore 0.8.0", capsys)[1],
        answer_of("bisect break --axis mcore --torch 2.4.0", capsys)[1],
    )

    assert (first["answer"], first["kind"]) == ("2.4.0", "first-bad")
    assert (fixed["answer"], fixed["kind"]) == ("0.9.0", "first-fixed")


def test_a_repeated_bisection_runs_nothing(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """The probe store has the results; --no-cache probes again."""
    line = "bisect break --axis torch --mcore 0.8.0"
    _, first, _ = answer_of(line, capsys)
    ran = list(engine.ran)
    _, second, _ = answer_of(line, capsys)

    assert (first["cost"]["ran"], second["cost"]["ran"], engine.ran) == (len(ran), 0, ran)
    assert second["answer"] == first["answer"]
    answer_of(f"{line} --no-cache", capsys)
    assert len(engine.ran) == 2 * len(ran)


def test_verdicts_of_a_run_are_reused(engine: FakeEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A bisection takes cached verdicts of `megatrix run` with the same content."""
    for torch in catalogs.TORCHES:
        make_environment(tmp_path / "bases" / f"torch-{torch}", {"torch": torch})
    main(["run", "--select", "case==tp2 and mcore==0.8.0"])
    capsys.readouterr()
    ran = list(engine.ran)
    _, answer, progress = answer_of("bisect break --axis torch --mcore 0.8.0", capsys)

    assert (answer["answer"], answer["cost"]["ran"], engine.ran) == ("2.4.0", 0, ran)
    assert "[known]" in progress


def test_after_ctrl_c_the_same_command_continues(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """No probe runs twice; `report` ignores the rounds of a bisection."""
    line = "bisect break --axis torch --mcore 0.8.0"
    engine.limit, engine.status = 0, KeyboardInterrupt()
    assert main(shlex.split(line)) == 130
    assert "continue with the same command line" in capsys.readouterr().err
    engine.limit, engine.status = None, 0
    _, answer, _ = answer_of(line, capsys)

    assert (answer["answer"], answer["cost"]["ran"]) == ("2.4.0", 3)
    assert "there is no run yet" in refused("report", capsys)


def test_no_cache_replaces_stored_answers(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    line = "bisect break --axis torch --mcore 0.8.0"
    answer_of(line, capsys)
    engine.ends = lambda item: (
        engine.as_expected(item) if item.cell.stack[TORCH] != "2.4.0" else Outcome(OutcomeKind.PASSED)
    )
    _, fresh, _ = answer_of(f"{line} --no-cache", capsys)
    _, kept, _ = answer_of(line, capsys)

    assert fresh["answer"] == kept["answer"] == "2.5.1"
    assert kept["cost"]["ran"] == 0


def test_images_with_the_same_twin_share_its_runs(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four images, two twins: two runs, probed at once or one after the other."""
    torches = {"ngc-24.01": "2.3.0a0+1", "ngc-24.02": "2.3.0a0+2", "ngc-24.03": "2.4.0a0+3", "ngc-24.04": "2.4.0a0+4"}
    images = tuple(catalogs.image(id, torch) for id, torch in torches.items())
    monkeypatch.setattr(loading, "load", lambda: catalogs.catalog(ENTRY, containers=images))
    monkeypatch.setattr(Images, "lacks", lambda self, base: "no container tool")
    line = "bisect break --axis container --mcore 0.8.0 --no-cache --at-once {}"
    for at_once in (1, 4):
        _, answer, _ = answer_of(line.format(at_once), capsys)
        assert (answer["answer"], answer["cost"]["ran"]) == ("ngc-24.03", 2)


def test_an_axis_with_one_point_is_refused(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the axis has too few points" in refused("bisect break --axis mcore --torch 2.4.0 --good 0.9.0", capsys)


def test_another_failure_is_a_skip(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """2.4.0 fails otherwise, so the answer is ambiguous between it and 2.5.1."""
    engine.ends = lambda item: STRANGE if item.cell.stack[TORCH] == "2.4.0" else engine.as_expected(item)
    status, answer, _ = answer_of("bisect break --axis torch --mcore 0.8.0", capsys)

    assert (status, answer["answer"], answer["kind"]) == (1, None, "ambiguous")
    assert [label.split()[0] for label in answer["candidates"]] == ["2.4.0", "2.5.1"]
    assert [probe["why"] for probe in answer["probes"] if probe["seen"] == "skip"] == [
        "raised: rank 0 raised: KeyError"
    ]


def test_points_are_probed_at_once_in_one_round(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    _, answer, _ = answer_of("bisect break --axis torch --mcore 0.8.0 --at-once 3", capsys)

    assert answer["cost"]["rounds"] == 1
    assert answer["answer"] == "2.4.0"


def test_progress_names_points_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    label = f"mcore 0.9.0 (Fix {'a long subject ' * 10}) \x1b[2J"
    progress(ProbeReport(label, ProbeResult.BAD, "raised", 1.0, False))
    visible = label.replace("\x1b", "\\x1b")
    assert capsys.readouterr().err == f"bad   {visible}  [1.0 s]  raised\n"


@pytest.mark.parametrize("given", ["", "--compile"])
def test_the_line_of_a_commit_selects_its_case(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path, given: str
) -> None:
    """Of Transformer Engine: with the clone and the commit; another version of that source is refused."""
    clone = compiled.clone(tmp_path / "clone")
    new = subprocess.check_output(["git", "-C", str(clone), "rev-parse", compiled.BAD], text=True).strip()
    engine.ends = lambda item: catalogs.shown(ENTRY) if new in item.te_source else Outcome(OutcomeKind.PASSED)
    ends = f"--good {compiled.GOOD} --bad {compiled.BAD}"
    status, answer, _ = answer_of(
        f"bisect break --axis te --repo {clone} {ends} --torch 2.4.0 --mcore 0.8.0 {given}", capsys
    )
    line = shlex.split(next(one["reproduce"] for one in answer["probes"] if one["seen"] == "bad"))
    assert (status, answer["answer"], line[:2]) == (0, new, ["megatrix", "run"])

    assert main(["plan", "--json", *line[2:]]) == 0
    (item,) = items_of(capsys.readouterr().out, "plan")
    assert (item["te_source"], item["key"], item["compiled"]) == (f"{clone}@{new}", line[-1], bool(given))
    assert "names another version" in refused(shlex.join(["plan", *line[2:]]).replace(new, compiled.GOOD), capsys)


def test_a_build_without_nvcc_is_refused(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything runs, where the environment exists."""
    monkeypatch.setattr(installed, "nvcc", lambda: None)
    make_environment(tmp_path / "bases" / "torch-2.4.0", {"torch": "2.4.0"})
    clone = compiled.clone(tmp_path / "clone")
    line = f"bisect break --axis te --repo {clone} --good first --bad last --torch 2.4.0 --mcore 0.8.0 --compile"

    assert "no CUDA compiler in this base" in refused(line, capsys)
    assert engine.ran == []


def test_the_page_and_issue_text_hold_the_answer(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(shlex.split("bisect break --axis torch --mcore 0.8.0")) == 0
    out = capsys.readouterr().out
    (page,) = (tmp_path / "out" / "bisections").glob("*.html")

    assert "first bad: PyTorch 2.4.0" in out
    assert f"page: {page}" in out
    for text in (page.read_text(), page.with_suffix(".md").read_text(), out):
        assert "2.4.0" in text
        assert "2.3.1" in text
        assert "megatrix run" in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bisect nothing --axis torch --mcore 0.8.0", "no such failure"),
        ("bisect break --axis torch", "--mcore is required"),
        ("bisect break --axis torch --mcore 0.8.0 --good 2.4.0 --bad 2.4.0", "good and bad are the same point"),
        ("bisect break --axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.4.7", "no such point on the axis"),
        ("bisect break --axis torch --mcore 0.8.0 --torch 2.4.0", "the axis torch can't be fixed"),
        ("bisect break --axis mcore --mcore 0.8.0 --torch 2.4.0", "the axis mcore can't be fixed"),
        ("bisect break --axis torch --mcore 0.8.0 --repo . --good a --bad b", "--repo requires axis mcore, te"),
        ("bisect break --axis mcore --torch 2.4.0 --repo . --good a", "--repo requires both ends"),
        ("bisect break --axis mcore", "level cpu runs on a base"),
        ("bisect break --axis torch --mcore 0.8.0 --te 1.9.0 --compile", "--compile builds a Transformer Engine from"),
        ("plan --te 1.9.0", "--te, --writer and --compile are for one case"),
        ("plan --te 1.9.0 --case a", "not the key of a case"),
        ("plan --te 1.9.0 --case 'torch-2.4.0/mcore-0.8.0/te-1.9.0/driver-none break x cpu'", "no such case"),
        ("bisect break --good torch-2.3.1", "neither an axis nor two stacks"),
        ("bisect break --good torch-2.3.1 --bad torch-2.4.0", "the stack has no mcore"),
        ("bisect break --axis torch --mcore 0.8.0 --good 2.4.0 --bad 2.5.1", "the good end is not good"),
        ("bisect break --axis torch --mcore 0.9.0", "the bad end is not bad"),
        ("bisect break --axis torch --mcore 0.8.0 --partition gpu", "--partition and --sbatch require --engine slurm"),
        ("bisect break --axis torch --mcore 0.8.0 --shows 0", "such a probe shows nothing"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused_with_the_reason(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    assert message in refused(line, capsys)


def test_two_stacks_are_attributed_to_a_package(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    status, answer, _ = answer_of(
        "bisect break --good torch-2.3.1/mcore-0.7.0/te-none/driver-none"
        " --bad torch-2.5.1/mcore-0.8.0/te-none/driver-none",
        capsys,
    )

    assert (status, answer["answer"], answer["inside"]["torch"]["answer"]) == (0, ["torch"], "2.4.0")


OFFLOAD = """
from transformer_engine.pytorch.cpu_offload import get_cpu_offload_context as offload
def context(enabled, num_layers, model_layers, activation_offloading, weight_offloading):
    return offload(enabled, num_layers, {}activation_offloading, weight_offloading)
"""


OFFLOAD_ENTRY = failure(
    "offload-breaks",
    axes=(MCORE, TE),
    signature=(Signature("count", exception="TypeError", message="get_cpu_offload_context.. takes"),),  # type: ignore[arg-type]
    case=(case("contract", (Level.CONTRACT,), 1, 0),),
    contract=ContractCall("get_cpu_offload_context$"),  # type: ignore[arg-type]
)


@pytest.fixture
def offload(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog with one failure of a call into Transformer Engine."""
    known = catalogs.catalog(
        OFFLOAD_ENTRY, readers=(catalogs.reader(),), transformer_engine=catalogs.releases(["1.9.0"])
    )
    monkeypatch.setattr(loading, "load", lambda: known)


def test_commits_are_read_without_a_checkout(offload: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a small clone a commit adds a fifth argument, which the recorded Transformer Engine 1.9.0 does not take."""
    path = "megatron/core/offload.py"
    four, five = ({path: OFFLOAD.format(text)} for text in ("", "model_layers, "))
    other = {"megatron/core/other.py": "x = 1\n"}
    clone = repositories.clone(
        tmp_path / "clone",
        [("a", [], four), ("b", ["a"], other), ("c", ["b"], five), ("d", ["c"], four), ("e", ["d"], five)],
    )
    line = f"bisect offload-breaks --axis mcore --repo {clone} --te 1.9.0 --good {{}} --bad {{}}"
    bad = answer_of(line.format("a", "c"), capsys)
    fixed = answer_of(line.format("d", "c"), capsys)
    twice = answer_of(line.format("a", "e"), capsys)

    assert (bad[0], bad[1]["kind"], bad[1]["label"][-1]) == (0, "first-bad", "c")
    assert (fixed[0], fixed[1]["kind"], fixed[1]["label"][-1]) == (0, "first-fixed", "d")
    assert (twice[0], twice[1]["kind"], bool(twice[1]["flips"])) == (1, "ambiguous", True)
    assert "get_cpu_offload_context() takes from 0 to 4" in bad[1]["probes"][-1]["why"]


def test_the_issue_text_has_no_local_folder(offload: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has the exception, names the clone ./Megatron-LM, and masks a secret in a commit subject."""
    path = "megatron/core/offload.py"
    four, five = ({path: OFFLOAD.format(text)} for text in ("", "model_layers, "))
    clone = repositories.clone(tmp_path / "clone", [("a", [], four), ("token=hunter2", ["a"], five)])
    line = f"bisect offload-breaks --axis mcore --repo {clone} --te 1.9.0 --good a --bad token=hunter2"
    _, answer, _ = answer_of(line, capsys)
    (text,) = (file.read_text() for file in (tmp_path / "out" / "bisections").glob("*.md"))

    assert "\nTypeError: get_cpu_offload_context() takes from 0 to 4 positional arguments but 5 were given" in text
    assert f"megatrix contract --mcore ./Megatron-LM@{answer['answer']} --te 1.9.0" in text
    assert str(tmp_path) not in text
    assert "hunter2" not in text


@pytest.mark.parametrize(("torch", "code"), [("2.3.1", 0), ("2.4.0", 1)])
def test_run_with_exit_code_exits_for_git_bisect(engine: FakeEngine, torch: str, code: int) -> None:
    """An expected failure is green in a run, and bad for git bisect."""
    key = f"torch-{torch}/mcore-0.8.0/te-none/driver-none break tp2 cpu"

    assert main(["run", "--case", key, "--exit-code"]) == code
    assert main(["run", "--case", key]) == 0


def test_invalid_input_is_a_skip_for_git_bisect(engine: FakeEngine) -> None:
    """Git bisect would count 2, the exit status for invalid input, as bad."""
    assert main(["run", "--case", "no such case", "--exit-code"]) == 125
    assert main(["run", "--case", "no such case"]) == 2


NOT_GIVEN: dict[str, Any] = {field.name: "" for field in fields(BisectionQuestion)}
DEFAULTS = BisectionQuestion(**{**NOT_GIVEN, "failure": "save-breaks"})


def parsed(*arguments: str) -> BisectArguments:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_parser(parser.add_subparsers(parser_class=Parser))
    options = parser.parse_args(["bisect", "save-breaks", "--out", "out", *arguments])
    return BisectArguments.of({**vars(options), "own": ()})


def test_options_not_given_have_their_defaults() -> None:
    assert parsed() == BisectArguments(DEFAULTS, Path("out"))


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["--axis", "mcore", "--good", "0.9.0", "--bad", "0.8.0"], {"axis": "mcore", "good": "0.9.0", "bad": "0.8.0"}),
        (["--repo", "clone", "--case", "pp2", "--level", "gpu"], {"repo": "clone", "case": "pp2", "level": "gpu"}),
        (["--base", "torch-2.4.0", "--torch", "2.4.0"], {"base": "torch-2.4.0", "torch": "2.4.0"}),
        (["--mcore", "a", "--te", "b", "--writer", "c"], {"mcore": "a", "te": "b", "writer": "c"}),
        (["--driver", "470", "--compile"], {"driver": "470", "compile": True}),
    ],
)
def test_options_of_the_points_are_the_question(arguments: list[str], changes: dict[str, Any]) -> None:
    assert parsed(*arguments).question == replace(DEFAULTS, **changes)


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["--at-once", "3", "--checks", "2", "--no-cache"], {"at_once": 3, "checks": 2, "fresh": True}),
        (["--shows", "0.5", "--confidence", "0.9"], {"shows": 0.5, "confidence": 0.9}),
        (["--metric", "x", "--worse-than", "5%", "--repeats", "3"], {"metric": "x", "worse_than": 0.05, "repeats": 3}),
        (["--signature", "s.toml", "--deadline", "60"], {"signature": "s.toml", "deadline": 60}),
    ],
)
def test_other_options_decide_the_search(arguments: list[str], changes: dict[str, Any]) -> None:
    assert parsed(*arguments) == replace(BisectArguments(DEFAULTS, Path("out")), **changes)


def test_every_option_is_in_the_request() -> None:
    """An option that no field has is one that bisect ignores."""
    elsewhere = {"engine", "partition", "sbatch", "json", "quiet"}  # where it runs, and what is printed
    known = {field.name for field in (*fields(BisectionQuestion), *fields(BisectArguments))}
    assert vars(cli_parser(["bisect"]).parse_args(["bisect"])).keys() - {"command", "resume_hint"} <= known | elsewhere


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("120%", 1.2), ("9.9", 9.9)])
def test_a_share_is_a_number_or_percent(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["0", "-1%", "10", "1000%", "nan", "five"])
def test_a_share_is_above_zero_and_below_ten(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        share(text)
