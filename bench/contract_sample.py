"""Draw findings for manual confirmation, to estimate the precision of the contract level.

    python bench/contract_sample.py [--seed N] [--parts core-te,core-torch,te-torch,other]

The sample has 100 findings in four parts: 40 definite ones of megatron-core and Transformer Engine, 20 of megatron-core
and torch, 20 of Transformer Engine and torch, and 20 of all three that raise nothing at the line (misbound, override,
ignored). A draw with equal probability repeats one wrong kind of finding over hundreds of pairs and misses a rare one.
So kinds of break (callee, calling function, message) are drawn first, then one finding of each; where there are fewer
kinds than findings, each kind comes again with another pair. Only what the command shows without --all is drawn. The
seed reproduces the sample from the same records. docs/contract_sample.md has a sample and its judgement.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from typing import Final

from matrix.contract.finding import Finding, FindingKind, find
from matrix.contract.pairs import released
from matrix.contract.provider import provider_of
from matrix.contract.recording import MCORE, TE, recorded_calls, recorded_consumers, recorded_surface, recorded_surfaces
from matrix.contract.relevance import is_yanked, relevance

DEFINITE: Final = (FindingKind.DEFINITE,)
OTHERS: Final = (FindingKind.MISBOUND, FindingKind.OVERRIDE, FindingKind.IGNORED)
PAIRS: Final = ((MCORE, TE), (MCORE, "torch"), (TE, "torch"))
PARTS: Final = {  # pairs of packages, kinds, findings
    "core-te": (PAIRS[:1], DEFINITE, 40),
    "core-torch": (PAIRS[1:2], DEFINITE, 20),
    "te-torch": (PAIRS[2:], DEFINITE, 20),
    "other": (PAIRS, OTHERS, 20),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--parts", default=",".join(PARTS), help="separated by commas")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    for part in options.parts.split(","):
        pairs, kinds, size = PARTS[part]
        findings = [finding for pair in pairs for finding in shown(*pair) if finding.kind in kinds]
        sample, classes = drawn(findings, size, random.Random(f"{options.seed} {part}"))
        print(f"\n{part}: {len(sample)} of {len(findings)} findings in {classes} kinds of break\n")
        show(sample)


def shown(consumer: str, package: str) -> list[Finding]:
    """Return the findings of all released pairs that nothing masks and that somebody may run."""
    provider = provider_of(package)
    versions = [text for text in recorded_consumers(provider, consumer) if not is_yanked(consumer, text)]
    consumers = [recorded_calls(provider, version, consumer) for version in versions]
    offers = [recorded_surface(provider, version) for version in recorded_surfaces(provider)]
    pairs = (relevance().judged(find(*pair, history=released(provider))) for pair in product(consumers, offers))
    return [finding for every in pairs for finding in every if not finding.masked and not finding.implausible]


def drawn(findings: Sequence[Finding], size: int, source: random.Random) -> tuple[list[Finding], int]:
    """Return the sample, and the number of kinds of break."""
    classes: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        classes[finding.callee, finding.call_site.function, finding.message].append(finding)
    stacks = [source.sample(same, len(same)) for same in source.sample(list(classes.values()), len(classes))]
    rounds = (stack[turn] for turn in range(size) for stack in stacks if turn < len(stack))
    return [finding for finding, _ in zip(rounds, range(size), strict=False)], len(classes)


def show(sample: Sequence[Finding]) -> None:
    """Print a sample."""
    for number, finding in enumerate(sample, 1):
        (consumer, provider) = finding.packages
        pair = f"{consumer} {finding.consumer} x {provider} {finding.provider}"
        print(f"{number:2}  {finding.kind.value}: {pair}: {finding.callee}")
        print(f"    {finding.message}")
        print(f"    at {finding.call_site}" + (f", where {finding.guard}" if finding.guard else ""))
        if finding.signature:
            print(f"    signature {finding.signature}")


if __name__ == "__main__":
    main()
