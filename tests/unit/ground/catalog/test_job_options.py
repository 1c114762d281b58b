"""Options of a job are read from text, and declared as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ground.catalog.loading import preflight_options
from matrix.ground.catalog.reach import JobOption, OptionKind, read_options
from matrix.ground.errors import MatrixError

GIB = 2**30
OPTIONS = (
    JobOption("workers", "N", kind=OptionKind.COUNT, default="2"),
    JobOption("shm", "SIZE", kind=OptionKind.SIZE, machine="shm"),
    JobOption("te", "SOURCE"),
)
SIZE = JobOption("host-memory", "SIZE", kind=OptionKind.SIZE)
COUNT = JobOption("seq-length", "N", kind=OptionKind.COUNT, least=1)


def test_arguments_and_machine_fields_are_separated() -> None:
    given = {"shm": "1G", "te": "1.9.0", "workers": None}
    assert read_options(OPTIONS, given) == ({"workers": 2, "te": "1.9.0"}, {"shm": GIB})


def test_options_not_given_are_left_out() -> None:
    assert read_options(OPTIONS, {}) == ({"workers": 2}, {})


def test_a_name_that_is_no_option_is_refused() -> None:
    with pytest.raises(MatrixError, match="workers, shm, te"):
        read_options(OPTIONS, {"wrkers": "2"})


def test_a_value_outside_the_choices_is_refused() -> None:
    option = JobOption("backend", "NAME", choices=("nccl", "gloo"))
    assert option.read("gloo") == "gloo"
    with pytest.raises(MatrixError, match="did you mean gloo"):
        option.read("glo")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("880G", 880 * GIB), ("1.5T", 1536 * GIB), ("64MiB", 64 * 2**20), ("64mb", 64 * 2**20), (" 4K", 4096)],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert SIZE.read(text) == expected


@pytest.mark.parametrize("text", ["880", "880X", "G", "-1G", "0G", "", "1e3G", "880 G B", "nan", "0.0000001K"])
def test_a_size_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(MatrixError, match="880G") as refused:
        SIZE.read(text)
    assert refused.value.where == "--host-memory"


@pytest.mark.parametrize("text", ["128k", "2.5", "-1", "0", "", "many"])
def test_a_count_is_a_whole_number(text: str) -> None:
    with pytest.raises(MatrixError, match="a whole number, 1 or more"):
        COUNT.read(text)


def test_a_length_in_thousands_gets_a_suggestion() -> None:
    with pytest.raises(MatrixError, match="131072 for 128k"):
        COUNT.read("128k")


@pytest.mark.parametrize("digits", [16, 400, 5000])
def test_huge_number_is_refused_in_brief(digits: int) -> None:
    """A float can't hold it, and Python converts no text of more than 4300 digits."""
    for option, text in ((COUNT, "9" * digits), (SIZE, "9" * digits + "G")):
        with pytest.raises(MatrixError) as refused:
            option.read(text)
        assert len(str(refused.value)) < 300


def test_declared_options_are_read_without_code(tmp_path: Path) -> None:
    """`check` lists the options of all failures before it reads the catalog."""
    table = '[preflight]\nsubject = "a flag"\noption = [{ name = "mode", metavar = "MODE" }]\n'
    for name, text in (("with_code", table), ("without_code", table), ("without_table", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "failure.toml").write_text(text)
        if name != "without_code":
            (tmp_path / name / "preflight.py").write_text("raise RuntimeError('executed')")
    with_table, without_table = preflight_options(tmp_path)
    assert (with_table.subject, [option.name for option in with_table.option]) == ("a flag", ["mode"])
    assert without_table.option == ()


def test_a_misspelled_key_of_an_option_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a_flag").mkdir()
    (tmp_path / "a_flag" / "failure.toml").write_text('[preflight]\noption = [{ name = "mode", metavr = "MODE" }]\n')
    (tmp_path / "a_flag" / "preflight.py").touch()
    with pytest.raises(MatrixError, match="metavar"):
        preflight_options(tmp_path)


def test_options_of_all_failures_have_different_names() -> None:
    names = [option.name for preflight in preflight_options() for option in preflight.option]
    assert len(names) == len(set(names)) > 0
