"""The ranks of the logs in a folder."""

from __future__ import annotations

import pytest

from matrix.ground.verdicts.rank_logs import is_log, rank_logs


@pytest.mark.parametrize(
    ("paths", "ranks"),
    [
        # torchrun --log-dir: the last attempt counts; both streams are of one rank
        (
            ["r_x/attempt_0/0/stderr.log", "r_x/attempt_1/0/stderr.log", "r_x/attempt_1/0/stdout.log"],
            {"r_x/attempt_1/0/stderr.log": "0", "r_x/attempt_1/0/stdout.log": "0"},
        ),
        # of two nodes: local ranks are no ranks
        (
            ["a/attempt_0/0/stderr.log", "b/attempt_0/0/stderr.log"],
            {"a/attempt_0/0/stderr.log": "a/0", "b/attempt_0/0/stderr.log": "b/0"},
        ),
        # Slurm's %j-%t, %j.%N.%t with nodes 12 and 13, and more than nine ranks
        (["slurm-77-0.out", "slurm-77-1.out"], {"slurm-77-0.out": "0", "slurm-77-1.out": "1"}),
        (["77.n12.0.out", "77.n13.1.out"], {"77.n12.0.out": "0", "77.n13.1.out": "1"}),
        ([f"t.{n}" for n in (0, 1, 10, *range(2, 10))], {f"t.{n}": str(n) for n in range(11)}),
        (["rank_3.log", "rank_0007.log.gz"], {"rank_3.log": "3", "rank_0007.log.gz": "7"}),
        (["node12.log", "node15.log"], {"node12.log": "node12.log", "node15.log": "node15.log"}),
        (["train.log", "job-12.out"], {"job-12.out": "", "train.log": ""}),
        ([], {}),
    ],
)
def test_rank_of_a_log_by_its_path(paths: list[str], ranks: dict[str, str]) -> None:
    assert {log.path: log.rank for log in rank_logs(paths)} == ranks


def test_logs_are_ordered_by_rank() -> None:
    assert [log.rank for log in rank_logs(["rank10.log", "main.log", "rank2.log"])] == ["2", "10", ""]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/3/stderr.log", True),
        ("slurm-1.out", True),
        ("x.txt.gz", True),
        ("job.o123", True),
        ("train.7", True),
        ("0/rank0.stacks", True),
        ("LOG", True),
        ("iter_10/mp_rank_00/model_optim_rng.pt", False),
        ("shards/__0_0.distcp", False),
        ("nccl_trace_rank_0.pkl", False),
        (".hidden", False),
        ("a/.log", False),
    ],
)
def test_checkpoints_beside_logs_are_no_logs(path: str, expected: bool) -> None:
    assert is_log(path) == expected
