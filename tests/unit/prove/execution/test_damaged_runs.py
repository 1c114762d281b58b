"""Damaged plans, journals and histories: an error for the user or a complete run, never a traceback or a hang."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.errors import MatrixError
from matrix.prove.execution.runner import Events, Request, earlier, execute
from matrix.prove.planning.night import everything
from matrix.prove.provision import host
from matrix.prove.store import stored_run
from matrix.prove.store.history import History, HistoryError
from matrix.prove.store.journal import read
from matrix.prove.store.paths import Paths
from matrix.prove.store.stored_run import Night, StoredRun
from matrix.show import site
from tests.profiles import PROFILE, examples
from tests.unit.catalogs import case, catalog, clause, failure
from tests.unit.engines import HOST, FakeEngine

KNOWN = catalog(
    failure(affected=(clause(mcore="<0.9"),), works=(clause(mcore=">=0.9"),), case=(case("tp2"), case("pp2"))),
    torches=("2.4.0",),
)
CASES = everything(KNOWN, (Level.CPU,))
# What replaces a value of the JSON: other types, texts that can't be encoded, numbers beyond every limit.
ODD: list[Any] = [None, True, 0, -1, 7, 1.5, 10**30, -(10**30), float("nan"), float("inf"), "", "x", "\ud800", "a/b c",
                  [], [1], ["x"], {}, {"x": 1}, "../../x", "\x1b[31m"]  # fmt: skip
DEEP = "[" * 100_000 + "]" * 100_000
TIMES = examples(70, PROFILE)  # mutations of each kind


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an interrupted run in the output folder tmp_path, with a history."""
    monkeypatch.setattr(host, "look", lambda: HOST)
    monkeypatch.setenv("BASES_OF_TESTS", str(tmp_path / "bases"))
    for limit in (None, 3):
        execute(Request(CASES, tmp_path), KNOWN, FakeEngine(KNOWN, limit=limit))
    return max(Paths(tmp_path).run("").iterdir())


def ignore(_: object) -> None:
    """Show nothing."""


