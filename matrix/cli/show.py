"""`megatrix show`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Final

from matrix.ask.history import commit_in_words, is_repair, repairs_of
from matrix.ground.catalog import loading
from matrix.ground.catalog.stack import component_title
from matrix.ground.errors import ExitStatus, MatrixError, closest
from matrix.ground.verdicts.text import one_line
from matrix.read.history.index import UpstreamCommit, UpstreamHistory, histories, history_of
from matrix.show.known import statement
from matrix.show.terminal import json_object, show

_NUMBER: Final = re.compile(
    r"(?:https?://)?(?:(?:www\.)?github\.com/)?(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)"
    r"(?:#|/(?:issues|pull)/)(?P<number>\d{1,9})(?:[/?#].*)?"
)
_COMMIT: Final = re.compile(
    r"(?:(?:https?://)?(?:(?:www\.)?github\.com/)?(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)(?:@|/commit/))?(?P<id>[0-9a-f]{7,40})"
)
_RELEASE: Final = re.compile(r"(?P<name>[A-Za-z][\w-]*)={1,2}v?(?P<version>\d[\w.]*)")
LISTED: Final = 40
SHORT: Final = {"mcore": "megatron-core", "te": "transformer-engine", "bridge": "megatron-bridge"}
FORMS: Final = (
    "an entry's id, OWNER/REPO#NUMBER, a link to an issue, pull request or commit, a commit's id, or mcore=VERSION"
)
Answer = tuple[list[str], bool]  # lines, and whether anything is known


HELP_WORDS: Final = {"FORMS": FORMS}


def show_command(parsed: argparse.Namespace) -> int:
    """Print what the catalog and upstream's history have on an entry, issue, commit or release."""
    lines, is_known = answer(parsed.what.strip())
    if parsed.json:
        print(json_object("show/1", [{"what": parsed.what, "known": is_known, "lines": list(map(one_line, lines))}]))
    else:
        show(*(one_line(line, 400) for line in lines))
    return ExitStatus.GOOD if is_known else ExitStatus.NOTHING


def answer(what: str) -> Answer:
    """Return the lines of the answer. Raises MatrixError for a text of none of the forms."""
    entries = [failure for failure in loading.load().known_failures if failure.id == what]
    if entries:
        references = [line for reference in entries[0].references for line in _of_reference(reference)]
        return [*statement(entries[0]), *references], True
    if number := _NUMBER.fullmatch(what):
        return _of_number(f"{number['owner']}/{number['name']}", int(number["number"]))
    if commit := _COMMIT.fullmatch(what):
        return _of_commit(f"{commit['owner']}/{commit['name']}" if commit["owner"] else "", commit["id"])
    if release := _RELEASE.fullmatch(what):
        return _of_release(SHORT.get(release["name"].lower(), release["name"].lower()), release["version"])
    ids = [failure.id for failure in loading.load().known_failures]
    fix = closest(what, ids, otherwise="megatrix catalog list has the entries")
    raise MatrixError("nothing that can be shown", got=what, expected=FORMS, fix=fix)


def _of_project(repository: str) -> UpstreamHistory | None:
    end = f"/{repository.lower().strip('/')}"  # with its owner, or the name alone
    projects = (history for history in histories() if history.has_commits)
    return next((history for history in projects if f"/{history.repository.lower()}".endswith(end)), None)


def _indexed() -> str:
    return "; ".join(f"{history.extent} ({history.releases[-1]})" for history in histories())


def _of_reference(reference: str) -> Iterator[str]:
    number = _NUMBER.fullmatch(reference)
    if number and (history := _of_project(f"{number['owner']}/{number['name']}")):
        yield f"{reference}:"
        yield from _named(history, int(number["number"]))


