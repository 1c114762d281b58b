"""Elements of a chart, with untrusted text."""

from __future__ import annotations

from matrix.kit import svg

HOSTILE = '"><script>\x1b[0m'


def test_every_text_is_escaped() -> None:
    parts = [svg.line(0, 0, 1, 1, HOSTILE), svg.label(0, 0, HOSTILE, HOSTILE), svg.point(0, 0, HOSTILE)]
    picture = svg.figure(10, 10, HOSTILE, parts)
    assert "<script" not in picture
    assert "\x1b" not in picture


def test_scale_is_logarithmic_and_clamped() -> None:
    position = svg.log_scale(1, 16, 0, 100)
    assert [position(value) for value in (1, 4, 16)] == [0, 50, 100]
    assert (position(0.5), position(64)) == (0, 100)
