"""`megatrix sources` and `megatrix sources fetch`."""

from __future__ import annotations

import argparse
import os
import time
from functools import partial

from matrix.ground.cases.cells import revisions
from matrix.ground.catalog import loading
from matrix.ground.catalog.folders import SETTINGS
from matrix.ground.errors import ExitStatus, MatrixError, closest
from matrix.prove.execution import interrupt
from matrix.prove.provision import clones, host
from matrix.prove.provision.host import CLONES, Configuration, variable
from matrix.read.commands import redacted
from matrix.show.terminal import say


def sources_command(parsed: argparse.Namespace) -> int:
    """List the clones, or fetch them into the cache."""
    for name in parsed.names:
        if name not in CLONES:
            raise MatrixError("no such source", got=name, expected=" or ".join(CLONES), fix=closest(name, CLONES))
    needed = revisions(loading.load())
    names = parsed.names or list(CLONES)
    if parsed.action == "fetch":
        interrupt.once()
        settings = host.load_configuration()
        for name in names:
            began = time.monotonic()
            folder = clones.folder_of(name)
            clones.fetch(folder, settings.upstreams[name], needed[name], partial(step, name))
            say(f"{name}: {clones.size_of(folder) / clones.MB:.0f} MB in {time.monotonic() - began:.0f} s")
    settings = host.load_configuration()
    print("\n".join(described(name, settings, needed[name]) for name in names))
    return ExitStatus.GOOD


def described(name: str, settings: Configuration, needed: tuple[str, ...]) -> str:
    """Return what is known of a clone as text: path, who named it, its size, when it was fetched, what it lacks."""
    head, path = f"{name:<20}", settings.sources.get(name)
    if path is None:
        url = redacted(settings.upstreams[name])
        return f"{head}none; `megatrix sources fetch` gets it from {url} (about {clones.SIZE_MB[name]} MB)"
    cached = clones.folder_of(name)
    by = variable(name) if os.environ.get(variable(name)) else "cache" if path == str(cached) else SETTINGS
    note = clones.note_of(cached) if by == "cache" else None
    if not note:
        return f"{head}{path} (named by {by})"
    size = clones.size_of(cached) / clones.MB
    lines = [f"{head}{path}", f"{size:.0f} MB, fetched {clones.age(note.at)} ago from {note.url}"]
    if new := sorted({*needed} - {*note.revisions, *note.missing}):
        lines.append(f"cases need more: {', '.join(new)}; `megatrix sources fetch` gets them")
    if note.missing:
        lines.append(f"that repository lacks {', '.join(note.missing)}; cases that need it are unavailable")
    return f"\n{'':<20}".join(lines)


def step(name: str, line: str) -> None:
    """Print a step of a fetch."""
    say(f"{name}: {line}")
