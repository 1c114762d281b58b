"""The command line: one module per command, with `add_parser(commands)` and the command's function.

A command's module has the command's name and is imported only for that command: `megatrix --help` imports none.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Command(NamedTuple):
    """A command in one line, its document, its examples, and the meaning of those exit statuses that differ by command.

    `good`, `bad` and `nothing` are of ExitStatus; "" is a status that the command never has.
    """

    text: str
    document: str
    examples: tuple[str, ...]
    good: str
    bad: str = ""
    nothing: str = ""


# In the order of `megatrix --help`.
COMMANDS: Final[Mapping[str, Command]] = {
    "check": Command(
        "Report what is known to break in this environment, a set of versions, files or a command, and what to do.",
        "docs/check.md",
        (
            "check requirements.txt",
            'check "mcore=0.8.0 torch=2.4.1"',
            "check base=ngc-25.04 --to base=ngc-26.02",
        ),
        "nothing is known to break; everything that the input names was read and is known",
        "something is known to break; with --: the status of the command, or 1",
        "something that the input names was not read or is not known, or nothing was checked (--allow-unknown: 0)",
    ),
    "match": Command(
        "Find known failures in a log, with fixes and workarounds.",
        "docs/match.md",
        ("match train.log", "match rank0.log rank1.log"),
        "a known failure, or an answer, found",
        "neither found: errors, or a kind of failure without an answer",
    ),
    "fit": Command(
        "Choose the newest releases that fit each other, a GPU and a driver, with evidence and installation.",
        "docs/fit.md",
        (
            "fit gpu=H100 driver=550 flash-attn --offline",
            "fit gpu=B200 --for verl==0.9.1 --constraints fit.txt",
        ),
        "a set fits; nothing is known to break in it",
        "the wants exclude each other",
        "a set fits as far as is known: one of the wants is not known",
    ),
    "compare": Command(
        "Run the same tests under two stacks in turns: what newly breaks, what is flaky or slower, and its cause.",
        "docs/compare.md",
        (
            'compare "torch=2.4.1 mcore=0.8.0" "torch=2.4.1 mcore=0.9.0" -- python save.py',
            'compare "torch=2.4.1 mcore=0.8.0" "torch=2.4.1 mcore=0.9.0" --junit t.xml -- pytest --junitxml t.xml',
        ),
        "nothing new breaks",
        "something newly breaks, or is worse",
        "a test is undecided, or none has a result",
    ),
    "bisect": Command(
        "Find the release, commit, container or driver at which a failure, or your own command, starts or ends.",
        "docs/bisection.md",
        ("bisect --axis mcore --torch 2.4.1 --good 0.9.0 --bad 0.8.0 -- python save.py",),
        "a unique answer",
        "an ambiguous one",
    ),
    "show": Command(
        "Show an entry, or what upstream's history has on an issue, pull request, commit or release.",
        "docs/history.md",
        ("show NVIDIA/Megatron-LM#3912", "show 1284d25e12", "show mcore=0.18.0"),
        "something is known",
        nothing="nothing is known up to the day of the index, or it is of another project",
    ),
    "contract": Command(
        "Check the calls that megatron-core makes into Transformer Engine against the signatures there.",
        "docs/contract.md",
        ("contract --mcore 0.17.1 --te 2.6.0", "contract --consumer ./my-fork --against megatron-core==0.16.1"),
        "no call breaks or a side is not named",
        "a call breaks",
    ),
    "plan": Command(
        "List the cases of the night or of a selection, with the reason for each; run nothing.",
        "docs/runs.md",
        ('plan --select "mcore==0.8.* and torch>=2.4"', "plan --stats"),
        "listed",
    ),
    "run": Command(
        "Run the cases of the night or of a selection, and report their verdicts.",
        "docs/runs.md",
        ('run --within "base==torch-2.4.0"', "run --here"),
        "green",
        "red or not reached",
        "without a result",
    ),
    "report": Command(
        "Rebuild the pages of a finished run and print its summary.",
        "docs/runs.md",
        ("report", "report --site site"),
        "green",
        "red or not reached",
        "without a result",
    ),
    "parity": Command(
        "Search layouts whose loss, gradients or parameters are not those of one rank; or judge one layout.",
        "docs/parity.md",
        ('parity --mcore 0.18.2 --layout "tp=2 sequence_parallel=on experts=4"', "parity --consumer ../Megatron-LM"),
        "every judged layout gives the numbers of one rank",
        "a layout deviates",
        "nothing was decided",
    ),
    "catalog": Command(
        "Create, check and export entries of the failure catalog.",
        "docs/authoring.md",
        ("catalog check my-failure", "catalog export"),
        "done",
        "problems found or no example written",
    ),
    "debug": Command(
        "Run one rank of a case under pdb, in the interpreter of its cell; the other ranks run beside it.",
        "docs/authoring.md",
        ('debug "torch-2.4.0/mcore-0.8.0/te-none/driver-none my-failure tp2 cpu"',),
        "the rank returned",
        "the rank raised",
    ),
    "sources": Command(
        "List the clones of upstream repositories that cases read, or fetch them into the cache.",
        "docs/sources.md",
        ("sources", "sources fetch"),
        "listed or fetched",
    ),
    "bundle": Command(
        "Make a folder with all that a machine without a network needs for a run; `run --bundle` uses it.",
        "docs/bundle.md",
        (
            "bundle --level gpu --python 3.12 --base host --out bundle",
            'bundle --level cpu --python 3.11 --base torch-2.13.0 --out bundle --split "4 GiB"',
        ),
        "made",
    ),
    "build": Command(
        "Build an image, or install releases over an existing image.",
        "docs/images.md",
        ("build debian-13 --mcore 0.12.0",),
        "built",
    ),
    "surface": Command(
        "Record the API of a Transformer Engine source, the calls of a Megatron-LM source into it, or what breaks.",
        "docs/contract.md",
        ("surface record ./TransformerEngine@v2.6", "surface pairs"),
        "recorded",
    ),
    "completion": Command(
        "Print a script that completes commands, options and their values in a shell.",
        "docs/commands.md",
        ("completion bash", "completion zsh"),
        "printed",
    ),
}
