"""What the mask takes of a host: the figures of the reports, and the longest sequence that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.check.memory import Limit, Loading, count, longest, need, shown, size, without_mask
from matrix.errors import MatrixError

GIB = 2**30
REPORT = Loading(sequence=131072, workers=2, ranks=4)  # Megatron-LM#1025: 4 GPUs, context parallel size 4

loadings = st.builds(Loading, st.integers(1, 10**7), st.integers(0, 64), st.integers(1, 16), st.integers(1, 8))
sizes = st.integers(1, 2**50)


def test_the_report_needs_a_tebibyte_for_its_first_samples() -> None:
    needs = need(REPORT)
    assert (needs.worker, needs.first, needs.shm) == (128 * GIB, 1024 * GIB, 4 * 80 * GIB)


def test_half_the_length_needs_a_quarter() -> None:
    """Why 65536 worked for the reporter."""
    needs = need(replace(REPORT, sequence=65536))
    assert (needs.worker, needs.first, needs.shm) == (32 * GIB, 256 * GIB, 4 * 20 * GIB)


def test_without_workers_the_rank_makes_its_samples_and_shm_is_not_used() -> None:
    needs = need(replace(REPORT, workers=0))
    assert (needs.first, needs.shm) == (512 * GIB, 0)


def test_large_micro_batches_weigh_more_than_the_first_samples() -> None:
    needs = need(replace(REPORT, micro_batch=8))
    assert needs.host == needs.steady > needs.first


@given(loadings)
def test_without_a_mask_long_sequences_need_less(loading: Loading) -> None:
    long = replace(loading, sequence=max(loading.sequence, 1024))
    assert without_mask(long).host < need(long).host


@given(loadings, sizes, sizes)
def test_the_longest_fits_and_one_token_more_does_not(loading: Loading, host: int, shm: int) -> None:
    limit = longest(loading, host, shm)
    assert limit is not None

    def fits(sequence: int) -> bool:
        needs = need(replace(loading, sequence=sequence))
        return needs.host <= host and needs.shm <= shm

    assert limit.sequence == 0 or fits(limit.sequence)
    assert not fits(limit.sequence + 1)


@given(loadings, sizes, sizes)
def test_the_limit_names_the_resource_that_is_short(loading: Loading, host: int, shm: int) -> None:
    limit = longest(loading, host, shm)
    assert limit is not None
    needs = need(replace(loading, sequence=limit.sequence + 1))
    assert needs.host > host if limit.resource == "host memory" else needs.shm > shm


def test_of_a_host_that_is_not_told_nothing_is_said() -> None:
    assert longest(REPORT, None, None) is None
    assert longest(REPORT, None, 64 * GIB) == Limit(58617, "/dev/shm")
    assert longest(replace(REPORT, workers=0), None, 64 * GIB) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("880G", 880 * GIB), ("1.5T", 1536 * GIB), ("64MiB", 64 * 2**20), ("64mb", 64 * 2**20), (" 4K", 4096)],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert size(text, "--shm") == expected


@pytest.mark.parametrize("text", ["880", "880X", "G", "-1G", "0G", "", "1e3G", "880 G B", "nan", "0.0000001K"])
def test_a_size_without_its_unit_or_sense_is_refused(text: str) -> None:
    with pytest.raises(MatrixError, match="880G") as refused:
        size(text, "--host-memory")
    assert refused.value.where == "--host-memory"


@pytest.mark.parametrize("text", ["128k", "2.5", "-1", "", "many"])
def test_a_count_is_a_whole_number(text: str) -> None:
    with pytest.raises(MatrixError, match="a whole number"):
        count(text, "--seq-length")


def test_a_length_in_thousands_is_explained() -> None:
    with pytest.raises(MatrixError, match="131072 for 128k"):
        count("128k", "--seq-length")


@pytest.mark.parametrize(("name", "value"), [("sequence", 0), ("workers", -1), ("ranks", 0), ("micro_batch", 0)])
def test_a_loading_that_cannot_be_is_refused(name: str, value: int) -> None:
    with pytest.raises(MatrixError, match=name):
        replace(REPORT, **{name: value})


@pytest.mark.parametrize(
    ("bytes_", "expected"), [(1, "1 B"), (1536, "1.5 KiB"), (128 * GIB, "128 GiB"), (2**41, "2 TiB")]
)
def test_sizes_are_shown_as_people_read_them(bytes_: int, expected: str) -> None:
    assert shown(bytes_) == expected
