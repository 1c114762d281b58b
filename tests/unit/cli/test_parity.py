"""`megatrix parity` on the command line, with a judge of planted causes in place of the cells."""

from __future__ import annotations

import json
import math
import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.cli.main import main, parser
from matrix.cli.parity import command_line, completed, core_json, layout_lines, possible, search_lines, status_of
from matrix.ground.catalog import loading
from matrix.ground.errors import ExitStatus, MatrixError
from matrix.kit.parity.factors import Point
from matrix.prove.parity import campaigns, card
from matrix.prove.parity.campaigns import CoreResult
from matrix.prove.parity.points import DEVIATES, EQUAL, REFUSED, Cause, Certainty, PointResult
from matrix.show.terminal import Prose, json_object
from tests.schemas import items_of
from tests.unit.prove.parity.fakes import LOSS, NORM, REFUSAL, SINKS, Planted, few_factors


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None) -> Planted:
    judge = Planted()

    def cell(catalog: Any, source: str, *_: Any, **__: Any) -> Any:
        process = nullcontext(SimpleNamespace(judge=judge))
        facts = {"release": "0.19.2", "base": "torch-2.15.0", "identity": source, "card": None}
        return SimpleNamespace(judge=lambda *_: process, **facts)

    monkeypatch.setattr(campaigns, "core_cell", cell)
    monkeypatch.setattr(campaigns, "Space", few_factors)
    monkeypatch.chdir(tmp_path)
    return judge


LAYOUT = ("--layout", "softmax=learnable tp=2")