def _of_number(repository: str, number: int) -> Answer:
    """Return the commits that name an issue or pull request, and the entries that refer to it."""
    history, reference = _of_project(repository), f"{repository}#{number}"
    owner, name = map(re.escape, repository.split("/"))
    own = f"(?:{owner}/)" + ("?" if history else "")  # the name alone is upstream's, not that of a fork
    refers = re.compile(rf"(?<![\w/-]){own}{name}#{number}\b", re.IGNORECASE)
    failures = [
        failure
        for failure in loading.load().known_failures
        if any(refers.search(text) for text in (*failure.references, failure.cause, failure.fix))
    ]
    entries = [line for failure in failures for line in statement(failure)]
    if history is None:
        return [f"{reference}: not a project whose commits are known: {_indexed()}", *entries], bool(entries)
    lines = list(_named(history, number))
    return [f"{reference}:", *lines, *entries], bool(history.naming(number) or entries)


def _named(history: UpstreamHistory, number: int) -> Iterator[str]:
    """Yield the commits that name a number, or that none does up to the day of the index."""
    commits = history.naming(number)
    for commit in commits:
        yield from _lines(history, commit)
    if not commits:
        yield f"not mentioned in a commit up to {history.until}, of main or a release"
        if number > history.largest_number():
            yield f"the largest number that a commit mentions is {history.largest_number()}: it may be newer"


def _lines(history: UpstreamHistory, commit: UpstreamCommit) -> Iterator[str]:
    title = component_title(history.component)
    yield f"commit {commit_in_words(commit)}"
    yield f"  {title} with it: {', '.join(commit.releases) or f'no release up to {history.releases[-1]}; on main'}"
    if commit.reverted_by is not None:
        yield f"  reverted by {commit_in_words(history.commit_of(commit.reverted_by))}"


def _of_commit(repository: str, id: str) -> Answer:
    """Return what a commit changed, the releases that have it, and later changes of the same functions."""
    projects = [history for history in histories() if not repository or history is _of_project(repository)]
    commits = [(history, full, number) for history in projects for full, number in history.find(id)]
    if not commits:
        return [f"{id}: not a commit of main or of a release of the projects that are known: {_indexed()}"], False
    lines = []
    for history, full, number in commits:
        commit = history.commit_of(number)
        part = [f"{full} is a part of what this merge brought:"] if full != commit.id else []
        lines += [f"{history.repository}:", *part, *_lines(history, commit), *_changed(history, commit)]
    if len(commits) > 1:
        lines.append(f"{len(commits)} commits begin with {id}")
    return lines, True


def _changed(history: UpstreamHistory, commit: UpstreamCommit) -> Iterator[str]:
    later: dict[int, set[str]] = {}
    changed = 0
    for path in history.files:
        for function in (file := history.file(path)).functions_changed(commit.number):
            changed += 1
            if changed <= LISTED:
                yield f"  changed: {path}:{function or '<module>'}"
            for change in file.changes(function) if function else ():
                if history.commit_of(change.commit).date > commit.date:
                    later.setdefault(change.commit, set()).add(function)
    if changed > LISTED:
        yield f"  and {changed - LISTED} more functions"
    commits = map(history.commit_of, later)
    repairs = [(repair, later[repair.number]) for repair in commits if is_repair(repair)]
    for repair, functions in sorted(repairs, key=lambda pair: (-len(pair[1]), pair[0].date))[:5]:
        yield f"  later, {', '.join(sorted(functions)[:3])}: {commit_in_words(repair)}"


def _of_release(component: str, version: str) -> Answer:
    """Return the fixes and reverts that are new in a release, or the files where its commits are not known."""
    history = history_of(component)
    if history is None:
        return [f"{component}: not a component whose history is known: {_indexed()}"], False
    number = history.number_of_release(version)
    if number is None:
        known = f"not a release that is known up to {history.until}; known: {', '.join(history.releases)}"
        return [f"{component} {version}: {known}"], False
    predecessor, commits = repairs_of(history, number)
    if history.tagged[number]:
        rows = [f"  {commit_in_words(commit)}" for commit in commits]
        head = f"{len(rows)} fixes and reverts that {predecessor} lacks"
    else:
        files = ((path, history.file(path)) for path in history.files)
        rows = [f"  {path}" for path, file in files if file.changed_in(file.names) >> number & 1]
        head = f"known of {history.extent}, without its commits; {len(rows)} files are not as in {predecessor}"
    more = [f"  and {len(rows) - LISTED} more"] if len(rows) > LISTED else []
    return [f"{component} {version}: {head}", *rows[:LISTED], *more], True
