"""The memory that the mask takes: the figures of the reports, and the longest sequence that fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.ground.catalog.folders import load_module

memory = load_module(Path(__file__).parent, "memory")
Loading, longest, need, without_mask = memory.Loading, memory.longest, memory.need, memory.without_mask
GIB = 2**30
REPORT = Loading(sequence=131072, workers=2, ranks=4)  # Megatron-LM#1025: 4 GPUs, context parallel size 4

loadings = st.builds(Loading, st.integers(1, 10**7), st.integers(0, 64), st.integers(1, 16), st.integers(1, 8))
sizes = st.integers(1, 2**50)


def test_the_report_needs_a_tebibyte_at_first() -> None:
    needs = need(REPORT)
    assert (needs.worker, needs.first, needs.shm) == (128 * GIB, 1024 * GIB, 4 * 80 * GIB)


def test_half_the_length_needs_a_quarter() -> None:
    """This explains why 65536 worked for the reporter."""
    needs = need(replace(REPORT, sequence=65536))
    assert (needs.worker, needs.first, needs.shm) == (32 * GIB, 256 * GIB, 4 * 20 * GIB)


def test_without_workers_no_shared_memory_is_used() -> None:
    needs = need(replace(REPORT, workers=0))
    assert (needs.first, needs.shm) == (512 * GIB, 0)


def test_large_micro_batches_exceed_the_first_samples() -> None:
    needs = need(replace(REPORT, micro_batch=8))
    assert needs.host == needs.steady > needs.first


@settings(deadline=None)
@given(loadings)
def test_without_a_mask_long_sequences_need_less(loading: Any) -> None:
    long = replace(loading, sequence=max(loading.sequence, 1024))
    assert without_mask(long).host < need(long).host


@settings(deadline=None)
@given(loadings, sizes, sizes)
def test_one_token_above_the_longest_does_not_fit(loading: Any, host: int, shm: int) -> None:
    limit = longest(loading, host, shm)
    assert limit is not None

    def fits(sequence: int) -> bool:
        needs = need(replace(loading, sequence=sequence))
        both: bool = needs.host <= host and needs.shm <= shm
        return both

    assert limit.sequence == 0 or fits(limit.sequence)
    assert not fits(limit.sequence + 1)


@settings(deadline=None)
@given(loadings, sizes, sizes)
def test_the_limit_names_the_resource_that_is_short(loading: Any, host: int, shm: int) -> None:
    limit = longest(loading, host, shm)
    assert limit is not None
    needs = need(replace(loading, sequence=limit.sequence + 1))
    assert needs.host > host if limit.resource == "host memory" else needs.shm > shm


def test_an_unknown_host_has_no_limit() -> None:
    assert longest(REPORT, None, None) is None
    assert longest(REPORT, None, 64 * GIB) == memory.Limit(58617, "/dev/shm")
    assert longest(replace(REPORT, workers=0), None, 64 * GIB) is None


@pytest.mark.parametrize(
    ("bytes_", "expected"), [(1, "1 B"), (1536, "1.5 KiB"), (128 * GIB, "128 GiB"), (2**41, "2 TiB")]
)
def test_sizes_are_shown_with_units(bytes_: int, expected: str) -> None:
    assert memory.shown(bytes_) == expected
