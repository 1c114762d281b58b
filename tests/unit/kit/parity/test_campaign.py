"""Lines of points, and lines of answers."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.errors import MatrixError
from matrix.kit.parity import campaign, forked_ranks, layout_step
from matrix.kit.parity.campaign import Comparisons, ParityAnswer, ParityTask
from matrix.kit.parity.factors import CARD, DTYPES, Deviation, Point
from matrix.kit.parity.shards import Draw
from matrix.kit.parity.tiny_model import Device
from matrix.kit.rank import Rank
from matrix.read.machine import cuda


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

    def measure(point: Point, draws: list[Draw], deadline_s: float, device: Device) -> ParityAnswer:
        measured.append((str(point), draws[0].seed, len(draws)))
        return ParityAnswer("refused", text="no")

    monkeypatch.setattr(campaign, "measure", measure)
    comparisons = Comparisons()
    for text, seed in (("tp=2 untied=on", 1), ("pp=2 untied=on", 1), ("pp=2 untied=on", 2)):
        assert comparisons.judge(ParityTask(Point.parse(text), seed)).outcome == "refused"
    assert measured == [("untied=on", 1, 1), ("untied=on", 2, 1)]
    assert comparisons.judge(ParityTask(Point(), dtype="bfloat16")).outcome == "refused"
    assert measured[-1] == ("layers=2", 1, 9)  # one, and eight with moved weights


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
    monkeypatch.setattr(campaign, "forked", lambda *_: failures)
    answer = Comparisons(CARD).judge(ParityTask(Point(), dtype="bfloat16"))
    assert (answer.outcome, answer.text.startswith(expected)) == ("card", True)


@pytest.mark.parametrize("started", [False, True])
def test_ranks_import_anew_where_cuda_started(started: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CUDA does not work in a fork of a process that has started it."""
    bodies: list[Any] = []
    monkeypatch.setattr(cuda, "initialised", lambda: started)
    monkeypatch.setattr(forked_ranks, "run", lambda size, body, *_: bodies.append(body))
    leg, device = Point.parse("tp=2").legs[0], campaign.DEVICES[CARD]["bfloat16"]
    campaign.forked(leg, [Draw(1)], tmp_path, 1.0, device)
    assert bodies[0].func is (campaign.start_anew if started else campaign.save_numbers)
    called: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *words: called.append(words))
    if started:
        bodies[0](3)
        assert called == [(sys.executable, [*sys.orig_argv, str(tmp_path), "3"])]
        assert pickle.loads((tmp_path / campaign.TASK).read_bytes()).args == (leg, [Draw(1)], tmp_path, device)


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
