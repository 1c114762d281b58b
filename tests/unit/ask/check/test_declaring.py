"""What files, images and a text declare becomes one stack; the user's own statements replace those of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ask.check.declaring import command_jobs, declared_stack, inputs, is_file, read, roots_of
from matrix.ask.check.files.declared import COMMAND, Declared, ImageUse, Statement, UnreadKind, UserCommand, pin
from matrix.ground.catalog.stack import ABSENT, BASE, MCORE, TE, TORCH, UNKNOWN, Place
from matrix.ground.errors import MatrixError
from tests.unit.catalogs import catalog, image

HERE = Place("requirements.txt", 4)
KNOWN = catalog(containers=(image("ngc-24.07", "2.4.0a0+3bcc3cddb5"),))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("mcore=0.8.0", False),
        ("torch", False),
        ("ngc-24.07", False),
        ("nvcr.io/nvidia/pytorch:24.07-py3", False),
        ("Dockerfile", True),
        ("train.SBATCH", True),
        ("./missing", True),
        ("/missing", True),
        ("missing.txt=1", False),
        ("x" * 1000, False),
        ("null\0", False),
    ],
)
def test_a_word_is_a_file_or_a_stack(word: str, expected: bool) -> None:
    assert is_file(word) is expected


def test_an_existing_path_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a=b").touch()
    assert is_file(str(tmp_path / "a=b"))


def test_files_are_read_as_one(tmp_path: Path) -> None:
    for name, text in (("a.txt", "torch==2.4.1\n"), ("b.txt", "numpy==1.26.4\n")):
        (tmp_path / name).write_text(text)
    assert [pin.name for pin in read([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]).pins] == ["torch", "numpy"]
    with pytest.raises(MatrixError, match="the file can't be read"):
        read([str(tmp_path / "absent.txt")])


def test_file_that_can_not_be_read_is_unread(tmp_path: Path) -> None:
    path = tmp_path / "uv.lock"
    path.write_text("[[")
    (item,) = read([str(path)]).unread
    assert (item.kind, str(item.place), item.text.partition(":")[0]) == (UnreadKind.FILE, str(path), "not TOML")


def test_a_script_of_a_command_is_read(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("torchrun pretrain_gpt.py --num-layers 2\n")
    (job,) = command_jobs(["/bin/bash", "-e", str(script), "more"], {})
    assert job.place == Place(str(script), 1)
    assert command_jobs([], {}) == ()
    for words in (["bash"], ["bash", str(tmp_path)], ["python", str(script)], [str(script)]):
        assert [job.place for job in command_jobs(words, {})] == [COMMAND]


@pytest.mark.parametrize(
    ("included", "roots"),
    [
        ({"a": "", "b": ""}, "a b"),
        ({"a": "b", "b": ""}, "a"),
        ({"b": "", "a": "b"}, "a"),
        ({"a": "b", "b": "a"}, "a"),
        ({"a": "b c", "b": "c", "c": ""}, "a"),
        ({"c": "", "b": "c", "a": ""}, "b a"),
        ({"a": "a"}, "a"),
    ],
)
def test_file_that_another_includes_is_no_root(included: dict[str, str], roots: str) -> None:
    files = {
        path: Declared(files=tuple(str(Path(name).resolve()) for name in names.split()))
        for path, names in included.items()
    }
    assert roots_of(files) == roots.split()


@pytest.mark.parametrize(
    ("version", "limits", "value"), [("2.4.1", "", "2.4.1"), ("latest", "", UNKNOWN), ("", ">=2.4,<2.6", UNKNOWN)]
)
def test_a_pin_states_a_version_or_limits(version: str, limits: str, value: object) -> None:
    stack, _ = declared_stack(KNOWN, Declared((pin("torch", version, HERE, limits),)))
    assert stack.stack[TORCH] == value
    assert list(stack.limits.values()) == ([limits] if value is UNKNOWN else [])


def test_parts_beside_an_engine_do_not_count() -> None:
    engine, part = pin("transformer-engine", "1.9.0", HERE), pin("transformer-engine-cu12", "1.8.0", HERE)
    for pins, version in (((engine, part), "1.9.0"), ((part, engine), "1.9.0"), ((part,), "1.8.0")):
        assert declared_stack(KNOWN, Declared(pins))[0].stack[TE] == version


def test_statements_replace_those_of_files() -> None:
    declared = Declared((pin("torch", "2.4.1", HERE),))
    stack, _ = declared_stack(KNOWN, declared, [Statement(TORCH, "2.5.1", Place("command line"))])
    assert stack.stack[TORCH] == "2.5.1"


def test_a_lock_file_leaves_nothing_open() -> None:
    """Unless an image is below it: that has packages of its own."""
    lock = Declared((pin("numpy", "1.26.4", HERE),), complete=True)
    over_image = lock + Declared(images=(ImageUse("registry/ngc-24.07", HERE),))
    assert declared_stack(KNOWN, lock)[0].stack[MCORE] is ABSENT
    stack, _ = declared_stack(KNOWN, over_image)
    assert (stack.stack[MCORE], stack.stack[BASE]) == (UNKNOWN, "ngc-24.07")
    over_unknown = lock + Declared(images=(ImageUse("registry/of-mine", HERE),))
    assert declared_stack(KNOWN, over_unknown)[0].stack[MCORE] is UNKNOWN


def test_notes_and_jobs_of_files_are_kept() -> None:
    command = UserCommand(("torchrun", "pretrain_gpt.py", "--num-layers", "2"), HERE)
    stack, jobs = declared_stack(KNOWN, Declared(commands=(command,), notes=("requirements.txt:3: not read",)))
    assert "requirements.txt:3: not read" in stack.notes
    assert len(jobs) == 1


COMPOSE = """services:
  train: {image: nvcr.io/nvidia/pytorch:24.07-py3, command: torchrun train.py}
  serve: {image: "pytorch/pytorch:2.9.1", command: python serve.py}
