"""Shell scripts and sbatch files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ask.check.files.declared import Declared
from matrix.ask.check.files.shell import LONGEST, read_definition, read_script


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
        ('X=${X:-"7"}\ntorchrun a.py --x $X', ("torchrun", "a.py", "--x", "7")),
        ("torchrun a.py --x \"${X:-'7 8'}\"", ("torchrun", "a.py", "--x", "7 8")),
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
    assert [(one.name, one.version) for one in read(line).pins[-1:]] == [("megatron-core", "0.8.0")]


def test_doubling_variable_stays_bounded() -> None:
    found = commands("A=ab\n" + 'A="$A$A"\n' * 100 + 'torchrun "$A"')
    assert len(found[0][1]) <= LONGEST


def test_deeply_nested_shells_end() -> None:
    commands("A='torchrun a.py'\n" + "A=\"bash -c '$A'\"\n" * 50 + 'bash -c "$A"')


@given(st.text(alphabet="ab$(){}[]'\"`\\ \n;&|<>=#@-", max_size=200))
def test_any_text_is_read(text: str) -> None:
    read(text)


def read_with(text: str, **files: str) -> Declared:
    names = {name.replace("_", "."): content for name, content in files.items()}
    return read_script(text, "s.sh", lambda name: (name, names[name]) if name in names else None)


@pytest.mark.parametrize(
    "line",
    [
        "bash b.sh",
        "bash -ex ./b.sh 1 2".replace("./", ""),
        "source b.sh",
        ". b.sh",
        "b.sh",
        "exec bash b.sh",
        'source "$(dirname "$0")/b.sh"',
        'HERE="$(cd "$(dirname "$0")" && pwd)"; bash "$HERE/b.sh"',
        "bash $HERE/b.sh",
        "srun -N 2 b.sh",
        "srun bash b.sh",
        "sbatch -N 2 b.sh",
        "bash <<EOF\npip install torch==2.4.1\nEOF",
        "srun --container-image=x bash -s <<'EOF'\npip install torch==2.4.1\nEOF",
    ],
)
def test_called_script_is_read(line: str) -> None:
    found = read_with(line, b_sh="pip install torch==2.4.1")
    assert ([pin.version for pin in found.pins], found.unread) == (["2.4.1"], ())


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("bash scripts/train.sh", "scripts/train.sh"),
        ("source $DIR/args.sh", "$DIR/args.sh"),
        ("srun ./train.sh", "./train.sh"),
        ("source venv/bin/activate", "environment venv"),
        ("conda activate train", "environment train"),
    ],
)
def test_script_that_is_missing_is_named(line: str, name: str) -> None:
    assert [name in unread.text for unread in read(line).unread] == [True]


@pytest.mark.parametrize(
    "line",
    [
        "source /etc/profile.d/modules.sh",
        "source ~/.bashrc",
        ". $HOME/.profile",
        "source /opt/conda/etc/profile.d/conda.sh",
        "curl -LsSf https://astral.sh/uv/0.7.2/install.sh | sh",
        "python -m venv v && source v/bin/activate",
        "cat <<EOF\nbash gone.sh\nEOF",
        "git clone https://example.org/x/y.git && cd y && bash build.sh && ./autogen.sh",
    ],
)
def test_scripts_of_the_machine_install_nothing(line: str) -> None:
    assert read(line).unread == ()


def test_sourced_script_sets_variables() -> None:
    text = "source args.sh\ntorchrun train.py ${ARGS[@]} $X"
    assert read_with(text, args_sh="ARGS=(--a 1)\nX=2").commands[0].words == ("torchrun", "train.py", "--a", "1", "2")


def test_called_script_has_exported_variables_alone() -> None:
    text = "export A=1\nB=2\nbash b.sh\ntorchrun x.py $C"
    commands = read_with(text, b_sh="C=3\ntorchrun train.py $A $B").commands
    assert [command.words[2:] for command in commands] == [("1", "$B"), ("$C",)]


def test_scripts_that_call_each_other_end() -> None:
    found = read_with("bash a.sh", a_sh="bash b.sh", b_sh="bash a.sh\npip install torch==2.4.1")
    assert [pin.version for pin in found.pins] == ["2.4.1"]


HETJOB = """#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=1
#SBATCH hetjob
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
"""


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("srun python train.py", ["1"]),
        ("srun --het-group=1 python train.py", ["4"]),
        ("srun --het-group=1 bash -c 'python train.py'", ["4"]),
        ("srun python serve.py : --het-group=1 python train.py", ["1", "4"]),
        ("srun --het-group=7 python train.py", ["1"]),
    ],
)
def test_step_runs_in_a_component(line: str, nodes: list[str]) -> None:
    assert [command.environ["SLURM_NNODES"] for command in read(HETJOB + line).commands] == nodes


def test_commands_of_one_step_are_separate() -> None:
    words = [command.words for command in read("mpirun -np 1 python a.py : -np 4 python b.py").commands]
    assert words == [("mpirun", "-np", "1", "python", "a.py"), ("mpirun", "-np", "4", "python", "b.py")]


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"])
def test_secret_of_another_file_is_masked(name: str) -> None:
    """A script may read any file of the machine, and then print what that sets."""
    script = f"source ./env\nX=${name}\npip install torch==$X\n"
    found = read_script(script, "job.sh", lambda _: ("env", f"export {name}=hunter2\n"))

    assert [one.text for one in found.unread] == ["not a requirement: torch==[masked]"]


FUNCTIONS = """
PIP() { "$VENV/bin/uv" pip install "$@"; }
function core {
  local version=${1:-0.8.0}
  if [ -n "$version" ]; then PIP megatron-core==$version; fi
}
te() {
  PIP --no-build-isolation "transformer_engine[pytorch]==$1"
}
unused() { pip install flash-attn==2.5.0; }
again() { again; }
PIP torch==2.11.0
core 0.16.0
[ "$TE" = 1 ] && te 2.10.0
again
"""


def test_functions_are_read_where_they_are_called() -> None:
    """With the words of the call; what nothing in the file calls may be called from elsewhere."""
    declared = read_script(FUNCTIONS, "install.sh", lambda _: None)
    assert [(pin.name, pin.version, pin.place.line, pin.perhaps) for pin in declared.pins] == [
        ("torch", "2.11.0", 2, False),
        ("megatron-core", "0.16.0", 2, False),
        ("transformer-engine", "2.10.0", 2, True),
        ("flash-attn", "2.5.0", 10, False),
    ]
    assert ["deep" in item.text for item in declared.unread] == [True]  # `again` calls itself


def test_function_without_a_call_is_read_once() -> None:
    text = "Bootstrap: docker\n%post\nf() { pip install torch==2.4.0; }\n%runscript\ntorchrun train.py\n"
    assert [pin.version for pin in read_definition(text, "a.def", lambda _: None).pins] == ["2.4.0"]


def test_function_of_a_sourced_file_has_its_place() -> None:
    files = {"lib.sh": "\nsetup() { pip install torch==2.4.0; }\n"}
    declared = read_script("source lib.sh\nsetup\n", "a.sh", lambda name: (name, files[name]))
    assert [str(pin.place) for pin in declared.pins] == ["lib.sh:2"]


def test_definition_of_apptainer_is_read() -> None:
    """The header names the image; %post runs when the image is made, %runscript in it."""
    text = "Bootstrap: docker\nFrom: nvcr.io/nvidia/pytorch:24.05-py3\n\n%post -c /bin/bash\n  V=0.8.0\n"
    text += "  pip install megatron-core==$V\n%files\n  pip install torch==2\n%runscript\n  torchrun train.py\n"
    declared = read_definition(text, "train.def", lambda _: None)
    assert [(pin.name, pin.version, pin.place.line) for pin in declared.pins] == [("megatron-core", "0.8.0", 6)]
    assert [(command.words, command.place.line) for command in declared.commands] == [(("torchrun", "train.py"), 10)]
    assert [(image.reference, image.place.line) for image in declared.images] == [
        ("nvcr.io/nvidia/pytorch:24.05-py3", 2)
    ]


def test_text_of_eval_is_read() -> None:
    assert [one.version for one in read('eval "pip install torch==2.4.1"').pins] == ["2.4.1"]


@pytest.mark.parametrize("line", ["echo a==1 >> r.txt", "grep -v a b.txt > r.txt"])
def test_written_requirements_are_not_known(line: str) -> None:
    found = read_script(f"{line}\npip install -r r.txt", "job.sh", {"r.txt": ("r.txt", "torch==2.4.1")}.get)
    assert [one.text for one in found.unread] == ["r.txt: a command changes it before"]
