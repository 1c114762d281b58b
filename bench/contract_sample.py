"""Draw `definite` findings for manual confirmation, to estimate the precision of the contract level.

    python bench/contract_sample.py [--seed N] [--size 24] [--consumer transformer-engine --provider torch]

There are two draws over all released pairs. The first draws findings with equal probability, which estimates the share
of true lines in the whole table. In it, one wrong kind of finding repeats over hundreds of pairs, and a rare one may
not occur. So the second draws kinds of break (callee, calling function, message) with equal probability, and one
finding of each. The printed seed reproduces the sample from the same recorded releases. docs/contract.md has a sample
and its confirmation.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import product

from matrix.contract.finding import Finding, FindingKind, find
from matrix.contract.provider import Provider, provider_of
from matrix.contract.recording import MCORE, TE, recorded_calls, recorded_consumers, recorded_surface, recorded_surfaces
from matrix.contract.relevance import relevance

SIZE = 24  # findings per draw; at least 20 are required


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--size", type=int, default=SIZE, help="findings per draw")
    parser.add_argument("--consumer", default=MCORE)
    parser.add_argument("--provider", default=TE)
    parser.add_argument("--shown", action="store_true", help="only what check shows: neither masked nor intended")
    options = parser.parse_args()
    found = definite(options.consumer, provider_of(options.provider), shown=options.shown)
    classes: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for one in found:
        classes[one.callee, one.call_site.function, one.message].append(one)
    drawn = random.Random(options.seed)
    print(f"seed {options.seed}; {len(found)} definite findings in {len(classes)} kinds of break")
    show("findings, drawn with equal probability", drawn.sample(found, min(options.size, len(found))))
    kinds = drawn.sample(list(classes.values()), min(options.size, len(classes)))
    show("kinds of break, drawn with equal probability", [drawn.choice(same) for same in kinds])


def definite(consumer: str, provider: Provider, *, shown: bool) -> list[Finding]:
    """Return the definite findings of all released pairs."""
    consumers = [recorded_calls(provider, version, consumer) for version in recorded_consumers(provider, consumer)]
    offers = [recorded_surface(provider, version) for version in recorded_surfaces(provider)]
    pairs = (find(calls, surface) for calls, surface in product(consumers, offers))
    found = (one for every in pairs for one in (relevance().judged(every) if shown else every))
    return [one for one in found if one.kind is FindingKind.DEFINITE and not (shown and one.masked)]


def show(title: str, sample: Sequence[Finding]) -> None:
    """Print a sample."""
    print(f"\n{title}: {len(sample)}\n")
    for number, one in enumerate(sample, 1):
        (consumer, provider) = one.packages
        print(f"{number:2}  {consumer} {one.consumer} x {provider} {one.provider}: {one.callee}")
        print(f"    {one.message}")
        print(f"    at {one.call_site}" + (f", where {one.guard}" if one.guard else ""))
        if one.signature:
            print(f"    signature {one.signature}")


if __name__ == "__main__":
    main()
