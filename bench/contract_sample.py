"""Draw findings for manual confirmation, to estimate the precision of the contract level.

    python bench/contract_sample.py [--seed N] [--parts core-te,core-torch,te-torch,other]
    python bench/contract_sample.py [--seed N] --project WHEEL_OR_FOLDER_OR_PATH@REV ... [--changed]

The sample has 100 findings in four parts: 40 definite ones of megatron-core and Transformer Engine, 20 of megatron-core
and torch, 20 of Transformer Engine and torch, and 20 of all three that raise nothing at the line (misbound, override,
ignored). A draw with equal probability repeats one wrong kind of finding over hundreds of pairs and misses a rare one.
So kinds of break (callee, calling function, message) are drawn first, then one finding of each; where there are fewer
kinds than findings, each kind comes again with another pair. Only what the command shows without --all is drawn. Kinds
that reports/measurements/contract_sample.md does not name come first: a kind that was judged true says nothing about a
new one. The seed reproduces the sample from the same records and the same page, which has a sample and its judgement.

With --project the sample has 60 breaks that a gate refuses, one kind of each project in turn, against all recorded
releases of every provider. With --changed it has 20 calls whose default changed from one recorded release to the next:
with the oldest release, which the command compares with, most files of a project are not imported.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from matrix.ground.errors import MatrixError
from matrix.read.api import pairs, sides
from matrix.read.api.comparison import changed
from matrix.read.api.finding import BREAKING, Finding, FindingKind
from matrix.read.api.provider import PROVIDERS, Calls, Provider, provider_of
from matrix.read.api.recording import MCORE, TE, recorded_calls, recorded_consumers
from matrix.read.api.relevance import is_yanked

DEFINITE: Final = (FindingKind.DEFINITE,)
OTHERS: Final = (FindingKind.MISBOUND, FindingKind.OVERRIDE, FindingKind.IGNORED, FindingKind.CHANGED)
PAIRS: Final = ((MCORE, TE), (MCORE, "torch"), (TE, "torch"))
PARTS: Final = {  # pairs of packages, kinds, findings
    "core-te": (PAIRS[:1], DEFINITE, 40),
    "core-torch": (PAIRS[1:2], DEFINITE, 20),
    "te-torch": (PAIRS[2:], DEFINITE, 20),
    "other": (PAIRS, OTHERS, 20),
}
OF_PROJECTS: Final = 60  # findings
CHANGED: Final = 20
JUDGED: Final = Path(__file__).parents[1] / "reports" / "measurements" / "contract_sample.md"
ROW: Final = re.compile(r"`([\w.]+)(?:\((\w+)=\))?` in `([^`]+)`")  # callee, argument, calling function


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--parts", default=",".join(PARTS), help="separated by commas")
    parser.add_argument("--project", action="append", default=[], help="a framework, in place of the parts")
    parser.add_argument("--changed", action="store_true", help="of the frameworks, in place of their breaks")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    if options.project:
        source, size = random.Random(f"{options.seed} projects"), CHANGED if options.changed else OF_PROJECTS
        read = changed_of_project if options.changed else of_project
        samples = [drawn(read(text), size, source)[0] for text in options.project]
        turns = (finding for turn in zip_longest(*samples) for finding in turn if finding)
        show([finding for finding, _ in zip(turns, range(size), strict=False)])
        return
    for part in options.parts.split(","):
        pairs, kinds, size = PARTS[part]
        findings = [finding for pair in pairs for finding in shown(*pair) if finding.kind in kinds]
        sample, classes = drawn(findings, size, random.Random(f"{options.seed} {part}"))
        new = len({kind_of(finding) for finding in findings if not is_judged(finding)})
        print(f"\n{part}: {len(sample)} of {len(findings)} findings in {classes} kinds of break, {new} of them new\n")
        show(sample)


def of_project(text: str) -> list[Finding]:
    """Return what breaks in a project with any recorded release of any provider, and nothing masks."""
    findings: list[Finding] = []
    for provider in PROVIDERS.values():
        if canonicalize_name(Path(text).name).startswith(f"{provider.package}-"):
            continue  # itself
        surfaces = sides.target_of(provider.package).surfaces()
        findings += pairs.findings(consumers(text, provider), provider, surfaces)
    return [finding for finding in findings if finding.kind in BREAKING and not finding.masked]


def changed_of_project(text: str) -> list[Finding]:
    """Return the calls of a project whose default differs in two successive releases of megatron-core or TE."""
    findings: list[Finding] = []
    for provider in map(provider_of, (MCORE, TE)):
        surfaces = sides.target_of(provider.package).surfaces()
        for calls in consumers(text, provider):
            findings += [found for older, newer in pairwise(surfaces) for found in changed(calls, newer, older)]
    return findings


def consumers(text: str, provider: Provider) -> list[Calls]:
    """Return the calls of a project into a provider; none where it has none or can't be read, which it prints."""
    try:
        return sides.consumers_of(text, provider)
    except MatrixError as error:
        print(error, file=sys.stderr)
        return []


@cache
def judged() -> list[tuple[str, str, str]]:
    """Return the kinds of break that were judged: callee, argument, calling function."""
    return ROW.findall(JUDGED.read_text())


def is_judged(finding: Finding) -> bool:
    """Return whether a finding of the same callee, argument and calling function was judged."""
    function = finding.call_site.function or "the module"
    return any(
        function == caller
        and f".{finding.callee}".endswith(f".{callee}")
        and (not argument or f"'{argument}'" in finding.message)
        for callee, argument, caller in judged()
    )


def kind_of(finding: Finding) -> tuple[str, str, str]:
    """Return the kind of a break."""
    return finding.callee, finding.call_site.function, finding.message


def shown(consumer: str, package: str) -> list[Finding]:
    """Return the findings of all released pairs that nothing masks and that somebody may run."""
    provider = provider_of(package)
    versions = [text for text in recorded_consumers(provider, consumer) if not is_yanked(consumer, text)]
    consumers = [recorded_calls(provider, version, consumer) for version in versions]
    findings = pairs.findings(consumers, provider, sides.target_of(package).surfaces())
    return [finding for finding in findings if not finding.masked and not finding.implausible]


def drawn(findings: Sequence[Finding], size: int, source: random.Random) -> tuple[list[Finding], int]:
    """Return the sample, and the number of kinds of break."""
    classes: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        classes[kind_of(finding)].append(finding)
    stacks = [source.sample(same, len(same)) for same in source.sample(list(classes.values()), len(classes))]
    stacks.sort(key=lambda stack: is_judged(stack[0]))
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
