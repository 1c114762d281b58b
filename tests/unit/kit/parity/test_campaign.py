"""Lines of points, and lines of answers."""

from __future__ import annotations

import io
import json
import os
import sys
import types
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.errors import MatrixError
from matrix.kit.parity import campaign, forked_ranks, layout_step, tiny_model
from matrix.kit.parity.campaign import Comparisons, ParityAnswer, ParityTask
from matrix.kit.parity.factors import CARD, DTYPES, Deviation, Difference, Point, Tolerance
from matrix.kit.parity.shards import Draw
from matrix.kit.parity.tiny_model import Device
from matrix.kit.rank import Rank
from matrix.read.machine import cuda


@pytest.mark.parametrize(
    ("module", "widened"),
    [
        ("distributed.distributed_data_parallel", True),
        ("distributed.param_and_grad_buffer", True),
        ("optimizer.distrib_optimizer", True),
        ("distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer", False),
        ("distributed.custom_fsdp.param_and_grad_buffer", False),  # before 0.14
    ],
)
def test_buffers_of_megatron_fsdp_are_not_of_fp8(monkeypatch: pytest.MonkeyPatch, module: str, widened: bool) -> None:
    upstream, torch = types.ModuleType(module), types.ModuleType("torch")
    upstream.torch = torch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"megatron.core.{module}", upstream)
    monkeypatch.setattr(campaign, "install_float64_device", lambda: None)
    monkeypatch.setattr(tiny_model, "preload", lambda: None)
    monkeypatch.setattr(os, "environ", {**os.environ})
    campaign.prepare({})
    assert (upstream.torch is not torch) == widened


def test_line_may_be_text_or_values() -> None:
    texts = ('{"point": "tp=2", "seed": 3}', '{"point": {"tp": 2}, "seed": 3}')
    assert [ParityTask.read(text) for text in texts] == [ParityTask(Point.of({"tp": 2}), 3)] * 2


def test_unknown_factor_is_refused() -> None:
    with pytest.raises(MatrixError):
        ParityTask.read('{"point": "heads=2"}')


def test_every_line_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    deviation = Deviation("norm", "", 0, 0.5, 1.5, (0,))
    answers = {"tp=2": ParityAnswer("deviates", (deviation,)), "layers=2": ParityAnswer("equal")}
    monkeypatch.setattr(Comparisons, "judge", lambda self, task: answers[str(task.point)])
    output = io.StringIO()
    campaign.serve(io.StringIO('{"point": "tp=2", "seed": 5}\n\n{"point": {}}\n'), output)
    first, second = map(json.loads, output.getvalue().splitlines())
    assert (first["point"], first["seed"], first["outcome"]) == ({"tp": 2}, 5, "deviates")
    assert first["deviations"] == [
        {"quantity": "norm", "parameter": "", "step": 0, "size": 0.5, "ratio": 1.5, "ranks": [0]}
    ]
    assert (second["point"], second["outcome"], second["deviations"]) == ({}, "equal", [])
    assert second["seconds"] >= 0


