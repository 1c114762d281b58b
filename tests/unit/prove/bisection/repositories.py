"""Small clones made by git fast-import, and a fake probe of their commits."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from matrix.ground.catalog.stack import ABSENT, BASE, MCORE, NOTHING, Stack
from matrix.ground.verdicts.judge import judge
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.prove.bisection.probing import Show
from matrix.prove.execution.reproduction import CaseContext, make_record
from tests.unit import catalogs
from tests.unit.catalogs import case, clause, failure

ENTRY = failure("break", affected=(clause(mcore="<0.9", torch=">=2.4"),), works=(clause(torch="<2.4"),), case=(case(),))
KNOWN = catalogs.catalog(ENTRY)
INFO = 'MAJOR, MINOR, PATCH, PRE_RELEASE = 0, 9, 0, "rc0"\n__version__ = "0.9.0rc0"\n'


def on(base: str, mcore: str = "") -> Stack:
    """Return the stack that the points of a bisection share."""
    return NOTHING.with_({BASE: base, MCORE: mcore or ABSENT})


def clone(folder: Path, history: Sequence[tuple[str, Sequence[str], Mapping[str, str]]]) -> Path:
    """Make a bare Megatron-LM clone of (name, parents, changed files); every commit is tagged with its name."""
    subprocess.run(["git", "init", "-q", "--bare", str(folder)], check=True)
    stream, marks = [], {name: mark for mark, (name, _, _) in enumerate(history, start=1)}
    for name, parents, files in history:
        stream += [f"commit refs/tags/{name}", f"mark :{marks[name]}"]
        stream += [f"committer A <a@b> {1_700_000_000 + marks[name] * 86400} +0000", f"data {len(name)}", name]
        stream += [f"{'merge' if place else 'from'} :{marks[parent]}" for place, parent in enumerate(parents)]
        for path, text in (
            {} if parents else {"megatron/core/package_info.py": INFO} | dict(files)
        ).items() or files.items():
            stream += [f"M 100644 inline {path}", f"data {len(text.encode())}", text]
        stream.append("")
    done = subprocess.run(
        ["git", "-C", str(folder), "fast-import", "--quiet"], input="\n".join(stream).encode(), capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def chain(folder: Path, length: int) -> Path:
    """Make a clone of c0 - c1 - ..., each of which changes one file."""
    names = [f"c{number}" for number in range(length)]
    return clone(
        folder,
        [
            (name, names[place - 1 : place] if place else [], {"megatron/a.py": name})
            for place, name in enumerate(names)
        ],
    )


def ids(path: Path, *names: str) -> set[str]:
    """Return the ids of objects in a clone."""
    done = subprocess.run(["git", "-C", str(path), "rev-parse", *names], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


class FakeProbe:
    """A probe that returns the outcomes of `ends` and keeps the keys of the probed cases."""

    def __init__(self, ends: Callable[[Planned], Outcome]) -> None:
        self.ends, self.probed = ends, list[str]()
        self.stop_after: int | None = None

    def __call__(self, planned: Sequence[Planned], show: Show, number: int = 1) -> None:
        for item in planned:
            if len(self.probed) == self.stop_after:
                raise KeyboardInterrupt
            self.probed.append(item.key)
            show(record_of(item, self.ends(item)))


def record_of(item: Planned, outcome: Outcome) -> Record:
    judgement = judge(ENTRY, item.expectation, outcome, KNOWN.failures)
    return make_record(item, outcome, judgement, CaseContext(), "2025-01-01T00:00:00Z")


def broken_in(names: Collection[str]) -> Callable[[Planned], Outcome]:
    """Return outcomes that show the failure for the commits or versions in `names`, and pass elsewhere."""
    return lambda item: catalogs.shown(ENTRY) if revision(item) in names else Outcome(OutcomeKind.PASSED)


def revision(item: Planned) -> str:
    return item.source.rpartition("@")[2] or str(item.cell.stack[MCORE])
