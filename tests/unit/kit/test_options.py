"""Options of a preflight are read from text."""

from __future__ import annotations

import pytest

from matrix.errors import MatrixError
from matrix.kit.options import Option, count, one_of, read, size

GIB = 2**30
OPTIONS = (
    Option("workers", "N", read=count(0), default="2"),
    Option("shm", "SIZE", read=size, machine="shm"),
    Option("te", "SOURCE"),
)


def test_arguments_and_machine_fields_are_separated() -> None:
    assert read(OPTIONS, {"shm": "1G", "te": "1.9.0", "workers": None}) == ({"workers": 2, "te": "1.9.0"}, {"shm": GIB})


def test_options_not_given_are_left_out() -> None:
    assert read(OPTIONS, {}) == ({"workers": 2}, {})


def test_a_name_that_is_no_option_is_refused() -> None:
    with pytest.raises(MatrixError, match="workers, shm, te"):
        read(OPTIONS, {"wrkers": "2"})


def test_a_value_outside_the_choices_is_refused() -> None:
    assert one_of("nccl", "gloo")("gloo", "--backend") == "gloo"
    with pytest.raises(MatrixError, match="did you mean gloo"):
        one_of("nccl", "gloo")("glo", "--backend")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("880G", 880 * GIB), ("1.5T", 1536 * GIB), ("64MiB", 64 * 2**20), ("64mb", 64 * 2**20), (" 4K", 4096)],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert size(text, "--shm") == expected


@pytest.mark.parametrize("text", ["880", "880X", "G", "-1G", "0G", "", "1e3G", "880 G B", "nan", "0.0000001K"])
def test_a_size_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(MatrixError, match="880G") as refused:
        size(text, "--host-memory")
    assert refused.value.where == "--host-memory"


@pytest.mark.parametrize("text", ["128k", "2.5", "-1", "0", "", "many"])
def test_a_count_is_a_whole_number(text: str) -> None:
    with pytest.raises(MatrixError, match="a whole number, 1 or more"):
        count(1)(text, "--seq-length")


def test_a_length_in_thousands_gets_a_suggestion() -> None:
    with pytest.raises(MatrixError, match="131072 for 128k"):
        count(1)("128k", "--seq-length")


@pytest.mark.parametrize("digits", [16, 400, 5000])
def test_huge_number_is_refused_in_brief(digits: int) -> None:
    """A float can't hold it, and Python converts no text of more than 4300 digits."""
    for read_text, text in ((count(1), "9" * digits), (size, "9" * digits + "G")):
        with pytest.raises(MatrixError) as refused:
            read_text(text, "--seq-length")
        assert len(str(refused.value)) < 300
