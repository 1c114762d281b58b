"""`megatrix match` on the command line."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ask.check.kind_answer import answer
from matrix.cli.main import main
from matrix.cli.match import SHOWN, render, sort_of, to_look_for
from matrix.ground.catalog.kinds import kind_table
from matrix.ground.verdicts.crash import NativeCrash
from matrix.ground.verdicts.kind_match import VersionsSeen
from matrix.ground.verdicts.log_match import LogFault, Reading, match
from matrix.ground.verdicts.outcome import Frame, Raised
from tests.founding import BEHIND_MPI
from tests.schemas import items_of
from tests.unit.catalogs import real
from tests.unit.logs import PEER, SUMMARY
from tests.unit.terminals import piped

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


def test_history_of_torch_is_by_its_releases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No commit of PyTorch is known: its repository is too large to be fetched."""
    frame = '  File "/site-packages/torch/distributed/checkpoint/filesystem.py", line 9, in read_data\n'
    (tmp_path / "log").write_text(f"{HEADER}{frame}KeyError: 1\n")
    main(["match", str(tmp_path / "log")])
    assert "history of pytorch/pytorch by its releases, up to 20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "has_history"), [("OutOfMemoryError: CUDA out of memory", False), ("KeyError: 1", True)]
)
def test_memory_has_no_history(
    error: str, has_history: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A function that asks for memory is not what filled the GPU."""
    frame = '  File "/opt/Megatron-LM/megatron/core/pipeline_parallel/schedules.py", line 9, in backward_step\n'
    (tmp_path / "log").write_text(f"{HEADER}{frame}{error}\n")
    main(["match", str(tmp_path / "log")])
    assert ("history of NVIDIA/Megatron-LM" in capsys.readouterr().out) == has_history


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


def test_log_of_one_line_is_this_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text("step 1\n")
    assert main(["match", str(tmp_path / "train.log")]) == 1
    assert capsys.readouterr().out.startswith("nothing that the catalog knows is in this line\n")


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


def read(log: str) -> Reading:
    return match([log], real().failures)


def test_log_of_consequences_names_the_first_rank() -> None:
    answer = piped(*render(read(PEER + SUMMARY)))
    assert "nothing that the catalog knows" in answer
    assert "the cause is not in this log: look into the one of rank 0" in answer


def test_rendered_log_text_is_sanitised_and_masked() -> None:
    log = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: \x07 HF_TOKEN=hunter2-secret\n'
    answer = piped(*render(read(log)))
    assert "hunter2" not in answer
    assert "\x07" not in answer


def test_further_errors_are_counted() -> None:
    faults = tuple(LogFault(line, f"KeyError: {line}") for line in range(1, SHOWN + 3))
    lines = piped(*render(Reading((), faults, (), 9))).splitlines()
    assert lines[2] == "errors in this log:"
    assert lines[3 + SHOWN] == "  and 2 more"


def test_likely_failure_states_what_to_look_for() -> None:
    error = "RuntimeError: DataLoader worker (pid 1) is killed by signal: Killed\n"
    log = f"python pretrain_gpt.py --seq-length $LENGTH\n{error}"
    (sighting,) = read(log).known
    option = "without --no-create-attention-mask-in-dataloader"
    assert to_look_for(sighting) == [
        "the traceback",
        f"a command with --seq-length >= 131072 {option}",
        f"a command with --seq-length >= 32768 {option}, and the host lacks 8*S^2 bytes for each worker",
    ]
    (confirmed,) = read(log.replace("$LENGTH", "131072")).known
    assert to_look_for(confirmed) == ["the traceback"]
    assert "options: the job has --seq-length >= 131072, which reaches it" in " ".join(
        piped(*render(read(log.replace("$LENGTH", "131072")))).split()
    )
    assert "look for: the traceback" in " ".join(piped(*render(read(log))).split())
    bare = replace(sighting, lacks="", failure=replace(sighting.failure, reached_by=()))
    assert to_look_for(bare) == ["a stack that it breaks with"]


def test_certain_failure_needs_no_search() -> None:
    frames = '  File "/x/megatron/core/model.py", line 1, in f\n'
    error = "TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'\n"
    answer = piped(*render(read(f"Traceback (most recent call last):\n{frames}{error}")))
    assert answer.startswith(f"known: {BEHIND_MPI}\n\n{BEHIND_MPI}: ")
    assert "look for:" not in answer


FRAME = Frame("/x/megatron/core/a.py", 3, "forward")
ELSEWHERE = Frame("/x/b.py", 3, "main")


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        (LogFault(1, "", raised=Raised("KeyError", "", (FRAME,)), frame=FRAME), "raised in Megatron's stack"),
        (LogFault(1, "", raised=Raised("KeyError", "", (ELSEWHERE,))), "raised outside of Megatron's stack"),
        (LogFault(1, "", raised=Raised("KeyError", "")), "without traceback"),
        (LogFault(1, ""), "ends within a traceback"),
        (LogFault(1, "", crash=NativeCrash("SIGKILL", None, "torchrun")), "memory or time"),
        (LogFault(1, "", crash=NativeCrash("SIGSEGV", None, "ucx")), "a native crash"),
        (LogFault(1, "", crash=NativeCrash(None, 1, "torchrun")), "without an error message"),
    ],
)
def test_sort_of_an_unknown_fault(fault: LogFault, part: str) -> None:
    assert part in sort_of(fault)


@pytest.mark.parametrize(("error", "contract"), [("TypeError: f() takes 1", True), ("KeyError: 'a'", False)])
def test_unknown_fault_has_the_next_commands(error: str, contract: bool) -> None:
    log = f'Traceback (most recent call last):\n  File "{FRAME.file}", line 3, in forward\n{error}\n'
    lines = piped(*render(read(log), log="my log")).splitlines()
    assert "  look at: forward, /x/megatron/core/a.py:3" in lines
    assert any(line.startswith("  $ megatrix contract --consumer") for line in lines) is contract
    assert lines[-1] == "  $ megatrix catalog new ID --from 'my log'"


@pytest.mark.parametrize(
    ("files", "axis"),
    [
        (("/opt/megatron-lm/megatron/core/a.py",), "mcore"),
        (("/opt/megatron-lm/pretrain_gpt.py",), "mcore"),
        (("/x/megatron/core/a.py", "/venv/site-packages/transformer_engine/pytorch/b.py"), "te"),
        (("/x/megatron/core/a.py", "/venv/site-packages/torch/nn/b.py"), "mcore"),
        (("/x/megatron/core/a.py", "/opt/Megatron-Bridge/src/megatron/bridge/training/gpt_step.py"), ""),
        (("/x/megatron/core/a.py", "/opt/nemo-rl/nemo_rl/models/megatron/common.py"), ""),
        (("/tmp/pip-build-env-x/setup.py",), ""),
        ((), ""),
    ],
)
def test_bisection_is_of_the_innermost_program(files: Sequence[str], axis: str) -> None:
    frames = "".join(f'  File "{file}", line 3, in f\n' for file in files)
    log = f"{HEADER * bool(files)}{frames}KeyError: 'a'\n"
    text = piped(*render(match([log], (), kind_table())))
    bisections = [line.split()[4] for line in text.splitlines() if "megatrix bisect" in line]
    assert bisections == ([axis] if axis else [])


@pytest.mark.parametrize(
    ("file", "axis"),
    [("/x/transformer_engine/a.py", ["te"]), ("/x/megatron/core/a.py", ["mcore"]), ("/x/megatron/bridge/a.py", [])],
)
def test_bisection_of_a_refusal_is_of_its_check(file: str, axis: list[str]) -> None:
    log = f'{HEADER}  File "{file}", line 3, in f\nAssertionError: no such combination\n'
    (refusal,) = match([log], (), kind_table()).kinds
    commands = answer(refusal, kind_table(), VersionsSeen()).commands
    assert [command.split()[3] for command in commands if "bisect" in command] == axis


def test_kind_has_its_answer_and_no_second_line() -> None:
    log = (
        f'Traceback (most recent call last):\n  File "{FRAME.file}", line 3, in f\nImportError: No module named apex\n'
    )
    reading = match([log], real().failures, kind_table())
    answers = [answer(sighting, kind_table(), reading.versions) for sighting in reading.kinds]
    text = piped(*render(reading, answers))
    assert "KIND module-missing: a module is missing" in text
    assert "answer:  apex belongs to APEX" in text
    assert "errors" not in text


def test_next_commands_only_where_nothing_is_known() -> None:
    frames = 'Traceback (most recent call last):\n  File "/x/megatron/core/a.py", line 3, in f\n'
    known_failure = f"{frames}TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'\n"
    text = piped(*render(read(f"{known_failure}{frames}KeyError: 'a'\n")))
    assert "NOT IN THE CATALOG" in text
    assert "sort:" not in text


def test_several_logs_are_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


JOB = "+ torchrun --nproc_per_node 4 pretrain_gpt.py --tensor-model-parallel-size 2 --seq-length 2048\n"
STEP = (
    '  File "/opt/Megatron-LM/megatron/core/pipeline_parallel/schedules.py", line 7, in forward_step\n    step(model)\n'
)
SCRIPT = '  File "/data/bakery/oven.py", line 3, in bake\n    heat(dough)\n'


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        ("ModuleNotFoundError: No module named 'bakery_tools'", []),
        ("ImportError: cannot import name 'knead' from 'bakery' (/data/bakery/__init__.py)", []),
        ("AttributeError: module 'bakery' has no attribute 'RECIPE'", []),
        ("TypeError: heat() got an unexpected keyword argument 'max_degrees'", []),
        ("TypeError: Oven.__init__() missing 1 required positional argument: 'racks'", []),
        ("AttributeError: 'MegatronOvenWorker' object has no attribute 'racks'", []),
        ("ModuleNotFoundError: No module named 'megatron.core.no_such'", ["module-missing"]),
        ("TypeError: GPTModel.__init__() got an unexpected keyword argument 'no_such'", ["unexpected-keyword"]),
        ("AttributeError: module 'transformer_engine.pytorch' has no attribute 'no_such'", ["name-missing"]),
    ],
)
@pytest.mark.parametrize("frames", [SCRIPT, STEP + SCRIPT])
def test_own_names_of_a_program_are_no_kind(
    error: str, kinds: list[str], frames: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.log"
    path.write_text(JOB + HEADER + frames + error + "\n")
    main(["match", str(path), "--json"])
    assert [kind["kind"] for kind in json.loads(capsys.readouterr().out)["kinds"]] == kinds
