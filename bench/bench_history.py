"""What upstream's history answers, compared with git, with entries whose fix is known, and with records of runs.

    python bench/bench_history.py samples MEGATRON_LM TRANSFORMER_ENGINE MEGATRON_BRIDGE    100 functions, 100 messages
    python bench/bench_history.py fixes [THREADS.json ...]  the place of the known fix among those offered
    python bench/bench_history.py bisections                points probed with and without history, simulated
    python bench/bench_history.py releases FOLDERS...       releases inferred from tracebacks that runs made: folders of
                                                            journals, and of unpacked wheels of Transformer Engine

Each prints tables in Markdown, as reports/measurements has them.
"""

from __future__ import annotations

import json
import linecache
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import count, takewhile
from operator import or_
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.ask.check.log_reading import read_log
from matrix.ask.history import inferred, named_in, offered, original, positions, views
from matrix.ground.catalog import loading
from matrix.ground.catalog.codec import decode
from matrix.ground.verdicts.outcome import Raised
from matrix.ground.verdicts.tracebacks import LoggedFrame
from matrix.prove.bisection.axes import AxisPoint, BisectionAxis, Commit
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.probe_session import changing_frame
from matrix.prove.bisection.search import Ancestry, search
from matrix.read.history.index import MADE, SourceLine, UpstreamHistory, histories
from tests.history_facts import read_source

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
        found = [offered(view, self.stated, self.inferred) for raised in self.raised for view in views(raised)]
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


def bisections() -> None:
    """Print how many points a search for the known fix of an entry probes, over the commits of main and over releases.

    The first result of a release that has the fix is simulated; nothing runs.
    """
    rows, sums = [], [0, 0, 0, 0]
    for one in known_fixes():
        for repository, number in sorted(one.fixes):
            history = next(history for history in histories() if history.repository == repository)
            first = [k for k in range(len(history.releases)) if history.has(number, k)]
            start = [
                k for version in one.stated.get(history.component, ()) if (k := history.number_of_release(version))
            ]
            if not first or not start or start[0] >= first[0]:
                continue
            span = range(max(number - 150, 1), min(number + 150, len(history.subjects)))
            counts = _points(history, one, [history.commit_of(k).id for k in span], span.index(number), commits=True)
            versions = history.releases[start[0] : first[0] + 4]
            counts += _points(history, one, versions, first[0] - start[0], commits=False)
            rows.append(f"| {one.entry} | {history.commit_of(number).id} | {' | '.join(map(str, counts))} |")
            sums = [total + points for total, points in zip(sums, counts, strict=True)]
    print("| entry | fix | commits: without | with history | releases: without | with history |")
    print("|---|---|---|---|---|---|", *rows, f"| sum | | {' | '.join(map(str, sums))} |", sep="\n")


def _points(history: UpstreamHistory, one: KnownFix, ids: Sequence[str], culprit: int, *, commits: bool) -> list[int]:
    """Return the points that a search probes without and with history; both must find the culprit."""
    order = Ancestry.chain(len(ids))
    points, listed = tuple(AxisPoint(id, id) for id in ids), tuple(Commit(id, (), "", "") for id in ids)
    axis = BisectionAxis(history.component, points, order, lambda place: None, (), listed if commits else ())  # type: ignore
    _, in_function, in_file = changing_frame(axis, SimpleNamespace(outcome=SimpleNamespace(chain=one.raised)))  # type: ignore
    counts = []
    for likelier in ((), (in_file, in_function)):
        found = search(
            order,
            lambda places: [ProbeResult.GOOD if place >= culprit else ProbeResult.BAD for place in places],
            ProbeResult.BAD,
            likelier=lambda groups=likelier: groups,  # type: ignore[misc]
        )
        assert found.candidates == (culprit,)
        counts.append(len(found.tallies))
    return counts


