"""Shell scripts and sbatch files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.check.files.declared import Declared
from matrix.check.files.shell import LONGEST, read_script


def read(text: str) -> Declared:
    return read_script(text, "job.sh", lambda _: None)


def commands(text: str) -> list[tuple[str, ...]]:
    return [one.words for one in read(text).commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torchrun a.py --x 1", ("torchrun", "a.py", "--x", "1")),
        ("torchrun \\\n  a.py \\\n  --x 1 # why", ("torchrun", "a.py", "--x", "1")),
        ("X=1\ntorchrun a.py --x $X", ("torchrun", "a.py", "--x", "1")),
        ("torchrun a.py --x ${X:-7}", ("torchrun", "a.py", "--x", "7")),
        (': "${X:=7}"\ntorchrun a.py --x $X', ("torchrun", "a.py", "--x", "7")),
        ("T=8\ntorchrun a.py --x ${X:-a${T}b}", ("torchrun", "a.py", "--x", "a8b")),
        ("#SBATCH --nodes=4 # four\ntorchrun a.py --x $SLURM_NNODES", ("torchrun", "a.py", "--x", "4")),
        ("#SBATCH -N 4\ntorchrun a.py --x $SLURM_JOB_NUM_NODES", ("torchrun", "a.py", "--x", "4")),
        ("torchrun a.py --x $X", ("torchrun", "a.py", "--x", "$X")),
        ('case "$1" in\n --x) X="$2"; shift 2 ;;\nesac\ntorchrun a.py --x ${X:-7}', ("torchrun", "a.py", "--x", "7")),
        ('A="--x 1\n--y"\ntorchrun a.py $A', ("torchrun", "a.py", "--x", "1", "--y")),
        ('A="--x 1"\ntorchrun a.py "$A"', ("torchrun", "a.py", "--x 1")),
        ("A=(--x 1\n  --y) # c\ntorchrun a.py ${A[@]}", ("torchrun", "a.py", "--x", "1", "--y")),
        ('A=(--x "1 2")\nA+=(--y)\ntorchrun a.py "${A[@]}"', ("torchrun", "a.py", "--x", "1 2", "--y")),
        ('A=(--x 1)\nbash -c "torchrun a.py ${A[@]}"', ("torchrun", "a.py", "--x", "1")),
        ("A=--x\nA+=y\ntorchrun a.py $A", ("torchrun", "a.py", "--xy")),
        ("torchrun a.py '$X'", ("torchrun", "a.py", "$X")),
        ("torchrun a.py --p $(ls 'a)b' | head) 2>&1 | tee log", ("torchrun", "a.py", "--p", "$(ls 'a)b' | head)")),
        ("if [ $A = 1 ]; then torchrun a.py; fi", ("torchrun", "a.py")),
        ("time torchrun a.py > log 2> err &", ("torchrun", "a.py")),
        ("cat <<EOF\npython b.py\nEOF\ntorchrun a.py", ("torchrun", "a.py")),
        ("srun --mpi=pmix bash -c 'python a.py --x'", ("srun", "--mpi=pmix", "python", "a.py", "--x")),
        ("echo 'unterminated\ntorchrun a.py", ("torchrun", "a.py")),
    ],
)
def test_command_is_expanded(text: str, expected: tuple[str, ...]) -> None:
    assert commands(text) == [expected]


def test_environment_of_a_command_has_exports() -> None:
    text = "A=1\nexport B=2 C\nexport A\nD=3 torchrun a.py\ntorchrun b.py"
    assert [dict(one.environ) for one in read(text).commands] == [{"A": "1", "B": "2", "D": "3"}, {"A": "1", "B": "2"}]


def test_images_come_from_directives_and_options() -> None:
    text = (
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --container-image=nvcr.io#nvidia/pytorch:24.07-py3\n"
        "srun --container-image ${I:-a.sqsh} python a.py\ndocker run --gpus all nvcr.io/nvidia/nemo:24.07 bash\n"
    )
    assert [(one.reference, str(one.place)) for one in read(text).images] == [
        ("nvcr.io#nvidia/pytorch:24.07-py3", "job.sh:3"),
        ("a.sqsh", "job.sh:4"),
        ("nvcr.io/nvidia/nemo:24.07", "job.sh:5"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "pip install -q megatron-core==0.8.0",
        "python -m pip install --no-deps 'megatron-core==0.8.0'",
        "uv pip install megatron-core==0.8.0 && echo done",
        "git clone -b core_v0.8.0 https://github.com/NVIDIA/Megatron-LM.git",
        "git clone https://github.com/NVIDIA/Megatron-LM\ncd Megatron-LM\ngit checkout core_v0.8.0",
    ],
)
def test_installed_packages_are_pins(line: str) -> None:
    assert [(one.name, one.version) for one in read(line).pins] == [("megatron-core", "0.8.0")]


def test_doubling_variable_stays_bounded() -> None:
    found = commands("A=ab\n" + 'A="$A$A"\n' * 100 + 'torchrun "$A"')
    assert len(found[0][1]) <= LONGEST


def test_deeply_nested_shells_end() -> None:
    commands("A='torchrun a.py'\n" + "A=\"bash -c '$A'\"\n" * 50 + 'bash -c "$A"')


@given(st.text(alphabet="ab$(){}[]'\"`\\ \n;&|<>=#@-", max_size=200))
def test_any_text_is_read(text: str) -> None:
    read(text)
