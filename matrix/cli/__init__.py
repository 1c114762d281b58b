"""The command line: one module per command, with `add_parser(commands)` and the command's function.

A command's module has the command's name and is imported only for that command: `megatrix --help` imports none.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Command(NamedTuple):
    """A command in one line, its exit statuses but 2 (invalid input), and the arguments of an example."""

    text: str
    status: str
    example: str


# In the order of `megatrix --help`.
COMMANDS: Final[Mapping[str, Command]] = {
    "plan": Command(
        "List the cases of the night or of a selection, with the reason for each; run nothing.",
        "0 listed",
        'plan --select "mcore==0.8.* and torch>=2.4"',
    ),
    "run": Command(
        "Run the cases of the night or of a selection, and report their verdicts.",
        "0 green, 1 red or not reached, 3 without a result, 130 interrupted (docs/runs.md)",
        'run --within "base==torch-2.4.0"',
    ),
    "explain": Command(
        "Show what the catalog expects in one cell, and why the cell is or is not in the night.",
        "0 explained",
        "explain torch-2.4.0/mcore-0.8.0/te-none/driver-none",
    ),
    "build": Command(
        "Build an image, or install releases over an existing image (docs/images.md).",
        "0 built",
        "build debian-13 --mcore 0.12.0",
    ),
    "check": Command(
        "Report what is known to break in this environment, a set of versions, files or a command, and what to do.",
        "0 nothing is known to break, 1 something is, with --: that of the command",
        'check "mcore=0.8.0 torch=2.4.1"',
    ),
    "match": Command(
        "Find known failures in a log, with fixes and workarounds.",
        "0 a known failure found, 1 none",
        "match train.log",
    ),
    "contract": Command(
        "Check the calls that megatron-core makes into Transformer Engine against the signatures there.",
        "0 no call breaks or a side is not named, 1 a call breaks",
        "contract --mcore 0.17.1 --te 2.6.0",
    ),
    "surface": Command(
        "Record the API of a Transformer Engine source, or the calls that a Megatron-LM source makes into it.",
        "0 recorded",
        "surface record ./TransformerEngine@v2.6",
    ),
    "bisect": Command(
        "Find the release, commit, container or driver at which a failure, or your own command, starts or ends.",
        "0 a unique answer, 1 an ambiguous one, 130 interrupted",
        "bisect FAILURE --axis torch --mcore 0.8.0",
    ),
    "sources": Command(
        "List the clones of upstream repositories that cases read, or fetch them into the cache.",
        "0 listed or fetched, 130 interrupted",
        "sources fetch",
    ),
    "catalog": Command(
        "Create, check and export entries of the failure catalog (CONTRIBUTING.md).",
        "0 done, 1 problems found or no example written",
        "catalog check my-failure",
    ),
    "report": Command(
        "Rebuild the pages of a finished run and print its summary.",
        "0 green, 1 red or not reached, 3 without a result (docs/runs.md)",
        "report --format markdown",
    ),
}