def releases(*folders: str) -> None:
    """Print how often the release that ran is inside those inferred from its traceback, with versions hidden.

    The traceback is that of a record, with the source lines of the files that ran, as Python prints them.
    """
    found = [path for folder in folders for path in Path(folder).glob("*/transformer_engine-*.dist-info")]
    wheels = {path.name.split("-")[1].removesuffix(".dist"): path.parent for path in found}
    seen, rows = set[str](), defaultdict[str, Counter[str]](Counter)
    widths, misses = defaultdict[str, list[int]](list), []
    for path in (path for folder in folders for path in Path(folder).rglob("journal-*.jsonl")):
        for record in (json.loads(line).get("result") for line in path.read_text("utf-8", "replace").splitlines()):
            chain = record["outcome"].get("chain", []) if record else []
            frames = [frame for raised in chain for frame in raised["frames"]]
            if not record or record["planned"]["source"] or record["planned"]["te_source"] or not _upstream(frames):
                continue
            stack = record["planned"]["cell"]["stack"]
            if (key := json.dumps([stack, frames])) in seen:
                continue
            seen.add(key)
            wheel = wheels.get(stack.get("transformer-engine", ""), Path())
            raised = [
                Raised(one["type"], one["message"], tuple(_printed(frame, wheel) for frame in one["frames"]))
                for one in chain
            ]
            possible = inferred(raised)
            for history in {position.history for one in raised for position in positions(one.frames)}:
                version = stack.get(history.component, "")
                number = history.number_of_release(version)
                known = possible.get(history.component, ())
                lines = [one.source for one in positions(f for r in raised for f in r.frames) if one.history is history]
                result = (
                    "not in the index" if number is None else "file is gone" if not any(lines)
                    else "none" if not known else "exact" if known == (history.releases[number],)
                    else "inside" if history.releases[number] in known else "another"
                )  # fmt: skip
                rows[history.component][result] += 1
                if known:
                    widths[history.component].append(len(known))
                if result in ("none", "another"):
                    misses.append(f"{record['planned']['key']}: {version}, not {', '.join(known) or 'any'}")
    names = ("exact", "inside", "none", "another", "not in the index", "file is gone")
    print(f"| component | tracebacks | {' | '.join(names)} | median of releases |")
    print("|---|---|---|---|---|---|---|---|---|")
    for component, counts in rows.items():
        cells = [counts[name] for name in names]
        print(f"| {component} | {sum(cells)} | {' | '.join(map(str, cells))} | {median(widths[component] or [0])} |")
    print("\n".join(["", *sorted(set(misses))]))


def _upstream(frames: Iterable[dict[str, Any]]) -> bool:
    return any(re.search(r"/(megatron|transformer_engine|torch/distributed)/", frame["file"]) for frame in frames)


def _printed(frame: dict[str, Any], wheel: Path) -> LoggedFrame:
    source = linecache.getline(frame["file"], frame["line"])
    if not source and (parts := frame["file"].partition("/transformer_engine/"))[1]:
        source = linecache.getline(str(wheel / "transformer_engine" / parts[2]), frame["line"])
    return LoggedFrame(frame["file"], frame["line"], frame["function"], source.strip())


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


def samples(*clones: str) -> None:
    """Compare a sample of functions with `git log -L`, and of messages with the files of each tag."""
    drawn = random.Random(7)
    print("| project | functions | equal | index right | git right | messages | equal |\n|---|---|---|---|---|---|---|")
    notes = []
    projects = [history for history in histories() if history.has_commits]
    for history, clone, size in zip(projects, clones, (34, 33, 33), strict=True):
        functions, messages = Counter[str](), 0
        for path, function in drawn.sample(sorted(_in_newest(history)), size):
            missing, further = _compared(history, clone, path, function)
            right = [_changes(clone, id, path, function) for id in missing]
            wrong = [not _changes(clone, id, path, function) for id in further]
            verdict = "equal" if not missing | further else "git right" if any(right + wrong) else "index right"
            functions[verdict] += 1
            if verdict == "git right":
                notes.append(f"{history.repository} {path}:{function}: missing {missing}, further {further}")
        every = [(path, text) for path in history.files for _, text, _ in history.file(path).messages]
        for path, text in drawn.sample(every, size):
            bits = reduce(or_, (found for _, same, found in history.file(path).messages if same == text))
            differ = [k for k in _tags(history) if _has_message(history, clone, path, text, k) != bool(bits >> k & 1)]
            messages += not differ
            if differ:
                notes.append(f"{history.repository} {path}: {text!r}: {[history.releases[k] for k in differ]}")
        cells = [functions[name] for name in ("equal", "index right", "git right")]
        print(f"| {history.repository} | {size} | {' | '.join(map(str, cells))} | {size} | {messages} |", flush=True)
    print("\n".join(["", *notes]))


