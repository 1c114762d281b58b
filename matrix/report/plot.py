"""A law that a case measured, as a picture: bytes over tokens, the points of the run, the fitted curve, a host.

A rank tells of one by its value: {"points": [[tokens, bytes], ...], "factor": bytes per tokens^2, "host": bytes}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isqrt, log2
from typing import Any, Final

from matrix.check.memory import shown
from matrix.report.markup import escape
from matrix.verdicts.record import Record

WIDTH, HEIGHT = 760, 400  # of the picture, in its own units
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 16, 44  # margins
TOKENS: Final = (2**11, 2**18)  # from 2k to 256k
BYTES: Final = (2**25, 2**40)  # from 32 MiB to 1 TiB
MARKED: Final = {2**16: "64k", 2**17: "128k"}
# Processes that load at once on a host of 8 GPUs with Megatron-LM's two workers per rank.
LOADERS: Final = (1, 16)


@dataclass(frozen=True)
class Law:
    """bytes = factor * tokens^2, fitted to `points` (tokens, bytes, who); `host` is its memory, 0 = unknown."""

    points: tuple[tuple[int, int, str], ...]
    factor: float
    host: int

    def at(self, tokens: int) -> float:
        """Return the bytes at a length."""
        return self.factor * tokens**2

    def longest(self, bytes_: float) -> int:
        """Return the length that takes so much."""
        return isqrt(int(bytes_ / self.factor))


def law_of(records: Iterable[Record]) -> Law | None:
    """Return the law that ranks measured, None when none did. Journals come from outside: what is no law is left."""
    points: list[tuple[int, int, str]] = []
    host = 0
    for record in records:
        for value in (rank.value for rank in record.outcome.ranks if isinstance(rank.value, dict)):
            told = value.get("points")
            who = f"{record.case}, mcore {record.cell.mcore} on {record.cell.base}"
            points += [(*point, who) for point in map(_point, told if isinstance(told, list) else ()) if point]
            host = value["host"] if _natural(value.get("host")) else host
    if not points:
        return None
    # least squares of bytes = factor * tokens^2
    factor = sum(tokens**2 * bytes_ for tokens, bytes_, _ in points) / sum(tokens**4 for tokens, _, _ in points)
    return Law(tuple(points), factor, host)


def _point(value: Any) -> tuple[int, int] | None:
    if isinstance(value, list) and len(value) == 2 and all(map(_natural, value)):
        return value[0], value[1]
    return None


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63


def plot(law: Law) -> str:
    """Return the picture and, below it, its figures as text."""
    x = _scale(TOKENS, LEFT, WIDTH - RIGHT)
    y = _scale(BYTES, HEIGHT - BOTTOM, TOP)
    told = f"{law.factor:.3f} * S^2 bytes; at 131072 tokens {shown(law.at(2**17))}, predicted, never allocated"
    hosts = [(loaders, law.host / loaders) for loaders in LOADERS if law.host]
    parts = [
        *(_line(x(TOKENS[0]), y(2**n), x(TOKENS[1]), y(2**n), "grid") for n in range(25, 41, 5)),
        *(_text(LEFT - 8, y(2**n) + 4, shown(2**n), "end") for n in range(25, 41, 5)),
        *(_text(x(2**n), HEIGHT - BOTTOM + 18, f"{2**n // 1024}k", "middle") for n in range(11, 19)),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "sequence length in tokens", "middle"),
        *(_line(x(tokens), TOP, x(tokens), HEIGHT - BOTTOM, "marked") for tokens in MARKED),
        *(
            _text(x(tokens) - 6, y(law.at(tokens)) - 8, f"{name}: {shown(law.at(tokens))}", "end")
            for tokens, name in MARKED.items()
        ),
        *(_line(LEFT, y(share), WIDTH - RIGHT, y(share), "host") for _, share in hosts),
        *(_text(WIDTH - RIGHT, y(share) + 15, _short(law, loaders), "end") for loaders, share in hosts),
        _line(x(TOKENS[0]), y(law.at(TOKENS[0])), x(TOKENS[1]), y(law.at(TOKENS[1])), "curve"),
        *(_circle(x(tokens), y(bytes_), who) for tokens, bytes_, who in law.points),
    ]
    cases = len({who for _, _, who in law.points})
    return f"""<section class="card"><svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" \
aria-label="{escape(told)}">{"".join(parts)}</svg>
<p>Peak of one process that makes a sample: {escape(told)}.</p>
<p class="soft">Circles: measured, in {cases} cases of this run. The line is fitted to them.\
{"".join(f" {_host(law, loaders)}." for loaders, _ in hosts)} For another host: megatrix advise memory.</p>
</section>"""


def _short(law: Law, loaders: int) -> str:
    return f"this host{'' if loaders == 1 else f', a share of {loaders}'}: {shown(law.host / loaders)}"


def _host(law: Law, loaders: int) -> str:
    share = law.host / loaders
    who = "one process" if loaders == 1 else f"each of {loaders} processes"
    return f"This host, {shown(law.host)}: {who} may make {law.longest(share)} tokens"


def _scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """Return the place of a value between `start` and `end`, logarithmic, held inside."""
    low, high = map(log2, values)
    return lambda value: round(start + (end - start) * min(max((log2(value) - low) / (high - low), 0), 1), 1)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _circle(x: float, y: float, who: str) -> str:
    return f'<circle cx="{x}" cy="{y}" r="4"><title>{escape(who)}</title></circle>'
