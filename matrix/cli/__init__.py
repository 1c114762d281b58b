"""The command line: one module for each command, with `add_parser(commands)` and the command's function.

A command's module is named like it and is imported when that command is given: `megatrix --help` imports none.
"""

from collections.abc import Mapping
from typing import Final

# Each command in one line, in the order of `megatrix --help`.
COMMANDS: Final[Mapping[str, str]] = {
    "plan": "Show the night, or what a selection would run, and why each case is in.",
    "run": "Run the night, or a selection, and report.",
    "explain": "Say what is known of a cell, and why it is or is not in the night.",
    "build": "Build an image, or lay releases over one (docs/images.md).",
    "compat": "Say what is known to break in a stack, and the way round it.",
    "match": "Say which known failures a log shows, and the way round them.",
    "contract": "Hold each call that megatron-core makes into Transformer Engine against the signature there.",
    "surface": "Record what a source offers (Transformer Engine) or calls (Megatron-LM).",
    "bisect": "Find the release, commit, container or driver at which a failure starts or ends.",
    "advise": "Say what a job will need before it starts.",
    "doctor": "Say what this machine has, whether a job would start on it, and what to change.",
    "catalog": "Write, check and export entries of the catalog (CONTRIBUTING.md).",
    "report": "Make the pages of a run again and print its summary.",
}
