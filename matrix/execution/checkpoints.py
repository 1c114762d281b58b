"""The checkpoints of cases that read what another cell wrote: each is written once in a run, for all of its readers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from matrix.provision.overlays import locked
from matrix.verdicts.outcome import Outcome, OutcomeKind


def provide(folder: Path, write: Callable[[Path], Outcome]) -> Outcome | None:
    """Make sure that `folder` holds a checkpoint; return why there is none, or None where there is.

    `write` writes it into the folder that it receives. Concurrent processes write it once; after a kill it is written
    again. The returned outcome shows no signature: what the writer raises is not what the reader raises.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_suffix(".lock")):
        if folder.is_dir():
            return None
        making = folder.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        outcome = write(making)
        if outcome.kind is OutcomeKind.PASSED:
            making.rename(folder)
            return None
        if outcome.kind is OutcomeKind.UNAVAILABLE:
            return outcome
        reason = f"the checkpoint was not written: {outcome.kind.value}: {outcome.reason}"
        return Outcome(OutcomeKind.EXITED, reason, seconds=outcome.seconds, ranks=outcome.ranks)
