"""The commits that probably changed the result, by what the failure names. They order a search, and decide nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import Final

from matrix.bisection.clone import Clone, Commit
from matrix.catalog.failure import ContractCall, Signature
from matrix.contract import consuming, offering
from matrix.contract.recording import MCORE

Suspects = Callable[[Sequence[Commit]], set[int]]  # the places of some commits among these

SOURCES: Final = (".py", ".cpp", ".cu", ".cuh", ".h")
_QUOTED: Final = re.compile(r"'([A-Za-z_]\w{2,})'")
_NAME: Final = re.compile(r"\b(?!__)(?:[A-Za-z]\w*_\w+|\w*[a-z][A-Z]\w*)\b")  # snake_case, or CamelCase


def none(commits: Sequence[Commit]) -> set[int]:
    """Suspect no commit."""
    return set()


def of_call(call: ContractCall, clone: Clone) -> Suspects:
    """Suspect the commits that changed a file in which a failure's callee is named."""
    names = [name.encode() for name in re.findall(r"\w{2,}", call.callee)]
    part = consuming.is_part if clone.package == MCORE else offering.is_part

    def mark(blob: str) -> str:
        content = clone.blob(blob)
        return blob if any(name in content for name in names) else ""

    return lambda commits: changing(commits, clone, part, mark)


def of_signatures(signatures: Iterable[Signature], clone: Clone) -> Suspects:
    """Suspect the commits that changed how often a file has the names in the signatures."""
    names = [name.encode() for name in names_in(signatures)]

    def mark(blob: str) -> tuple[int, ...]:
        counts = tuple(map(clone.blob(blob).count, names))
        return counts if any(counts) else ()

    return (lambda commits: changing(commits, clone, lambda path: path.endswith(SOURCES), mark)) if names else none


def names_in(signatures: Iterable[Signature]) -> list[str]:
    """Return the names in quotes in the messages of the signatures; without one, other names, and the frame's."""
    messages = [f"{signature.message or ''} {signature.log or ''}" for signature in signatures]
    quoted = [name for text in messages for name in _QUOTED.findall(text)]
    frames = [signature.frame.rpartition(":")[2] for signature in signatures if signature.frame]
    unquoted = [name for text in (*messages, *frames) for name in _NAME.findall(text)]
    return list(dict.fromkeys(quoted or unquoted))


def changing(
    commits: Sequence[Commit], clone: Clone, part: Callable[[str], bool], mark: Callable[[str], Hashable]
) -> set[int]:
    """Return the places of the commits with other marks of files than each parent; a false mark is no mark.

    Reads trees and blobs alone, each once.
    """
    once = cache(mark)
    files: dict[str, frozenset[tuple[str, Hashable]]] = {}
    suspected = set()
    for place, commit in enumerate(commits):
        marks = {path: once(blob) for path, blob in clone.files(commit.id, part).items()}
        files[commit.id] = frozenset((path, file_mark) for path, file_mark in marks.items() if file_mark)
        parent_marks = [files[parent] for parent in commit.parents if parent in files]
        if parent_marks and files[commit.id] not in parent_marks:
            suspected.add(place)
    return suspected
