"""A point as the body of a job's ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.kit.parity import reproduce
from matrix.kit.parity.deviations import Deviation
from matrix.kit.rank import Rank


def rank(size: int) -> Rank:
    return Rank(0, size, "cpu", "file:///nowhere", Path())


def test_message_names_quantity_parameter_ratio_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    deviations = tuple(Deviation("gradient", f"w{number}", 1, 0.5, 2.0, (0, 1)) for number in range(6))
    monkeypatch.setattr(reproduce, "measured", lambda *_: deviations)
    with pytest.raises(reproduce.ParityDeviation) as caught:
        reproduce.deviation(rank(2), tp=2)
    text = str(caught.value)
    assert text.startswith("tp=2: gradient of w0 deviates by 0.5, 2 times the expected, in step 1 on rank 0, 1; ")
    assert text.endswith("; 6 in all")


def test_equal_layout_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "measured", lambda *_: ())
    reproduce.deviation(rank(2), tp=2)


def test_other_number_of_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="tp=2 needs 2 ranks, the job has 4"):
        reproduce.deviation(rank(4), tp=2)