def _tags(history: UpstreamHistory) -> list[int]:
    return [number for number, tagged in enumerate(history.tagged) if tagged]


def _tag(history: UpstreamHistory, number: int) -> str:
    prefix = "core_v" if history.component == "megatron-core" else "v"
    return f"refs/tags/{prefix}{history.releases[number]}"


def _in_newest(history: UpstreamHistory) -> Iterator[tuple[str, str]]:
    newest = _tags(history)[-1]
    for path in history.files:
        if history.file(path).releases(path) >> newest & 1:
            yield from ((path, line.function) for line in _lines(history, path, newest) if "." in line.function)


def _lines(history: UpstreamHistory, path: str, release: int) -> list[SourceLine]:
    lines = (history.file(path).line(release, number) for number in count(1))
    return [line for line in takewhile(bool, lines) if line]


def _git(clone: str, *words: str) -> str:
    return subprocess.run(["git", "--git-dir", clone, *words], capture_output=True, text=True, errors="replace").stdout


def _compared(history: UpstreamHistory, clone: str, path: str, function: str) -> tuple[set[str], set[str]]:
    """Return the commits of main since ten releases that only git has, and that only the index has."""
    newest = _tags(history)[-1]
    oldest = _tags(history)[-10]
    base = [_git(clone, "merge-base", "HEAD", f"{_tag(history, number)}^0").strip() for number in (oldest, newest)]
    numbers = [history.number_of(id) or 0 for id in base]
    labels = read_source(_git(clone, "show", f"{base[1]}:{path}")).labels
    lines = [number for number, label in enumerate(labels, 1) if label.startswith(function)] or [1]
    span = f"-L{lines[0]},{lines[-1]}:{path}"
    listed = _git(clone, "log", "--first-parent", "--format=%H", "-s", span, f"{base[0]}..{base[1]}").split()
    names = [name for name in history.file(path).names if name.startswith(function)]
    changes = {change.commit for name in names for change in history.file(path).changes(name) if change.kind != MADE}
    ours = {history.commit_of(number).id for number in changes if numbers[0] < number <= numbers[1]}
    theirs = {id[:10] for id in listed}
    return {id for id in theirs - ours if all(_bodies(clone, id, path, function))}, ours - theirs


def _bodies(clone: str, id: str, path: str, function: str) -> list[list[list[str]]]:
    """Return the lines of a function before and after a commit; -L goes on past the commit that made it."""
    sides = [read_source(_git(clone, "show", f"{rev}:{path}")).bodies for rev in (f"{id}^1", id)]
    return [[body for name, body in sorted(side.items()) if name.startswith(function)] for side in sides]


def _changes(clone: str, id: str, path: str, function: str) -> bool:
    before, after = _bodies(clone, id, path, function)
    return bool(before and after) and before != after


def _olds(history: UpstreamHistory, path: str) -> list[str]:
    return [old for old, newest in history._old.items() if newest == path]


def _has_message(history: UpstreamHistory, clone: str, path: str, text: str, number: int) -> bool:
    """Return whether a file of a tag has the constant parts of a message in order, without quotes and spaces."""
    paths = [old for old in (path, *_olds(history, path)) if history.file(path).releases(old) >> number & 1]
    content = "".join(_git(clone, "show", f"{_tag(history, number)}:{one}") for one in paths)
    parts = [re.sub(r"\W", "", part) for part in text.split("{}")]
    return re.search(".*?".join(parts), re.sub(r"[\"'](\s*[rfb]?)[\"']|\W", "", content)) is not None


if __name__ == "__main__":
    commands = {"fixes": fixes, "releases": releases, "samples": samples, "bisections": bisections}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