def test_reference_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not run is not run again for another layout of the same model."""
    measured: list[Any] = []

    def measure(point: Point, draws: list[Draw], deadline_s: float, device: Device, run: Any) -> ParityAnswer:
        measured.append((str(point), draws[0].seed, len(draws)))
        return ParityAnswer("refused", text="no")

    monkeypatch.setattr(campaign, "measure", measure)
    comparisons = Comparisons()
    for text, seed in (("tp=2 untied=on", 1), ("pp=2 untied=on", 1), ("pp=2 untied=on", 2)):
        assert comparisons.judge(ParityTask(Point.parse(text), seed)).outcome == "refused"
    assert measured == [("untied=on", 1, 1), ("untied=on", 2, 1)]
    assert comparisons.judge(ParityTask(Point(), dtype="bfloat16")).outcome == "refused"
    assert measured[-1] == ("layers=2", 1, 9)  # one, and eight with moved weights


@pytest.mark.parametrize(("dtype", "trains"), [("float64", False), ("mixed", True), ("bfloat16", True)])
def test_parameters_in_fp8_need_main_weights(dtype: str, trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "measure", lambda *_: ParityAnswer("memory"))
    point = Point.parse("modules=te fp8=delayed optimizer=adam distributed_optimizer=on fp8_params=on")
    assert (Comparisons().judge(ParityTask(point, dtype=dtype)).outcome == "memory") is trains


@pytest.mark.parametrize(
    ("origin", "outcome"),
    [
        ("upstream", "refused"),
        ("memory", "memory"),
        ("timeout", "timeout"),
        ("killed", "harness"),
        ("transport", "harness"),
        ("harness", "harness"),
    ],
)
def test_layout_without_numbers_is_no_verdict(
    origin: str, outcome: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failure = forked_ranks.RankFailure(0, origin, "why", "where")
    monkeypatch.setattr(campaign, "forked", lambda *_: [failure])
    assert Comparisons().judge(ParityTask(Point())) == ParityAnswer(outcome, text="why", trace="where")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DistBackendError: NCCL error: Duplicate GPU detected", "NCCL refuses two ranks on one GPU"),
        ("AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "the GPU takes no second"),
        ("RuntimeError: CUDA error: MPS client failed to connect to the MPS control daemon", "the daemon of MPS ended"),
    ],
)
def test_what_a_card_refuses_has_its_remedy(text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever rank raises it."""
    failures = [forked_ranks.RankFailure(1, "transport", "peer"), forked_ranks.RankFailure(0, "transport", text)]
    monkeypatch.setattr(campaign.LegRunner, "__call__", lambda *_: failures)
    answer = Comparisons(CARD).judge(ParityTask(Point(), dtype="bfloat16"))
    assert (answer.outcome, answer.text.startswith(expected)) == ("card", True)


@dataclass
class Ranks:
    """In place of forked ranks: `become` is what they were forked for, `failing` whether they fail."""

    size: int
    become: Any
    failing: bool = False
    home: Path = Path("home")
    bodies: int = 0
    ended: bool = False

    def run(self, body: Any, folder: Path, deadline_s: float) -> list[forked_ranks.RankFailure]:
        self.bodies += 1
        self.ended = self.failing
        assert body.func is campaign.train_and_stay
        return [forked_ranks.RankFailure(0, "upstream", "no")] * self.failing

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Ranks]:
    """Return the sets of ranks that are forked."""
    ranks: list[Ranks] = []

    def forked(size: int, become: Any) -> Ranks:
        ranks.append(Ranks(size, become))
        return ranks[-1]

    monkeypatch.setattr(forked_ranks.Ranks, "forked", forked)
    return ranks


def run_leg(run: campaign.LegRunner, layout: str) -> bool:
    """Return whether ranks that ran a leg on a card failed."""
    return bool(run(Point.parse(layout).legs[0], [Draw(1)], Path(), 1.0, campaign.DEVICES[CARD]["bfloat16"]))


def test_ranks_of_a_card_live_on(made: list[Ranks]) -> None:
    """Those of each number; only `fresh` ends them, and a failure."""
    sets: Any = {}
    lived = []
    for layout, fresh in (("tp=2", False), ("layers=2", False), ("dp=2", False), ("cp=2", True), ("pp=2", False)):
        run = campaign.LegRunner(sets, fresh=fresh)
        assert not run_leg(run, layout)
        lived.append(run.lived)
    assert lived == [False, False, True, False, True]
    assert [(ranks.size, ranks.bodies, ranks.ended) for ranks in made] == [(2, 2, True), (1, 1, False), (2, 2, False)]
    made[-1].failing = True
    assert run_leg(campaign.LegRunner(sets), "tp=2")
    assert sets == {1: made[1]}
    comparisons = Comparisons(CARD, sets=sets)
    comparisons.close()
    assert made[1].ended


