"""Examples of a failure from a run: scrubbed outcomes that show it, and look-alikes that do not."""

from __future__ import annotations

import getpass
import json
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from matrix.ground.catalog.codec import decode_json, encode
from matrix.ground.catalog.failure import Failure, Signature
from matrix.ground.catalog.regular_file import read_regular_text
from matrix.ground.catalog.stack import MCORE, TE, TORCH, Cell, short
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.record import Record, Verdict
from matrix.ground.verdicts.signature_match import matched, shows
from matrix.ground.verdicts.text import mask

SHOWS: Final = "shows"
LOOK_ALIKES: Final = "look_alikes"
# Folders of one machine in frames and logs, and their replacements in an example.
_PLACES: Final = (
    (re.compile(r"/[^\s\"']{0,512}?/overlays/[0-9a-f]{1,99}"), "/overlay"),
    (re.compile(r"/[^\s\"']{0,512}?/site-packages"), "/site-packages"),
    (re.compile(r"/[^\s\"']{0,512}?/lib/python3\.\d{1,3}/(?!site-packages)"), "/python/"),
    (re.compile(r"/[^\s\"']{0,512}?/(?=(?:matrix|tests/failures)/[\w/]{1,255}\.py)"), "/megatrix/"),
    (re.compile(r"/[^\s\"']{0,512}?/runs/\d{8}T\d{12}Z-[\w-]{1,99}"), "/run"),
    (re.compile(r"/tmp/[\w./-]*"), "/tmp/..."),  # noqa: S108  (a pattern, not a path that is used)
)


@dataclass(frozen=True)
class Example:
    """One file of a failure's examples: its kind (shows, look_alikes), its name and the outcome in it."""

    kind: str
    name: str
    outcome: Outcome

    @property
    def path(self) -> Path:
        """Return its path in the failure's folder."""
        return Path("examples", self.kind, f"{self.name}.json")

    @property
    def text(self) -> str:
        """Return the file's content."""
        return json.dumps(encode(self.outcome), indent=1, ensure_ascii=False) + "\n"


def read(path: Path) -> Outcome:
    """Return the outcome of an example. Raises UnicodeDecodeError or MatrixError."""
    return decode_json(Outcome, read_regular_text(path, errors="strict"), str(path))


def keep(failure: Failure, records: Iterable[Record]) -> list[Example]:
    """Return an example of each signature that a run reproduced, and its look-alikes.

    The first of several records with one signature is taken. A look-alike that shows the failure is left out: `catalog
    check` reports the signature as too wide.
    """
    reproduced: dict[str, Record] = {}
    for record in records:
        if record.failure == failure.id and _reproduced(record) and record.signature:
            reproduced.setdefault(record.signature, record)
    examples: dict[Path, Example] = {}
    for signature in failure.signature:
        if source := reproduced.get(signature.name):
            example = Example(SHOWS, example_name(source.cell, source.case), scrubbed(source.outcome))
            alike = (look for look in look_alikes(example.outcome, signature) if not matched(failure, look.outcome))
            examples |= {file.path: file for file in (example, *alike)}
    return list(examples.values())


def new_texts(failure: Failure, records: Iterable[Record]) -> dict[Path, str]:
    """Return the text of each example of a run that the failure's folder lacks, by its path."""
    texts = {failure.folder / example.path: example.text for example in keep(failure, records)}
    return {path: text for path, text in texts.items() if not path.exists()}


def night_evidence(failure: Failure, records: Iterable[Record], run: str) -> str:
    """Return night.toml of a failure after the night with the id `run`, "" where it did not reproduce the failure."""
    reproduced = (record.level.value for record in records if record.failure == failure.id and _reproduced(record))
    counts = ", ".join(f"{level} = {count}" for level, count in sorted(Counter(reproduced).items()))
    text = f'date = "{datetime.strptime(run[:8], "%Y%m%d").date()}"\nreproduced = {{ {counts} }}\n'
    return f"# What the project's night of this date reproduced, by level.\n{text}" if counts else ""


def _reproduced(record: Record) -> bool:
    return record.verdict is Verdict.REPRODUCED


def example_name(cell: Cell, case: str) -> str:
    """Return the name of an example: the versions of the cell, and the case."""
    versions = [(short(name), cell.stack.version(name)) for name in (TORCH, MCORE, TE)]
    return "-".join([*(f"{name}-{version}" for name, version in versions if version), case])


def scrubbed(outcome: Outcome) -> Outcome:
    """Return an outcome without the folders, names and secrets of its machine."""
    return replace(
        outcome,
        reason=scrub(outcome.reason),
        evidence=scrub(outcome.evidence),
        chain=tuple(
            Raised(
                raised.type,
                scrub(raised.message),
                tuple(replace(frame, file=scrub(frame.file)) for frame in raised.frames),
            )
            for raised in outcome.chain
        ),
        ranks=(),
        attempts=(),
    )


def scrub(text: str) -> str:
    """Return a text without the folders, names and secrets of this machine."""
    for pattern, replacement in _PLACES:
        text = pattern.sub(replacement, text)
    for name, replacement in (
        (str(Path.home()), "/home"),
        (socket.gethostname(), "node1"),
        (getpass.getuser(), "user"),
    ):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", replacement, text) if len(name) > 1 else text
    return mask(text)


def look_alikes(outcome: Outcome, signature: Signature) -> Iterator[Example]:
    """Yield look-alikes of an outcome that shows a signature: each differs in one key of the signature."""
    text = "\n".join([outcome.evidence, *(f"{raised.type}: {raised.message}" for raised in outcome.chain)])
    passed = Outcome(OutcomeKind.PASSED, evidence=text)
    yield Example(LOOK_ALIKES, "passed-although-the-log-has-the-text", passed)
    causes = (Raised("RuntimeError", "the loss is not finite", outcome.chain[-1].frames if outcome.chain else ()),)
    elsewhere = Outcome(OutcomeKind.RAISED, "rank 0 raised: RuntimeError", 0, exit_code=1, chain=causes, evidence=text)
    yield Example(LOOK_ALIKES, "text-only-in-the-log", elsewhere)
    for name, change in (
        ("another-exception", {"type": "KeyError" if signature.exception != "KeyError" else "ValueError"}),
        ("another-message", {"message": "another message"}),
        ("another-frame", {"frames": (Frame("/site-packages/another.py", 1, "another"),)}),
    ):
        chain = tuple(replace(raised, **change) for raised in outcome.chain)
        changed = replace(outcome, chain=chain, reason=f"rank {outcome.rank} raised: {name}")
        if chain and not shows(changed, signature):
            yield Example(LOOK_ALIKES, name, changed)
    if signature.signal and outcome.kind is OutcomeKind.SIGNALED:
        yield Example(LOOK_ALIKES, "another-signal", replace(outcome, signal="SIGKILL", exit_code=-9))
