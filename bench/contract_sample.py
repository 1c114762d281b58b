"""Draw `definite` findings to be confirmed by hand: how far can the contract level be trusted?

    python bench/contract_sample.py [--seed N] [--size 24]

Two draws over all released pairs. One takes findings, each with the same chance: what share of the lines that a reader
of the whole table meets is true. One wrong reading would repeat over hundreds of pairs there, and a rare one not show,
so the other takes kinds of break (callee, calling function, message), each with the same chance, and one finding of
each. The seed is printed, and draws the same sample again from the same recorded releases. docs/contract.md has a
sample with what reading both sides made of it.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import product

from matrix.contract.finding import Finding, FindingKind, find
from matrix.contract.recording import MCORE, TE, load_calls, load_surface, released

SIZE = 24  # of each draw; 20 are asked for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--size", type=int, default=SIZE, help="of each draw")
    asked = parser.parse_args()
    found = definite()
    classes: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for one in found:
        classes[one.callee, one.call_site.function, one.message].append(one)
    drawn = random.Random(asked.seed)
    print(f"seed {asked.seed}; {len(found)} definite findings in {len(classes)} kinds of break")
    show("findings, each with the same chance", drawn.sample(found, min(asked.size, len(found))))
    kinds = drawn.sample(list(classes.values()), min(asked.size, len(classes)))
    show("kinds of break, each with the same chance", [drawn.choice(same) for same in kinds])


def definite() -> list[Finding]:
    """Return the definite findings of all released pairs."""
    consumers = [load_calls(version) for version in released(MCORE)]
    offers = [load_surface(version) for version in released(TE)]
    found = (one for calls, surface in product(consumers, offers) for one in find(calls, surface))
    return [one for one in found if one.kind is FindingKind.DEFINITE]


def show(title: str, sample: Sequence[Finding]) -> None:
    """Print a sample."""
    print(f"\n{title}: {len(sample)}\n")
    for number, one in enumerate(sample, 1):
        print(f"{number:2}  megatron-core {one.mcore} x Transformer Engine {one.te}: {one.callee}")
        print(f"    {one.message}")
        print(f"    at {one.call_site}" + (f", where {one.guard}" if one.guard else ""))
        if one.signature:
            print(f"    signature {one.signature}")


if __name__ == "__main__":
    main()