def mutated(value: Any, rng: random.Random) -> Any:
    """Return JSON with one value replaced, removed, doubled or added, at a random depth."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice([*value])
        if rng.random() < 0.15:
            return {name: one for name, one in value.items() if name != key} | rng.choice([{}, {"more": 1}])
        return value | {key: mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        middle = rng.choice([[], [value[place]] * 2, [mutated(value[place], rng)], [mutated(value[place], rng)]])
        return [*value[:place], *middle, *value[place + 1 :]]
    return rng.choice(ODD)


def sealed(entry: Any) -> bytes:
    """Return a line of a journal with the right checksum."""
    body = json.dumps(entry, separators=(",", ":")).encode()[:-1]
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def damage_journal(run: Path, rng: random.Random) -> None:
    path = rng.choice([path for path in sorted(run.glob("journal-*.jsonl")) if path.stat().st_size])
    lines = path.read_bytes().splitlines(keepends=True)
    place = rng.randrange(len(lines))
    entry = {name: value for name, value in json.loads(lines[place]).items() if name != "crc"}
    kind = rng.random()
    if kind < 0.8:
        lines[place] = sealed(mutated(entry, rng))
    elif kind < 0.9:
        body = f'{{"at":"2026","result":{DEEP}'.encode()
        lines[place] = b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))
    else:
        at = rng.randrange(len(lines[place]))
        lines[place] = lines[place][:at] + rng.randbytes(3) + lines[place][at:]
    path.write_bytes(b"".join(lines))


def damage_plan(run: Path, rng: random.Random) -> None:
    path, kind = run / "plan.json", rng.random()
    if kind < 0.8:
        path.write_text(json.dumps(mutated(json.loads(path.read_text()), rng)))
    elif kind < 0.9:
        path.write_text(DEEP)
    else:
        content = path.read_bytes()
        path.write_bytes(content[: rng.randrange(len(content))])


def damage_history(run: Path, rng: random.Random) -> None:
    path = Paths(run.parents[1]).history
    kind = rng.random()
    if kind < 0.5:
        content = bytearray(path.read_bytes())
        for _ in range(rng.choice([1, 20, 500])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
        return
    column = rng.choice(["key", "level", "verdict", "seconds", "content", "cached_from", "record", "run"])
    value = rng.choice([b"\xff\xfe", "x", -1, 1e300, zlib.compress(b"[1]"), zlib.compress(DEEP.encode()), ""])
    base = sqlite3.connect(path)
    try:
        base.execute(f"UPDATE OR IGNORE results SET {column} = ? WHERE rowid % 2", (value,))
        base.commit()
    finally:
        base.close()


@pytest.mark.draws
@pytest.mark.parametrize("damage", [damage_journal, damage_plan, damage_history])
def test_damaged_file_is_an_error_or_complete(
    damage: Callable[[Path, random.Random], None], run: Path, tmp_path: Path
) -> None:
    """Each accepted run has a result for each of its cases, all of which the catalog has."""
    whole = tmp_path.with_name(f"{tmp_path.name}-whole")
    shutil.copytree(tmp_path, whole)
    accepted = 0
    for seed in range(TIMES):
        shutil.rmtree(tmp_path)
        shutil.copytree(whole, tmp_path)
        damage(run, random.Random(seed))

        def report(run: StoredRun, history: History) -> Night:
            return site.render(run, tmp_path, history, KNOWN)

        events = Events(ended=report) if seed % 10 == 0 else Events()
        try:
            ended = execute(Request(out=tmp_path, resume=earlier(tmp_path, run.name)), KNOWN, FakeEngine(KNOWN), events)
        except MatrixError:
            continue
        accepted += 1
        keys = [item.key for item in StoredRun(run).planned]
        assert [record.key for record in ended.records if record.verdict.value != "not-reached"][: len(keys)] == keys
    assert accepted > 0
    shutil.rmtree(whole)


@pytest.mark.parametrize("name", ["plan.json", "journal-0.jsonl"])
def test_fifo_or_device_is_an_error(name: str, run: Path) -> None:
    """A FIFO without a writer would block for ever, /dev/zero has no end."""
    for make in (os.mkfifo, lambda path: Path(path).symlink_to("/dev/zero"), lambda path: Path(path).mkdir()):
        (run / name).unlink(missing_ok=True)
        make(run / name)
        with pytest.raises(MatrixError, match="can't be read"):
            stored_run.read(run)
        (run / name).rename(run / "elsewhere") if (run / name).is_dir() else None


@pytest.mark.parametrize(
    "entry",
    [
        {"at": 5, "started": "a case"},
        {"at": "2026", "started": ["a case"]},
        {"at": "2026", "started": ""},
        {"at": "2026", "result": "text"},
        [],
        {"at": "2026", "result": {"cell": "torch-2.4.0"}},
    ],
    ids=str,
)
def test_valid_line_of_wrong_types_is_an_error(entry: Any, run: Path) -> None:
    (run / "journal-0.jsonl").write_bytes(sealed(entry) if entry else b'[1,"crc":"%08x"}\n' % zlib.crc32(b"[1"))
    with pytest.raises(MatrixError, match="a whole line that this version can't read"):
        read(run)


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("database or disk is full", "free disk space"),
        ("attempt to write a readonly database", "make the file and its folder writable"),
        ("database is locked", "another process writes to it"),
        ("database disk image is malformed", "move it away"),
    ],
)
def test_fix_depends_on_the_error_of_sqlite(message: str, fix: str, tmp_path: Path) -> None:
    with (
        History(tmp_path / "history.sqlite") as history,
        pytest.raises(HistoryError) as caught,
        history._as_history_errors(),
    ):
        raise sqlite3.OperationalError(message)
    assert fix in str(caught.value.fix)