"""


@pytest.mark.parametrize(
    ("as_one", "torches"), [(False, ["2.4.0a0+3bcc3cddb5", "2.9.1"]), (True, ["2.9.1"])], ids=["each", "as one"]
)
def test_each_image_of_a_file_is_a_stack(tmp_path: Path, as_one: bool, torches: list[str]) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE)
    checked = inputs(KNOWN, [str(path)], as_one=as_one)
    assert [item.stack.stack[TORCH] for item in checked] == torches
    assert {item.files for item in checked} == {(str(path),)}


@pytest.mark.parametrize(
    ("dockerfile", "requirements", "stacks"),
    [
        ("FROM x:1\n", "megatron-core==0.9.0\n", 1),
        ("FROM x:1\nRUN pip install torch==2.4.0\n", "megatron-core==0.9.0\n", 1),
        ("FROM x:1\nRUN pip install torch==2.4.0\n", "torch==2.5.0\n", 2),  # they contradict each other
        ("FROM x:1\n", "-r missing.txt\n", 1),
    ],
)
def test_complementary_files_are_one_stack(dockerfile: str, requirements: str, stacks: int, tmp_path: Path) -> None:
    paths = [tmp_path / "Dockerfile", tmp_path / "requirements.txt"]
    for path, text in zip(paths, (dockerfile, requirements), strict=True):
        path.write_text(text)
    found = inputs(catalog(), [str(path) for path in paths])
    assert len(found) == stacks
    assert any("complete each other" in note for one in found for note in one.stack.notes) == (stacks == 1)


def test_two_files_with_images_stay_apart(tmp_path: Path) -> None:
    for name in ("a.Dockerfile", "b.Dockerfile"):
        (tmp_path / name).write_text("FROM x:1\n")
    assert len(inputs(catalog(), [str(path) for path in tmp_path.iterdir()])) == 2


@pytest.mark.parametrize(
    ("line", "is_absent"),
    [("pip install $WHEEL", False), ("pip install numpy==1.26.4", True), ("echo done", True)],
)
def test_removed_package_may_be_installed_again(line: str, is_absent: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text(f"#!/bin/bash\npip uninstall -y transformer-engine\n{line}\n")
    (one,) = inputs(catalog(), [str(path)])
    assert one.stack.stack[TE] is (ABSENT if is_absent else UNKNOWN)
    assert any("whether another one is installed" in item.text for item in one.stack.unread) == (not is_absent)
