"""`megatrix match` on the command line."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from matrix.cli.main import main
from tests.founding import BEHIND_MPI
from tests.schemas import items_of

KNOWN = "TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'\n"
HEADER = "Traceback (most recent call last):\n"


@pytest.mark.parametrize(
    ("log", "status", "confidence"),
    [
        (HEADER + KNOWN, 0, ["certain"]),
        (KNOWN, 0, ["likely"]),
        (KNOWN.replace("tp_size", "other"), 1, []),  # similar, not the same
        ("", 1, []),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_exit_status_is_0_for_known_failures(
    log: str, status: int, confidence: list[str], packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    data = gzip.compress(log.encode()) if packed else log.encode()
    path = tmp_path / "train.log"
    path.write_bytes(data)
    assert main(["match", str(path), "--json"]) == status
    assert [one["confidence"] for one in items_of(capsys.readouterr().out, "match")] == confidence
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["match", "-", "--json"]) == status
    assert [one["confidence"] for one in items_of(capsys.readouterr().out, "match")] == confidence


def test_kind_exits_with_0_and_has_its_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    path.write_text("ImportError: cannot import name 'no_such_name' from 'megatron.core'\n")
    assert main(["match", str(path), "--json"]) == 0
    out = capsys.readouterr().out
    assert items_of(out, "match") == []
    (kind,) = json.loads(out)["kinds"]
    assert (kind["kind"], kind["captured"]) == ("name-missing", {"module": "megatron.core", "name": "no_such_name"})
    assert "no recorded release of megatron-core" in " ".join(kind["answer"])


def test_secrets_of_kinds_are_masked_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    frame = '  File "/x/megatron/core/a.py", line 1, in f\n'
    path.write_text(f"{HEADER}{frame}AssertionError: bad HF_TOKEN=hunter2-secret\n")
    assert main(["match", str(path), "--json"]) == 0
    out = capsys.readouterr().out
    assert "refused-by-stack" in out
    assert "hunter2" not in out


def test_text_names_lacking_evidence_and_similar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    path.write_text(KNOWN)
    main(["match", str(path)])
    out = capsys.readouterr().out
    assert out.startswith(f"likely: {BEHIND_MPI}\n\nLIKELY {BEHIND_MPI}: ")
    assert "likely: the log lacks the traceback" in out
    path.write_text(KNOWN.replace("tp_size", "other"))
    main(["match", str(path)])
    out = capsys.readouterr().out
    assert out.startswith("nothing that the catalog knows")
    assert f"similar, not the same:\n  {BEHIND_MPI}: " in out


def test_damaged_gzip_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(KNOWN.encode())[:10] + b"\xff" * 9)
    assert main(["match", str(path)]) == 2
    assert "this gzip file is damaged" in capsys.readouterr().err


def test_folder_of_rank_logs_names_the_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One rank stands elsewhere, its log is packed; a checkpoint beside the logs is not read."""
    frames = {0: "all_reduce", 1: "all_reduce", 2: "load"}
    for rank, function in frames.items():
        file = "/site-packages/torch/distributed/distributed_c10d.py" if rank < 2 else "data.py"
        stack = f'  File "{file}", line 3 in {function}\n  File "train.py", line 9 in step\n'
        text = f"Timeout (0:10:00)!\nThread 0x00007f (most recent call first):\n{stack}"
        (folder := tmp_path / f"none_x/attempt_0/{rank}").mkdir(parents=True)
        path = folder / ("stderr.log.gz" if rank == 2 else "stderr.log")
        path.write_bytes(gzip.compress(text.encode()) if rank == 2 else text.encode())
    (tmp_path / "model.pt").write_bytes(b"\x1f\x8b\x08 damaged")
    assert main(["match", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "none_x/attempt_0/0/stderr.log:2: BEHIND: ranks 0, 1 stand in all_reduce, called in step (train.py:9)" in out
    assert main(["match", "--json", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert not items_of(printed, "match")
    assert [(one["ranks"], one["log"]) for one in json.loads(printed)["standstills"]] == [
        (["2"], "none_x/attempt_0/0/stderr.log")
    ]


def test_folder_without_logs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.pt").write_bytes(b"")
    assert main(["match", str(tmp_path)]) == 2
    assert "1 files, none with the name of a log" in capsys.readouterr().err


def test_several_logs_are_one_job_and_named_in_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.log", tmp_path / "b.log"]
    for path, text in zip(paths, ["nothing\n", HEADER + KNOWN], strict=True):
        path.write_text(text)
    assert main(["match", *map(str, paths), "--json"]) == 0
    (item,) = items_of(capsys.readouterr().out, "match")
    assert (item["log"], item["line"]) == (str(paths[1]), 2)


def test_kind_without_an_answer_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = '  File "/x/site-packages/megatron/core/a.py", line 5, in f\n'
    (tmp_path / "a.log").write_text(f"{HEADER}{frame}RuntimeError: CUDA error: device-side assert triggered\n")
    assert main(["match", str(tmp_path / "a.log")]) == 1
    assert "KIND device-assert" in capsys.readouterr().out
