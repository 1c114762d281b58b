"""Training commands: their launcher, their size, and which commands train."""

from __future__ import annotations

import pytest

from matrix.ask.check.files.declared import UserCommand
from matrix.ask.check.files.shell import read_script
from matrix.ask.check.training_job import is_training, job_of
from matrix.ground.catalog.stack import Place


def command(text: str, **environ: str) -> UserCommand:
    return UserCommand(tuple(text.split()), Place("job.sh", 3), environ)


@pytest.mark.parametrize(
    ("text", "launcher", "size", "mpi", "per_host"),
    [
        ("torchrun --nproc_per_node 8 a.py", "torchrun", 8, 1, 8),
        ("torchrun --nnodes=4 --nproc-per-node=8 a.py", "torchrun", 32, 1, 8),
        ("torchrun a.py", "torchrun", 2, 1, None),
        ("python -m torch.distributed.run --nproc_per_node 4 a.py", "torchrun", 4, 1, 4),
        ("mpirun -np 16 python a.py", "mpirun", 16, 16, 16),
        ("srun -N 2 --ntasks-per-node=8 python a.py", "srun", 16, None, 8),
        ("srun --mpi=pmix torchrun --nproc_per_node 8 a.py", "torchrun", 8, 1, 8),
        ("torchrun --nproc_per_node $GPUS a.py", "torchrun", 2, 1, None),
        ("python a.py", "no launcher", None, 1, None),
    ],
)
def test_launcher_and_size_come_from_the_words(
    text: str, launcher: str, size: int | None, mpi: int | None, per_host: int | None
) -> None:
    """A size of 2 stands for an unknown one."""
    found = job_of(command(text))
    assert (found.world.launcher.value, found.world.size, found.world.mpi) == (launcher, size, mpi)
    assert (found.per_host, str(found.place)) == (per_host, "job.sh:3")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("torchrun --nproc_per_node 8 a.py", 8),
        ("torchrun --nproc_per_node ${GPU_PER_NODE} a.py", None),
        ("torchrun --nproc_per_node=8 --nnodes=${NNODES} a.py", None),
        ("torchrun --nproc_per_node 8 --nnodes 1:4 a.py", None),
        ("torchrun a.py", None),
        ("srun --ntasks-per-node=8 -N $NODES python a.py", None),
        ("srun --ntasks-per-node=8 -N2 python a.py", 16),
        ("mpirun python a.py", None),
        ("python a.py", None),
    ],
)
def test_number_that_is_not_stated_is_unknown(text: str, size: int | None) -> None:
    assert job_of(command(text)).to_json()["processes"] == size


@pytest.mark.parametrize(
    ("directives", "options", "size", "mpi", "per_host"),
    [
        ("-N 4 --ntasks-per-node=8", "", 32, None, 8),
        ("--nodes=4 --ntasks-per-node=8", "--mpi=pmix", 32, 32, 8),
        ("--nodes 2 --ntasks 8", "", 8, None, 4),
        ("--nodes=4 --ntasks-per-node=8", "-N1 -n 2", 2, None, 2),
        ("--nodes=4", "", 2, None, None),
    ],
)
def test_srun_starts_what_sbatch_requests(
    directives: str, options: str, size: int, mpi: int | None, per_host: int | None
) -> None:
    text = f"#!/bin/bash\n#SBATCH {directives}\nsrun {options} python pretrain_gpt.py\n"
    (started,) = read_script(text, "job.sh", lambda _: None).commands
    found = job_of(started)
    assert (found.world.size, found.world.mpi, found.per_host) == (size, mpi, per_host)


@pytest.mark.parametrize(
    ("text", "trains"),
    [
        ("torchrun pretrain_gpt.py", True),
        ("python run.py --num-layers 2", True),
        ("settings --seq-length 8", True),
        ("python setup.py install", False),
        ("python -m pytest tests", False),
        ("python tools/preprocess.py --input x", False),
    ],
)
def test_training_command_is_recognised(text: str, trains: bool) -> None:
    assert is_training(command(text)) is trains
