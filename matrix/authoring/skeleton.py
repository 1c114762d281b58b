"""Template files of a new failure, with every key that an entry needs and a hint for its value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Final

from matrix.authoring.draft import entry_text
from matrix.catalog.folders import ENTRY, folder_name
from matrix.check.log_reading import read_log
from matrix.errors import MatrixError
from matrix.store.paths import write_whole

_HEAD: Final = """\
id = "{id}"
title = "TODO: the symptom, in one line"
topic = "TODO"  # megatrix catalog list shows them
first_seen = "2000-01"  # TODO: month of the first public report
references = ["OWNER/REPOSITORY#NUMBER"]
symptom = "TODO: what happens, and who is affected."
cause = "TODO: the cause, as far as code or runs support it."
fix = "TODO: the release or commit that fixes it."

[[signature]]
name = "TODO"
exception = "TypeError"
message = "TODO: a regular expression, as narrow as the evidence allows"

[[affected]]
mcore = ">=0.0,<0.0"  # TODO
reason = "TODO: the evidence: run with ..., or read in ..."

[[works]]
mcore = ">=0.0"  # TODO
reason = "TODO"
"""
_RUN: Final = """
[[case]]
name = "TODO"
run = "reproduce"  # a function of reproduction.py
levels = ["cpu"]

[night]  # without it every release on every base of the night is a cell: 46 cases a night
reason = "TODO: why these are enough"
bases = ["torch-2.13.0"]
mcore = ["0.0", "0.0"]  # TODO: both sides of each change
"""
_READ: Final = """
[contract]
callee = '\\.TODO$'  # of the callee's dotted path: megatrix contract --mcore V --te V lists them

[night]
reason = "the releases of Transformer Engine on both sides of each change"
bases = ["no-torch"]
te = ["0.0", "0.0"]  # TODO
"""
_TAIL: Final = """
[[workaround]]
text = "TODO"
"""
_REPRODUCTION: Final = '''\
"""TODO: what each rank does, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def reproduce(rank: Rank) -> dict[str, Any]:
    """Run upstream's real code; return what it measured, as JSON values. Raises what upstream raises."""
    raise NotImplementedError
'''


def files(id: str, *, contract: bool) -> Mapping[str, str]:
    """Return the files of a new failure by name; `contract`: read at level contract, without code that runs."""
    entry = _HEAD.format(id=id) + (_READ if contract else _RUN) + _TAIL
    return {ENTRY: entry} if contract else {ENTRY: entry, "reproduction.py": _REPRODUCTION}


def create(id: str, root: Path, *, contract: bool, log: str | None = None) -> Path:
    """Write the files of a new failure under `root`, its entry drafted from a log if there is one; return its folder.

    Raises MatrixError for an unusable id, and for a log without a new fault.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", id):
        raise MatrixError("not an id of a failure", got=id, expected="small letters, digits and -: my-failure")
    folder = root / folder_name(id)
    if folder.exists():
        raise MatrixError("the failure exists", where=str(folder), fix="choose another id, or edit its failure.toml")
    drafted = {ENTRY: entry_text(id, read_log(log), date.today())} if log else {}
    for name, text in {**files(id, contract=contract), **drafted}.items():
        write_whole(folder / name, text)
    return folder
