"""A chart of the measured law: bytes over tokens, the points of the run, the fitted curve, the host's memory.

A rank that measured returns {"points": [[tokens, bytes], ...], "host": bytes}.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isqrt
from typing import Any, Final

from matrix.kit.svg import escape, figure, label, line, log_scale, point

from .memory import shown

WIDTH, HEIGHT = 760, 400  # of the picture, in its own units
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 16, 44  # margins
TOKENS: Final = (2**11, 2**18)  # from 2k to 256k
BYTES: Final = (2**25, 2**40)  # from 32 MiB to 1 TiB
MARKED: Final = {2**16: "64k", 2**17: "128k"}
# Processes that load at once on a host of 8 GPUs with Megatron-LM's two workers per rank.
LOADERS: Final = (1, 16)


@dataclass(frozen=True)
class Law:
    """bytes = factor * tokens^2, fitted to `points` (tokens, bytes, case); `host` is its memory, 0 = unknown."""

    points: tuple[tuple[int, int, str], ...]
    factor: float
    host: int

    def at(self, tokens: int) -> float:
        """Return the bytes at a length."""
        return self.factor * tokens**2

    def longest(self, bytes_: float) -> int:
        """Return the length that takes `bytes_`."""
        return isqrt(int(bytes_ / self.factor))


def picture(values: Iterable[tuple[str, Any]]) -> str:
    """Return the chart for the failure's page, "" where no case measured."""
    law = law_of(values)
    return f"<h2>The law that was measured</h2>{plot(law)}" if law else ""


def law_of(values: Iterable[tuple[str, Any]]) -> Law | None:
    """Return the law that ranks measured, None when none did. Values are untrusted: malformed ones are left out."""
    points: list[tuple[int, int, str]] = []
    host = 0
    for case, value in values:
        if isinstance(value, dict):
            measured = value.get("points")
            found = map(_point, measured if isinstance(measured, list) else ())
            points += [(*one, case) for one in found if one]
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
    """Return the chart and, below it, its figures as text."""
    x = log_scale(*TOKENS, LEFT, WIDTH - RIGHT)
    y = log_scale(*BYTES, HEIGHT - BOTTOM, TOP)
    text = f"{law.factor:.3f} * S^2 bytes; at 131072 tokens {shown(law.at(2**17))}, predicted, never allocated"
    hosts = [(loaders, law.host / loaders) for loaders in LOADERS if law.host]
    parts = [
        *(line(x(TOKENS[0]), y(2**n), x(TOKENS[1]), y(2**n), "grid") for n in range(25, 41, 5)),
        *(label(LEFT - 8, y(2**n) + 4, shown(2**n), "end") for n in range(25, 41, 5)),
        *(label(x(2**n), HEIGHT - BOTTOM + 18, f"{2**n // 1024}k", "middle") for n in range(11, 19)),
        label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "sequence length in tokens", "middle"),
        *(line(x(tokens), TOP, x(tokens), HEIGHT - BOTTOM, "marked") for tokens in MARKED),
        *(
            label(x(tokens) - 6, y(law.at(tokens)) - 8, f"{name}: {shown(law.at(tokens))}", "end")
            for tokens, name in MARKED.items()
        ),
        *(line(LEFT, y(share), WIDTH - RIGHT, y(share), "host") for _, share in hosts),
        *(label(WIDTH - RIGHT, y(share) + 15, _short(law, loaders), "end") for loaders, share in hosts),
        line(x(TOKENS[0]), y(law.at(TOKENS[0])), x(TOKENS[1]), y(law.at(TOKENS[1])), "curve"),
        *(point(x(tokens), y(bytes_), case) for tokens, bytes_, case in law.points),
    ]
    cases = len({case for _, _, case in law.points})
    return f"""<section class="card">{figure(WIDTH, HEIGHT, text, parts)}
<p>Peak of one process that makes a sample: {escape(text)}.</p>
<p class="soft">Circles: measured, in {cases} cases of this run. The line is fitted to them.\
{"".join(f" {_host(law, loaders)}." for loaders, _ in hosts)} For another host: megatrix check --seq-length N.</p>
</section>"""


def _short(law: Law, loaders: int) -> str:
    return f"this host{'' if loaders == 1 else f', a share of {loaders}'}: {shown(law.host / loaders)}"


def _host(law: Law, loaders: int) -> str:
    share = law.host / loaders
    who = "one process" if loaders == 1 else f"each of {loaders} processes"
    return f"This host, {shown(law.host)}: {who} may make {law.longest(share)} tokens"