def test_deviation_exits_with_1_and_names_it(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--mcore", "0.19.2", *LAYOUT]) == ExitStatus.BAD
    printed = capsys.readouterr().out
    assert printed.startswith("DEVIATES in 0.19.2: softmax=learnable tp=2 (seed 1)")
    assert "norm deviates by 0.001" in printed


def test_equal_layout_exits_with_0(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--mcore", "0.19.2", "--layout", "dp=2"]) == ExitStatus.GOOD
    assert capsys.readouterr().out.startswith("EQUAL: dp=2")


@pytest.mark.parametrize(
    ("releases", "outcomes", "status"),
    [
        (["0.19.2"], {"dp=2": EQUAL, "tp=2": EQUAL}, ExitStatus.GOOD),
        (["0.19.2"], {"dp=2": EQUAL, "tp=2": REFUSED}, ExitStatus.NOTHING),
        (["0.19.2"], {"dp=2": EQUAL}, ExitStatus.NOTHING),  # the judging process ended
        (["0.14.0", "0.19.2"], {"dp=2": EQUAL, "tp=2": EQUAL}, ExitStatus.GOOD),
        (["0.19.2"], {"dp=2": REFUSED, "tp=2": DEVIATES}, ExitStatus.BAD),
    ],
)
def test_each_named_layout_needs_an_answer(releases: list[str], outcomes: dict[str, str], status: ExitStatus) -> None:
    """A release that lacks an option refuses; another one may have an answer."""
    points = [Point.parse(text) for text in ("dp=2", "tp=2")]
    rows = tuple(PointResult(Point.parse(text), 1, outcome) for text, outcome in outcomes.items())
    lacks = tuple(PointResult(point, 1, outcome) for point, outcome in zip(points, (EQUAL, REFUSED), strict=True))
    asked = {"0.19.2": rows, "0.14.0": lacks}
    assert status_of([CoreResult(name, "torch", asked=asked[name]) for name in releases], points) == status


def test_search_is_of_the_given_choices(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    given = Point.parse("dp=2")
    main(["parity", "--mcore", "0.19.2", "--seconds", "1", "--unaided", "--given", str(given)])
    assert planted.asked[0] == (given, 1)
    assert main(["parity", "--given", "tp=4 pp=4"]) == ExitStatus.MISTAKE
    assert "at most 4 processes" in capsys.readouterr().err


def test_refused_layout_exits_with_3(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--mcore", "0.19.2", "--layout", "recompute=full"]) == ExitStatus.NOTHING
    assert "no such package" in capsys.readouterr().out


@pytest.mark.parametrize("layout", ["pp=4", "tp=3", "sequence_parallel=on", "tp"])
def test_impossible_layout_exits_with_2(planted: Planted, capsys: pytest.CaptureFixture[str], layout: str) -> None:
    assert main(["parity", "--layout", layout]) == ExitStatus.MISTAKE
    assert "expected" in capsys.readouterr().err
    assert not planted.asked


def test_search_prints_json(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["parity", "--mcore", "0.18.2", "--mcore", "0.19.2", "--json", "--seed", "5", "--unaided"])
        == ExitStatus.BAD
    )
    items = items_of(capsys.readouterr().out, "parity")
    assert [item["core"] for item in items] == ["0.18.2", "0.19.2"]
    for item in items:
        (cause,) = [cause for cause in item["causes"] if cause["outcome"] == "deviates"]
        assert (cause["layout"], cause["certainty"]) == (str(SINKS), "confirmed")
        assert cause["deviations"][0]["quantity"] == NORM.quantity


def test_newest_release_is_the_default(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    releases = [release.version for release in loading.load().megatron_core]
    main(["parity", "--layout", "tp=2", "--json"])
    assert [item["core"] for item in items_of(capsys.readouterr().out, "parity")] == releases[-1:]
    main(["parity", "--mcore", "all", "--layout", "tp=2", "--json"])
    assert [item["core"] for item in items_of(capsys.readouterr().out, "parity")] == releases


def test_modules_are_those_of_te(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    main(["parity", "--mcore", "0.19.2", "--te", "2.18.0", *LAYOUT])
    assert "modules=te softmax=learnable tp=2" in capsys.readouterr().out
    assert main(["parity", "--layout", "modules=te tp=2"]) == ExitStatus.MISTAKE
    assert "--te" in capsys.readouterr().err


def test_folder_of_a_fork_is_a_core(planted: Planted, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["parity", "--consumer", str(tmp_path), "--layout", "tp=2", "--json"])
    assert [item["core"] for item in items_of(capsys.readouterr().out, "parity")] == [str(tmp_path)]


def test_core_that_does_not_exist_is_invalid_input(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--mcore", "no-such-core", "--layout", "tp=2"]) == ExitStatus.MISTAKE
    assert not planted.asked


ROW = PointResult(SINKS, 1, DEVIATES, (NORM, replace(LOSS, size=math.inf, ratio=None)), largest=0.5)
BREAK = Cause(SINKS, Certainty.CONFIRMED, ROW)
REFUSED_CAUSE = Cause(REFUSAL, Certainty.REFUSED, PointResult(REFUSAL, 1, REFUSED, text="ImportError: no"))


def text(lines: Any) -> list[str]:
    return [line.text if isinstance(line, Prose) else str(line) for line in lines]


def test_search_states_its_verdict_first() -> None:
    printed = text(search_lines(7, [CoreResult("0.19.2", "torch-2.15.0", (BREAK, REFUSED_CAUSE), 20, 9)], {}))
    assert printed[0] == "DEVIATES: 1 cause (9 layouts equal, 20 comparisons, 1 cores, seed 7)"
    assert "megatron-core 0.19.2  confirmed: softmax=learnable tp=2" in printed
    assert any("norm deviates by 0.001, 0.999 times the expected, in step 1 on rank 0" in line for line in printed)
    assert any("--softmax-type learnable" in line for line in printed)
    assert "1 combinations refused by upstream" in printed[-1]
    assert not any("recompute" in line for line in printed)


def test_suspicion_is_no_break() -> None:
    cause = replace(BREAK, certainty=Certainty.SUSPECTED)
    printed = text(search_lines(7, [CoreResult("0.19.2", "torch-2.15.0", (cause,), 20, 9)], {}))
    assert printed[0].startswith("EQUAL")
    assert any("suspected" in line for line in printed)


def test_search_without_a_comparison_decides_nothing() -> None:
    assert text(search_lines(7, [CoreResult("0.19.2", "torch-2.15.0")], {}))[0].startswith("NOTHING DECIDED")


def test_known_cause_names_its_entry() -> None:
    cause = replace(BREAK, certainty=Certainty.KNOWN, entry="sinks tp2")
    printed = text(search_lines(7, [CoreResult("0.19.2", "torch-2.15.0", (cause,), 20, 9)], {}))
    assert "megatron-core 0.19.2  known as sinks tp2: softmax=learnable tp=2" in printed


def test_layout_names_its_releases() -> None:
    rows = [
        CoreResult("0.14.0", "torch", asked=(PointResult(SINKS, 1, REFUSED, text="no such option"),)),
        CoreResult("0.15.0", "torch", asked=(ROW,)),
        CoreResult("0.16.0", "torch", asked=(ROW,)),
        CoreResult("0.20.0", "torch", asked=(PointResult(SINKS, 1, EQUAL, largest=1e-15),)),
    ]
    printed = text(layout_lines([SINKS], 3, rows, {"MEGATRIX_COMMAND": "tox run -e megatrix --"}))
    assert printed[0] == "DEVIATES in 0.15.0 .. 0.16.0: softmax=learnable tp=2 (seed 3)"
    assert {"  megatron-core 0.20.0: equal, 1e-15 at most", "  megatron-core 0.14.0: refused"} <= {*printed}
    assert any(line.strip().startswith("tox run -e megatrix -- parity --mcore 0.15.0") for line in printed)


def test_reproduce_line_is_read_back() -> None:
    words = shlex.split(command_line(CoreResult("./my fork", "", te="./TE@v2"), replace(ROW, seed=7), {}))
    assert words[:6] == ["megatrix", "parity", "--mcore", "./my fork", "--te", "./TE@v2"]
    assert words[words.index("--layout") + 1] == "modules=local softmax=learnable tp=2"
    assert possible(words[words.index("--layout") + 1], "./TE@v2") == SINKS
    assert words[-2:] == ["--seed", "7"]


def test_reproduce_line_of_a_card_names_it() -> None:
    result = CoreResult("0.19.2", "host", te="2.18.0", device="cuda")
    lines = [command_line(result, replace(ROW, dtype=dtype), {}) for dtype in ("bfloat16", "float32")]
    assert [line.partition("--seed 1 ")[2] for line in lines] == ["--device cuda", "--device cuda --dtype float32"]


@pytest.mark.parametrize(
    ("options", "dtype", "te", "cores"),
    [
        ((), "float64", "", []),
        (("--dtype", "bfloat16"), "bfloat16", "", []),
        (("--device", "cuda"), "bfloat16", "own transformer-engine", ["own megatron-core"]),
        (("--device", "cuda", "--dtype", "float32", "--te", "2.8"), "float32", "2.8", ["own megatron-core"]),
        (("--device", "cuda", "--mcore", "0.18.2"), "bfloat16", "own transformer-engine", ["0.18.2"]),
        (("--device", "cuda", "--dtype", "float64"), "", "", []),
        (("--dtype", "float32"), "", "", []),
        (("--layout", "tp=2", "--given", "dp=2"), "", "", []),
        (("--mps",), "", "", []),
        (("--layout", ""), "", "", []),
        (("--seed", "9" * 20), "", "", []),
        (("--te", "1.9.0"), "", "", []),
        (("--te", "latest"), "", "", []),
        (("--te", "2.1"), "float64", "2.1", []),
        (("--seconds", "nan"), "", "", []),
        (("--seconds", "0"), "", "", []),
        (("--device", "cuda", "--entry", "sinks", "--layout", "tp=2"), "", "", []),
    ],
)
def test_what_a_device_leaves_open_is_its_own(
    options: tuple[str, ...], dtype: str, te: str, cores: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the option is refused."""
    monkeypatch.setattr(card, "own", lambda package: f"own {package}")
    parsed = parser(["parity"]).parse_args(["parity", *options])
    if not dtype:
        with pytest.raises(MatrixError):
            completed(parsed)
        return
    parsed = completed(parsed)
    assert (parsed.dtype, parsed.te, parsed.mcore) == (dtype, te, cores)


def test_layout_may_name_megatron_s_own_modules() -> None:
    assert str(possible("modules=local tp=2", "2.18.0")) == "tp=2"
    assert str(possible("tp=2", "2.18.0")) == "modules=te tp=2"


def test_json_has_the_published_schema() -> None:
    result = CoreResult("0.19.2", "torch-2.15.0", (BREAK, REFUSED_CAUSE), 20, 9, 3, asked=(ROW,), seconds=1.25)
    (item,) = items_of(json_object("parity/1", [core_json(result, {})]), "parity")
    assert item["deviates"] is True
    assert item["causes"][0]["deviations"][1]["size"] is None
    assert json.loads(json.dumps(item)) == item