@pytest.mark.parametrize("started", [False, True])
def test_ranks_import_anew_where_cuda_started(
    started: bool, made: list[Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA does not work in a fork of a process that has started it."""
    monkeypatch.setattr(cuda, "initialised", lambda: started)
    run_leg(campaign.LegRunner({}), "tp=2")
    assert made[0].become is (campaign.start_anew if started else forked_ranks.serve)


def test_rank_that_imports_anew_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new interpreter has the connection of the fork."""
    called: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *words: called.append(words))
    with Pipe()[1] as connection:
        campaign.start_anew(3, connection)
        assert called == [(sys.executable, [*sys.orig_argv, "3", str(connection.fileno())])]
        assert os.get_inheritable(connection.fileno())


@pytest.mark.parametrize(("outcome", "lived", "taken"), [("equal", True, True), ("deviates", True, False)])
def test_ranks_that_lived_show_equality_alone(outcome: str, lived: bool, taken: bool) -> None:
    assert campaign.is_taken(ParityAnswer(outcome), lived) is taken
    assert campaign.is_taken(ParityAnswer(outcome), False)


def test_what_is_not_equal_is_judged_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its reference, where ranks that had lived measured that; the second answer counts."""
    measured: list[tuple[str, bool]] = []

    def measure(point: Point, draws: list[Draw], deadline_s: float, device: Device, run: Any) -> ParityAnswer:
        run.lived = not run.fresh and bool(measured)
        measured.append((str(point), run.fresh))
        return ParityAnswer("refused", text=f"number {len(measured)}")

    monkeypatch.setattr(campaign, "measure", measure)
    comparisons = Comparisons(CARD)
    answers = [
        comparisons.judge(ParityTask(Point.parse(text), dtype="bfloat16")).text
        for text in ("tp=2", "tp=2 layers=4", "dp=2 layers=4")
    ]
    assert answers == ["number 1", "number 3", "number 3"]
    assert measured == [("layers=2", False), ("layers=4", False), ("layers=4", True)]


@pytest.mark.parametrize(
    ("refuses", "lived", "runs"),
    [
        (False, "reference", 4),
        (False, "layout", 3),
        (True, "reference", 2),  # which does not decide whether the layout is refused
        (True, "layout", 3),
        (False, "", 2),
    ],
)
def test_lived_ranks_that_decide_are_replaced(
    refuses: bool, lived: str, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[bool] = []

    def measure(point: Point, draws: list[Draw], deadline_s: float, device: Device, run: Any) -> Any:
        layout = point != point.reference()
        run.lived |= not run.fresh and lived == ("layout" if layout else "reference")
        measured.append(run.fresh)
        return ParityAnswer("refused") if refuses and layout else [[()]]

    monkeypatch.setattr(campaign, "measure", measure)
    monkeypatch.setattr(campaign.ReferenceNumbers, "of", lambda *_: campaign.ReferenceNumbers(None, Tolerance()))
    deviation = Difference("loss", "", 0, 0, 1.0, 1.0, None)
    monkeypatch.setattr(layout_step, "differences", lambda *_: [deviation])
    answer = Comparisons(CARD).judge(ParityTask(Point.parse("tp=2"), dtype="bfloat16"))
    assert (answer.outcome, len(measured)) == ("refused" if refuses else "deviates", runs)


def test_every_dtype_of_a_device_is_known() -> None:
    assert {name: tuple(devices) for name, devices in campaign.DEVICES.items()} == DTYPES
    assert all(device.name == name for name, devices in campaign.DEVICES.items() for device in devices.values())
    assert all(device.moves for device in campaign.DEVICES[CARD].values())


@pytest.mark.parametrize(
    ("error", "outcome"), [(layout_step.HarnessError, "harness"), (layout_step.NoNumberError, "no number")]
)
def test_reference_that_shows_nothing_is_no_verdict(
    error: type[Exception], outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(device: Device, measured: Any) -> Any:
        raise error("why")

    monkeypatch.setattr(campaign, "measure", lambda *_: [])
    monkeypatch.setattr(campaign.ReferenceNumbers, "of", refuse)
    assert Comparisons().judge(ParityTask(Point())) == ParityAnswer(outcome, text="why")


def rank(size: int) -> Rank:
    return Rank(0, size, "cpu", "file:///nowhere", Path())


def test_message_names_quantity_parameter_ratio_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    deviations = tuple(Deviation("gradient", f"w{number}", 1, 0.5, 2.0, (0, 1)) for number in range(6))
    monkeypatch.setattr(campaign, "measured", lambda *_: deviations)
    with pytest.raises(campaign.ParityDeviation) as caught:
        campaign.deviation(rank(2), tp=2)
    text = str(caught.value)
    assert text.startswith("tp=2: gradient of w0 deviates by 0.5, 2 times the expected, in step 1 on rank 0, 1; ")
    assert text.endswith("; 6 in all")


def test_equal_layout_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "measured", lambda *_: ())
    campaign.deviation(rank(2), tp=2)


def test_other_number_of_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="tp=2 needs 2 ranks, the job has 4"):
        campaign.deviation(rank(4), tp=2)
