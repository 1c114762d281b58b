"""What upstream's history answers, compared with git, with entries whose fix is known, and with records of runs.

    python bench/bench_history.py samples MEGATRON_LM TRANSFORMER_ENGINE MEGATRON_BRIDGE    100 functions, 100 messages
    python bench/bench_history.py fixes [THREADS.json ...]  the place of the known fix among those offered
    python bench/bench_history.py bisections                points probed with and without history, simulated
    python bench/bench_history.py releases JOURNALS...      releases inferred from tracebacks that runs made

Each prints tables in Markdown, as reports/measurements has them.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.ask.check.log_reading import read_log
from matrix.ask.history import named_in, offered, original, positions
from matrix.ground.catalog import loading
from matrix.ground.catalog.codec import decode
from matrix.ground.verdicts.outcome import Raised
from matrix.read.history.index import UpstreamHistory, histories

COMPONENTS = {"mcore": "megatron-core", "te": "transformer-engine", "bridge": "megatron-bridge"}


@dataclass(frozen=True)
class KnownFix:
    """An entry whose fix is a commit that history has: its example, and the numbers of the commits by project."""

    entry: str
    raised: tuple[Raised, ...]
    stated: dict[str, dict[str, None]]
    fixes: frozenset[tuple[str, int]]
    inferred: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def offers(self) -> list[list[tuple[str, int]]]:
        """Return the commits that are offered for each exception with an upstream frame."""
        found = [offered(raised, self.stated, self.inferred) for raised in self.raised]
        return [[(one.history.repository, offer.commit.number) for offer in one.fixes] for one in found if one]


def known_fixes() -> Iterator[KnownFix]:
    """Yield the entries whose fix names a commit or number, with the first example that has an upstream frame."""
    for failure in loading.load().known_failures:
        if not re.search(r"#\d+|\b(?=[a-f]*\d)[0-9a-f]{7,40}\b", failure.fix) or not failure.folder:
            continue
        for path in sorted((Path(failure.folder) / "examples" / "shows").glob("*.json")):
            chain = [decode(Raised, raised, str(path)) for raised in json.loads(path.read_text())["chain"]]
            stated = {
                COMPONENTS[name]: {version: None}
                for name, version in re.findall(r"(mcore|te|bridge)-(\d+(?:\.\d+)*)", path.stem)
            }
            if any(positions(raised.frames) for raised in chain[:1]):
                yield KnownFix(str(failure.id), tuple(chain[:1]), stated, _numbers(failure.fix))
                break


def fixes(*threads: str) -> None:
    """Print the place of the known fix among those offered, of entries or of the threads in JSON files."""
    known = list(thread_fixes(threads) if threads else known_fixes())
    known = [one for one in known if one.fixes or not threads]
    places = {}
    for one in known:
        wanted = set(map(_original, one.fixes))  # a copy in a release's branch counts as the commit of main
        lists = [[*map(_original, offers)] for offers in one.offers()]
        ranks = [offers.index(fix) + 1 for offers in lists for fix in wanted if fix in offers]
        places[one.entry] = min(ranks, default=0)
    right = sum(place > 0 for place in places.values())
    print(f"\n{right} of {len(known)}\n\n| entry | place | what is in the way |\n|---|---|---|")
    for one in known:
        print(f"| {one.entry} | {places[one.entry] or '-'} | {'' if places[one.entry] else _obstacle(one)} |")


def thread_fixes(paths: Sequence[str]) -> Iterator[KnownFix]:
    """Yield the threads of JSON files that have a log with an upstream frame, and a fix in history.

    The fix is a commit that names the thread, or that its truth or an entry about it names.
    """
    known = loading.load().known_failures
    for thread in (one for path in paths for one in json.loads(Path(path).read_text())):
        reference = f"{thread['repo']}#{re.sub(r'[^0-9].*', '', str(thread['num']))}"
        texts = [re.sub(r"(?<=[ /])#", f"{thread['repo']}#", str(thread.get(key, ""))) for key in ("truth", "line")]
        texts += [failure.fix for failure in known if reference in failure.references]
        with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
            log.write(str(thread.get("log") or ""))
            log.flush()
            reading = read_log(log.name)
        raised = tuple(fault.raised for fault in reading.raised if fault.raised)
        if any(positions(one.frames) for one in raised):
            stated = {name: dict.fromkeys(versions) for name, versions in reading.versions.texts.items()}
            yield KnownFix(reference, raised, stated, _numbers(f"{reference} {' '.join(texts)}"), reading.inferred)


def _numbers(text: str) -> frozenset[tuple[str, int]]:
    return frozenset((history.repository, commit.number) for history, commit in named_in(text))


def _original(fix: tuple[str, int]) -> tuple[str, str]:
    repository, number = fix
    history = next(history for history in histories() if history.repository == repository)
    return repository, original(history.commit_of(number).subject)


def _obstacle(one: KnownFix) -> str:
    if not one.fixes:
        return "no commit of the index is the fix"
    stack = [position for raised in one.raised for position in positions(raised.frames)]
    where = {
        (history.repository, path, function)
        for history in histories()
        for repository, number in one.fixes
        if repository == history.repository
        for path in history.files
        for function in history.file(path).functions_changed(number)
    }
    on_stack = [
        (position.history.repository, position.file.path, function)
        for position in reversed(stack)
        for function in position.functions(list(_releases(one, position.history)))
    ]
    shared = [depth for depth, frame in enumerate(on_stack) if frame in where]
    if shared:
        return f"it changes frame {shared[0] + 1} from the inside, others weigh more"
    if {frame[:2] for frame in on_stack} & {changed[:2] for changed in where}:
        return "it changes another function of a file on the traceback"
    return (
        "it changes other files" if {frame[0] for frame in on_stack} & {one[0] for one in where} else "another project"
    )


def _releases(one: KnownFix, history: UpstreamHistory) -> Iterator[int]:
    for version in one.stated.get(history.component, ()):
        if (number := history.number_of_release(version)) is not None:
            yield number


if __name__ == "__main__":
    commands = {"fixes": fixes}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
