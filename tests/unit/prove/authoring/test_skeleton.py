"""The files of a new failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matrix.ask.check.log_reading import read_log
from matrix.ground.catalog.failure import Failure
from matrix.ground.catalog.schema import read_toml
from matrix.ground.errors import MatrixError
from matrix.prove.authoring.draft import create


@pytest.mark.parametrize("contract", [False, True])
def test_a_skeleton_has_the_keys_of_an_entry(tmp_path: Path, contract: bool) -> None:
    folder = create("mask-is-kept", tmp_path, read_log, contract=contract)
    entry = read_toml(folder / "failure.toml")
    assert (folder.name, entry["id"]) == ("mask_is_kept", "mask-is-kept")
    assert entry.keys() - {"boundary"} <= Failure.__dataclass_fields__.keys()
    assert (folder / "reproduction.py").exists() is not contract


def test_an_existing_failure_is_not_overwritten(tmp_path: Path) -> None:
    create("one", tmp_path, read_log, contract=True)
    with pytest.raises(MatrixError, match="the failure exists"):
        create("one", tmp_path, read_log, contract=True)


TRACE = """It fails:
```
Traceback (most recent call last):
  File "/x/megatron/core/odd.py", line 7, in forward
ValueError: 5 is odd
```
"""


@pytest.mark.parametrize(
    "names", [("url", "createdAt"), ("html_url", "created_at")], ids=["gh issue view --json", "GitHub's API"]
)
@pytest.mark.parametrize("place", ["body", "comment"])
def test_thread_gives_title_reference_month_and_signature(tmp_path: Path, names: tuple[str, str], place: str) -> None:
    source = tmp_path / "thread.json"
    body, comments = (TRACE, []) if place == "body" else ("see below", [{"body": TRACE.replace("\n", "\r\n")}])
    thread = {names[0]: "https://github.com/a/b/issues/7", names[1]: "2025-04-03T01:02:03Z", "title": 'Odd "is" é'}
    source.write_text(json.dumps({**thread, "body": body, "comments": comments}))
    entry = read_toml(create("my-own", tmp_path, read_log, contract=False, log=str(source)) / "failure.toml")
    assert (entry["title"], entry["references"], entry["first_seen"]) == ('Odd "is" é', ["a/b#7"], "2025-04")
    (signature,) = entry["signature"]
    assert (signature["exception"], signature["frame"]) == ("ValueError", "megatron/core/odd.py:forward")


@pytest.mark.parametrize("kind", ["folder", "file", "json"])
def test_draft_of_a_bisection_gets_the_id(tmp_path: Path, kind: str) -> None:
    draft = tmp_path / "draft" / "own_1234"
    (draft / "files").mkdir(parents=True)
    (draft / "failure.toml").write_text('id = "own-1234"\ntitle = "TODO"\n')
    (draft / "reproduction.py").write_text("x = 1\n")
    report = tmp_path / "bisection.json"
    report.write_text(json.dumps({"items": [{"draft": str(draft / "failure.toml")}]}))
    source = {"folder": draft, "file": draft / "failure.toml", "json": report}[kind]
    folder = create("my-own", tmp_path, read_log, contract=False, log=str(source))
    assert (folder / "failure.toml").read_text() == 'id = "my-own"\ntitle = "TODO"\n'
    assert (folder / "reproduction.py").read_text() == "x = 1\n"


@pytest.mark.parametrize("text", ["{", "[]", '{"items": 1}', '{"url": "x"}', '{"items": [1]}', ""])
def test_other_json_is_read_as_a_log(tmp_path: Path, text: str) -> None:
    source = tmp_path / "log.json"
    source.write_text(text)
    with pytest.raises(MatrixError, match="no fault in this log is new"):
        create("my-own", tmp_path, read_log, contract=False, log=str(source))
    assert not (tmp_path / "my_own").exists()


@pytest.mark.parametrize("id", ["Big", "under_score", "", "-a", "a--b", "../a"])
def test_a_wrong_id_is_refused(tmp_path: Path, id: str) -> None:
    with pytest.raises(MatrixError, match="not an id of a failure"):
        create(id, tmp_path, read_log, contract=True)
