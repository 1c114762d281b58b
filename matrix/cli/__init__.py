"""The command line: one module per command, with `add_parser(commands)` and the command's function.

A command's module has the command's name and is imported only for that command: `megatrix --help` imports none.
"""

from collections.abc import Mapping
from typing import Final

# Each command in one line, in the order of `megatrix --help`.
COMMANDS: Final[Mapping[str, str]] = {
    "plan": "List the cases of the night or of a selection, with the reason for each; run nothing.",
    "run": "Run the cases of the night or of a selection, and report their verdicts.",
    "explain": "Show what the catalog expects in one cell, and why the cell is or is not in the night.",
    "build": "Build an image, or install releases over an existing image (docs/images.md).",
    "compat": "List the known failures of a set of versions, with fixes and workarounds.",
    "match": "Find known failures in a log, with fixes and workarounds.",
    "contract": "Check the calls that megatron-core makes into Transformer Engine against the signatures there.",
    "surface": "Record the API of a Transformer Engine source, or the calls that a Megatron-LM source makes into it.",
    "bisect": "Find the release, commit, container or driver at which a failure starts or ends.",
    "advise": "Report what a job will need before it starts.",
    "doctor": "Report what this machine has, whether a job would start on it, and what to change.",
    "sources": "List the clones of upstream repositories that cases read, or fetch them into the cache.",
    "catalog": "Create, check and export entries of the failure catalog (CONTRIBUTING.md).",
    "report": "Rebuild the pages of a finished run and print its summary.",
}
